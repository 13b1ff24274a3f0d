// Secure sums: what section 10 of proto/README.md says that two members must compute alike, from that text alone.
//
// Digests in sets and statements are hex, keys and seeds Buffers, words and units BigInts. An error is a refusal.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");

const { refuseUnless, sha256, u64be } = require("./protocol");

const INFO_LABEL = Buffer.from("mhfl secure sum 1\0");
const OPENING_LABEL = Buffer.from("mhfl/sum-opening/v1\0");
const PRIVATE_KEY = Buffer.from("302e020100300506032b656e04220420", "hex"); // RFC 8410: what stands before the 32 bytes
const PUBLIC_KEY = Buffer.from("302a300506032b656e032100", "hex");
const SECRET_BYTES = 32;
const STATEMENTS_BYTES_MAX = 16 << 10;
const ENTRIES_MAX = 64;
const WEIGHT_MAX = 1 << 20;
const SITE = /^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$/;

const isBefore = (one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)) < 0;
const inOrder = (names) => [...names].sort((one, other) => (isBefore(one, other) ? -1 : 1));
const sorted = (set) => Object.fromEntries(inOrder(Object.keys(set)).map((name) => [name, set[name]]));
const isEqual = (one, other) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));

/** How many contributors a sum of N members with at most t colluders needs. */
function membersMin(members, colluders, least = 0) {
  return Math.max(3, colluders + 2, Math.floor((members + colluders) / 2) + 1, least);
}

// --- the ring -------------------------------------------------------------------------------------------------------
/** The bits of a word, those of the fraction, and the bound on whole numbers, for N members and weights up to W. */
function ring({ members, weighted, whole }) {
  const [bits, weight] = [weighted || whole ? 64 : 32, weighted ? BigInt(WEIGHT_MAX) : 1n];
  let fractionBits = Math.min(52, bits - 2);
  while (BigInt(members) * weight * (1n << BigInt(fractionBits)) >= 1n << BigInt(bits - 1)) fractionBits--;
  return { bits, fractionBits, wholeMax: ((1n << BigInt(bits - 1)) - 1n) / (BigInt(members) * weight) };
}

/** Round half to even. */
function rounded(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}

/** Values as units, and how many were clipped. */
function units(values, { fractionBits, clip }) {
  refuseUnless(values.every(Number.isFinite), "a value is not finite");
  const within = (value, bound) => Math.min(Math.max(value, -bound), bound);
  const largest = 2 ** fractionBits;
  return {
    units: values.map((value) => BigInt(within(rounded(within(value, clip) * (largest / clip)), largest))),
    clipped: values.filter((value) => Math.abs(value) > clip).length,
  };
}

/** The words of an artifact's tensors, in the order of their names; with `samples` they are weighted. */
function wordsOf(tensors, { fractionBits, wholeMax }, { clip, samples = null }) {
  const byName = Object.fromEntries(tensors.map((tensor) => [tensor.name, tensor]));
  const limited = (value) => (value > wholeMax ? wholeMax : value < -wholeMax ? -wholeMax : value);
  const words = inOrder(Object.keys(byName)).flatMap((name) => {
    const { dtype, values } = byName[name];
    const isFloating = /^B?F/.test(dtype); // and BOOL is a whole number
    return isFloating ? units(values, { fractionBits, clip }).units : values.map((value) => limited(BigInt(value)));
  });
  if (samples === null) return words;
  const weight = BigInt(Math.min(Math.max(samples, 1), WEIGHT_MAX));
  return [...words.map((word) => word * weight), weight];
}

function mean(sums, { fractionBits, clip }, contributors) {
  return sums.map((sum) => Number(sum) / (2 ** fractionBits / clip) / contributors);
}

function encode(words, bits) {
  const content = Buffer.alloc((words.length * bits) / 8);
  words.forEach((word, index) => {
    if (bits === 32) content.writeUInt32LE(Number(BigInt.asUintN(32, word)), 4 * index);
    else content.writeBigUInt64LE(BigInt.asUintN(64, word), 8 * index);
  });
  return content;
}

function decode(content, bits) {
  const size = bits / 8;
  const at = (index) => (bits === 32 ? BigInt(content.readUInt32LE(4 * index)) : content.readBigUInt64LE(8 * index));
  return Array.from({ length: content.length / size }, (_, index) => at(index));
}

// --- seeds and masks ------------------------------------------------------------------------------------------------
const privateKey = (raw) =>
  crypto.createPrivateKey({ key: Buffer.concat([PRIVATE_KEY, raw]), format: "der", type: "pkcs8" });

function publicKey(rawPrivate) {
  const spki = crypto.createPublicKey(privateKey(rawPrivate)).export({ format: "der", type: "spki" });
  return spki.subarray(-SECRET_BYTES);
}

