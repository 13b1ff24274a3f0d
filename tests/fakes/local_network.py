"""A small federation on loopback: certificates, artifacts, and a service that the test controls."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import hashlib
import json
import os
import struct
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core.artifacts import Artifact
from peer.core.messages import Heartbeat, Hello, Manifest, SignedManifest, Unavailable
from peer.core.roster import Roster, Sha256, SiteName
from peer.net.transport.client import ExchangeClient
from peer.net.transport.header import read_tensors
from peer.net.transport.manifest import encode_manifest, sign_manifest
from peer.net.transport.server import ExchangeServer, Grant, Refusal, Status
from peer.net.transport.tls import Pki
from peer.net.transport.wire import ArtifactRequest
from peer.site.identity import certificates

UTC = datetime.UTC
FEDERATION = Sha256("fe" * 32)
ROSTER = Roster.of(["africa", "asia", "europe"])


def now() -> datetime.datetime:
    return datetime.datetime.now(UTC)


@dataclass
class Authority:
    """A federation's CA, and a folder for the sites that it admits."""

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(init=False)
    certificate: Any = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.certificate = certificates.new_authority("test", now=now() - datetime.timedelta(days=400))

    def admit(self, name: str, *, into: str | None = None, at: datetime.datetime | None = None, days: int = 30) -> Pki:
        """A site's pki folder; ``at`` is when its certificate was issued."""
        folder = self.folder / (into or name)
        folder.mkdir(parents=True, exist_ok=True)
        key = certificates.new_key()
        certificate = certificates.issue(
            self.key, self.certificate, name=SiteName(name), public_key=key.public_key(), now=at or now(), days=days
        )
        pem = certificates.certificate_pem(self.certificate)
        for file, content in (
            (certificates.CA_FILE, pem),
            (certificates.KEY_FILE, certificates.key_pem(key)),
            (certificates.ROUND_KEY_FILE, b"11" * 32),
            (certificates.CERTIFICATE_FILE, certificates.certificate_pem(certificate)),
        ):
            fresh = folder / f"{file}.fresh"
            fresh.touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.replace(folder / file)
        return Pki(folder, SiteName(name), pem.decode(), now)


@dataclass
class Sample:
    """A safetensors file of random numbers, with its description."""

    path: Path
    artifact: Artifact


def make_sample(folder: Path, *, numbers: int, owner: str) -> Sample:
    """An artifact of one float32 vector, written by hand in the safetensors format."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    content = struct.pack("<Q", len(header)) + header + os.urandom(4 * numbers)
    digest = Sha256(hashlib.sha256(content).hexdigest())
    path = folder / f"{digest}.safetensors"
    path.write_bytes(content)
    return Sample(path, Artifact("model", SiteName(owner), digest, len(content), 20, {"name": "resnet10"}))


@dataclass
class FakeService:
    """Gives prepared answers, and records the calls."""

    pki: Pki
    published: dict[str, Path] = field(default_factory=dict)
    reply: SignedManifest | Unavailable = Unavailable.NOT_YET
    refusal: Refusal | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    ledger: list[tuple[Any, ...]] = field(default_factory=list)
    refused_calls: list[tuple[str, str, str]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, sample: Sample, **changes: Any) -> SignedManifest:
        """Serve the sample for round 3, with these fields of the manifest changed."""
        own = self.pki.load()
        manifest = Manifest(FEDERATION, 1, "fedskd", own.name, 3, sample.artifact, read_tensors(sample.path))
        self.published[sample.artifact.sha256] = sample.path
        self.reply = sign_manifest(own, encode_manifest(replace(manifest, **changes)))
        return self.reply

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        self._note("hello", caller)
        return greeting

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        self._note("beat", caller)
        return pulse

    async def manifest(
        self, caller: SiteName, request: ArtifactRequest, *, wait_s: float
    ) -> SignedManifest | Unavailable:
        self._note("manifest", caller)
        return self.reply

    def open_artifact(
        self, caller: SiteName, request: ArtifactRequest, *, sha256: Sha256, offset: int, relayed: bool
    ) -> Grant:
        self._note("open", caller)
        if sha256 not in self.published:
            raise Refusal(Status.DENIED, "not published here")
        self.ledger.append(("intent", caller, sha256, offset))
        return Grant(self.published[sha256], len(self.ledger))

    def record_sent(self, grant: Grant, *, size: int, outcome: str) -> None:
        self.ledger.append(("outcome", grant.intent, size, outcome))
        self.ended.set()

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        self.refused_calls.append((caller, call, reason))

    def _note(self, call: str, caller: str) -> None:
        self.calls.append((call, caller))
        if self.refusal is not None:
            raise self.refusal


@dataclass
class Site:
    """A serving site and the client with which it dials."""

    name: SiteName
    service: FakeService
    server: ExchangeServer
    port: int


@dataclass
class Proxy(abc.ABC):
    """A TCP proxy to a port."""

    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list, init=False)

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beyond_reader, beyond_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers += [writer, beyond_writer]
        await self.carry((reader, beyond_writer), (beyond_reader, writer))

    @abc.abstractmethod
    async def carry(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Carry a connection's bytes both ways until it ends."""


