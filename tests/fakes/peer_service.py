"""Europe's service to peers on a real journal and ledger, and a clock that only the test moves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from fakes.drafts import DERANGEMENT, draft
from peer.core import events
from peer.core.artifacts import Artifact
from peer.core.leak import Leak
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, SignedManifest
from peer.core.privacy import Spending
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.core.rows import decode
from peer.core.worker_protocol import to_json
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.service import PeerService
from peer.errors import CertificateError, PeerError
from peer.net.transport.manifest import verify_manifest
from peer.net.transport.wire import ArtifactRequest
from peer.privacy_budget import PrivacyBudget
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.identity import certificates
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

SITES = AFRICA, ASIA, EUROPE = SiteName("africa"), SiteName("asia"), SiteName("europe")
FEDERATION = draft("trial", rounds=5, schedule=DERANGEMENT, site=[{"name": name} for name in SITES])
GLOBAL = FEDERATION.replace("rounds = 5", "rounds = 5\nglobal_test = true\nevaluation_every = 2")
SITE = """
[data]
input_size = [8]
[egress]
"""
KEY = RoundKey(b"\x07" * 32)
NOW = Heartbeat(1, 1, "train", 0.5, 1, 0)


class Clock:
    """A clock that only the test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakePki:
    """Europe's key and certificate, without files; ``load`` raises the fault if there is one."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.authority_key, self.ca = certificates.new_authority("trial", now=now)
        self.identity = self.admit(EUROPE)
        self.fault: CertificateError | None = None
        self.pinned: dict[SiteName, Sha256] = {}

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        return ((self.identity.certificate.serial_number,),)

    def admit(self, name: SiteName) -> certificates.Identity:
        key, now = certificates.new_key(), datetime.now(UTC)
        certificate = certificates.issue(self.authority_key, self.ca, name=name, public_key=key.public_key(), now=now)
        return certificates.Identity(name, key, certificate, self.ca, KEY)

    def clock(self) -> datetime:
        return datetime.now(UTC)

    def verify(self, der: bytes, ca: x509.Certificate, name: SiteName) -> x509.Certificate:
        return certificates.verify_certificate(der, ca, name, self.clock())

    def later(self) -> tuple[x509.Certificate, ...]:
        return ()

    def load(self) -> certificates.Identity:
        if self.fault is not None:
            raise self.fault
        return self.identity


class SiteUnderTest:
    """Europe's service on a real journal and ledger; memory changes by rows, as in the daemon."""

    def __init__(self, folder: Path, egress: str = "", *, federation: str = FEDERATION) -> None:
        (folder / "site.toml").write_text(SITE + egress)
        self.federation = FederationConfig.parse(federation, "federation.toml")
        self.journal, self.ledger = Journal(folder / "journal.db"), Ledger(folder / "egress.db")
        site = SiteConfig.load(folder / "site.toml")
        rules = make_rules(self.federation, EUROPE, KEY, egress=site.egress)
        self.machine = SiteMachine(rules)
        self.clock = Clock()
        self.events: list[events.Event] = []
        self.faults: list[PeerError] = []
        self.home = folder
        self.budget = PrivacyBudget(folder / ".privacy")
        self.pki = FakePki()
        self.store = ArtifactStore(
            folder / "artifacts", needed=lambda: self.machine.memory.needed_digests(), fail=self.faults.append
        )
        self.service = PeerService(
            federation=self.federation,
            site=site,
            machine=self.machine,
            journal=self.journal,
            ledger=self.ledger,
            store=self.store,
            pki=self.pki,
            report=self.events.append,
            fail=self.faults.append,
            budget=self.budget,
            clock=self.clock,
        )

    def described(self, signed: SignedManifest) -> tuple[int, Artifact, bool]:
        """Round, artifact and purpose of a manifest, after its signature is verified."""
        manifest = verify_manifest(signed, self.pki.identity.certificate)
        return manifest.round, manifest.artifact, manifest.evaluation

    def remember(self, kind: str, round: int, **body: Any) -> None:
        self.machine.memory.apply(decode(kind, round, body))

    def write_artifact(self, round: int, size: int = 1000) -> Artifact:
        """Write the header of an artifact's file, which is all that the service reads."""
        artifact = make_artifact(round, size)
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        self.store.folder.mkdir(exist_ok=True)
        self.store.path(artifact.sha256).write_bytes(struct.pack("<Q", len(header)) + header)
        return artifact

    def publish(
        self,
        round: int,
        *,
        size: int = 1000,
        steps: int | None = None,
        leak: Leak | None = None,
        spent: Spending | None = None,
    ) -> Artifact:
        """Do what the daemon does on ``Persist("published")`` and ``Publish``."""
        artifact = dataclasses.replace(self.write_artifact(round, size), leak=leak, spent=spent)
        if steps is not None:
            artifact = dataclasses.replace(artifact, steps=steps)
        self.remember("published", round, artifact=to_json(artifact))
        self.service.publish(round, artifact, self.service.sign(round, artifact))
        return artifact

    def lend(self, round: int) -> Artifact:
        """Do what the daemon does after an ``Evaluated`` whose artifact may be lent."""
        artifact = self.write_artifact(round)
        self.remember("evaluated", round, metrics={}, artifact=to_json(artifact))
        signed = self.service.sign(round, artifact, evaluation=True)
        self.service.publish(round, artifact, signed, evaluation=True)
        return artifact

    def receiver(self, round: int) -> SiteName:
        """The site that receives europe's model in a round."""
        rules = self.machine.rules
        order = rules.order(round)
        return rules.roster.names[order.index(rules.roster.index(rules.site))]

    def stranger(self, round: int) -> SiteName:
        """A peer that does not receive europe's model in a round."""
        return next(name for name in self.machine.rules.others if name != self.receiver(round))

    def open(self, round: int, artifact: Artifact, *, offset: int = 0, caller: SiteName | None = None) -> Any:
        return self.service.open_artifact(
            caller or self.receiver(round), asked(round), sha256=artifact.sha256, offset=offset
        )

    def denied(self) -> list[dict[str, Any]]:
        return [row["body"] for row in self.journal.records(("denied",))]


def make_artifact(round: int, size: int = 1000) -> Artifact:
    digest = Sha256(hashlib.sha256(f"{round}".encode()).hexdigest())
    return Artifact("model", EUROPE, digest, size, round, {"name": "resnet10"})


def asked(round: int, **changes: Any) -> ArtifactRequest:
    return replace(ArtifactRequest("model", round, "train", EUROPE), **changes)
