// `node chain.js PROTO_FOLDER`: verifies the chains, forks, orders and sealed keys of proto/vectors/chain.json.
//
// Written from section 9 of proto/README.md alone; it needs nothing but Node.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const AMENDMENT_LABEL = Buffer.from("mhfl/amendment/v1\0");
const NOTICE_LABEL = Buffer.from("mhfl/leave/v1\0");
const KEY_LABEL = Buffer.from("mhfl/round-key/v2\0");
const ORDER_LABEL = Buffer.from("mhfl/order/v1");
const MANDATORY = ["federation", "number", "previous", "from_round", "issued", "round_key_tag"];
const CHANGES = ["add", "leave", "expel", "rekey", "set", "hold", "requires", "authority", "governance"];
const SET = ["rounds", "pace", "stages", "method", "quorum", "fallback"];
const ADDRESS = /^(relay [^ ]+ )?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$/;
const ISSUED_MAX = 253402214399;
const FOUNDER = "the founder";
const STEERING = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/;

const sha256 = (bytes) => crypto.createHash("sha256").update(bytes).digest("hex");
const hmac = (key, ...parts) => crypto.createHmac("sha256", key).update(Buffer.concat(parts)).digest();
const unhex = (text) => Buffer.from(text, "hex");

const isTime = (value) => Number.isInteger(value) && 0 <= value && value <= ISSUED_MAX;

function refuseUnless(holds, reason) {
  if (!holds) throw new Error(reason);
}

/** The canonical text of what JSON.parse returns, with every number as JSON.stringify writes it. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item)).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const keys = Object.keys(value).sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

/** Whether a text in a value, or a key of its tables, has a character that steers a terminal. */
function steers(value) {
  if (typeof value === "string") return STEERING.test(value);
  if (value === null || typeof value !== "object") return false;
  return [...Object.keys(value), ...Object.values(value)].some((each) => steers(each));
}

/** A body without its floats' fractions: JSON.parse tells 30.0 from 30 no more. */
const withoutFractions = (text) => text.replace(/(\d)\.0(?=[,}\]])/g, "$1");

function parseBody(body) {
  const text = body.toString("utf8");
  const value = JSON.parse(text);
  refuseUnless(canonical(value) === withoutFractions(text), "it is not canonical JSON");
  return value;
}

/** The site whose certificate this is, and its key, if the CA issued it and the key is the pinned one. */
function signer(der, ca, members) {
  const [certificate, authority] = [new crypto.X509Certificate(der), new crypto.X509Certificate(ca)];
  refuseUnless(certificate.checkIssued(authority) && certificate.verify(authority.publicKey), "it is not the CA's");
  const name = certificate.subjectAltName.replace("DNS:", "");
  refuseUnless(name in members, `${name} is no member`);
  const spki = certificate.publicKey.export({ type: "spki", format: "der" });
  refuseUnless(members[name] === null || members[name] === sha256(spki), `${name} has another key`);
  return { name, key: certificate.publicKey };
}

function verifies(label, { body, signature }, key) {
  return crypto.verify("sha256", Buffer.concat([label, body]), { key, dsaEncoding: "der" }, signature);
}

function leaver(notice, before) {
  const parts = Object.fromEntries(Object.entries(notice).map(([key, text]) => [key, Buffer.from(text, "base64")]));
  const { name, key } = signer(parts.certificate_der, before.ca, before.members);
  refuseUnless(verifies(NOTICE_LABEL, parts, key), "the notice's signature is wrong");
  const { site, federation, issued } = parseBody(parts.body);
  refuseUnless(isTime(issued), "the notice's time");
  refuseUnless(site === name && federation === before.federation, "the notice is of another site");
  return name;
}

function quorum(members, wanted, expels) {
  return Math.max(Math.floor(members / 2) + 1, Math.min(wanted, expels ? members - 1 : members));
}

function checkSignatures(body, by, amendment, before) {
  const names = new Set();
  for (const { certificate_der: der, signature } of by) {
    try {
      const founder = { name: FOUNDER, key: new crypto.X509Certificate(before.ca).publicKey };
      const { name, key } = der.length ? signer(unhex(der), before.ca, before.members) : founder;
      if (verifies(AMENDMENT_LABEL, { body, signature: unhex(signature) }, key)) names.add(name);
    } catch {
      // it counts for nothing
    }
  }
  if (before.governance === "founder") {
    refuseUnless(names.has(FOUNDER), "the founder did not sign");
    return;
  }
  names.delete(FOUNDER);
  names.delete(amendment.expel);
  const changes = Object.keys(amendment).filter((key) => !MANDATORY.includes(key));
  if (String(changes) === "leave" && amendment.number > 1) amendment.leave.forEach((notice) => names.add(leaver(notice, before)));
  const needed = quorum(Object.keys(before.members).length, before.governance.members, "expel" in amendment);
  refuseUnless(names.size >= needed, `${names.size} of ${needed} signed`);
}

