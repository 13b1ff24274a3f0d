// `node vectors.js PROTO_FOLDER`: compares this client with the known answers in proto/vectors; says how many it met.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");

const loader = require("@grpc/proto-loader");

const protocol = require("./protocol");
const sums = require("./sums");

const READ = { keepCase: true, longs: Number, enums: String, defaults: true };

function federations(vectors) {
  for (const { toml, canonical, digest } of vectors) {
    const document = protocol.parseFederation(toml);
    assert.strictEqual(protocol.canonical(document), canonical);
    assert.strictEqual(protocol.federationDigest(document).toString("hex"), digest);
  }
  return vectors.length;
}

function schedules(vectors) {
  for (const { round_key: key, federation_digest: digest, round, sites, kind, order } of vectors) {
    const [roundKey, federation] = [Buffer.from(key, "hex"), Buffer.from(digest, "hex")];
    assert.deepStrictEqual(protocol.order({ roundKey, federation, round, sites, kind }), order);
  }
  return vectors.length;
}

function visits(vectors) {
  for (const { round_key: key, federation_digest: digest, round, sites, orders } of vectors) {
    const [roundKey, federation] = [Buffer.from(key, "hex"), Buffer.from(digest, "hex")];
    const first = protocol.order({ roundKey, federation, round, sites, kind: "ring" });
    let order = first;
    for (const expected of orders) {
      assert.deepStrictEqual(order, expected);
      order = order.map((site) => first[site]);
    }
  }
  return vectors.length;
}

function signed({ body, signature, certificate_der: certificate }) {
  const [bodyBytes, signatureBytes, der] = [body, signature, certificate].map((hex) => Buffer.from(hex, "hex"));
  return { body: bodyBytes, signature: signatureBytes, certificate_der: der };
}

function rounds(vectors, decode) {
  const trust = { ca: vectors.ca_certificate, dialled: vectors.sender, now: new Date(vectors.now), decode };
  const federation = Buffer.from(vectors.federation, "hex");
  const { site, generation, round } = protocol.openRound(signed(vectors.accepted), federation, trust);
  assert.deepStrictEqual({ site, generation, round }, vectors.accepted.claim);
  for (const refused of vectors.refused) {
    assert.throws(() => protocol.openRound(signed(refused), federation, trust), Error, refused.why);
  }
  return 1 + vectors.refused.length;
}

function manifests(vectors, decode) {
  const trust = { ca: vectors.ca_certificate, dialled: vectors.dialled, now: new Date(vectors.now), decode };
  const manifest = protocol.openManifest(signed(vectors.accepted), trust);
  const expected = vectors.accepted.manifest;
  assert.strictEqual(manifest.sha256.toString("hex"), expected.sha256);
  assert.deepStrictEqual(JSON.parse(manifest.spec), expected.spec);
  assert.strictEqual(manifest.training_samples, expected.training_samples);
  assert.strictEqual(manifest.egress_head.toString("hex"), expected.egress_head);
  const asked = { federation: Buffer.from(expected.federation, "hex"), kind: "KIND_MODEL", round: expected.round };
  protocol.checkManifest(manifest, { ...asked, origin: "europe", owner: "europe" });
  const artifact = Buffer.from(vectors.artifact, "hex");
  protocol.checkArtifact(artifact, manifest);
  artifact[artifact.length - 1] ^= 1;
  assert.throws(() => protocol.checkArtifact(artifact, manifest), /digest/);
  for (const refused of vectors.refused) {
    assert.throws(() => protocol.openManifest(signed(refused), trust), Error, refused.why);
  }
  return 1 + vectors.refused.length;
}

function parking(vectors) {
  for (const { type, payload, bytes } of vectors.frames) {
    assert.strictEqual(protocol.frame(type, Buffer.from(payload, "hex")).toString("hex"), bytes);
    const opened = protocol.openFrame(Buffer.from(bytes, "hex"));
    assert.deepStrictEqual([opened.type, opened.payload.toString("hex")], [type, payload]);
  }
  for (const refused of vectors.refused) {
    assert.throws(() => protocol.openFrame(Buffer.from(refused.bytes, "hex")), Error, refused.why);
  }
  return vectors.frames.length + vectors.refused.length;
}

function states(vectors) {
  for (const { tensors, file, sha256 } of vectors) {
    const content = protocol.writeState(tensors.map(({ data, ...tensor }) => ({ ...tensor, data: unhex(data) })));
    assert.strictEqual(content.toString("hex"), file);
    assert.strictEqual(protocol.sha256(content).toString("hex"), sha256);
  }
  return vectors.length;
}

const unhex = (hex) => Buffer.from(hex, "hex");

