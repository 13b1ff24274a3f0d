// What proto/README.md says that two sites must compute alike, written from that text alone.
//
// Digests, keys and signatures are Buffers; an error names what is wrong and is a refusal of what came.
"use strict";

const crypto = require("node:crypto");

const { parse } = require("smol-toml");

const NOT_IDENTITY = new Set(["address", "description"]);
const ORDER_LABEL = Buffer.from("mhfl/order/v1");
const HELLO_LABEL = Buffer.from("mhfl/hello/v1");
const MANIFEST_LABEL = Buffer.from("mhfl/manifest/v1\0");
const ROUND_LABEL = Buffer.from("mhfl/round/v1\0");
const WORD = 1n << 64n;
const USAGES = ["1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"]; // server and client authentication
const STATE_TYPES = ["I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"];
const DTYPE_BYTES = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U8: 1, BOOL: 1 };

/** The parsed federation.toml; integers are BigInt, so that `1` and `1.0` stay two things. */
function parseFederation(text) {
  return parse(text, { integersAsBigInt: true });
}

/** The JSON whose SHA-256 is the federation's identity. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value === "bigint" || typeof value === "boolean") return String(value);
  if (typeof value === "number") return float(value);
  if (typeof value === "string") return JSON.stringify(value);
  const keys = Object.keys(value).filter((key) => !NOT_IDENTITY.has(key));
  keys.sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other))); // UTF-8 sorts as code points do
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

/** The shortest digits that read back as the same number, always with a point or an exponent, 1e-05 and 1e+16. */
function float(value) {
  if (Object.is(value, -0)) return "-0.0";
  const [mantissa, power] = value.toExponential().split("e");
  const exponent = Number(power);
  if (value !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const [sign, digits] = value < 0 ? ["-", mantissa.slice(1).replace(".", "")] : ["", mantissa.replace(".", "")];
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  return `${sign}${whole}.${digits.slice(exponent + 1) || "0"}`;
}

function sha256(bytes) {
  return crypto.createHash("sha256").update(bytes).digest();
}

function hmac(key, ...parts) {
  return crypto.createHmac("sha256", key).update(Buffer.concat(parts)).digest();
}

function u64be(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value));
  return bytes;
}

function federationDigest(document) {
  return sha256(canonical(document));
}

function rosterDigest(names) {
  return sha256(names.join("\n"));
}

function roundKeyTag(roundKey, federation) {
  return hmac(roundKey, HELLO_LABEL, federation);
}

/** The numbers that a round draws from, eight bytes each. */
function* words(seed) {
  for (let counter = 0; ; counter++) {
    const block = hmac(seed, u64be(counter));
    for (let at = 0; at < block.length; at += 8) yield block.readBigUInt64BE(at);
  }
}

/** Fisher-Yates from the last index down to 1; a word at or above the largest multiple of the bound is drawn again. */
function shuffle(count, source) {
  const items = Array.from({ length: count }, (_, index) => index);
  for (let last = count - 1; last > 0; last--) {
    const bound = BigInt(last + 1);
    const limit = WORD - (WORD % bound);
    let word;
    do word = source.next().value;
    while (word >= limit);
    const chosen = Number(word % bound);
    [items[last], items[chosen]] = [items[chosen], items[last]];
  }
  return items;
}

/** `order[i]` is the index of the site whose artifact site i receives in a round. */
function order({ roundKey, federation, round, sites, kind }) {
  const source = words(hmac(roundKey, ORDER_LABEL, federation, u64be(round)));
  let drawn = shuffle(sites, source);
  if (kind === "derangement") {
    while (drawn.some((target, index) => target === index)) drawn = shuffle(sites, source);
  } else if (kind === "ring") {
    const ring = [];
    drawn.forEach((site, position) => (ring[site] = drawn[(position + sites - 1) % sites]));
    drawn = ring;
  } else if (kind !== "permutation") {
    throw new Error(`schedule kind ${kind} is not known`);
  }
  return drawn;
}

/**
 * The manifest in a SignedManifest, read only after certificate and signature hold.
 *
 * @param signed `body`, `signature`, `certificate_der`.
 * @param trust `ca` (PEM), `dialled` (the site that was meant), `now` (a Date), `decode` (bytes to a Manifest).
 */
function openManifest(signed, trust) {
  return openSigned(signed, MANIFEST_LABEL, trust);
}

/** The claim in a SignedRound of the dialled site, read only after certificate and signature hold. */
function openRound(signed, federation, trust) {
  const claim = openSigned(signed, ROUND_LABEL, trust);
  refuseUnless(claim.federation.equals(federation), "the claim is of another federation");
  refuseUnless(claim.site === trust.dialled, `the claim is of ${claim.site}`);
  return claim;
}

function openSigned(signed, label, { ca, dialled, now, decode }) {
  const authority = new crypto.X509Certificate(ca);
  const certificate = new crypto.X509Certificate(signed.certificate_der);
  refuseUnless(certificate.checkIssued(authority), "the certificate is not the CA's");
  refuseUnless(certificate.verify(authority.publicKey), "the CA did not sign the certificate");
  refuseUnless(new Date(certificate.validFrom) <= now && now <= new Date(certificate.validTo), "it is not in date");
  refuseUnless(USAGES.every((usage) => certificate.keyUsage?.includes(usage)), "it is not for both usages");
  refuseUnless(certificate.subjectAltName === `DNS:${dialled}`, `it names ${certificate.subjectAltName}`);
  const key = certificate.publicKey;
  refuseUnless(key.asymmetricKeyDetails?.namedCurve === "prime256v1", "its key is not on P-256");
  const data = Buffer.concat([label, signed.body]);
  refuseUnless(crypto.verify("sha256", data, { key, dsaEncoding: "der" }, signed.signature), "the signature is wrong");
  return decode(signed.body);
}

