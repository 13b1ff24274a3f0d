// `node summing.js PROTO_FOLDER SITE_FOLDER SITE TENSORS`: a site that takes part in the secure sum of round 1.
//
// It serves its peers and asks them, as proto/README.md says, in a federation of the method `statistics` without
// amendments. TENSORS is its input, JSON by tensor: `{"name": {"shape": [2], "values": [3, 4]}}`, whole numbers. Each
// step that held is one line of JSON, the sum among them; what does not hold ends it with a message. It waits for ever
// for each member, and forgets everything when it ends: a restarted one must not begin again.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const { Line, Own, WAIT_S, drain, patiently, run, tell } = require("./client");
const protocol = require("./protocol");
const { Refusal, Server, ServingWire } = require("./server");
const sums = require("./sums");

const ROUND = 1;
const [KIND, STAGE] = ["KIND_SUMS", "count"]; // of statistics
const BEAT_S = 3;
const BEAT_TIMEOUT_S = 2.5;
const CHUNK_BYTES = 1 << 20;
const DTYPES = { 32: "I32", 64: "I64" };
const NO_HASH = "0".repeat(64);

/** Appends a line to a file; it is on disk when this returns. */
function append(file, line) {
  const descriptor = fs.openSync(file, "a", 0o600);
  fs.writeSync(descriptor, `${line}\n`);
  fs.fsyncSync(descriptor);
  fs.closeSync(descriptor);
}

/** The egress ledger of section 6. */
class Ledger {
  constructor(file) {
    this.file = file;
    this.head = { count: 0, hash: NO_HASH };
  }

  intend(intent) {
    return this.#add({ type: "intent", generation: 1, round: ROUND, purpose: "train", ...intent });
  }

  settle(intent, bytes, outcome) {
    this.#add({ type: "outcome", intent, bytes, outcome });
  }

  #add(row) {
    const full = { ...row, time: Math.floor(Date.now() / 1000) };
    const body = JSON.stringify(Object.fromEntries(sums.inOrder(Object.keys(full)).map((key) => [key, full[key]])));
    append(this.file, body);
    this.head = { count: this.head.count + 1, hash: protocol.sha256(`${this.head.hash}\n${body}`).toString("hex") };
    return this.head.count;
  }
}

/** The sum by tensor, and the SHA-256 of its file, which a pulse states as `aggregate`. */
function aggregate(tensors, added) {
  let at = 0;
  const total = sums.inOrder(Object.keys(tensors)).map((name) => {
    const { shape, values } = tensors[name];
    return { name, dtype: "I64", shape, data: sums.encode(added.slice(at, (at += values.length)), 64) };
  });
  const shown = Object.fromEntries(total.map(({ name, data }) => [name, sums.decode(data, 64).map(Number)]));
  return { sums: shown, sha256: protocol.sha256(protocol.writeState(total)) };
}

/** This site's part in the sum: what it has said, what the others have, and its answers to them. */
class SummingSite {
  constructor(wire, own, folder, tensors) {
    Object.assign(this, { wire, own, tensors });
    this.ledger = new Ledger(path.join(folder, "egress.jsonl"));
    this.journal = path.join(folder, "journal.jsonl");
    const { aggregate: table, method } = own.document;
    assert.ok(table?.secure && method.name === "statistics");
    const colluders = Number(table.colluders_max ?? 1n);
    this.least = sums.membersMin(own.roster.length, colluders, Number(table.members_min ?? 0n));
    this.ring = sums.ring({ members: own.roster.length, weighted: false, whole: true });
    this.context = { federation: own.federation, amendment: own.federation, round: ROUND, stage: STAGE };
    this.secrets = { key: crypto.randomBytes(32), seed: crypto.randomBytes(32), pairs: {} };
    this.members = own.others.map((name) => new sums.Member(name));
    this.lines = new Map(own.others.map((site) => [site, new Line(wire, own, site)]));
    this.said = { key: sums.publicKey(this.secrets.key), shown: null, commit: null, opened: false };
    this.pulse = { generation: 1, round: ROUND, phase: "exchange", published_round: 0, committed_round: 0 };
    this.pulses = {};
    this.mismatched = new Set();
    this.recorded = new Set();
    this.changed = new Set();
  }

  // --- what others ask ----------------------------------------------------------------------------------------------
  wake() {
    for (const resolve of this.changed) resolve();
    this.changed.clear();
  }