/** One sum, as each member computes it; the seeds, masks and statements of all members, and the sum of some. */
function sum({ context, bits, fraction_bits: fractionBits, clip, members, contributors, units, mean }) {
  const { federation, amendment, round, stage } = context;
  const of = { federation: unhex(federation), amendment: unhex(amendment), round, stage };
  const heard = Object.entries(members).map(([name, member]) => {
    const ownPrivate = unhex(member.private_key);
    assert.strictEqual(sums.publicKey(ownPrivate).toString("hex"), member.public_key);
    const others = Object.keys(members).filter((each) => each !== name);
    const seeds = Object.fromEntries(
      others.map((other) => {
        const keys = { ownPrivate, otherPublic: unhex(members[other].public_key) };
        return [other, sums.pairSeed(of, { own: name, other, ...keys })];
      }),
    );
    const shown = Object.fromEntries(Object.entries(seeds).map(([other, seed]) => [other, seed.toString("hex")]));
    assert.deepStrictEqual(shown, member.pair_seeds);
    const input = sums.units(member.values, { fractionBits, clip });
    assert.deepStrictEqual(input.units.map(Number), member.units);
    assert.strictEqual(input.clipped, member.clipped);
    const own = unhex(member.own_seed);
    const words = sums.mask({ bits, site: name, units: input.units, own, seeds });
    assert.strictEqual(sums.encode(words, bits).toString("hex"), member.masked);
    const secrets = { ...seeds, [name]: own };
    const committed = Object.entries(secrets).map(([each, seed]) => [each, sums.commitment(seed)]);
    const commitments = Object.fromEntries(committed);
    const artifact = protocol.sha256(unhex(member.masked)).toString("hex");
    assert.strictEqual(sums.statement(artifact, commitments), member.statement);
    assert.strictEqual(sums.statementDigest(artifact, commitments), member.digest);
    const left = Object.entries(shown).filter(([other]) => !contributors.includes(other));
    const opening = { own, shared: Object.fromEntries(left) };
    return { name, words: sums.decode(unhex(member.masked), bits), commitments, opening };
  });
  const set = Object.fromEntries(contributors.map((name) => [name, members[name].digest]));
  const added = sums.total(heard.filter(({ name }) => name in set), set, bits);
  assert.deepStrictEqual(added.map(Number), units);
  assert.deepStrictEqual(sums.mean(added, { fractionBits, clip }, contributors.length), mean);
}

function secureSums(vectors) {
  for (const { members, colluders, members_min: expected } of vectors.members_min) {
    assert.strictEqual(sums.membersMin(members, colluders), expected);
  }
  for (const { context, sites, info } of vectors.info) {
    assert.strictEqual(sums.info(context, ...sites).toString("hex"), info);
  }
  for (const { members, clip, samples, whole, tensors, words, ...expected } of vectors.artifacts) {
    const ring = sums.ring({ members, weighted: samples !== null, whole });
    const { bits, fraction_bits: fractionBits, whole_max: wholeMax } = expected;
    assert.deepStrictEqual(ring, { bits, fractionBits, wholeMax: BigInt(wholeMax) });
    assert.strictEqual(sums.encode(sums.wordsOf(tensors, ring, { clip, samples }), bits).toString("hex"), words);
  }
  vectors.sums.forEach(sum);
  const { members_min: least, info, artifacts } = vectors;
  return least.length + info.length + artifacts.length + vectors.sums.length;
}

function sumStatements(vectors, messages) {
  const { deserialize, serialize } = messages["mhfl.v1.SumStatements"];
  for (const { what, statements, known, key, shown, commit, opening } of vectors.accepted) {
    assert.strictEqual(protocol.sha256(unhex(statements)).toString("hex"), known);
    const read = sums.readStatements(unhex(statements), deserialize);
    const text = read.opening && { own: read.opening.own.toString("hex"), shared: read.opening.shared };
    const fields = { ...read, key: read.key && read.key.toString("hex"), opening: text };
    assert.deepStrictEqual(fields, { key, shown, commit, opening }, what);
    assert.deepStrictEqual(sums.readStatements(sums.writeStatements(read, serialize), deserialize), read, what);
  }
  for (const { statements, what } of vectors.refused) {
    assert.throws(() => sums.readStatements(unhex(statements), deserialize), Error, what);
  }
  for (const key of vectors.small_order) assert.throws(() => sums.checkKey(unhex(key)), Error, key);
  return vectors.accepted.length + vectors.refused.length + vectors.small_order.length;
}

function main(folder) {
  const read = (name) => JSON.parse(fs.readFileSync(path.join(folder, "vectors", `${name}.json`), "utf8"));
  const messages = loader.loadSync(path.join(folder, "peer.proto"), READ);
  console.log(
    JSON.stringify({
      federation: federations(read("federation")),
      schedule: schedules(read("schedule")),
      visits: visits(read("visits")),
      manifest: manifests(read("manifest"), messages["mhfl.v1.Manifest"].deserialize),
      round: rounds(read("round"), messages["mhfl.v1.RoundClaim"].deserialize),
      parking: parking(read("parking")),
      state: states(read("state")),
      secure_sum: secureSums(read("secure_sum")),
      sum_statements: sumStatements(read("sum_statements"), messages),
    }),
  );
}

main(process.argv[2]);
