"""The one door through which bytes leave: policy, schedule and ledger stand here, in that order.

Peers' calls arrive from ``peer.transport.server`` authenticated and validated. The service answers from what the
site has published; what a caller says becomes an event for the state machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from peer import __version__
from peer.config.schema import FederationConfig, SiteConfig
from peer.core import access, events, limits, rows
from peer.core.machine import SiteMachine
from peer.core.messages import Artifact, EvaluationResult, Heartbeat, Hello, Manifest, SignedManifest, Unavailable
from peer.core.roster import Sha256, SiteName, round_key_tag
from peer.core.status import TransferInProgress
from peer.errors import CertificateError
from peer.files import artifact_path
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.transport import wire
from peer.transport.bounds import WireError
from peer.transport.manifest import encode_manifest, sign_manifest, to_base64
from peer.transport.server import Grant, Outcome, Refusal, Status
from peer.transport.tls import Pki

log = logging.getLogger(__name__)

Served = tuple[int, Sha256, bool]
"""Round, digest, and whether it is for evaluation."""
DENIED_AGAIN_S = 60.0
"""A caller that asks again and again for what it may not have gets one row a minute."""
DENIED_ROWS_MAX = 10
"""Rows in that time for a caller that asks for ever new things: it words its requests, and may not fill the disk."""


@dataclass(slots=True)
class TrafficCount:
    """What left for a peer beside artifacts: greetings, beats and manifests, answers included."""

    messages: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class PeerAccount:
    """What the daemon knows of its dealings with one peer since it started. Times are monotonic seconds.

    ``mismatch`` is why the peer's greeting was refused; it takes no part until it greets as one of this federation.
    ``denied_s`` has the denials that were noted not long ago, by call and reason.
    """

    spoken: TrafficCount = field(default_factory=TrafficCount)
    sent_bytes: int = 0
    clock_skew_s: float | None = None
    called_at_s: float | None = None
    mismatch: str = ""
    denied_s: dict[tuple[str, str], float] = field(default_factory=dict)


class PeerService:
    """Answers peers for one site.

    Args:
        federation: the federation.
        site: the site's private configuration, with its egress policy.
        machine: the state machine; only read here.
        journal: takes signed manifests and denials.
        ledger: takes intents and outcomes.
        artifacts: the folder that published artifacts lie in.
        pki: the site's key and certificate, which sign manifests.
        report: hands an event to the state machine.
        clock: a monotonic clock, in seconds, for repeated denials.
    """

    def __init__(
        self,
        *,
        federation: FederationConfig,
        site: SiteConfig,
        machine: SiteMachine,
        journal: Journal,
        ledger: Ledger,
        artifacts: Path,
        pki: Pki,
        report: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._federation = federation
        self._site = site
        self._machine = machine
        self._journal = journal
        self._ledger = ledger
        self._artifacts = artifacts
        self._pki = pki
        self._report = report
        self._clock = clock
        self._changed = asyncio.Event()
        self._signed: dict[Served, SignedManifest | None] = {}
        self._tag = round_key_tag(machine.rules.round_key, federation.digest)
        self.sending: dict[int, TransferInProgress] = {}
        self._accounts: defaultdict[str, PeerAccount] = defaultdict(PeerAccount)

    def account(self, peer: str) -> PeerAccount:
        """What is known of a peer, or of a caller that is none."""
        return self._accounts[peer]

    def publish(self, round: int, artifact: Artifact, *, evaluation: bool = False) -> None:
        """From now on the artifact may be asked for; the manifest waits if the certificate must be renewed first."""
        memory = self._machine.memory
        served = {(key[0], kept.sha256, False) for key, kept in memory.published.items()}
        served |= {(key, one.artifact.sha256, True) for key, one in memory.evaluation.lent.items() if one.artifact}
        self._signed = {key: signed for key, signed in self._signed.items() if key in served}
        key = (round, artifact.sha256, evaluation)
        self._signed[key] = None
        self._compare_with_policy(round, artifact, evaluation=evaluation)
        try:
            self._signed[key] = self._sign(round, artifact, evaluation)
        except (CertificateError, WireError) as error:
            log.error("published, but not signed", extra={"round": round, "reason": str(error)})

    def _sign(self, round: int, artifact: Artifact, evaluation: bool) -> SignedManifest:
        """Sign the manifest of a published artifact, with the present head of the ledger, and journal it."""
        head = self._ledger.head
        manifest = Manifest(
            federation=self._federation.digest,
            generation=self._machine.memory.generation,
            method=self._federation.method.name,
            origin=self._machine.rules.site,
            round=round,
            artifact=artifact,
            egress_count=head.count,
            egress_head=head.hash,
            evaluation=evaluation,
            reexport=self._site.egress.reexport,
        )
        signed = sign_manifest(self._pki.load(), encode_manifest(manifest))
        self._journal.write(rows.ManifestRow.from_body(round, {"artifact": artifact.sha256, **to_base64(signed)}))
        return signed

    def _compare_with_policy(self, round: int, artifact: Artifact, *, evaluation: bool) -> None:
        """Say at once that a bound is too low for what the method sends, and not only when receivers are denied."""
        rules, limit = self._machine.rules, self._site.egress.bytes_per_round_max
        receivers = len(rules.others) if evaluation or rules.pattern(round) == "all_to_all" else 1
        if limit is not None and artifact.bytes * receivers > limit:
            facts = {"round": round, "bytes": artifact.bytes * receivers, "bytes_per_round_max": limit}
            remedy = "raise [egress] bytes_per_round_max in site.toml, or choose a smaller model"
            log.warning("policy lets less leave than the method sends", extra={**facts, "remedy": remedy})

    def look_again(self) -> None:
        """The site's memory changed: calls that wait compare it with what they wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    def greeting(self, peer: SiteName) -> Hello:
        """What this site says of itself to a peer."""
        greeting = Hello(
            protocol=limits.PROTOCOL_VERSION,
            federation=self._federation.digest,
            roster=self._federation.roster.digest,
            generation=self._machine.memory.generation,
            clock_s=time.time(),
            seen=self._machine.seen(peer),
            software=f"mhfl-peer {__version__}",
            round_key_tag=self._tag,
            evaluates=self._machine.rules.evaluation_denied is None if self._federation.global_test else None,
        )
        self._accounts[peer].spoken.add(wire.encode_greeting(greeting).ByteSize())
        return greeting

    def difference(self, greeting: Hello) -> str | None:
        """What makes a greeting one of another federation, in words; nothing when it is one of ours."""
        own = (limits.PROTOCOL_VERSION, self._federation.digest, self._federation.roster.digest, self._tag)
        theirs = (greeting.protocol, greeting.federation, greeting.roster, greeting.round_key_tag)
        names = ("protocol version", "federation digest", "roster digest", "round key's tag")
        for what, mine, other in zip(names, own, theirs, strict=True):
            if mine != other:
                return f"the {what} differs: {self._machine.rules.site} has {mine}, the other site has {other}"
        return None

    def welcome(self, peer: SiteName, greeting: Hello) -> None:
        """A greeting was compared and is one of ours."""
        account = self._accounts[peer]
        account.mismatch, account.clock_skew_s = "", greeting.clock_s - time.time()
        self._report(events.PeerGreeted(peer, greeting))

    def said(self, peer: SiteName, size: int) -> None:
        """So many bytes left for a peer beside artifacts."""
        self._accounts[peer].spoken.add(size)

    def called_s(self, peer: SiteName) -> float | None:
        """Seconds since the peer's last call reached this site; nothing while none has."""
        at_s = self._accounts[peer].called_at_s
        return None if at_s is None else round(self._clock() - at_s, 1)

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        """Compare greetings, and answer with this site's own."""
        self._accounts[caller].called_at_s = self._clock()
        problem = self.difference(greeting)
        takes_part = greeting.generation > 0  # 0 only asks: `check` at a site that does not run yet
        if problem is not None:
            if takes_part:
                self._accounts[caller].mismatch = problem
                self._report(events.PeerRefused(caller, problem))
            raise Refusal(Status.MISMATCH, problem)
        if takes_part:
            self.welcome(caller, greeting)
        return self.greeting(caller)

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Note where the caller is, and say where this site is."""
        self._accounts[caller].called_at_s = self._clock()
        self._refuse_stranger(caller)
        self._report(events.PeerHeard(caller, pulse))
        own = self._machine.pulse()
        self._accounts[caller].spoken.add(wire.encode_pulse(own).ByteSize())
        return own

    async def manifest(
        self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float
    ) -> SignedManifest | Unavailable:
        self._admit(caller, request)
        self._report(events.PeerHeard(caller))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, limits.MANIFEST_WAIT_S)):
                while (found := self._answer(request)) == Unavailable.NOT_YET:
                    await self._changed.wait()
        found = self._answer(request)
        if isinstance(found, Unavailable):
            return found
        signed = self._manifest_of(*found, evaluation=request.purpose == "evaluate")
        if signed is None:
            return Unavailable.NOT_YET
        self._accounts[caller].spoken.add(len(signed.body) + len(signed.signature) + len(signed.certificate_der))
        return signed

    def open_artifact(self, caller: SiteName, request: wire.ArtifactRequest, *, sha256: Sha256, offset: int) -> Grant:
        self._admit(caller, request)
        found = self._answer(request)
        evaluation = request.purpose == "evaluate"
        if (
            isinstance(found, Unavailable)
            or found[1].sha256 != sha256
            or (found[0], sha256, evaluation) not in self._signed
        ):
            raise Refusal(Status.MISSING, f"no artifact {sha256[:12]} of round {request.for_round} here")
        round, artifact = found
        if offset > artifact.bytes:
            raise Refusal(Status.MALFORMED, f"offset {offset} is beyond the {artifact.bytes} bytes of the artifact")
        size = artifact.bytes - offset
        generation = self._machine.memory.generation
        if (reason := self._over(round, size)) is not None:
            raise self._deny(caller, request, reason)
        what = {"peer": caller, "purpose": request.purpose, "kind": request.kind, "round": round, "bytes": size}
        intent = self._ledger.intend(**what, generation=generation, sha256=sha256)
        self.sending[intent] = cast(TransferInProgress, {"direction": "out", **what})
        self._report(events.PeerHeard(caller))
        return Grant(artifact_path(self._artifacts, sha256), intent)

    def sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        what = self.sending.pop(grant.intent)
        self._ledger.settle(grant.intent, bytes=size, outcome=outcome)
        self._accounts[what["peer"]].sent_bytes += size
        log.info("artifact sent", extra={"intent": grant.intent, **what, "sent_bytes": size, "outcome": outcome})

    async def report(self, caller: SiteName, report: EvaluationResult) -> None:
        """Take what a peer says of a model that was lent to it; it is in the journal when this returns."""
        self._accounts[caller].called_at_s = self._clock()
        self._refuse_stranger(caller)
        self._report(events.PeerHeard(caller))
        rules, memory = self._machine.rules, self._machine.memory
        reason = access.unasked(rules, memory, caller=caller, report=report)
        if reason is not None:
            self._write_down(caller, f"metrics of round {report.round}", reason)
            raise Refusal(Status.DENIED, reason)
        self._report(events.ReportArrived(caller, report))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.REPORT_WAIT_S):
                while (lent := memory.evaluation.lent.get(report.round)) is not None and caller not in lent.reports:
                    await self._changed.wait()
                return
        raise Refusal(Status.BUSY, "the report is not in the journal yet")

    def open_report(self, peer: SiteName, report: EvaluationResult, *, size: int) -> int:
        """Allow a report to leave for the site whose model it is about; its intent is on disk when this returns."""
        rules = self._machine.rules
        if rules.evaluation_denied is not None or not self._site.egress.permits_receiver(peer):
            raise Refusal(Status.DENIED, f"this site's policy tells {peer} no metrics")
        if (over := self._over(report.round, size)) is not None:
            raise Refusal(Status.DENIED, over)
        what = {"peer": peer, "purpose": "evaluate", "kind": "metrics", "round": report.round}
        facts = {"generation": self._machine.memory.generation, "sha256": report.sha256 or "", "bytes": size}
        return self._ledger.intend(**what, **facts)

    def report_sent(self, intent: int, *, size: int, outcome: Outcome) -> None:
        self._ledger.settle(intent, bytes=size, outcome=outcome)

    def turned_away(self, caller: str, call: str, reason: str) -> None:
        self._write_down(caller, call, reason)

    def _manifest_of(self, round: int, artifact: Artifact, *, evaluation: bool) -> SignedManifest | None:
        """The manifest of what was published, signed now if it could not be before; nothing while it cannot be."""
        key = (round, artifact.sha256, evaluation)
        if key in self._signed and self._signed[key] is None:
            with contextlib.suppress(CertificateError, WireError):
                self._signed[key] = self._sign(round, artifact, evaluation)
        return self._signed.get(key)

    def _over(self, round: int, size: int) -> str | None:
        """Why so many bytes more may not leave in a round; nothing when they may."""
        limit = self._site.egress.bytes_per_round_max
        if limit is None or self._ledger.bytes_in_round(self._machine.memory.generation, round) + size <= limit:
            return None
        return f"this site's policy lets at most {limit} bytes leave in a round"

    def _answer(self, request: wire.ArtifactRequest) -> tuple[int, Artifact] | Unavailable:
        return access.answer(
            self._machine.rules,
            self._machine.memory,
            for_round=request.for_round,
            owner=request.owner,
            purpose=request.purpose,
        )

    def _admit(self, caller: SiteName, request: wire.ArtifactRequest) -> None:
        """Policy, then schedule; ``Refusal`` names which of them says no."""
        self._accounts[caller].called_at_s = self._clock()
        self._refuse_stranger(caller)
        egress, rules = self._site.egress, self._machine.rules
        if request.kind not in egress.permitted_kinds(rules.plan) or not egress.permits_receiver(caller):
            raise self._deny(caller, request, f"this site's policy sends no {request.kind} to {caller}")
        reason = access.denial(
            rules,
            caller=caller,
            kind=request.kind,
            for_round=request.for_round,
            owner=request.owner,
            purpose=request.purpose,
        )
        if reason is not None:
            raise self._deny(caller, request, reason)

    def _refuse_stranger(self, caller: SiteName) -> None:
        """Who greeted as a member of another federation takes no part until it greets as one of this."""
        if mismatch := self._accounts[caller].mismatch:
            raise Refusal(Status.MISMATCH, mismatch)

    def _deny(self, caller: SiteName, request: wire.ArtifactRequest, reason: str) -> Refusal:
        self._write_down(caller, f"{request.kind} for round {request.for_round}", reason)
        return Refusal(Status.DENIED, reason)

    def _write_down(self, caller: str, call: str, reason: str) -> None:
        """Note a denial in journal and log, unless the same one, or many of this caller, were noted just now."""
        now_s, account = self._clock(), self._accounts[caller]
        recent = {what: at_s for what, at_s in account.denied_s.items() if now_s - at_s < DENIED_AGAIN_S}
        if (call, reason) not in recent and len(recent) < DENIED_ROWS_MAX:
            recent[(call, reason)] = now_s
            self._journal.write(rows.DeniedRow(self._machine.number, caller=caller, call=call, reason=reason))
            log.warning("call refused", extra={"peer": caller, "call": call, "reason": reason})
        account.denied_s = recent