  /** Wait until `holds` returns something, `limitS` at most; its last answer. */
  async until(holds, limitS = Infinity) {
    const end = Date.now() + limitS * 1000;
    for (;;) {
      const result = holds();
      if (result || Date.now() >= end) return result;
      await new Promise((resolve) => {
        this.changed.add(resolve);
        if (limitS !== Infinity) setTimeout(resolve, end - Date.now()).unref();
      });
    }
  }

  /** The functions that answer the calls; a caller of another federation gets nothing until its greeting matches. */
  get answers() {
    const matched = (answer) => (caller, request) => {
      if (this.mismatched.has(caller)) throw new Refusal("FAILED_PRECONDITION", "the greeting did not match");
      return answer.call(this, caller, request);
    };
    return {
      Hello: (caller, greeting) => this.hello(caller, greeting),
      Beat: matched(this.beat),
      GetManifest: matched(this.getManifest),
      FetchArtifact: matched(this.fetchArtifact),
      GetSum: matched(this.getSum),
    };
  }

  hello(caller, greeting) {
    const own = this.greeting();
    const other = ["federation", "roster", "round_key_tag"].filter((what) => !own[what].equals(greeting[what]));
    if (greeting.protocol !== 1) other.push("protocol");
    if (other.length) {
      this.mismatched.add(caller);
      throw new Refusal("FAILED_PRECONDITION", `${other.join(", ")}: ${this.own.name} has another`);
    }
    this.mismatched.delete(caller);
    return own;
  }

  greeting() {
    return this.own.greeting({ protocol_max: 1, features: ["secure-sums"] });
  }

  beat(caller, pulse) {
    this.hear(caller, pulse);
    return this.pulse;
  }

  /** An answer may come later than a newer call. */
  hear(site, pulse) {
    const known = this.pulses[site]?.committed_round ?? 0;
    if (pulse.committed_round >= known) this.pulses[site] = pulse;
    this.wake();
  }

  /** Only the masked artifact of the round, which is for all members. */
  admit(caller, { kind, for_round: round, purpose, owner, wait_s: waitS = 0 }) {
    if (!(0 <= waitS && waitS <= WAIT_S)) throw new Refusal("INVALID_ARGUMENT", `wait_s = ${waitS}`);
    const due = kind === KIND && round === ROUND && purpose === "PURPOSE_TRAIN" && owner === this.own.name;
    if (!due) throw new Refusal("PERMISSION_DENIED", `round ${round} does not give ${owner}'s ${kind} to ${caller}`);
  }

  async getManifest(caller, request) {
    this.admit(caller, request);
    if (request.epoch.length) return { unavailable: "UNAVAILABLE_EPOCH" };
    const published = await this.until(() => this.published, request.wait_s);
    return published ? { manifest: published.signed } : { unavailable: "UNAVAILABLE_NOT_YET" };
  }

  async *fetchArtifact(caller, request) {
    this.admit(caller, request);
    if (request.epoch.length) throw new Refusal("ABORTED", "another epoch");
    const { content, sha256 } = this.published ?? {};
    if (!sha256?.equals(request.sha256)) throw new Refusal("NOT_FOUND", "no such artifact here");
    const rest = content.subarray(request.offset);
    const { length } = rest;
    const facts = { peer: caller, kind: "sums", sha256: sha256.toString("hex"), bytes: length, masked: true };
    const intent = this.ledger.intend(facts);
    let [sent, outcome] = [0, "broken"];
    try {
      for (; sent < length; sent += CHUNK_BYTES) yield { data: rest.subarray(sent, sent + CHUNK_BYTES) };
      outcome = "complete";
    } finally {
      this.ledger.settle(intent, Math.min(sent, length), outcome);
    }
  }

  /** All that this site shows a member: the commit and the opening only to those in its set. */
  statements(caller) {
    const { key, shown, commit, opened } = this.said;
    const isIn = commit !== null && caller in commit;
    const outside = commit ? Object.entries(this.secrets.pairs).filter(([name]) => !(name in commit)) : [];
    const opening = isIn && opened ? { own: this.secrets.seed, shared: Object.fromEntries(outside) } : null;
    const said = { key, shown, commit: isIn ? commit : null, opening };
    return { content: sums.writeStatements(said, this.wire.SumStatements.serialize), opening };
  }

