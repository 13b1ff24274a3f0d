// `node refusals.js PROTO_FOLDER SITE_FOLDER SITE PEER_FOLDER PEER`: what this site refuses of members of a secure sum.
//
// First what they say, beside proto/vectors; then what they ask, over TLS. Each refusal is a line of JSON; what should
// have been refused ends it with a message. PEER is another site of the federation, whose files are here, too.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const { Line, Own, drain, refused, run, tell } = require("./client");
const protocol = require("./protocol");
const { Server, ServingWire } = require("./server");
const { SummingSite } = require("./summing");
const sums = require("./sums");

const DIGEST = "ab".repeat(32);
const OTHER = "cd".repeat(32);

function refuses(what, call, reason) {
  assert.throws(call, reason);
  tell("refused", { what });
}

/** A contributor of a known sum without asia; its opening has the seed that it shares with asia. */
function contributor(proto) {
  const { sums: vectors } = JSON.parse(fs.readFileSync(path.join(proto, "vectors", "secure_sum.json"), "utf8"));
  const { members, contributors } = vectors.find((each) => !each.contributors.includes("asia"));
  const { statement, own_seed: own, pair_seeds: pairs } = members.europe;
  const { artifact, commitments } = JSON.parse(statement);
  const set = Object.fromEntries(contributors.map((name) => [name, members[name].digest]));
  const opening = { own: Buffer.from(own, "hex"), shared: { asia: pairs.asia } };
  return { artifact, set, member: { name: "europe", commitments, opening } };
}

function openings(proto) {
  const { set, member } = contributor(proto);
  const { opening } = member;
  sums.checkOpening(member, set);
  const with_ = (changes) => ({ ...member, opening: { ...opening, ...changes } });
  const check = (changes) => () => sums.checkOpening(with_(changes), set);
  refuses("another seed of its own", check({ own: crypto.randomBytes(32) }), /another seed of its own/);
  refuses("another seed of a pair", check({ shared: { asia: OTHER } }), /shares with asia/);
  refuses("no seed of a pair", check({ shared: {} }), /kept the seed/);
  const ring = sums.ring({ members: 4, weighted: false, whole: true });
  sums.checkSum([3n * ring.wholeMax, -3n], 3, ring);
  refuses("a sum that is noise", () => sums.checkSum([3n * ring.wholeMax + 1n], 3, ring), /did not cancel/);
}

function statements(proto, { SumStatements }) {
  const { artifact, member } = contributor(proto);
  const refusesSecond = (what, say, [first, second]) => {
    const heard = new sums.Member("europe");
    say(heard, first);
    say(heard, first); // again is no second one
    refuses(`a second ${what}`, () => say(heard, second), new RegExp(`europe made a second ${what}`));
  };
  const take = (heard, said) => heard.take(said);
  const [set, more] = [{ asia: DIGEST, europe: DIGEST }, { africa: DIGEST, asia: DIGEST, europe: DIGEST }];
  refusesSecond("commit", take, [{ commit: set }, { commit: more }]);
  refusesSecond("key", take, [{ key: Buffer.alloc(32, 1) }, { key: Buffer.alloc(32, 2) }]);
  refusesSecond("statement", (heard, digest) => heard.takeMasked(digest, member.commitments), [artifact, OTHER]);
  const entries = ["asia", "africa"].map((site) => ({ site, digest: Buffer.from(member.commitments[site], "hex") }));
  const read = (commitments) => () => sums.readCommitments({ origin: "europe", commitments });
  refuses("commitments out of order", read(entries), /not in order/);
  refuses("no commitment to the own seed", read(entries.reverse()), /no seed of its own/);
  const zeros = SumStatements.serialize({ key: Buffer.alloc(32) });
  refuses("a key of small order", () => sums.readStatements(zeros, SumStatements.deserialize), Error);
}