/** A SignedManifest: the signature of the certificate's key over the body as it will leave. */
function signManifest(body, key, certificate) {
  const signature = crypto.sign("sha256", Buffer.concat([MANIFEST_LABEL, body]), { key, dsaEncoding: "der" });
  return { body, signature, certificate_der: new crypto.X509Certificate(certificate).raw };
}

/** Refuse a manifest that is not the one that was asked for. */
function checkManifest(manifest, { federation, origin, owner, kind, round }) {
  refuseUnless(federation.equals(manifest.federation), "the manifest is of another federation");
  refuseUnless(manifest.origin === origin && manifest.owner === owner, `it is ${manifest.owner}'s by ${manifest.origin}`);
  refuseUnless(manifest.kind === kind && manifest.round === round, `it is a ${manifest.kind} of round ${manifest.round}`);
  refuseUnless(!manifest.evaluation, "it is for evaluation");
}

/** Refuse a file that is not what its manifest says: size, digest, and a safetensors header with exactly its tensors. */
function checkArtifact(content, manifest) {
  refuseUnless(content.length === manifest.bytes, `${content.length} bytes, not ${manifest.bytes}`);
  refuseUnless(sha256(content).equals(manifest.sha256), "the digest is another one");
  const length = Number(content.readBigUInt64LE(0));
  const { __metadata__: _, ...header } = JSON.parse(content.subarray(8, 8 + length).toString("utf8"));
  const promised = new Map(manifest.tensors.map((tensor) => [tensor.name, tensor]));
  refuseUnless(Object.keys(header).length === promised.size, "the file has other tensors");
  const spans = Object.entries(header).map(([name, entry]) => {
    const tensor = promised.get(name);
    refuseUnless(tensor !== undefined, `tensor ${name} is not in the manifest`);
    refuseUnless(tensor.dtype === entry.dtype, `tensor ${name} is ${entry.dtype}, not ${tensor.dtype}`);
    refuseUnless(String(tensor.shape) === String(entry.shape), `tensor ${name} has the shape [${entry.shape}]`);
    const size = tensor.shape.reduce((product, side) => product * side, DTYPE_BYTES[tensor.dtype]);
    refuseUnless(entry.data_offsets[1] - entry.data_offsets[0] === size, `tensor ${name} is not ${size} bytes long`);
    return entry.data_offsets;
  });
  spans.sort(([one], [other]) => one - other);
  const end = spans.reduce((at, [begin, after]) => (refuseUnless(begin === at, `a gap at byte ${at}`), after), 0);
  refuseUnless(8 + length + end === content.length, "something follows the last tensor");
}

/** A safetensors file; the tensors have `name`, `dtype`, `shape` and `data`, and stand in the given order. */
function writeTensors(tensors) {
  let end = 0;
  const header = tensors.map(({ name, dtype, shape, data }) => {
    const begin = end;
    end += data.length;
    return `${JSON.stringify(name)}:${JSON.stringify({ dtype, shape, data_offsets: [begin, end] })}`;
  });
  const text = Buffer.from(`{${header.join(",")}}`);
  const padding = Buffer.alloc(-text.length & 7, " ");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length + padding.length));
  return Buffer.concat([length, text, padding, ...tensors.map(({ data }) => data)]);
}

/** The file whose digest a pulse states as `aggregate`; the tensors stand in any order. */
function writeState(tensors) {
  const rank = ({ dtype }) => STATE_TYPES.indexOf(dtype);
  const byName = (one, other) => Buffer.compare(Buffer.from(one.name), Buffer.from(other.name));
  return writeTensors([...tensors].sort((one, other) => rank(one) - rank(other) || byName(one, other)));
}

/** The bytes of the only tensor of a file that was checked. */
function readTensor(content) {
  return content.subarray(8 + Number(content.readBigUInt64LE(0)));
}

const FRAMES = ["PARK", "PARKED", "REFUSED", "PING", "PONG", "OPEN", "READY"];
const FRAME_BYTES_MAX = 512;

// A frame on a connection that is parked at a relay: u8 type, u16be length, payload.
function frame(type, payload) {
  const header = Buffer.from([FRAMES.indexOf(type) + 1, payload.length >> 8, payload.length & 255]);
  return Buffer.concat([header, payload]);
}

function openFrame(content) {
  refuseUnless(content.length >= 3, "it is cut short");
  const [type, length] = [FRAMES[content[0] - 1], content.readUInt16BE(1)];
  refuseUnless(type !== undefined, "no such type");
  refuseUnless(length <= FRAME_BYTES_MAX, "it is too long");
  refuseUnless(content.length === 3 + length, "it is cut short");
  return { type, payload: content.subarray(3) };
}

function refuseUnless(holds, reason) {
  if (!holds) throw new Error(reason);
}

module.exports = {
  canonical,
  checkArtifact,
  checkManifest,
  federationDigest,
  frame,
  openFrame,
  openManifest,
  openRound,
  order,
  parseFederation,
  readTensor,
  refuseUnless,
  rosterDigest,
  roundKeyTag,
  sha256,
  signManifest,
  u64be,
  writeState,
  writeTensors,
};
