"""A daemon that receives the artifacts of 31 peers at once, and its peak memory.

The receiver is a real daemon with a worker that trains nothing. Its peers are stand-ins in this process,
written from ``proto/`` (``tests/adversary/member.py``): each has a certificate and a port of its own, and
sends its artifact in the largest chunks that are allowed, as fast as the receiver takes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from adversary.member import MODEL, Artifact, Member, Server, safetensors

from fakes import daemon
from fakes.amended_daemons import WatchedDaemons
from fakes.cli import ROOT
from fakes.drafts import draft
from peer.core import limits
from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb

RECEIVER = SiteName("receiver")
PEERS = 31
DRAFT = draft("many", rounds=1, method="fedavg", shared_model={"name": "resnet10"}, pace={"silence_s": 120})
SITE = "[data]\ninput_size = [8]\n[limits]\nreceived_ratio_max = 1e9\n"


class ReceivingFederation(WatchedDaemons):
    """A federation whose one real daemon has a worker without torch."""

    limit_s = 300.0
    program = daemon.program("obeys", 256, "all_to_all", "model", "train")


class Sender:
    """A peer in round 1 that has published its artifact."""

    def __init__(self, federation: LocalFederation, name: SiteName, megabytes: int) -> None:
        folder = federation.folder(name)
        self._member = Member(folder.pki, folder.federation_toml, name, kind=MODEL, method="fedavg")
        self._artifact = make_artifact(name, megabytes)
        self._manifest = pb.ManifestReply(manifest=self._member.manifest(1, self._artifact)).SerializeToString()
        pulse = self._member.pulse(phase="exchange", published_round=1).SerializeToString()
        self._server = Server(
            self._member,
            {
                "Hello": lambda *_: self._member.greeting().SerializeToString(),
                "Beat": lambda *_: pulse,
                "GetManifest": lambda *_: self._manifest,
                "FetchArtifact": self._chunks,
            },
        )

    def _chunks(self, site: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        content = memoryview(self._artifact.content)
        for start in range(pb.FetchRequest.FromString(request).offset, len(content), limits.CHUNK_BYTES):
            yield pb.Chunk(data=bytes(content[start : start + limits.CHUNK_BYTES])).SerializeToString()

    def close(self) -> None:
        self._server.stop()
        self._member.close()


def make_artifact(name: str, megabytes: int) -> Artifact:
    """A safetensors file that no other site has."""
    size = megabytes << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    content = safetensors(header, name.encode().ljust(64) + bytes(size - 64))
    return Artifact(content, '{"name":"resnet10"}', [("w", "U8", (size,))])


def receive(folder: Path, megabytes: int, *, peers: int = PEERS) -> dict[str, Any]:
    """Run one exchange: the daemon's peak memory before and after it in MB, the seconds and the sources."""
    names = [SiteName(f"sender-{number:02d}") for number in range(peers)]
    federation = ReceivingFederation.create(folder, DRAFT, dict.fromkeys([RECEIVER, *names], SITE))
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(Sender(federation, name, megabytes).close)
        stack.enter_context(federation)
        receiver = federation.start(RECEIVER, "--stay", environment={"PYTHONPATH": str(ROOT)})
        began_s = time.monotonic()
        federation.until(RECEIVER, lambda status: status["committed"])
        peak = peak_mb(receiver.pid)
        (record,) = federation.show(RECEIVER, "rounds")
    return {"peak_mb": peak, "sources": len(record["sources"]), "seconds": time.monotonic() - began_s}


def peak_mb(pid: int) -> float:
    """A process's peak of resident memory."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        print(receive(Path(scratch), int(sys.argv[1]), peers=int(sys.argv[2]) if len(sys.argv) > 2 else PEERS))
