"""Equivocation: detects sites that sign two artifacts for one round, stores the proof, and passes it on.

Receivers of one site's artifacts compare its manifests if their means differ. A site that shows a manifest learns only
what the same site signed for the other receiver, if that is another artifact. Every receiver of a proof verifies it
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from typing import Any

from cryptography import x509

from peer.audit.equivocation import EquivocationProof, ManifestSubject, prove, stored_proofs, verify_any
from peer.core import events, limits, rows
from peer.core.messages import COMPARES_MANIFESTS, Manifest, SignedManifest
from peer.core.roster import Sha256, SiteName
from peer.daemon.service import PeerService
from peer.errors import CertificateError
from peer.net.transport.bounds import WireError
from peer.net.transport.client import ExchangeClient, ExchangeError
from peer.net.transport.manifest import from_base64, to_base64
from peer.net.transport.rates import TokenBucket, loop_time
from peer.net.transport.server import Refusal, Status
from peer.site.identity.certificates import is_refused
from peer.site.records.journal import Journal

log = logging.getLogger(__name__)


class EquivocationWatch:
    """The equivocation proofs that one site holds.

    Args:
        federation: the digest that manifests must name.
        authorities: returns the federation's CAs, including those that amendments have added.
        site: this site; it stores no proof against itself.
        roster: every site that is or was a member; a proof against any other name is invalid.
        journal: has received manifests, and stores the proofs.
        service: knows which peers compare manifests.
        client: calls them.
        refused: SHA-256 digests of certificates whose signatures prove nothing.
        report: passes an event to the state machine.
    """

    def __init__(
        self,
        *,
        federation: Sha256,
        authorities: Callable[[], Sequence[x509.Certificate]],
        site: SiteName,
        roster: Container[SiteName],
        journal: Journal,
        service: PeerService,
        client: ExchangeClient,
        refused: Container[str],
        report: Callable[[events.Event], None],
    ) -> None:
        self._federation, self._authorities, self._site, self._roster = federation, authorities, site, roster
        self._journal, self._service, self._client = journal, service, client
        self._refused, self._report = refused, report
        stored = stored_proofs(journal, federation=federation, authorities=authorities())
        self._proofs = {proof.subject: proof for proof in stored}
        self._handed: set[tuple[SiteName, ManifestSubject]] = set()
        rate = (limits.COMPARISONS_PER_SECOND_MAX, limits.COMPARISONS_BURST, loop_time)
        self._calls: defaultdict[SiteName, TokenBucket] = defaultdict(lambda: TokenBucket(*rate))
        pace = (limits.SHOWN_BYTES_PER_SECOND_MAX, limits.SHOWN_BYTES_MAX, loop_time)
        self._shown_bytes: defaultdict[SiteName, TokenBucket] = defaultdict(lambda: TokenBucket(*pace))
        self._compared_round, self._compared_peers = 0, 0
        self._tasks: set[asyncio.Task[None]] = set()

    def examine(self, signed: SignedManifest, manifest: Manifest) -> None:
        """Compare a verified manifest with those that this site received before."""
        for earlier, known in self._received(manifest.origin, manifest.round):
            if _contradict(known, manifest):
                self._keep(prove((earlier, signed), federation=self._federation, authorities=self._authorities()))

    def compare(self, peer: SiteName, round: int) -> None:
        """Show a peer with another mean of a round the manifests that this round's origins signed for this site.

        A site compares with few peers a round, and shows each of them other manifests. In a large federation, means
        also differ because contributors do: comparisons with all peers would outlast the round.
        """
        if round != self._compared_round:
            self._compared_round, self._compared_peers = round, 0
        if self._compared_peers >= limits.COMPARED_PEERS_PER_ROUND_MAX or not self._compares(peer):
            return
        received = [
            from_base64(body)
            for body in self._journal.received_in_round(round)
            if body["peer"] not in (peer, self._site) and "signature" in body
        ]
        first = self._compared_peers * limits.COMPARISONS_PER_ROUND_MAX % max(1, len(received))
        self._compared_peers += 1
        shown = (received[first:] + received[:first])[: limits.COMPARISONS_PER_ROUND_MAX]
        self._start(self._ask(peer, shown))

    def hand_on(self, peer: SiteName) -> None:
        """Send a peer every proof that it has not received in this run."""
        for subject, proof in self._proofs.items():
            if subject.origin != peer and (peer, subject) not in self._handed and self._compares(peer):
                self._handed.add((peer, subject))
                self._start(self._give(peer, proof))

    async def answer(self, caller: SiteName, shown: Sequence[SignedManifest]) -> list[SignedManifest]:
        """Answer ``CompareManifests``: store a proof, or return the other half of one."""
        if not self._calls[caller].take():
            raise Refusal(Status.BUSY, f"over {limits.COMPARISONS_PER_SECOND_MAX:g} comparisons a second")
        try:
            if len(shown) == 2:
                proof = self._verified(shown)
                if self._is_refused_here(proof):
                    raise ValueError("a certificate is refused here")
                self._keep(proof)
                return []
            (signed,) = shown
            manifest = verify_any(signed, federation=self._federation, authorities=self._authorities())
        except ValueError as error:
            raise Refusal(Status.MALFORMED, f"manifests: {error}") from error
        for own, known in self._received(manifest.origin, manifest.round):
            if _contradict(known, manifest):
                proof = self._verified((own, signed))
                if self._is_refused_here(proof):
                    return []
                self._keep(proof)
                return [own]
        return []

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _received(self, origin: SiteName, round: int) -> Iterator[tuple[SignedManifest, Manifest]]:
        """Yield the manifests that this site received for a round from one site."""
        for body in self._journal.received_in_round(round, peer=origin):
            with contextlib.suppress(ValueError):  # a row of the simulator has no manifest
                signed = from_base64(body)
                yield signed, verify_any(signed, federation=self._federation, authorities=self._authorities())

    def _verified(self, signed: Sequence[SignedManifest]) -> EquivocationProof:
        proof = prove(signed, federation=self._federation, authorities=self._authorities())
        if proof.subject.origin not in self._roster:
            raise ValueError(f"{proof.subject.origin} is and was no member")
        return proof

    def _is_refused_here(self, proof: EquivocationProof) -> bool:
        """Return whether this site refuses a certificate that signed one of the manifests."""
        certificates = [x509.load_der_x509_certificate(each.certificate_der) for each in proof.signed]
        return any(is_refused(certificate, self._refused) for certificate in certificates)

    def _keep(self, proof: EquivocationProof) -> None:
        """Journal a new proof, report its origin, and pass it on to every other peer."""
        subject = proof.subject
        kept = sum(known.origin == subject.origin for known in self._proofs)
        if subject in self._proofs or kept >= limits.EQUIVOCATIONS_PER_SITE_MAX or subject.origin == self._site:
            return
        self._proofs[subject] = proof
        row = rows.EquivocatedRow(
            subject.round,
            origin=subject.origin,
            sha256=proof.sha256,
            manifests=tuple(to_base64(signed) for signed in proof.signed),
        )
        self._journal.write(row)
        reason = f"signed two artifacts for round {subject.round}: `mhfl-peer evidence` has the proof"
        log.warning("equivocation proven", extra={"peer": subject.origin, "round": subject.round})
        self._report(events.PeerRefused(subject.origin, reason))
        for peer in self._service.peers():
            self.hand_on(peer)

    def _compares(self, peer: SiteName) -> bool:
        greeting = self._service.account(peer).greeting
        return greeting is not None and COMPARES_MANIFESTS in greeting.features

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, peer: SiteName, received: Sequence[SignedManifest]) -> None:
        """Show a peer these manifests one by one, and store the proofs that its answers complete."""
        try:
            for signed in received:
                for other in await self._show(peer, (signed,)):
                    proof = self._verified((signed, other))
                    if not self._is_refused_here(proof):
                        self._keep(proof)
        except ValueError as error:
            self._report(events.PeerRefused(peer, f"answered with a manifest that contradicts none: {error}"))
        except (ExchangeError, CertificateError) as error:
            log.info("manifests not compared", extra={"peer": peer, "reason": str(error)})

    async def _give(self, peer: SiteName, proof: EquivocationProof) -> None:
        try:
            await self._show(peer, proof.signed)
        except (ExchangeError, CertificateError, WireError) as error:
            self._handed.discard((peer, proof.subject))  # its next greeting tries again
            log.info("proof not handed on", extra={"peer": peer, "reason": str(error)})

    async def _show(self, peer: SiteName, signed: Sequence[SignedManifest]) -> list[SignedManifest]:
        """Show a peer manifests within its server's rate limit, and return its answer.

        Manifests that are too large for a request are not shown.
        """
        size = sum(len(each.body) for each in signed)
        if size > limits.SHOWN_BYTES_MAX:
            log.info("manifests too large to be shown", extra={"peer": peer, "bytes": size})
            return []
        while not self._shown_bytes[peer].take(size):  # noqa: ASYNC110 - only time fills the bucket
            await asyncio.sleep(size / limits.SHOWN_BYTES_PER_SECOND_MAX)
        return await self._client.compare_manifests(peer, signed)


def _contradict(one: Manifest, other: Manifest) -> bool:
    return ManifestSubject.of(one) == ManifestSubject.of(other) and one.artifact.sha256 != other.artifact.sha256
