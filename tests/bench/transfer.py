"""Speed of a transfer, verified and on disk, compared with a bare grpc.aio stream over mutual TLS
that only hashes.

Both transfers run in turn, so that they see the same machine; sender and receiver are processes of
their own.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import grpc
from row import Row, at_least, below, peak_kib

from peer import allocator
from peer.core.artifacts import Artifact, TensorSpec
from peer.core.messages import Manifest, SignedManifest
from peer.core.roster import Roster, Sha256, SiteName
from peer.net.transport import tls
from peer.net.transport.client import ExchangeClient, Offer
from peer.net.transport.server import ExchangeServer, Grant
from peer.net.transport.tls import Pki
from peer.net.transport.wire import ArtifactRequest
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.exchange_calls import exchange_stub, serve_artifacts

RATIO_MIN = 0.6
MEMORY_MIB_MAX = 120.0
MIB = 1 << 20
EUROPE, AFRICA = SiteName("europe"), SiteName("africa")
FEDERATION = Sha256("00" * 32)
LARGE = (("grpc.max_receive_message_length", 2 * MIB), ("grpc.max_send_message_length", 2 * MIB))


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def admit(folder: Path, names: Iterable[SiteName] = (EUROPE, AFRICA)) -> None:
    """Create a CA, and a key folder for each name."""
    authority, ca = certificates.new_authority("bench", now=now())
    for name in names:
        key = certificates.new_key()
        certificate = certificates.issue(authority, ca, name=name, public_key=key.public_key(), now=now())
        (folder / name).mkdir()
        for file, content in (
            (certificates.CA_FILE, certificates.certificate_pem(ca)),
            (certificates.CERTIFICATE_FILE, certificates.certificate_pem(certificate)),
            (certificates.KEY_FILE, certificates.key_pem(key)),
            (certificates.ROUND_KEY_FILE, b"00" * 32),
        ):
            (folder / name / file).touch(mode=0o600)
            (folder / name / file).write_bytes(content)


def pki(folder: Path, name: SiteName) -> Pki:
    return Pki(folder / name, name, (folder / name / certificates.CA_FILE).read_text(), now)


def write_artifact(folder: Path, megabytes: int) -> Artifact:
    """Write a safetensors file of that size, piece by piece."""
    size = megabytes * MIB
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    digest, path = hashlib.sha256(), folder / "new"
    with path.open("wb") as file:
        for piece in (struct.pack("<Q", len(header)) + header, *([os.urandom(MIB)] * megabytes)):
            file.write(piece)
            digest.update(piece)
    path.rename(folder / f"{digest.hexdigest()}.safetensors")
    return describe(folder, Sha256(digest.hexdigest()))


def describe(folder: Path, sha256: Sha256) -> Artifact:
    """The file's description in a manifest."""
    size = (folder / f"{sha256}.safetensors").stat().st_size
    return Artifact("model", EUROPE, sha256, size, 0, {})