  async getSum(caller, request) {
    if (!(0 <= request.wait_s && request.wait_s <= WAIT_S)) throw new Refusal("INVALID_ARGUMENT", "wait_s");
    if (request.stage !== STAGE) throw new Refusal("INVALID_ARGUMENT", `the stage is ${STAGE}`);
    if (request.epoch.length) return { unavailable: "UNAVAILABLE_EPOCH" };
    if (request.round !== ROUND) throw new Refusal("PERMISSION_DENIED", `no sum of round ${request.round}`);
    const isNews = () => !protocol.sha256(this.statements(caller).content).equals(request.known);
    await this.until(isNews, request.wait_s);
    const { content, opening } = this.statements(caller);
    if (opening && !this.recorded.has(caller)) {
      const bytes = 32 * (1 + Object.keys(opening.shared).length);
      const sha256 = this.published.sha256.toString("hex");
      this.ledger.settle(this.ledger.intend({ peer: caller, kind: "opening", sha256, bytes }), bytes, "complete");
      this.recorded.add(caller);
    }
    return { statements: content };
  }

  // --- what it asks -------------------------------------------------------------------------------------------------
  async greet(site) {
    const { federation } = await patiently(() => this.lines.get(site).call("Hello", this.greeting()));
    assert.ok(federation.equals(this.own.federation));
    tell("greeted", { site });
  }

  /** One heartbeat to each peer; the peers that answered. */
  async beatAll() {
    const beat = async (site) => {
      this.hear(site, await this.lines.get(site).call("Beat", this.pulse, BEAT_TIMEOUT_S));
      return site;
    };
    const ends = await Promise.allSettled(this.own.others.map(beat));
    return ends.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
  }

  async listen(member) {
    let known = Buffer.alloc(0);
    while (!this.over) {
      const asked = { round: ROUND, stage: STAGE, known, wait_s: WAIT_S };
      const ask = () => this.lines.get(member.name).call("GetSum", asked, WAIT_S + 5);
      const reply = await patiently(ask, () => this.over);
      if (this.over) return;
      if (reply.reply === "unavailable" && reply.unavailable === "UNAVAILABLE_RETIRED") return;
      assert.strictEqual(reply.reply, "statements", `${member.name} says ${reply.unavailable}`);
      member.take(sums.readStatements(reply.statements, this.wire.SumStatements.deserialize));
      known = protocol.sha256(reply.statements);
      this.wake();
    }
  }

  async manifestOf({ name }) {
    const line = this.lines.get(name);
    const asked = { kind: KIND, for_round: ROUND, purpose: "PURPOSE_TRAIN", owner: name };
    let reply;
    do reply = await patiently(() => line.call("GetManifest", { ...asked, wait_s: WAIT_S }, WAIT_S + 5));
    while (reply.unavailable === "UNAVAILABLE_NOT_YET");
    const trust = { ca: this.own.ca, dialled: name, now: new Date(), decode: this.wire.Manifest.deserialize };
    const manifest = protocol.openManifest(reply.manifest, trust);
    const { federation } = this.own;
    protocol.checkManifest(manifest, { federation, origin: name, owner: name, kind: KIND, round: ROUND });
    const [{ name: tensor, dtype, shape }, ...more] = manifest.tensors;
    assert.deepStrictEqual([tensor, dtype, shape.length, more.length], ["masked", DTYPES[this.ring.bits], 1, 0]);
    return { manifest, asked, length: shape[0] };
  }

  /** The words of a member, by the statement of its manifest. */
  async fetch(member, { manifest, asked }) {
    const wanted = { ...asked, sha256: manifest.sha256, offset: 0 };
    const content = Buffer.concat(await patiently(() => drain(this.lines.get(member.name).fetch(wanted))));
    protocol.checkArtifact(content, manifest);
    member.takeMasked(manifest.sha256.toString("hex"), sums.readCommitments(manifest));
    member.words = sums.decode(protocol.readTensor(content), this.ring.bits);
    this.wake();
  }

