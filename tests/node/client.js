// `node client.js PROTO_FOLDER SITE_FOLDER SITE ROUNDS`: a site of a running federation, as far as it asks others.
//
// It knows its own files and what proto/README.md says, and takes part for ROUNDS rounds of a permutation method: greets
// every peer, takes the artifact that is its turn, verifies it, and asks for one that is not. Each step that held is one
// line of JSON; what does not hold ends it with a message.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const protocol = require("./protocol");

const READ = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const MESSAGE_BYTES_MAX = (1 << 20) + (64 << 10);
const CALL_S = 5;
const WAIT_S = 20;
const KIND = "KIND_MODEL";

/** The messages and the service of peer.proto. */
class Wire {
  constructor(folder) {
    this.definition = loader.loadSync(path.join(folder, "peer.proto"), READ);
    this.Exchange = grpc.loadPackageDefinition(this.definition).mhfl.v1.Exchange;
    this.decodeManifest = this.definition["mhfl.v1.Manifest"].deserialize;
  }
}

/** What a site has on its disk: its key and certificate, the round key, and the federation's file. */
class Own {
  constructor(folder, name) {
    const read = (...parts) => fs.readFileSync(path.join(folder, ...parts));
    const federation = protocol.parseFederation(read("federation.toml").toString());
    this.name = name;
    this.document = federation;
    this.ca = Buffer.from(federation.ca_certificate);
    this.key = read("pki", "site.key");
    this.certificate = read("pki", "cert.pem");
    this.roundKey = Buffer.from(read("pki", "round.key").toString().trim(), "hex");
    this.roster = federation.site.map((site) => site.name).sort();
    this.addresses = new Map(federation.site.map((site) => [site.name, site.address]));
    this.federation = protocol.federationDigest(federation);
    this.kind = federation.schedule?.kind ?? "permutation";
  }

  get others() {
    return this.roster.filter((name) => name !== this.name);
  }

  /** Whose artifact is this site's in a round. */
  source(round) {
    const { roundKey, federation, kind } = this;
    const drawn = protocol.order({ roundKey, federation, round, sites: this.roster.length, kind });
    return this.roster[drawn[this.roster.indexOf(this.name)]];
  }

  greeting(changes = {}) {
    return {
      protocol: 1,
      federation: this.federation,
      roster: protocol.rosterDigest(this.roster),
      generation: 1,
      clock_s: Date.now() / 1000,
      software: `node ${process.version}`,
      round_key_tag: protocol.roundKeyTag(this.roundKey, this.federation),
      ...changes,
    };
  }
}

/** A line to one site over mutual TLS; `expected` is the name that its certificate must have. */
class Line {
  constructor(wire, own, site, expected = site) {
    const credentials = grpc.credentials.createSsl(own.ca, own.key, own.certificate);
    this.stub = new wire.Exchange(own.addresses.get(site), credentials, {
      "grpc.ssl_target_name_override": expected,
      "grpc.default_authority": expected,
      "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
      "grpc.enable_retries": 0,
    });
  }

  /** The answer of a unary call; the error of gRPC where it is refused. */
  call(name, request, limitS = CALL_S) {
    const deadline = new Date(Date.now() + limitS * 1000);
    return new Promise((resolve, reject) => {
      this.stub[name](request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
    });
  }

  /** The bytes from an offset on; with `chunks` no more than that many chunks, and then the call is ended. */
  async *fetch(request, chunks = Infinity) {
    const stream = this.stub.FetchArtifact(request, { deadline: new Date(Date.now() + WAIT_S * 1000) });
    stream.on("error", () => {}); // the loop below gets it; after its end nobody listens
    let seen = 0;
    for await (const { data } of stream) {
      yield data;
      if (++seen === chunks) break;
    }
    stream.cancel();
  }
}

function tell(step, more) {
  process.stdout.write(`${JSON.stringify({ step, ...more })}\n`);
}

const AGAIN = ["UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "DATA_LOSS"];
const PAUSES_S = [0.2, 0.5, 1, 2];

/** The answer of a call that is repeated while it may succeed later; undefined once it is over. */
async function patiently(call, isOver = () => false) {
  for (let failures = 0; !isOver(); failures++) {
    try {
      return await call();
    } catch (error) {
      if (!AGAIN.includes(grpc.status[error.code])) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (PAUSES_S[failures] ?? PAUSES_S.at(-1))));
    }
  }
  return undefined;
}