def make_offer(artifact: Artifact) -> Offer:
    """Europe's offer of an artifact, with a manifest that nobody has signed."""
    tensors = (TensorSpec("w", "U8", (artifact.bytes // MIB * MIB,)),)
    manifest = Manifest(FEDERATION, 1, "bench", EUROPE, 1, artifact, tensors)
    return Offer(ArtifactRequest("model", 1, "train", EUROPE), SignedManifest(b"", b"", b""), manifest)


class FolderService:
    """What a transfer calls of `PeerService`: it sends any artifact of a folder to anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_artifact(
        self, caller: SiteName, request: ArtifactRequest, *, sha256: Sha256, offset: int, relayed: bool
    ) -> Grant:
        return Grant(self.folder / f"{sha256}.safetensors", 0)

    def record_sent(self, grant: Grant, *, size: int, outcome: str) -> None:
        """Nothing is recorded here."""


class Bare:
    """The bare stream's server: it reads an artifact from disk and sends its chunks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def stream(self, request, context):
        with (self.folder / f"{request.sha256.hex()}.safetensors").open("rb") as file:
            while chunk := file.read(MIB):
                yield pb.Chunk(data=chunk)


async def start_bare(folder: Path, own: certificates.Identity) -> tuple[grpc.aio.Server, int]:
    """Start a bare stream's server; it, and its port."""
    pair = (certificates.key_pem(own.key), certificates.certificate_pem(own.certificate))
    server = grpc.aio.server(options=LARGE)
    serve_artifacts(server, Bare(folder).stream)
    credentials = grpc.ssl_server_credentials([pair], certificates.certificate_pem(own.ca), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, port


def bare_channel(own: certificates.Identity, name: str, port: object) -> grpc.aio.Channel:
    """A channel to the bare stream's server of a site."""
    options = (*LARGE, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", tls.channel_credentials(own), options=options)


async def serve(folder: Path, way: str) -> None:
    """Serve until stdin closes, then print the peak memory."""
    keys = pki(folder, EUROPE)
    if way == "ours":
        ours = ExchangeServer(FolderService(folder), pki=keys, roster=Roster.of([EUROPE, AFRICA]))
        print(await ours.start("127.0.0.1:0"), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await ours.stop()
    else:
        server, port = await start_bare(folder, keys.load())
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)
    print(peak_kib() // 1024)


async def receive(folder: Path, ports: dict[str, str], sha256: Sha256, rounds: int) -> None:
    """Print the seconds of both transfers, in turn, and the peak memory after our first."""
    artifact = describe(folder, sha256)
    keys = pki(folder, AFRICA)
    inbox = folder / "inbox"
    inbox.mkdir(exist_ok=True)
    client = ExchangeClient(pki=keys, federation=FEDERATION, address=lambda _: f"127.0.0.1:{ports['ours']}")
    offer = make_offer(artifact)
    channel = bare_channel(keys.load(), EUROPE, ports["bare"])
    stub = exchange_stub(channel)

    async def ours() -> None:
        (await client.fetch(offer, inbox)).unlink()

    async def bare() -> None:
        digest = hashlib.sha256()
        async for chunk in stub.FetchArtifact(pb.FetchRequest(sha256=bytes.fromhex(artifact.sha256))):
            digest.update(chunk.data)
        assert digest.hexdigest() == artifact.sha256

    await ours()
    figures: dict[str, Any] = {"peak": peak_kib() // 1024, "bare": [], "ours": []}
    await bare()
    for _ in range(rounds):
        for way in (bare, ours):
            began = time.perf_counter()
            await way()
            figures[way.__name__].append(time.perf_counter() - began)
    print(json.dumps(figures))
    await client.close()
    await channel.close()


def measure(*, quick: bool) -> list[Row]:
    """Speed compared with the bare stream, and memory, which must not grow with the artifact."""
    rows = []
    for megabytes in (20,) if quick else (20, 60, 250, 1024):
        figures = time_transfers(megabytes, 3 if quick or megabytes > 250 else 11)
        rows.append(at_least(f"transfer of {megabytes} MB: speed / bare stream", figures["ratio"], "", RATIO_MIN))
        for side in ("receiving", "sending"):
            rows.append(below(f"transfer of {megabytes} MB: memory {side}", figures[side], "MiB", MEMORY_MIB_MAX))
    return rows


def time_transfers(megabytes: int, rounds: int) -> dict[str, float]:
    """The ratio of the medians of both transfers, and the peak memory of both ends in MiB."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        admit(folder)
        artifact = write_artifact(folder, megabytes)
        servers = {}
        for way in ("bare", "ours"):
            command = [sys.executable, __file__, "serve", scratch, way]
            servers[way] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ports = {way: server.stdout.readline().strip() for way, server in servers.items()}
        command = [sys.executable, __file__, "receive", scratch, artifact.sha256, str(rounds), *ports.values()]
        received = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        sender = {way: server.communicate()[0].strip() for way, server in servers.items()}
    bare, ours = (statistics.median(received[way]) for way in ("bare", "ours"))
    return {"ratio": bare / ours, "receiving": received["peak"], "sending": float(sender["ours"])}


if __name__ == "__main__":
    allocator.keep_memory_small()  # as a daemon does
    match sys.argv[1:]:
        case ["serve", folder, way]:
            asyncio.run(serve(Path(folder), way))
        case ["receive", folder, sha256, rounds, bare, ours]:
            asyncio.run(receive(Path(folder), {"bare": bare, "ours": ours}, Sha256(sha256), int(rounds)))