/** Whom a site leaves out of its set, and that it shows none without itself. */
function sets() {
  const member = (name, more) => ({ name, statement: DIGEST, commitments: { africa: DIGEST }, ...more });
  const own = { statement: DIGEST, commitments: { africa: OTHER, america: DIGEST, asia: DIGEST, europe: DIGEST } };
  const set = Object.fromEntries(["africa", "america", "asia", "europe"].map((name) => [name, DIGEST]));
  const members = (more) => [member("america", more), member("asia"), member("europe")];
  const first = (more) => sums.firstSet("africa", own, members(more));
  assert.deepStrictEqual(first({}), set);
  const less = { africa: DIGEST, asia: DIGEST, europe: DIGEST };
  assert.deepStrictEqual(first({ commitments: {} }), less);
  assert.deepStrictEqual(first({ commitments: { africa: OTHER } }), less);
  tell("refused", { what: "a mask that is not the shared one" });
  const shrunk = (more) => sums.shrunk("africa", set, members(more), 3);
  assert.deepStrictEqual(shrunk({ shown: less }), less);
  assert.deepStrictEqual(shrunk({ shown: set, commit: less }), less);
  assert.deepStrictEqual(shrunk({ shown: { africa: DIGEST, america: DIGEST } }), less);
  const others = { africa: DIGEST, america: DIGEST, europe: DIGEST };
  assert.deepStrictEqual(shrunk({ shown: { ...set, asia: OTHER } }), others);
  assert.ok(!("africa" in shrunk({ shown: { ...less, africa: OTHER, america: DIGEST } })));
  tell("refused", { what: "another set" });
  const mayOpen = (commit) => {
    const said = [member("asia", { commit: less }), member("europe", { commit })];
    return sums.allSay("commit", "africa", less, said);
  };
  assert.deepStrictEqual([mayOpen(less), mayOpen(set), mayOpen(undefined)], [true, false, false]);
  tell("refused", { what: "to open without all commits" });
}

/** What the server answers a peer that asks for something else than the sum's artifact and statements. */
async function calls(wire, own, folder, peer) {
  const site = new SummingSite(wire, own, folder, {});
  const server = new Server(wire, own, site.answers);
  await server.start();
  const line = new Line(wire, peer, own.name);
  const denied = async (what, promise, status) => {
    await refused(promise, status);
    tell("denied", { what, status });
  };
  const artifact = { kind: "KIND_SUMS", for_round: 1, purpose: "PURPOSE_TRAIN", owner: own.name };
  const sum = { round: 1, stage: "count" };
  const greet = (changes) => line.call("Hello", peer.greeting(changes));
  const stranger = new Line(wire, own, own.name);
  await denied("a site that is no peer", stranger.call("Beat", site.pulse), "UNAUTHENTICATED");
  await denied("another federation", greet({ federation: crypto.randomBytes(32) }), "FAILED_PRECONDITION");
  await denied("a sum before greetings match", line.call("GetSum", sum), "FAILED_PRECONDITION");
  await greet();
  await denied("metrics", line.call("PutMetrics", { generation: 1, round: 1 }), "UNIMPLEMENTED");
  await denied("another kind", line.call("GetManifest", { ...artifact, kind: "KIND_MODEL" }), "PERMISSION_DENIED");
  await denied("another owner", line.call("GetManifest", { ...artifact, owner: peer.name }), "PERMISSION_DENIED");
  await denied("a long wait", line.call("GetManifest", { ...artifact, wait_s: 21 }), "INVALID_ARGUMENT");
  await denied("another stage", line.call("GetSum", { ...sum, stage: "train" }), "INVALID_ARGUMENT");
  await denied("another round's sum", line.call("GetSum", { ...sum, round: 2 }), "PERMISSION_DENIED");
  await denied("an unknown artifact", drain(line.fetch({ ...artifact, sha256: protocol.sha256("any") })), "NOT_FOUND");
  const epoch = crypto.randomBytes(32);
  await denied("another epoch's artifact", drain(line.fetch({ ...artifact, epoch })), "ABORTED");
  const answers = { GetManifest: artifact, GetSum: sum };
  for (const [name, request] of Object.entries(answers)) {
    assert.strictEqual((await line.call(name, { ...request, epoch })).unavailable, "UNAVAILABLE_EPOCH");
  }
  assert.strictEqual((await line.call("GetManifest", artifact)).unavailable, "UNAVAILABLE_NOT_YET");
  const bytes = (value) => value;
  const raw = new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    line.stub.makeUnaryRequest("/mhfl.v1.Exchange/GetSum", bytes, bytes, Buffer.from("ffffff", "hex"), done);
  });
  await denied("bytes that are no message", raw, "INVALID_ARGUMENT");
  for (const each of [line, stranger]) each.stub.close();
  server.stop();
}

async function main([proto, folder, name, peerFolder, peer]) {
  const wire = new ServingWire(proto);
  openings(proto);
  statements(proto, wire);
  sets();
  await calls(wire, new Own(folder, name), folder, new Own(peerFolder, peer));
}

run(main);