  // --- the course of the sum ----------------------------------------------------------------------------------------
  /** MASKED: the input under the masks of all members. The manifest is as those of the others; so is the length. */
  mask({ manifest, length }) {
    const { own, ring, secrets } = this;
    const tensors = Object.entries(this.tensors).map(([name, { values }]) => ({ name, dtype: "I64", values }));
    const units = sums.wordsOf(tensors, ring, {});
    assert.strictEqual(units.length, length);
    const seeds = {};
    for (const { name, key } of this.members) {
      const keys = { ownPrivate: secrets.key, otherPublic: Buffer.from(key, "hex") };
      seeds[name] = sums.pairSeed(this.context, { own: own.name, other: name, ...keys });
      secrets.pairs[name] = seeds[name].toString("hex");
    }
    const words = sums.mask({ bits: ring.bits, site: own.name, units, own: secrets.seed, seeds });
    const tensor = { name: "masked", dtype: DTYPES[ring.bits], shape: [length] };
    const content = protocol.writeTensors([{ ...tensor, data: sums.encode(words, ring.bits) }]);
    const sha256 = protocol.sha256(content);
    const all = Object.entries({ ...seeds, [own.name]: secrets.seed });
    const commitments = Object.fromEntries(all.map(([name, seed]) => [name, sums.commitment(seed)]));
    const statement = sums.statementDigest(sha256.toString("hex"), commitments);
    append(this.journal, JSON.stringify({ step: "masked", statement }));
    const body = this.wire.Manifest.serialize({
      federation: own.federation,
      generation: 1,
      method: own.document.method.name,
      origin: own.name,
      round: ROUND,
      kind: KIND,
      owner: own.name,
      sha256,
      bytes: content.length,
      steps: manifest.steps,
      spec: manifest.spec,
      tensors: [tensor],
      egress_count: this.ledger.head.count,
      egress_head: this.ledger.head.count ? Buffer.from(this.ledger.head.hash, "hex") : Buffer.alloc(0),
      commitments: sums.entries(commitments),
    });
    const signed = protocol.signManifest(body, own.key, own.certificate);
    this.published = { content, sha256, signed };
    this.pulse = { ...this.pulse, published_round: ROUND };
    this.wake();
    tell("masked", { sha256: sha256.toString("hex"), words: length });
    return { name: own.name, words, commitments, statement, opening: { own: secrets.seed, shared: {} } };
  }

  /** SET and COMMIT: show the set as it shrinks, until all of it show it. */
  async agree(mine) {
    const { name } = this.own;
    let set = sums.firstSet(name, mine, this.members);
    await this.until(() => {
      set = sums.shrunk(name, set, this.members, this.least);
      assert.ok(name in set && Object.keys(set).length >= this.least, "too few agree");
      this.said.shown = set;
      return sums.allSay("shown", name, set, this.members);
    });
    append(this.journal, JSON.stringify({ step: "committed", set }));
    this.said.commit = set;
    this.wake();
    tell("committed", { set });
    return set;
  }

  /** OPEN: once all of the set have committed to it; then the sum, once all have opened. */
  async open(mine, set) {
    await this.until(() => sums.allSay("commit", this.own.name, set, this.members));
    append(this.journal, JSON.stringify({ step: "opened" }));
    this.said.opened = true;
    this.wake();
    const others = this.members.filter(({ name }) => name in set);
    await this.until(() => others.every(({ opening }) => opening));
    const total = sums.total([mine, ...others], set, this.ring.bits);
    sums.checkSum(total, Object.keys(set).length, this.ring);
    return total;
  }

  async sum() {
    append(this.journal, JSON.stringify({ step: "keyed" }));
    const listening = Promise.all(this.members.map((member) => this.listen(member)));
    const course = async () => {
      await this.until(() => this.members.every(({ key }) => key));
      const offers = await Promise.all(this.members.map((member) => this.manifestOf(member)));
      const mine = this.mask(offers[0]);
      await Promise.all(this.members.map((member, index) => this.fetch(member, offers[index])));
      const set = await this.agree(mine);
      const total = aggregate(this.tensors, await this.open(mine, set));
      tell("sum", { contributors: Object.keys(set), sums: total.sums, sha256: total.sha256.toString("hex") });
      return total.sha256;
    };
    const digest = await Promise.race([course(), listening.then(() => new Promise(() => {}))]);
    this.over = true;
    this.pulse = { ...this.pulse, phase: "done", committed_round: ROUND, aggregate: digest };
  }

  /** Serve on until the others have finished, too, and know that this site has. */
  async finish() {
    const knowing = new Set();
    const isDone = (site) => {
      const { phase, committed_round: committed } = this.pulses[site] ?? {};
      return phase === "gone" || (phase === "done" && committed >= ROUND && knowing.has(site));
    };
    do for (const site of await this.beatAll()) knowing.add(site);
    while (!(await this.until(() => this.own.others.every(isDone), BEAT_S)));
    tell("done");
  }
}

async function main([proto, folder, name, tensors]) {
  const wire = new ServingWire(proto);
  const own = new Own(folder, name);
  const site = new SummingSite(wire, own, folder, JSON.parse(tensors));
  const server = new Server(wire, own, site.answers);
  await server.start();
  const beating = setInterval(() => site.beatAll(), BEAT_S * 1000);
  await Promise.all(own.others.map((other) => site.greet(other)));
  await site.beatAll();
  await site.sum();
  await site.finish();
  clearInterval(beating);
  server.stop();
  for (const line of site.lines.values()) line.stub.close();
}

module.exports = { SummingSite };

if (require.main === module) run(main);