/** X25519; a key of small order is refused, with which everybody knows the result. */
function exchange(rawPrivate, rawPublic) {
  refuseUnless(rawPublic.length === SECRET_BYTES, `a key has ${rawPublic.length} bytes`);
  const key = crypto.createPublicKey({ key: Buffer.concat([PUBLIC_KEY, rawPublic]), format: "der", type: "spki" });
  const shared = crypto.diffieHellman({ privateKey: privateKey(rawPrivate), publicKey: key });
  refuseUnless(shared.some((byte) => byte !== 0), "a key is of small order");
  return shared;
}

function checkKey(rawPublic) {
  exchange(crypto.randomBytes(SECRET_BYTES), rawPublic);
}

function text(value) {
  const bytes = Buffer.from(value);
  refuseUnless(bytes.length < 256, `${value} is too long`);
  return Buffer.concat([Buffer.from([bytes.length]), bytes]);
}

/** What the seed of a pair is for. */
function info({ round, stage }, one, other) {
  const texts = [stage, ...inOrder([one, other])].map(text);
  return Buffer.concat([INFO_LABEL, u64be(round), ...texts]);
}

function pairSeed(context, { own, other, ownPrivate, otherPublic }) {
  const salt = Buffer.concat([context.federation, context.amendment]);
  const shared = exchange(ownPrivate, otherPublic);
  return Buffer.from(crypto.hkdfSync("sha256", shared, salt, info(context, own, other), SECRET_BYTES));
}

/** PRG(seed), as so many words. */
function stream(seed, count, bits) {
  const cipher = crypto.createCipheriv("chacha20", seed, Buffer.alloc(16)); // counter and nonce 0
  return decode(cipher.update(Buffer.alloc((count * bits) / 8)), bits);
}

/** With which sign a site adds the words that it shares with another. */
const sign = (site, other) => (isBefore(site, other) ? 1n : -1n);

function add(words, seed, factor, bits) {
  const masks = stream(seed, words.length, bits);
  return words.map((word, index) => BigInt.asUintN(bits, word + factor * masks[index]));
}

function mask({ bits, site, units, own, seeds }) {
  let words = add(units, own, 1n, bits);
  for (const [other, seed] of Object.entries(seeds)) words = add(words, seed, sign(site, other), bits);
  return words;
}

// --- statements -----------------------------------------------------------------------------------------------------
const commitment = (seed) => sha256(Buffer.concat([OPENING_LABEL, seed])).toString("hex");

/** The canonical JSON that stands, by its digest, for a site in sets. */
const statement = (artifact, commitments) => JSON.stringify({ artifact, commitments: sorted(commitments) });
const statementDigest = (artifact, commitments) => sha256(statement(artifact, commitments)).toString("hex");

/** A list of sites and digests as a table; refused unless it is in the order of the names, each once. */
function table(entries, value = "digest") {
  refuseUnless(entries.length <= ENTRIES_MAX, `${entries.length} entries`);
  entries.forEach(({ site, [value]: bytes }, index) => {
    refuseUnless(SITE.test(site), `${site} is no name`);
    refuseUnless(index === 0 || isBefore(entries[index - 1].site, site), `${site} stands twice, or not in order`);
    refuseUnless(bytes.length === SECRET_BYTES, `${bytes.length} bytes of ${site}`);
  });
  return Object.fromEntries(entries.map(({ site, [value]: bytes }) => [site, bytes.toString("hex")]));
}

const entries = (set, value = "digest") =>
  inOrder(Object.keys(set)).map((site) => ({ site, [value]: Buffer.from(set[site], "hex") }));

/** The commitments of a masked artifact's manifest. */
function readCommitments(manifest) {
  const commitments = table(manifest.commitments);
  refuseUnless(manifest.origin in commitments, `${manifest.origin} committed to no seed of its own`);
  return commitments;
}

/** What a member says, checked; absent parts are null. */
function readStatements(content, decodeStatements) {
  refuseUnless(content.length <= STATEMENTS_BYTES_MAX, `${content.length} bytes`);
  const { key, shown, commit, opening } = decodeStatements(content);
  if (key.length) checkKey(key);
  refuseUnless(!opening || opening.own.length === SECRET_BYTES, "an opening without the own seed");
  return {
    key: key.length ? key : null,
    shown: shown && table(shown.contributors),
    commit: commit && table(commit.contributors),
    opening: opening && { own: opening.own, shared: table(opening.shared, "seed") },
  };
}

/** As SumStatements; what is not said yet is left out. */
function writeStatements({ key, shown, commit, opening }, encodeStatements) {
  return encodeStatements({
    key,
    shown: shown && { contributors: entries(shown) },
    commit: commit && { contributors: entries(commit) },
    opening: opening && { own: opening.own, shared: entries(opening.shared, "seed") },
  });
}

/** All that one member has said: the first key, statement and commit count, and of its sets the intersection. */
class Member {
  constructor(name) {
    this.name = name;
  }

