// A site's server: gRPC over mutual TLS, with the checks of section 2 of proto/README.md before each call.
"use strict";

const crypto = require("node:crypto");

const grpc = require("@grpc/grpc-js");

const { Wire } = require("./client");
const { refuseUnless } = require("./protocol");

const REQUEST_BYTES_MAX = 256 << 10;

/** What the caller reads: a status of section 5, and a reason. */
class Refusal extends Error {
  constructor(status, reason) {
    super(reason);
    Object.assign(this, { code: grpc.status[status], details: reason });
  }
}

/** The messages and the service, whose requests are parsed only after the checks of the caller. */
class ServingWire extends Wire {
  constructor(folder) {
    super(folder);
    const service = Object.entries(this.definition["mhfl.v1.Exchange"]);
    this.requests = Object.fromEntries(service.map(([name, { requestDeserialize }]) => [name, requestDeserialize]));
    this.service = Object.fromEntries(
      service.map(([name, method]) => [name, { ...method, requestDeserialize: (bytes) => bytes }]),
    );
    this.Manifest = this.definition["mhfl.v1.Manifest"];
    this.SumStatements = this.definition["mhfl.v1.SumStatements"];
  }
}

class Server {
  /** `answers` has a function of (caller, request) by name of a call; the calls that it lacks are not implemented. */
  constructor(wire, own, answers) {
    Object.assign(this, { wire, own, answers });
    this.server = new grpc.Server({ "grpc.max_receive_message_length": REQUEST_BYTES_MAX });
    const handlers = Object.entries(wire.service).map(([name, { responseStream }]) => [
      name,
      responseStream ? (call) => this.#stream(name, call) : (call, done) => this.#answer(name, call, done),
    ]);
    this.server.addService(wire.service, Object.fromEntries(handlers));
  }

  start() {
    const { ca, key, certificate, addresses, name } = this.own;
    const pair = { private_key: key, cert_chain: certificate };
    const credentials = grpc.ServerCredentials.createSsl(ca, [pair], true);
    return new Promise((resolve, reject) => {
      this.server.bindAsync(addresses.get(name), credentials, (error) => (error ? reject(error) : resolve()));
    });
  }

  stop() {
    this.server.forceShutdown();
  }

  /** The caller by its certificate, which TLS has checked against the CA, and the parsed request. */
  #open(name, call) {
    const caller = this.#caller(call);
    if (!(name in this.answers)) throw new Refusal("UNIMPLEMENTED", `${name} is no call of this program`);
    try {
      return [caller, this.wire.requests[name](call.request)];
    } catch (error) {
      throw new Refusal("INVALID_ARGUMENT", `it is no message: ${error.message}`);
    }
  }

  #caller(call) {
    try {
      const certificate = new crypto.X509Certificate(call.getAuthContext().sslPeerCertificate.raw);
      const name = certificate.subjectAltName.replace(/^DNS:/, "");
      const now = new Date();
      const inDate = new Date(certificate.validFrom) <= now && now <= new Date(certificate.validTo);
      refuseUnless(inDate, "the certificate is not in date");
      refuseUnless(this.own.others.includes(name), `${name} is no peer of this federation`);
      return name;
    } catch (error) {
      throw new Refusal("UNAUTHENTICATED", error.message);
    }
  }

  async #answer(name, call, done) {
    try {
      const [caller, request] = this.#open(name, call);
      done(null, await this.answers[name](caller, request));
    } catch (error) {
      done(asRefusal(error));
    }
  }

  async #stream(name, call) {
    try {
      const [caller, request] = this.#open(name, call);
      for await (const message of this.answers[name](caller, request)) {
        if (call.cancelled) return;
        if (!call.write(message)) await new Promise((resolve) => call.once("drain", resolve));
      }
      call.end();
    } catch (error) {
      call.emit("error", asRefusal(error));
    }
  }
}

function asRefusal(error) {
  if (error instanceof Refusal) return error;
  console.error(error);
  return new Refusal("INTERNAL", "it failed here");
}

module.exports = { Refusal, Server, ServingWire };
