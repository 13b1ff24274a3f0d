"""Fixtures for tests of the daemon and of its commands: an enrolled federation, a worker without torch."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import DERANGEMENT, draft, site_text
from peer.core.artifacts import Artifact, TensorSpec
from peer.core.messages import Manifest, SignedManifest
from peer.core.roster import Sha256, SiteName
from peer.daemon.dispatch import now
from peer.errors import DaemonDown
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import encode_manifest, sign_manifest, to_base64
from peer.site.identity import certificates
from peer.site.records.journal import Journal
from peer.site.records.ledger import Head, Ledger

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
LIMIT_S = 60.0
PACE = {"beat_s": 0.2, "silence_s": 5, "linger_s": 30}


class DaemonProcesses:
    """Daemons in processes of their own."""

    def __init__(self, loopback: LocalFederation, fake_worker: Callable[..., tuple[str, ...]]) -> None:
        self.loopback, self.fake_worker = loopback, fake_worker
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, name: str, mode: str = "works", **environment: str) -> subprocess.Popen[str]:
        where = ["--home", str(self.loopback.home), "start", "--site", name]
        command = [sys.executable, str(FAKES / "daemon.py"), json.dumps(self.fake_worker(mode)), *where]
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.processes.append(process)
        return process

    def start_and_wait(self, name: str) -> subprocess.Popen[str]:
        """The process of a site that waits for the others."""
        process = self.start(name)
        self.status(name, "gathering")
        return process

    def status(self, name: str, phase: str) -> dict[str, Any]:
        """The status once the site is in a phase."""
        return self.until(name, lambda status: status["phase"] == phase)

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that satisfies a condition."""
        end_s = time.monotonic() + LIMIT_S
        status: Any = None
        while time.monotonic() < end_s:
            try:
                for status in self.loopback.control(name).follow("status"):
                    if holds(status):
                        return dict(status)
                    if time.monotonic() >= end_s:
                        break
            except DaemonDown:
                time.sleep(0.02)
        raise AssertionError(f"{name} never was as it should; last it was {status}")


@pytest.fixture(scope="session")
def multicast() -> None:
    """Skips the test where the loopback interface carries no multicast, which discovery needs."""
    group, here = socket.inet_aton("224.0.0.251"), socket.inet_aton("127.0.0.1")
    with socket.socket(type=socket.SOCK_DGRAM) as ear, socket.socket(type=socket.SOCK_DGRAM) as mouth:
        try:
            ear.bind(("", 0))
            ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + here)
            ear.settimeout(1)
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            mouth.sendto(b"?", (socket.inet_ntoa(group), ear.getsockname()[1]))
            ear.recv(1)
        except OSError as error:
            pytest.skip(f"no multicast on the loopback interface: {error}")


@pytest.fixture(scope="session")
def _founded(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    text = draft("trial", schedule=DERANGEMENT, pace=PACE)
    return LocalFederation.create(
        tmp_path_factory.mktemp("daemons"), text, dict.fromkeys(("asia", "europe"), site_text())
    )


@pytest.fixture
def founders_ca(_founded: LocalFederation, tmp_path: Path) -> Path:
    """The CA folder of the enrolled sites: a copy, for it records what the founder signs."""
    return shutil.copytree(_founded.home.parent / "ca", tmp_path / "founders-ca")


@pytest.fixture
def enrolled(_founded: LocalFederation, tmp_path: Path) -> Iterator[LocalFederation]:
    """Two sites of one federation, enrolled and never started; daemons that a test leaves running are stopped."""
    shutil.copytree(_founded.home, tmp_path / "sites")
    with LocalFederation(tmp_path / "sites", _founded.federation) as loopback:
        yield loopback


@pytest.fixture(scope="session")
def fake_worker() -> Callable[..., tuple[str, ...]]:
    """The command of a worker without torch: ``fake_worker(mode, numbers=...)``."""

    def command(mode: str = "works", *, numbers: int = 64) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(FAKES / "worker.py"), mode, str(numbers))

    return command


@pytest.fixture
def program(enrolled: LocalFederation, fake_worker: Callable[..., tuple[str, ...]]) -> Iterator[DaemonProcesses]:
    """Starts the enrolled sites' daemons, without torch; those that still run are killed at the end."""
    program = DaemonProcesses(enrolled, fake_worker)
    yield program
    for process in program.processes:
        process.kill()
        process.communicate()


class SiteRecords:
    """Writes journals and ledgers of enrolled sites as their daemons would."""

    def __init__(self, loopback: LocalFederation) -> None:
        self.loopback = loopback

    def identity(self, name: str) -> certificates.Identity:
        ca = self.loopback.federation.ca_certificate
        pki = self.loopback.folder(name).pki
        return certificates.Identity.load(pki, name=SiteName(name), ca_certificate=ca, now=now())

    def journal(self, name: str, generation: int = 1) -> Journal:
        folder = self.loopback.folder(name)
        if generation not in folder.generations():
            folder.create_generation(generation)
        return Journal(folder.generation(generation) / "journal.db")

    def signed(self, name: str, head: Head, *, round: int, generation: int = 1) -> SignedManifest:
        own, digest = self.identity(name), Sha256(f"{generation:032x}{round:032x}")
        artifact = Artifact("model", own.name, digest, 64, round, {"name": "resnet10"})
        manifest = Manifest(
            federation=self.loopback.federation.digest,
            generation=generation,
            method="fedskd",
            origin=own.name,
            round=round,
            artifact=artifact,
            tensors=(TensorSpec("w", "F32", (2,)),),
            egress_count=head.count,
            egress_head=head.hash,
        )
        return sign_manifest(own, encode_manifest(manifest))

    def send(self, name: str, to: str, *, round: int, generation: int = 1) -> SignedManifest:
        """Write what both sites have on disk after one sent the other an artifact of a round."""
        journal, ledger = self.journal(name, generation), Ledger(self.loopback.folder(name).egress_db)
        signed = self.signed(name, ledger.head, round=round, generation=generation)
        digest = f"{generation:032x}{round:032x}"
        journal.append("manifest", round, {"artifact": digest, **to_base64(signed)})
        transfer = {"purpose": "train", "kind": "model", "sha256": digest, "bytes": 64}
        intent = ledger.intend(peer=to, round=round, generation=generation, **transfer)
        ledger.settle(intent, bytes=64, outcome="complete")
        journal.close()
        ledger.close()
        receiver = self.journal(to)
        received = {"peer": name, **transfer, "outcome": "complete", "seconds": 0.1}
        receiver.append("received", round, {**received, **to_base64(signed)})
        receiver.close()
        return signed


@pytest.fixture
def books(enrolled: LocalFederation) -> SiteRecords:
    """Journals and ledgers without daemons: ``books.send("asia", "europe", round=1)``."""
    return SiteRecords(enrolled)
