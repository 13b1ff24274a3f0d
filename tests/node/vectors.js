// `node vectors.js PROTO_FOLDER`: compares this client with the known answers in proto/vectors; says how many it met.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");

const loader = require("@grpc/proto-loader");

const protocol = require("./protocol");

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
    }),
  );
}

main(process.argv[2]);
