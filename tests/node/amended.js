// `node amended.js PROTO_FOLDER SITE_FOLDER SITE`: a site of a federation whose chain has amendments, and which it leaves.
//
// It asks its peers for the chain, verifies it with chain.js, opens its round key, and takes the artifact that is its
// turn in round 1 by the members and the key of that epoch. Each step that held is one line of JSON.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const chain = require("./chain");
const { KIND, Line, Own, WAIT_S, Wire, drain, refused, run, tell } = require("./client");
const protocol = require("./protocol");

const ROUND = 1;

/** What holds after each amendment of a peer, the genesis first; each one verified. */
function verifiedChain(own, federation, amendments) {
  const members = Object.fromEntries(own.roster.map((name) => [name, null]));
  const of = { federation: own.federation.toString("hex"), ca_certificate: own.ca, members, governance: "founder" };
  const states = [chain.genesis({ ...of, rounds: Number(federation.rounds) })];
  for (const { body, by } of amendments) {
    const signatures = by.map((each) => ({
      certificate_der: each.certificate_der.toString("hex"),
      signature: each.signature.toString("hex"),
    }));
    states.push(chain.extended(states.at(-1), { body: body.toString("hex"), by: signatures }));
  }
  return states;
}

/** The round key that an amendment names, out of the copies that the peer sealed to this site's certificate. */
function openedKey(own, keys, { number, tag }) {
  const { sealed } = keys.find((key) => key.number === number);
  const info = Buffer.concat([chain.KEY_LABEL, own.federation, Buffer.from(tag, "hex"), Buffer.from(own.name)]);
  const key = chain.openSealed(sealed, crypto.createPrivateKey(own.key), info);
  const data = Buffer.concat([chain.KEY_LABEL, own.federation]);
  assert.strictEqual(crypto.createHmac("sha256", key).update(data).digest("hex"), tag);
  return key;
}

/** The notice with which a site leaves. */
function notice(own) {
  const federation = own.federation.toString("hex");
  const text = chain.canonical({ federation, issued: Math.floor(Date.now() / 1000), site: own.name });
  const body = Buffer.from(text);
  const signature = crypto.sign("sha256", Buffer.concat([chain.NOTICE_LABEL, body]), own.key);
  return { body, signature, certificate_der: new crypto.X509Certificate(own.certificate).raw };
}

/** The site whose artifact is this site's in the round, by its epoch. */
function source(own, state, roundKey) {
  const members = Object.keys(state.members).sort();
  const { federation, kind } = own;
  const drawn = protocol.order({ roundKey, federation, round: ROUND, sites: members.length, kind });
  return members[drawn[members.indexOf(own.name)]];
}

/** With the epoch of the round a site serves; with another one it says that the epochs differ. */
async function take(wire, own, line, site, epoch) {
  const asked = { kind: KIND, for_round: ROUND, purpose: "PURPOSE_TRAIN", owner: site, wait_s: 0 };
  const other = await line.call("GetManifest", asked); // without an epoch: by the genesis
  tell("other epoch", { site, unavailable: other.unavailable });
  const { manifest: signed, reply } = await line.call("GetManifest", { ...asked, epoch, wait_s: WAIT_S }, WAIT_S + 5);
  assert.strictEqual(reply, "manifest");
  const manifest = protocol.openManifest(signed, {
    ca: own.ca,
    dialled: site,
    now: new Date(),
    decode: wire.decodeManifest,
  });
  const wanted = { ...asked, sha256: manifest.sha256, offset: 0 };
  tell("other epoch's bytes", { site, ...(await refused(drain(line.fetch(wanted)), "ABORTED")) });
  const content = Buffer.concat(await drain(line.fetch({ ...wanted, epoch })));
  protocol.checkArtifact(content, manifest);
  tell("taken", { site, sha256: manifest.sha256.toString("hex"), head: manifest.head?.number });
}

async function main([proto, folder, name]) {
  const wire = new Wire(proto);
  const own = new Own(folder, name);
  const federation = protocol.parseFederation(fs.readFileSync(path.join(folder, "federation.toml"), "utf8"));
  const heard = [];
  const lines = new Map(own.others.map((site) => [site, new Line(wire, own, site)]));
  let states, roundKey, head;
  for (const [site, line] of lines) {
    const first = await line.call("Hello", own.greeting({ head }));
    const { amendments, keys } = await line.call("GetAmendments", { number: 0 });
    states = verifiedChain(own, federation, amendments);
    const { number, digest } = states.at(-1);
    assert.deepStrictEqual(first.head, { number, digest: Buffer.from(digest, "hex") });
    head = first.head;
    roundKey = openedKey(own, keys, states[1]);
    const pulse = await line.call("Beat", { generation: 1, round: ROUND, phase: "gathering", progress: 0, head });
    assert.deepStrictEqual(pulse.head, head);
    heard.push(site);
    tell("verified", { site, number, digest, members: Object.keys(states[1].members).sort() });
  }
  const epoch = Buffer.from(states[1].digest, "hex"); // of round 1; the head's begins later
  const site = source(own, states[1], roundKey);
  await take(wire, own, lines.get(site), site, epoch);
  const beat = { generation: 1, round: ROUND, phase: "leaving", progress: 0, head, notice: notice(own) };
  const false_ = { ...beat.notice, signature: crypto.randomBytes(64) };
  await lines.get(heard[0]).call("Beat", { ...beat, notice: false_ });
  await lines.get(heard[1]).call("Beat", beat);
  tell("left", { false: heard[0], notice: heard[1], signature: beat.notice.signature.toString("hex") });
  for (const line of lines.values()) line.stub.close();
}

run(main);