/** What holds after an amendment; an error where it is not valid after `before`. */
function extended(before, { body: hex, by }) {
  const body = unhex(hex);
  const amendment = parseBody(body);
  refuseUnless(isTime(amendment.issued), "issued");
  refuseUnless(amendment.federation === before.federation, "another federation");
  refuseUnless(amendment.number === before.number + 1 && amendment.previous === before.digest, "not next");
  const last = Math.max(before.rounds, before.from_round);
  refuseUnless(before.from_round <= amendment.from_round && amendment.from_round <= last, "from_round");
  for (const key of Object.keys(amendment.set ?? {})) refuseUnless(SET.includes(key), `set.${key}`);
  refuseUnless(!steers(Object.keys(amendment)) && !steers(amendment.set ?? {}), "a control character");
  const members = { ...before.members };
  const left = (amendment.leave ?? []).map((notice) => leaver(notice, before));
  for (const name of [...left, ...("expel" in amendment ? [amendment.expel] : [])]) {
    refuseUnless(name in members, `${name} is no member`);
    delete members[name];
  }
  const used = new Set(before.used);
  for (const { name, key, address } of amendment.add ?? []) {
    refuseUnless(!used.has(name), `the name ${name} was used`);
    refuseUnless(address === undefined || ADDRESS.test(address), `${address} is no address`);
    used.add(name);
    members[name] = key;
  }
  for (const [name, key] of Object.entries(amendment.rekey ?? {})) {
    refuseUnless(name in members, `${name} is no member`);
    members[name] = key;
  }
  refuseUnless(Object.keys(members).length > 0, "no member is left");
  const rounds = amendment.set?.rounds ?? before.rounds;
  refuseUnless(rounds >= amendment.from_round - 1, "it ends before its own round");
  if (before.tag !== null) {
    const same = before.tag === amendment.round_key_tag;
    refuseUnless(!("expel" in amendment && same), "it expels and keeps the round key");
    refuseUnless("expel" in amendment || "add" in amendment || same, "it changes the round key");
  }
  checkSignatures(body, by, amendment, before);
  const unknown = Object.keys(amendment).filter((key) => !MANDATORY.includes(key) && !CHANGES.includes(key));
  return {
    ...before,
    number: amendment.number,
    digest: sha256(body),
    from_round: amendment.from_round,
    rounds,
    members,
    used,
    tag: amendment.round_key_tag,
    governance: amendment.governance ?? before.governance,
    hold: amendment.hold ?? before.hold,
    expelled: [...before.expelled, ...("expel" in amendment ? [amendment.expel] : [])].sort(),
    left: [...before.left, ...left].sort(),
    unknown: [...before.unknown, ...unknown].sort(),
  };
}

function genesis({ federation, ca_certificate: ca, rounds, members, governance }) {
  const lists = { expelled: [], left: [], unknown: [], used: new Set(Object.keys(members)) };
  const place = { number: 0, digest: federation, from_round: 1, tag: null, hold: false };
  return { federation, ca, rounds, members, governance, ...place, ...lists };
}

function chains(vectors) {
  let count = 0;
  for (const known of vectors) {
    const states = [genesis(known.genesis)];
    known.accepted.forEach((amendment, index) => {
      states.push(extended(states[index], amendment));
      const { federation, ca, used, tag, ...after } = states[index + 1];
      after.members = Object.fromEntries(Object.entries(after.members).sort());
      assert.deepStrictEqual(after, known.after[index]);
    });
    for (const { after, why, amendment } of known.refused) {
      assert.throws(() => extended(states[after], amendment), Error, why);
    }
    count += known.accepted.length + known.refused.length;
  }
  return count;
}

/** What the site with the chain `own` makes of `other`; both are valid. */
function choice(own, other, openedRound) {
  const digests = [own, other].map((chain) => chain.map(({ body }) => sha256(unhex(body))));
  const index = digests[0].findIndex((digest, at) => at < other.length && digest !== digests[1][at]);
  if (index < 0) return own.length === other.length ? "same" : own.length < other.length ? "taken" : "behind";
  const rounds = [own, other].map((chain) => parseBody(unhex(chain[index].body)).from_round);
  if (openedRound >= Math.min(...rounds)) return "lived";
  const longer = own.length !== other.length ? own.length < other.length : digests[1][index] < digests[0][index];
  return longer ? "taken" : "kept";
}