  take({ key, shown, commit, opening }) {
    if (key) this.#first("key", key.toString("hex"));
    for (const set of [shown, commit]) {
      if (set) this.shown = this.shown ? common(this.shown, set) : set;
    }
    if (commit) this.#first("commit", sorted(commit));
    this.opening ??= opening;
  }

  /** Its masked artifact, by the statement of its manifest. */
  takeMasked(artifact, commitments) {
    this.#first("statement", statementDigest(artifact, commitments));
    this.commitments = sorted(commitments);
  }

  #first(what, value) {
    this[what] ??= value;
    refuseUnless(JSON.stringify(this[what]) === JSON.stringify(value), `${this.name} made a second ${what}`);
  }
}

// --- agreement ------------------------------------------------------------------------------------------------------
const only = (set, holds) => Object.fromEntries(Object.entries(set).filter(([name, digest]) => holds(name, digest)));
const common = (set, other) => only(set, (name, digest) => other[name] === digest);
const without = (set, name) => only(set, (each) => each !== name);

/** Step 1: the members whose artifact has the mask that this site shares with them. */
function firstSet(site, own, members) {
  const sharing = members.filter(({ name, commitments }) => {
    const theirs = commitments?.[site];
    return theirs !== undefined && theirs === own.commitments[name];
  });
  const digests = sharing.map(({ name, statement: digest }) => [name, digest]);
  return sorted(Object.fromEntries([[site, own.statement], ...digests]));
}

/** Step 2: the own set after those of its members; without the site itself, its sum is over. */
function shrunk(site, set, members, least) {
  for (let before; before !== set; ) {
    before = set;
    for (const { name, shown, commit } of members) {
      if (!(name in set) || !shown) continue;
      const both = common(set, shown);
      if (Object.keys(both).length < least) set = without(set, name);
      else if (Object.keys(both).length < Object.keys(set).length) set = both;
      if (commit && !isEqual(commit, set)) set = without(set, name);
    }
  }
  return set;
}

/** Steps 3 and 4: whether all others in the set said exactly this set, as `what`: shown or commit. */
function allSay(what, site, set, members) {
  const others = Object.keys(set).filter((name) => name !== site);
  const said = (name) => members.find((member) => member.name === name)?.[what];
  return others.every((name) => said(name) && isEqual(said(name), set));
}

// --- openings and the sum -------------------------------------------------------------------------------------------
/** Step 5: an opening is that of the member's commitments, and has each seed that it shares outside the set. */
function checkOpening({ name, commitments, opening }, set) {
  refuseUnless(commitment(opening.own) === commitments[name], `${name} opened another seed of its own`);
  for (const other of leftBy(name, commitments, set)) {
    const seed = opening.shared[other];
    refuseUnless(seed !== undefined, `${name} kept the seed that it shares with ${other}`);
    const isTrue = commitment(Buffer.from(seed, "hex")) === commitments[other];
    refuseUnless(isTrue, `${name} opened another seed that it shares with ${other}`);
  }
}

/** The members outside the set whose masks a contributor has used. */
const leftBy = (name, commitments, set) => Object.keys(commitments).filter((each) => each !== name && !(each in set));

/** Refuse a sum of whole numbers that so many contributors cannot have added up to: some masks have not cancelled. */
function checkSum(sum, contributors, { wholeMax }) {
  const largest = BigInt(contributors) * wholeMax;
  refuseUnless(sum.every((value) => -largest <= value && value <= largest), "the masks did not cancel");
}

/** The units that the contributors add up to. Each has `name`, `words`, `commitments` and `opening`. */
function total(contributors, set, bits) {
  assert.deepStrictEqual(inOrder(contributors.map(({ name }) => name)), inOrder(Object.keys(set)));
  const lengths = new Set(contributors.map(({ words }) => words.length));
  refuseUnless(lengths.size === 1, "the artifacts have different lengths");
  let sum = contributors[0].words.map((_, at) => contributors.reduce((all, { words }) => all + words[at], 0n));
  for (const member of contributors) {
    checkOpening(member, set);
    sum = add(sum, member.opening.own, -1n, bits);
    for (const other of leftBy(member.name, member.commitments, set)) {
      sum = add(sum, Buffer.from(member.opening.shared[other], "hex"), -sign(member.name, other), bits);
    }
  }
  return sum.map((word) => BigInt.asIntN(bits, word));
}

module.exports = {
  Member,
  allSay,
  checkKey,
  checkOpening,
  checkSum,
  commitment,
  decode,
  encode,
  entries,
  firstSet,
  info,
  inOrder,
  mask,
  mean,
  membersMin,
  pairSeed,
  publicKey,
  readCommitments,
  readStatements,
  ring,
  shrunk,
  statement,
  statementDigest,
  total,
  units,
  wordsOf,
  writeStatements,
};
