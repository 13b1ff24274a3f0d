"""The answers to peers' calls.

Policy, schedule and ledger check every byte here before it leaves, in that order.

``peer.net.transport.server`` authenticates and validates the calls. The service serves the site's published artifacts;
the caller's messages become events for the state machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import replace
from typing import cast

from cryptography import x509

from peer import __version__
from peer.core import access, events, limits, rows, secure_exchange
from peer.core.artifacts import Artifact, EvaluationResult
from peer.core.class_numbering import add_own_name, digest_names, find_conflict
from peer.core.leak import ledger_facts
from peer.core.machine import SiteMachine
from peer.core.messages import (
    FEATURES,
    AmendmentsReply,
    ChainHead,
    Heartbeat,
    Hello,
    Manifest,
    Seen,
    SignedManifest,
    Unavailable,
)
from peer.core.privacy import spent_facts
from peer.core.roster import Sha256, SiteName, round_key_tag
from peer.core.rules import Rules
from peer.core.status_document import TransferInProgress
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.chain_keeper import ChainKeeper
from peer.daemon.egress_policy import EgressPolicy
from peer.daemon.notice_spread import NoticeSpread
from peer.daemon.peer_account import PeerAccount
from peer.daemon.proofs import ClaimProofs
from peer.errors import CertificateError, PeerError, StateError
from peer.net.transport import wire
from peer.net.transport.bounds import WireError
from peer.net.transport.header import read_tensors
from peer.net.transport.manifest import encode_manifest, sign_manifest, to_base64
from peer.net.transport.rates import TokenBucket
from peer.net.transport.server import Grant, Outcome, Refusal, Status
from peer.net.transport.tls import Pki
from peer.privacy_budget import PrivacyBudget
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.identity.certificates import OtherKey, verify_pinned
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.site.records.listed_classes import read_class_names

log = logging.getLogger(__name__)

Served = tuple[int, Sha256, bool]
"""Round, digest, and whether the artifact is for evaluation."""
DENIED_AGAIN_S = 60.0
"""A repeated denial is journalled at most once in this time."""
DENIED_ROWS_MAX = 10
"""Rows per caller in that time; otherwise a caller could fill the disk with ever new requests."""


def common_protocol(greeting: Hello) -> int | None:
    """Return the highest protocol version that this program and the sender speak; ``None`` if there is none."""
    highest = min(limits.PROTOCOL_VERSION_MAX, max(greeting.protocol, greeting.protocol_max))
    return highest if highest >= max(limits.PROTOCOL_VERSION, greeting.protocol) else None


class PeerService:
    """Answers peers for one site.

    Args:
        federation: the federation.
        site: the site's private configuration, with its egress policy.
        machine: the state machine; the service only reads it.
        journal: takes signed manifests and denials.
        ledger: takes intents and outcomes.
        store: keeps published artifacts.
        pki: the site's key and certificate, which sign manifests.
        report: passes an event to the state machine.
        fail: called with an error that the site cannot survive, such as a failed disk.
        chain: the amendments; None: there are none.
        note_head: called with a caller's chain tip, a claim that this site may verify.
        refused: SHA-256 digests of certificates whose signatures prove nothing.
        budget: the account of what this machine's people have lost; None: there is none.
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
        store: ArtifactStore,
        pki: Pki,
        report: Callable[[events.Event], None],
        fail: Callable[[PeerError], None],
        chain: ChainKeeper | None = None,
        note_head: Callable[[SiteName, ChainHead | None], None] = lambda peer, head: None,
        refused: Container[str] = frozenset(),
        budget: PrivacyBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chain, self._note_head, self._budget = chain, note_head, budget
        self.notices = NoticeSpread(machine.rules.site, lambda: chain.notices if chain is not None else {})
        rate = (limits.AMENDMENT_CALLS_PER_SECOND_MAX, limits.AMENDMENT_CALLS_BURST, clock)
        self._amendment_calls: defaultdict[SiteName, TokenBucket] = defaultdict(lambda: TokenBucket(*rate))
        self._federation = federation
        self._site = site
        self._machine = machine
        self._journal = journal
        self._ledger = ledger
        self._store = store
        self._pki = pki
        self._report, self._fail = report, fail
        self._clock = clock
        self._changed = asyncio.Event()
        self.policy = EgressPolicy(
            federation=federation, site=site, machine=machine, ledger=ledger, chain=chain, budget=budget
        )
        self._class_names = read_class_names(federation, site)
        self._signed: dict[Served, SignedManifest | None] = {}
        self._tag = round_key_tag(machine.rules.round_key, federation.digest)
        self._proofs = ClaimProofs(
            federation=federation.digest, machine=machine, journal=journal, pki=pki, refused=refused
        )
        self.sending: dict[int, TransferInProgress] = {}
        self._accounts: defaultdict[str, PeerAccount] = defaultdict(PeerAccount)

    def account(self, peer: str) -> PeerAccount:
        """Return the record of a peer, or of a caller that is no peer."""
        return self._accounts[peer]

    def peers(self) -> tuple[SiteName, ...]:
        """Return the other sites that take part."""
        return self._machine.rules.others

    def sign(self, round: int, artifact: Artifact, *, evaluation: bool = False) -> SignedManifest | None:
        """Sign and journal an artifact's manifest; return ``None`` while no valid certificate can sign it."""
        try:
            return self._sign(round, artifact, evaluation)
        except (CertificateError, WireError) as error:
            log.error("published, but not signed", extra={"round": round, "reason": str(error)})
            return None

    def publish(
        self, round: int, artifact: Artifact, signed: SignedManifest | None, *, evaluation: bool = False
    ) -> None:
        """Serve the artifact from now on; without a manifest, one is signed when a peer asks.

        Its rows must be durable: a waiting call may be answered at once, and without the rows the site would sign
        another artifact for the round after a restart.
        """
        memory = self._machine.memory
        served = {(key[0], published.sha256, False) for key, published in memory.published.items()}
        served |= {(key, lent.artifact.sha256, True) for key, lent in memory.evaluation.lent.items() if lent.artifact}
        self._signed = {key: manifest for key, manifest in self._signed.items() if key in served}
        self._signed[(round, artifact.sha256, evaluation)] = signed
        self.policy.warn(round, artifact, evaluation=evaluation)

    def _sign(self, round: int, artifact: Artifact, evaluation: bool) -> SignedManifest:
        """Sign a published artifact's manifest, which states the ledger tip, and journal it."""
        head = self._ledger.head
        manifest = Manifest(
            federation=self._federation.digest,
            generation=self._machine.memory.generation,
            method=self._federation.method.name,
            origin=self._machine.rules.site,
            round=round,
            artifact=artifact,
            tensors=read_tensors(self._store.path(artifact.sha256)),
            egress_count=head.count,
            egress_head=head.hash,
            evaluation=evaluation,
            reexport=self._site.egress.reexport,
            head=self._machine.head,
            mu=None if artifact.spent is None else artifact.spent.federation_mu,
        )
        signed = sign_manifest(self._pki.load(), encode_manifest(manifest))
        self._journal.write(rows.ManifestRow.from_body(round, {"artifact": artifact.sha256, **to_base64(signed)}))
        return signed

    async def wait_for_change(self) -> None:
        """Wait until the site's memory may have changed."""
        await self._changed.wait()

    def wake_waiting_calls(self) -> None:
        """Let waiting calls check the site's memory again, which may have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def greeting(self, peer: SiteName) -> Hello:
        """Build this site's greeting for a peer, and count it as sent."""
        greeting = Hello(
            protocol=limits.PROTOCOL_VERSION,
            federation=self._federation.digest,
            roster=self._federation.roster.digest,
            generation=self._machine.memory.generation,
            clock_s=time.time(),
            seen=self._proofs.seen(peer),
            software=f"mhfl-peer {__version__}",
            round_key_tag=self._tag,
            evaluates=self._machine.rules.evaluation_denied is None if self._federation.global_test else None,
            protocol_max=limits.PROTOCOL_VERSION_MAX,
            features=FEATURES,
            head=self._machine.head,
            class_names=digest_names(self._class_names, self._federation.digest),
        )
        self._accounts[peer].spoken.add(wire.encode_greeting(greeting).ByteSize())
        return greeting

    def difference(self, greeting: Hello) -> str | None:
        """Describe to the peer how its greeting differs from this federation; ``None`` if it matches."""
        if common_protocol(greeting) is None:
            newest = max(greeting.protocol, greeting.protocol_max)
            site, theirs_is_older = self._machine.rules.site, newest < limits.PROTOCOL_VERSION
            return (
                f"no protocol version is common: {site} speaks {limits.PROTOCOL_VERSION} to "
                f"{limits.PROTOCOL_VERSION_MAX}, the other site {greeting.protocol} to {newest}; "
                f"update mhfl-peer at {'the other site' if theirs_is_older else site}"
            )
        own = (self._federation.digest, self._federation.roster.digest, self._tag)
        theirs = (greeting.federation, greeting.roster, greeting.round_key_tag)
        names = ("federation digest", "roster digest", "round key's tag")
        at_genesis = self._machine.head is None and greeting.head is None  # a newcomer may lack the genesis' key
        for name, mine, other in list(zip(names, own, theirs, strict=True))[: 3 if at_genesis else 1]:
            if mine != other:
                return f"the {name} differs: {self._machine.rules.site} has {mine}, the other site has {other}"
        site, digest = self._machine.rules.site, self._federation.digest
        return find_conflict(site, self._class_names, greeting.class_names, digest)

    def explain(self, reason: str) -> str:
        """Return the reason of a refusal as this site's own people read it: a class has its name here."""
        return add_own_name(reason, self._machine.rules.site, self._class_names)

    def accept_greeting(self, peer: SiteName, greeting: Hello) -> None:
        """Record a greeting of this federation, and report it to the state machine."""
        self.notices.forget(peer)
        account = self._accounts[peer]
        account.mismatch, account.clock_skew_s = "", greeting.clock_s - time.time()
        greeting = replace(greeting, seen=self._proven(peer, greeting.seen))
        account.greeting = greeting
        self._report(events.PeerGreeted(peer, greeting))

    def _proven(self, peer: SiteName, seen: Seen | None) -> Seen | None:
        """Return what a peer has seen of this site if it is proven, else None.

        The state machine reads only a peer's first greeting.
        """
        if seen is None or seen.manifest is None or peer in self._machine.greeted:
            return None
        try:
            manifest = self._proofs.verify_seen(seen)
        except ValueError as error:
            self._report(events.PeerRefused(peer, f"claims to have an artifact of this site: {error}"))
            return None
        self._recall_spending(peer, manifest)
        return seen

    def _recall_spending(self, peer: SiteName, manifest: Manifest) -> None:
        """Add to the people's account what this site's own manifest says was spent, and the account lacks."""
        if manifest.mu is None or self._budget is None:
            return
        member = f"{self._federation.digest}/{self._machine.rules.site}"
        try:
            missing = self._budget.claim(member, manifest.generation, manifest.mu)
        except (OSError, ValueError) as error:
            self._fail(StateError(f"the account of what this machine's people have lost cannot be used: {error}"))
            return
        if missing:
            facts = {"peer": peer, "round": manifest.round, "generation": manifest.generation, "mu": manifest.mu}
            log.warning("a peer's manifest of this site tells of more spending than its account", extra=facts)

    def pulse(self, peer: SiteName, *, echo: SiteName | None = None) -> Heartbeat:
        """Build this site's heartbeat for a peer and count it as sent; ``echo``: whose notice the peer sent."""
        own = replace(self._proofs.attach(self._machine.pulse(), peer), notice=self.notices.next(peer, echo=echo))
        self._accounts[peer].spoken.add(wire.encode_pulse(own).ByteSize())
        return own

    def hear(self, peer: SiteName, pulse: Heartbeat, *, sent: Heartbeat | None = None) -> SiteName | None:
        """Report a peer's heartbeat to the state machine, after the round that the peer proves.

        A notice comes first: from then on the leaving site counts as gone.

        Args:
            peer: the sender.
            pulse: its heartbeat.
            sent: this site's call that the heartbeat answers; ``None`` if the peer called.

        Returns:
            The leaving site, if the heartbeat has a valid notice.
        """
        leaver: SiteName | None = None
        if pulse.notice is not None and self._chain is not None:
            try:
                self._chain.take_notices([pulse.notice])
                leaver = self._chain.leaver(pulse.notice)
            except PeerError as error:
                self._fail(error)
            if leaver is not None and (sent is None or sent.notice == self._chain.notices.get(leaver)):
                self.notices.confirm(peer, leaver)
        try:
            round = self._proofs.proven_round(peer, pulse)
        except ValueError as error:
            self._report(events.PeerRefused(peer, f"its proof of round {pulse.round} does not hold: {error}"))
        else:
            if round is not None:
                self._report(events.RoundProved(peer, round))
        self._report(events.PeerHeard(peer, replace(pulse, proof=None, notice=None)))
        return leaver

    def is_ahead_of(self, peer: SiteName) -> bool:
        """Return whether the peer lacks amendments that this site has: it may not know yet who its peers are."""
        return self._machine.is_ahead_of(peer)

    def called_s(self, peer: SiteName) -> float | None:
        """Return the seconds since the peer's last call reached this site; ``None`` before the first."""
        at_s = self._accounts[peer].called_at_s
        return None if at_s is None else round(self._clock() - at_s, 1)

    def beaten_within(self, peer: SiteName, seconds: float) -> bool:
        """Return whether this site answered a heartbeat of the peer within the last ``seconds``.

        A peer that may lack a notice gets another heartbeat: nothing tells whether an answer arrived.
        """
        at_s = self._accounts[peer].beat_at_s
        return at_s is not None and not self.notices.lacks(peer) and self._clock() - at_s <= seconds

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        """Compare greetings, and answer with this site's own."""
        self._accounts[caller].called_at_s = self._clock()
        self._note_head(caller, greeting.head)
        problem = self.difference(greeting)
        takes_part = greeting.generation > 0  # 0: `check` asks at a site that does not run yet
        if problem is not None:
            if takes_part:
                self.note_mismatch(caller, problem)
                self._report(events.PeerRefused(caller, self.explain(problem)))
            raise Refusal(Status.MISMATCH, problem)
        if takes_part:
            self.accept_greeting(caller, greeting)
        return self.greeting(caller)

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Report the caller's heartbeat to the state machine, and answer with this site's own."""
        self.note_call(caller)
        self._note_head(caller, pulse.head)
        leaver = self.hear(caller, pulse)
        self._accounts[caller].beat_at_s = self._clock()
        return self.pulse(caller, echo=leaver)

    async def manifest(
        self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float
    ) -> SignedManifest | Unavailable:
        answer = self._answer(caller, request)
        self._report(events.PeerHeard(caller))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, limits.MANIFEST_WAIT_S)):
                while answer == Unavailable.NOT_YET:
                    await self.wait_for_change()
                    answer = self._answer(caller, request)
        if isinstance(answer, Unavailable):
            return answer
        signed = self._manifest_of(*answer, evaluation=request.purpose == "evaluate")
        if signed is None:
            return Unavailable.NOT_YET
        self._accounts[caller].spoken.add(len(signed.body) + len(signed.signature) + len(signed.certificate_der))
        return signed

    def open_artifact(
        self,
        caller: SiteName,
        request: wire.ArtifactRequest,
        *,
        sha256: Sha256,
        offset: int,
        relayed: bool = False,
    ) -> Grant:
        answer = self._answer(caller, request)
        evaluation = request.purpose == "evaluate"
        if answer == Unavailable.EPOCH:
            raise Refusal(Status.EPOCH, f"this site has another epoch for round {request.for_round}")
        if (
            isinstance(answer, Unavailable)
            or answer[1].sha256 != sha256
            or (answer[0], sha256, evaluation) not in self._signed
        ):
            raise Refusal(Status.MISSING, f"no artifact {sha256[:12]} of round {request.for_round} here")
        round, artifact = answer
        if offset > artifact.bytes:
            raise Refusal(Status.MALFORMED, f"offset {offset} is beyond the {artifact.bytes} bytes of the artifact")
        size = artifact.bytes - offset
        if not size:
            return Grant(self._store.hold(sha256), None)
        generation = self._machine.memory.generation
        reason = self.policy.limit_reason(round, size) or self.policy.repeated(
            caller, request.purpose, round, artifact, size
        )
        if reason is not None:
            raise self._deny(caller, request, reason)
        transfer = {"peer": caller, "purpose": request.purpose, "kind": request.kind, "round": round, "bytes": size}
        is_masked = artifact.commitments is not None
        circumstances = self.policy.circumstances(request.for_round, relayed=relayed, masked=is_masked)
        figures = {**ledger_facts(artifact.leak), **spent_facts(artifact.spent)}
        intent = self._ledger.intend(**transfer, generation=generation, sha256=sha256, **circumstances, **figures)
        self.sending[intent] = cast(TransferInProgress, {"direction": "out", **transfer})
        self._report(events.PeerHeard(caller))
        return Grant(self._store.hold(sha256), intent)  # until `record_sent`: the artifact may be retired meanwhile

    def record_sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        self._store.release(Sha256(grant.path.stem))
        if grant.intent is None:
            return
        transfer = self.sending.pop(grant.intent)
        self.settle(grant.intent, size, outcome)
        self._accounts[transfer["peer"]].sent_bytes += size
        log.info("artifact sent", extra={"intent": grant.intent, **transfer, "sent_bytes": size, "outcome": outcome})

    def amendments(self, caller: SiteName, certificate_der: bytes, after: int) -> AmendmentsReply:
        """Return the amendments after a number with the caller's round keys; raise ``Refusal`` above the rate limit."""
        if self._chain is None:
            raise Refusal(Status.UNSUPPORTED, "this site has no chain of amendments")
        if not self._amendment_calls[caller].take():
            reason = f"over {limits.AMENDMENT_CALLS_PER_SECOND_MAX:g} questions for amendments a second"
            raise Refusal(Status.BUSY, reason)
        return self._chain.answer(caller, certificate_der, after)

    async def report(self, caller: SiteName, report: EvaluationResult) -> None:
        """Take a peer's evaluation of a lent model; it is in the journal when this returns."""
        self.note_call(caller)
        self._report(events.PeerHeard(caller))
        rules, memory = self._machine.rules, self._machine.memory
        reason = access.unasked(rules, memory, caller=caller, report=report)
        if reason is not None:
            self._record_denial(caller, f"metrics of round {report.round}", reason)
            raise Refusal(Status.DENIED, reason)
        self._report(events.ReportArrived(caller, report))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.REPORT_WAIT_S):
                while (lent := memory.evaluation.lent.get(report.round)) is not None and caller not in lent.reports:
                    await self.wait_for_change()
                return
        raise Refusal(Status.BUSY, "the report is not in the journal yet")

    def open_report(self, peer: SiteName, report: EvaluationResult, *, size: int) -> int:
        """Permit an evaluation to leave for the model's site; its intent is on disk when this returns."""
        rules = self._machine.rules
        if rules.evaluation_denied is not None or not self.policy.permits_receiver(peer):
            raise Refusal(Status.DENIED, self.policy.describe(peer, f"tells {peer} no metrics"))
        if (over := self.policy.limit_reason(report.round, size)) is not None:
            raise Refusal(Status.DENIED, over)
        transfer = {"peer": peer, "purpose": "evaluate", "kind": "metrics", "round": report.round}
        artifact = {"generation": self._machine.memory.generation, "sha256": report.sha256 or "", "bytes": size}
        return self._ledger.intend(**transfer, **artifact, **self.policy.circumstances(report.round))

    def record_report_sent(self, intent: int, *, size: int, outcome: Outcome) -> None:
        self.settle(intent, size, outcome)

    def settle(self, intent: int, size: int, outcome: Outcome) -> None:
        """Record a transfer's outcome; if the disk fails, end the daemon, and the next start settles the transfer."""
        try:
            self._ledger.settle(intent, bytes=size, outcome=outcome)
        except PeerError as error:
            self._fail(error)

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        self._record_denial(caller, call, reason)

    def _manifest_of(self, round: int, artifact: Artifact, *, evaluation: bool) -> SignedManifest | None:
        """Return a published artifact's manifest; ``None`` while no valid certificate can sign it.

        A manifest signed with a replaced key is signed again: peers do not accept it any more.
        """
        key = (round, artifact.sha256, evaluation)
        if key in self._signed and not self._counts(self._signed[key]):
            self._signed[key] = None
            with contextlib.suppress(CertificateError, WireError):
                self._signed[key] = self._sign(round, artifact, evaluation)
        return self._signed.get(key)

    def _counts(self, signed: SignedManifest | None) -> bool:
        """Return whether this site's pinned key signed the manifest."""
        if signed is None:
            return False
        certificate = x509.load_der_x509_certificate(signed.certificate_der)
        try:
            verify_pinned(certificate, self._pki.pinned.get(self._machine.rules.site))
        except OtherKey:
            return False
        return True

    def _answer(self, caller: SiteName, request: wire.ArtifactRequest) -> tuple[int, Artifact] | Unavailable:
        """Return the artifact that the caller may have, or why it is unavailable.

        Raises ``Refusal`` if policy or schedule deny it, unless the caller follows another epoch.
        """
        self.note_call(caller)
        rules = secure_exchange.rules_of(self._machine, request.for_round)
        if request.epoch != access.epoch_digest(rules, caller=caller, for_round=request.for_round):
            return Unavailable.EPOCH
        left = caller in rules.epochs.gone and rules.epochs.expelled_by(caller) is None
        if left and request.purpose == "evaluate":  # the caller may not know yet, and must not take it for a fault
            return Unavailable.RETIRED
        self._admit(caller, request, rules)
        answer = access.answer(
            rules,
            self._machine.memory,
            for_round=request.for_round,
            owner=request.owner,
            purpose=request.purpose,
        )
        if not isinstance(answer, Unavailable) and (reason := self.policy.kept_for(answer[1])) is not None:
            raise self._deny(caller, request, self.policy.describe(caller, f"keeps this {request.kind}: {reason}"))
        return answer

    def _admit(self, caller: SiteName, request: wire.ArtifactRequest, rules: Rules) -> None:
        """Raise ``Refusal`` unless policy and schedule permit the request; it names the one that does not."""
        reason = self.policy.denial(caller, request.kind) or access.denial(
            rules,
            caller=caller,
            kind=request.kind,
            for_round=request.for_round,
            owner=request.owner,
            purpose=request.purpose,
        )
        if reason is not None:
            raise self._deny(caller, request, reason)

    def note_mismatch(self, peer: SiteName, problem: str) -> None:
        """Serve the peer no more until a greeting matches: either of the two sites has refused the other's."""
        self._accounts[peer].mismatch = problem
        self.wake_waiting_calls()

    def note_call(self, caller: SiteName) -> None:
        """Note a call; raise ``Refusal`` if the caller's last greeting was of another federation."""
        self._accounts[caller].called_at_s = self._clock()
        if mismatch := self._accounts[caller].mismatch:
            raise Refusal(Status.MISMATCH, mismatch)

    def _deny(self, caller: SiteName, request: wire.ArtifactRequest, reason: str) -> Refusal:
        self._record_denial(caller, f"{request.kind} for round {request.for_round}", reason)
        return Refusal(Status.DENIED, reason)

    def _record_denial(self, caller: str, call: str, reason: str) -> None:
        """Write a denial to journal and log, unless it repeats a recent one or there were too many."""
        now_s, account = self._clock(), self._accounts[caller]
        recent = {denial: at_s for denial, at_s in account.denied_s.items() if now_s - at_s < DENIED_AGAIN_S}
        if (call, reason) not in recent and len(recent) < DENIED_ROWS_MAX:
            recent[(call, reason)] = now_s
            self._journal.write(rows.DeniedRow(self._machine.number, caller=caller, call=call, reason=reason))
            log.warning("call refused", extra={"peer": caller, "call": call, "reason": reason})
        account.denied_s = recent