/** The order of a round, drawn as for `permutation`. */
function order(roundKey, federation, round, sites) {
  const u64be = (value) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64BE(BigInt(value));
    return bytes;
  };
  const seed = hmac(roundKey, ORDER_LABEL, federation, u64be(round));
  const words = (function* () {
    for (let counter = 0; ; counter++) {
      const block = hmac(seed, u64be(counter));
      for (let at = 0; at < block.length; at += 8) yield block.readBigUInt64BE(at);
    }
  })();
  const items = Array.from({ length: sites }, (_, index) => index);
  for (let last = sites - 1; last > 0; last--) {
    const bound = BigInt(last + 1);
    let word;
    do word = words.next().value;
    while (word >= (1n << 64n) - ((1n << 64n) % bound));
    const chosen = Number(word % bound);
    [items[last], items[chosen]] = [items[chosen], items[last]];
  }
  return items;
}

/** RFC 9180, base mode, DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM, one message. */
function openSealed(sealed, privateKey, info) {
  const extract = (salt, suite, label, ikm) => hmac(salt, Buffer.from("HPKE-v1"), suite, Buffer.from(label), ikm);
  const expand = (prk, suite, label, context, length) => {
    const size = Buffer.from([length >> 8, length & 255]);
    const labelled = Buffer.concat([size, Buffer.from("HPKE-v1"), suite, Buffer.from(label), context]);
    return hmac(prk, labelled, Buffer.from([1])).subarray(0, length); // of at most 32 bytes
  };
  const none = Buffer.alloc(0);
  const kem = Buffer.concat([Buffer.from("KEM"), unhex("0010")]);
  const suite = Buffer.concat([Buffer.from("HPKE"), unhex("001000010002")]);
  const [enc, box] = [sealed.subarray(0, 65), sealed.subarray(65)];
  const { x, y } = privateKey.export({ format: "jwk" });
  const coordinates = [x, y].map((text) => Buffer.from(text, "base64url"));
  const own = Buffer.concat([unhex("04"), ...coordinates]);
  const point = { kty: "EC", crv: "P-256", x: enc.toString("base64url", 1, 33), y: enc.toString("base64url", 33) };
  const publicKey = crypto.createPublicKey({ key: point, format: "jwk" });
  const eae = extract(none, kem, "eae_prk", crypto.diffieHellman({ privateKey, publicKey }));
  const secret = expand(eae, kem, "shared_secret", Buffer.concat([enc, own]), 32);
  const hashes = [extract(none, suite, "psk_id_hash", none), extract(none, suite, "info_hash", info)];
  const context = Buffer.concat([unhex("00"), ...hashes]);
  const prk = extract(secret, suite, "secret", none);
  const key = expand(prk, suite, "key", context, 32);
  const nonce = expand(prk, suite, "base_nonce", context, 12);
  const decipher = crypto.createDecipheriv("aes-256-gcm", key, nonce);
  decipher.setAuthTag(box.subarray(-16));
  return Buffer.concat([decipher.update(box.subarray(0, -16)), decipher.final()]);
}

function sealedKeys({ federation, site, private_key: der, round_key: expected, tag, sealed, refused }) {
  const key = crypto.createPrivateKey({ key: unhex(der), format: "der", type: "pkcs8" });
  const info = Buffer.concat([KEY_LABEL, unhex(federation), unhex(tag), Buffer.from(site)]);
  const opened = (hex) => {
    const roundKey = openSealed(unhex(hex), key, info);
    refuseUnless(hmac(roundKey, KEY_LABEL, unhex(federation)).equals(unhex(tag)), "it is another round key");
    return roundKey.toString("hex");
  };
  assert.strictEqual(opened(sealed), expected);
  for (const { why, sealed: wrong } of refused) assert.throws(() => opened(wrong), Error, why);
  return 1 + refused.length;
}

function main(folder) {
  const vectors = JSON.parse(fs.readFileSync(path.join(folder, "vectors", "chain.json"), "utf8"));
  const federation = unhex(vectors.chains[0].genesis.federation);
  for (const { members, wanted, expels, needed } of vectors.quorums) {
    assert.strictEqual(quorum(members, wanted, expels), needed);
  }
  for (const fork of vectors.forks) {
    assert.strictEqual(choice(fork.own, fork.other, fork.opened_round), fork.choice);
  }
  for (const each of vectors.orders) {
    assert.deepStrictEqual(order(unhex(each.round_key), federation, each.round, each.members.length), each.order);
  }
  const { quorums, forks, orders } = vectors;
  const counts = { quorums: quorums.length, forks: forks.length, orders: orders.length };
  console.log(JSON.stringify({ chains: chains(vectors.chains), ...counts, keys: sealedKeys(vectors.sealed_keys) }));
}

module.exports = { KEY_LABEL, NOTICE_LABEL, canonical, extended, genesis, openSealed };

if (require.main === module) main(process.argv[2]);