@dataclass
class Cutter(Proxy):
    """Cuts the connection, in turn cleanly and abruptly, after so many bytes."""

    after: Callable[[], int]
    cuts: int = 0

    async def carry(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        left = self.after()

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal left
            with contextlib.suppress(OSError):
                while (data := await source.read(1 << 16)) and left > 0:
                    left -= len(data)
                    target.write(data)
                    await target.drain()

        carrying = [asyncio.ensure_future(carry(*way)) for way in ways]
        await asyncio.wait(carrying, return_when=asyncio.FIRST_COMPLETED)
        self.cuts += left <= 0
        for _, end in ways:
            end.transport.abort() if self.cuts % 2 else end.close()
        await asyncio.wait(carrying)


@dataclass
class LongLine(Proxy):
    """Delays every byte by ``delay_s``."""

    delay_s: float
    carried: int = 0

    async def quiet(self) -> None:
        """Wait until no byte is under way."""
        carried = -1
        while carried != self.carried:
            carried = self.carried
            await asyncio.sleep(10 * self.delay_s)

    async def carry(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        loop = asyncio.get_running_loop()

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 18):
                    self.carried += len(data)
                    loop.call_later(self.delay_s, target.write, data)

        await asyncio.gather(*(carry(*way) for way in ways))


@dataclass
class LocalNetwork:
    """Starts servers and clients, and stops them at the end of the test."""

    authority: Authority
    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    servers: list[ExchangeServer] = field(default_factory=list)
    clients: list[ExchangeClient] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)

    async def serve(
        self, name: str, *, pki: Pki | None = None, roster: Collection[SiteName] = ROSTER, **options: Any
    ) -> Site:
        pki = pki or self.authority.admit(name)
        service = FakeService(pki)
        server = ExchangeServer(service, pki=pki, roster=roster, **options)
        port = await server.start("127.0.0.1:0")
        self.servers.append(server)
        self.addresses[name] = f"127.0.0.1:{port}"
        return Site(SiteName(name), service, server, port)

    async def put_before(self, site: Site, proxy: Any) -> Any:
        """Let others reach the site through a proxy."""
        self.addresses[site.name] = f"127.0.0.1:{await proxy.start()}"
        self.proxies.append(proxy)
        return proxy

    async def cut(self, site: Site, after: Callable[[], int]) -> Cutter:
        return await self.put_before(site, Cutter(site.port, after))

    async def lengthen(self, site: Site, *, delay_s: float) -> LongLine:
        return await self.put_before(site, LongLine(site.port, delay_s))

    def dial(self, name: str, *, pki: Pki | None = None, **options: Any) -> ExchangeClient:
        pki = pki or self.authority.admit(name)
        client = ExchangeClient(pki=pki, federation=FEDERATION, address=self.addresses.get, **options)
        self.clients.append(client)
        return client

    def sample(self, *, numbers: int = 500_000, owner: str = "europe") -> Sample:
        folder = self.folder / "published"
        folder.mkdir(exist_ok=True)
        return make_sample(folder, numbers=numbers, owner=owner)

    def inbox(self) -> Path:
        folder = self.folder / "received"
        folder.mkdir(exist_ok=True)
        return folder


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A CA of its own for the test."""
    return Authority(tmp_path / "pki")


@pytest.fixture
def foreign_authority(tmp_path: Path) -> Authority:
    """The CA of another federation."""
    return Authority(tmp_path / "foreign")


@pytest.fixture
async def network(authority: Authority, tmp_path: Path) -> AsyncIterator[LocalNetwork]:
    """An empty network that cleans up after itself."""
    network = LocalNetwork(authority, tmp_path)
    yield network
    for client in network.clients:
        await client.close()
    for proxy in network.proxies:
        await proxy.stop()
    for server in network.servers:
        await server.stop()


@pytest.fixture
def wanted() -> Callable[..., ArtifactRequest]:
    """Makes the request of africa to europe."""

    def request(**changes: Any) -> ArtifactRequest:
        return replace(ArtifactRequest("model", 3, "train", SiteName("europe")), **changes)

    return request