/** The status and the reason with which a site refuses. */
async function refused(promise, status) {
  const error = await promise.then(
    () => assert.fail(`it was not refused with ${status}`),
    (error) => error,
  );
  assert.strictEqual(grpc.status[error.code], status, error.details);
  return { status, reason: error.details };
}

async function drain(chunks) {
  const parts = [];
  for await (const chunk of chunks) parts.push(chunk);
  return parts;
}

/** Who belongs together says so; a wrong name and another federation are found out. */
async function greet(wire, own, lines) {
  for (const [site, line] of lines) {
    const answer = await line.call("Hello", own.greeting());
    for (const what of ["federation", "roster", "round_key_tag"]) {
      assert.ok(own.greeting()[what].equals(answer[what]), `${site} has another ${what}`);
    }
    tell("greeted", { site, software: answer.software });
    const stranger = own.greeting({ federation: crypto.randomBytes(32), generation: 0 });
    tell("stranger", { site, ...(await refused(line.call("Hello", stranger), "FAILED_PRECONDITION")) });
  }
  const [one, other] = own.others;
  const misnamed = new Line(wire, own, one, other);
  tell("misnamed", { site: one, ...(await refused(misnamed.call("Hello", own.greeting()), "UNAVAILABLE")) });
  misnamed.stub.close();
}

/** Take the artifact of a round from the site whose turn it is: the first chunk, then, after a break, the rest. */
async function take(wire, own, line, site, round) {
  const asked = { kind: KIND, for_round: round, purpose: "PURPOSE_TRAIN", owner: site };
  const early = await line.call("GetManifest", { ...asked, wait_s: 0 });
  tell("waiting", { round, site, ready: early.reply === "manifest" });
  const { manifest: signed, reply } = await line.call("GetManifest", { ...asked, wait_s: WAIT_S }, WAIT_S + CALL_S);
  assert.strictEqual(reply, "manifest");
  const trust = { ca: own.ca, dialled: site, now: new Date(), decode: wire.decodeManifest };
  const manifest = protocol.openManifest(signed, trust);
  protocol.checkManifest(manifest, { federation: own.federation, origin: site, owner: site, kind: KIND, round });
  const forged = { ...signed, body: Buffer.concat([signed.body, Buffer.from([0x28, round + 1])]) };
  assert.throws(() => protocol.openManifest(forged, trust), /the signature is wrong/);
  const wanted = { ...asked, sha256: manifest.sha256 };
  const unknown = drain(line.fetch({ ...wanted, sha256: protocol.sha256("another"), offset: 0 }));
  tell("unknown", { round, site, ...(await refused(unknown, "NOT_FOUND")) });
  const chunks = await drain(line.fetch({ ...wanted, offset: 0 }, 1));
  chunks.push(...(await drain(line.fetch({ ...wanted, offset: chunks[0].length }))));
  const content = Buffer.concat(chunks);
  protocol.checkArtifact(content, manifest);
  const sha256 = manifest.sha256.toString("hex");
  tell("taken", { round, site, sha256, bytes: content.length, chunks: chunks.length, generation: manifest.generation });
}

/** Outside its turn a site gets neither manifest nor bytes. */
async function ask(line, site, round) {
  const asked = { kind: KIND, for_round: round, purpose: "PURPOSE_TRAIN", owner: site };
  const manifest = await refused(line.call("GetManifest", { ...asked, wait_s: WAIT_S }), "PERMISSION_DENIED");
  const bytes = drain(line.fetch({ ...asked, sha256: protocol.sha256("any"), offset: 0 }));
  await refused(bytes, "PERMISSION_DENIED");
  tell("denied", { round, site, ...manifest });
}

async function main([proto, folder, name, rounds]) {
  const wire = new Wire(proto);
  const own = new Own(folder, name);
  const lines = new Map(own.others.map((site) => [site, new Line(wire, own, site)]));
  await greet(wire, own, lines);
  for (const [site, line] of lines) {
    // It publishes nothing, and says so: whoever would receive from it goes on alone at once.
    const pulse = await line.call("Beat", { generation: 1, round: 1, phase: "leaving", progress: 0 });
    tell("heard", { site, phase: pulse.phase, round: pulse.round });
  }
  for (let round = 1; round <= Number(rounds); round++) {
    const source = own.source(round);
    for (const [site, line] of lines) {
      if (site === source) await take(wire, own, line, site, round);
      else await ask(line, site, round);
    }
  }
  for (const line of lines.values()) line.stub.close();
}

function run(main) {
  main(process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
}

module.exports = { KIND, Line, Own, WAIT_S, Wire, drain, patiently, refused, run, tell };

if (require.main === module) run(main);
