"""The answers to ``GetSum``: what this site shows a member of a round's secure sum.

The state machine decides what is shown. The service admits the caller, and adds this site's seeds to an opening: no
other part of the daemon hands them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from peer.core import access, events, limits, secure_exchange
from peer.core.artifacts import Artifact
from peer.core.machine import SiteMachine
from peer.core.messages import Unavailable
from peer.core.roster import SiteName
from peer.core.state import SiteState
from peer.core.sum_messages import SumOpening, SumStatements, commitment
from peer.daemon.service import PeerService
from peer.net.transport.server import Refusal, Status
from peer.net.transport.sum_statements import SumRequest, encode_statements, statements_digest
from peer.site.records.ledger import OPENING, Ledger
from peer.site.sums.pair_keys import SEED_BYTES
from peer.site.sums.secret_files import SumSecretFiles

log = logging.getLogger(__name__)

ShownTo = Callable[[SiteState, int, SiteName], tuple[SumStatements, tuple[SiteName, ...] | None] | None]
"""Takes the state machine, a round and the caller."""


class SumService:
    """Shows members this site's statements on secure sums.

    Args:
        service: admits callers, and wakes calls that wait.
        machine: the state machine; the service only reads it.
        ledger: takes an intent and an outcome of each opening.
        secrets: has this site's seeds.
        report: passes an event to the state machine.
        durable: whether all that the state machine remembers is on disk; nothing is shown before.
        shown_to: returns what the state machine shows a member, and the members outside the set whose pair seeds the
            opening for it must have, ``None``: no opening now. ``None`` for both: no sum of that round any more.
    """

    def __init__(
        self,
        *,
        service: PeerService,
        machine: SiteMachine,
        ledger: Ledger,
        secrets: SumSecretFiles,
        report: Callable[[events.Event], None],
        durable: Callable[[], bool] = lambda: True,
        shown_to: ShownTo = secure_exchange.shown_to,
    ) -> None:
        self._service = service
        self._machine = machine
        self._ledger = ledger
        self._secrets = secrets
        self._report = report
        self._durable = durable
        self._shown_to = shown_to
        self._recorded: set[tuple[SiteName, int]] = set()
        """Caller and round of the openings that this process has recorded."""

    async def sum(self, caller: SiteName, request: SumRequest, wait_s: float) -> bytes | Unavailable:
        """Return what this site shows the caller, encoded; wait up to ``wait_s`` seconds while the caller knows it.

        The opening's rows are in the ledger when this returns. Raises ``Refusal`` if policy or rules deny the call.
        """
        answer = self._answer(caller, request)
        self._report(events.PeerHeard(caller))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, limits.MANIFEST_WAIT_S)):
                while not isinstance(answer, Unavailable) and statements_digest(answer[0]) == request.known:
                    await self._service.wait_for_change()
                    answer = self._answer(caller, request)
        if isinstance(answer, Unavailable):
            return answer
        content, opening = answer
        if opening is not None:
            self._record(caller, request.round, opening)
        self._service.account(caller).spoken.add(len(content))
        return content

    def _answer(self, caller: SiteName, request: SumRequest) -> tuple[bytes, SumOpening | None] | Unavailable:
        """Return the encoded statements with the opening in them, or why there is no sum."""
        self._service.note_call(caller)
        rules = self._machine.rules
        if request.stage != rules.plan.published:
            other = f"stage is {request.stage!r}, this federation sums after {rules.plan.published!r}"
            raise Refusal(Status.MALFORMED, other)
        if request.epoch != secure_exchange.epoch_of(self._machine, request.round):
            return Unavailable.EPOCH
        reason = self._denial(caller, request.round)
        if reason is not None:
            raise self._deny(caller, request.round, reason)
        if not self._durable():
            raise Refusal(Status.BUSY, "this site's journal does not have its last step")
        shown = self._shown_to(self._machine, request.round, caller)
        if shown is None:
            return Unavailable.RETIRED
        statements, dropped = shown
        if dropped is not None:
            statements = replace(statements, opening=self._opening(request.round, dropped))
        return encode_statements(statements), statements.opening

    def _denial(self, caller: SiteName, round: int) -> str | None:
        """Return why the caller may hear nothing of a round's sum; ``None`` if it may."""
        rules = secure_exchange.rules_of(self._machine, round)
        if caller == rules.site or not rules.has_known(caller):
            return f"{caller!r} is not a peer of this federation"
        if (number := rules.epochs.expelled_by(caller)) is not None:
            return access.expelled_reason(caller, number)
        if not 1 <= round <= rules.rounds:
            return f"round {round} is outside this federation's 1 to {rules.rounds}"
        if not rules.sums_in(round) or rules.plan.artifact is None:
            return f"sites do not add up under masks in round {round}"
        for name in (caller, rules.site):
            if name not in rules.members(round):
                return f"{name!r} is no member of round {round}"
        return self._service.policy.denial(caller, rules.plan.artifact)

    def _deny(self, caller: SiteName, round: int, reason: str) -> Refusal:
        self._service.record_refused_call(caller, f"statements on the sum of round {round}", reason)
        return Refusal(Status.DENIED, reason)

    def _opening(self, round: int, dropped: tuple[SiteName, ...]) -> SumOpening | None:
        """Return this site's opening; ``None`` if its files do not have the seeds that it has committed to."""
        own, masked = self._machine.rules.site, self._masked(round)
        secrets, pairs = self._secrets.load(round), self._secrets.pair_seeds(round)
        if masked is None or secrets is None or not set(dropped) <= pairs.keys():
            log.error("no opening: the seeds of the sum are gone", extra={"round": round})
            return None
        opening = SumOpening(secrets.own_seed, {name: pairs[name] for name in dropped})
        commitments = {name: commitment(seed) for name, seed in {**opening.shared, own: opening.own}.items()}
        if not commitments.items() <= (masked.commitments or {}).items():
            log.error("no opening: the seeds of the sum are not those of the artifact", extra={"round": round})
            return None
        return opening

    def _masked(self, round: int) -> Artifact | None:
        return self._machine.memory.published.get((round, self._machine.rules.site))

    def _record(self, caller: SiteName, round: int, opening: SumOpening) -> None:
        """Write an opening to the ledger, once for each caller and round: it is the same each time.

        The reply leaves as soon as it is returned, and nothing tells how much of it arrives: the outcome counts all.
        Raises ``Refusal`` if the round's egress limit does not permit it.
        """
        masked = self._masked(round)
        if masked is None or (caller, round) in self._recorded:
            return
        size = SEED_BYTES * (1 + len(opening.shared))
        if (over := self._service.policy.limit_reason(round, size)) is not None:
            raise self._deny(caller, round, over)
        intent = self._ledger.intend(
            peer=caller,
            purpose="train",
            kind=OPENING,
            round=round,
            generation=self._machine.memory.generation,
            sha256=masked.sha256,
            bytes=size,
            **self._service.policy.circumstances(round),
        )
        oldest = round - limits.ARTIFACT_ROUNDS_MAX
        self._recorded = {each for each in self._recorded if each[1] >= oldest} | {(caller, round)}
        self._service.settle(intent, size, "complete")
