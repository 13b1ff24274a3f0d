"""The wait of one round's secure sum: for whom, and until when."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.core.artifacts import Artifact
from peer.core.liveness import AWAY, Peers
from peer.core.roster import SiteName
from peer.core.secure_sum import SecureSum
from peer.core.sum_messages import SumReady


@dataclass(slots=True)
class SumWait:
    """A secure sum under way; times are monotonic seconds.

    Attributes:
        attempt: of the order ``HearSum``.
        order: the attempt of the order to the daemon that is not answered yet.
        opened_s: when the exchange began.
        slow_s: after how long a peer counts as slow.
        step: what the sum waits for, and since when.
        keys_s: how long the keys took; counts more where the wait ended at the deadline.
        missing: the members that contribute nothing, each with the reason.
        clipped: values of this site beyond the bound.
        total: the sum.
        failed: why this site's daemon could not mask or add up.
    """

    round: int
    machine: SecureSum
    attempt: int
    opened_s: float
    slow_s: float
    step_s: float
    step: str = ""
    order: int = 0
    keys_s: float | None = None
    missing: dict[SiteName, str] = field(default_factory=dict)
    clipped: int | None = None
    total: Artifact | None = None
    failed: str = ""

    @property
    def over(self) -> bool:
        """Whether the site has the sum, or will have none."""
        ready = isinstance(self.machine.result, SumReady)
        return self.total is not None or bool(self.failed) or (self.machine.result is not None and not ready)

    def follow(self, now_s: float) -> tuple[SiteName, ...]:
        """Return the members for whom the sum waits now; note since when it waits for what."""
        step, awaited = self.machine.awaited()
        if step != self.step:
            if self.step == "key" and self.keys_s is None:
                self.keys_s = now_s - self.step_s
            self.step, self.step_s = step, now_s
        return awaited

    def deadline_s(self, *, wait_max_s: float, quorum_met: bool) -> float:
        """Return when the present step's wait ends at the latest.

        The members that train longest are waited for as in any exchange. From the masks on, all are in one step.
        """
        if self.step == "key" and not quorum_met:
            return self.opened_s + wait_max_s
        return self.step_s + min(self.slow_s, wait_max_s)

    def due_s(self, peers: Peers, deadline_s: float, patience_s: Callable[[SiteName], float]) -> list[float]:
        """Return when to look again if nothing happens; empty if the sum waits for this site's own daemon."""
        _, awaited = self.machine.awaited()
        if not awaited or self.over:
            return []
        ends = [peers.silent_at_s(name) for name in awaited]
        ends += [self.step_s + patience_s(name) for name in awaited]
        return [end_s for end_s in (*ends, deadline_s) if end_s < math.inf]

    def hopeless(self, name: SiteName, peers: Peers, now_s: float, patience_s: float) -> str:
        """Return why a member is not worth a longer wait, one of ``MISSING_REASONS``; empty if it is."""
        pulse = peers.pulse(name)
        if peers.silent(name, now_s):
            return "silent"
        if pulse is not None and pulse.phase in AWAY:
            return pulse.phase
        return "slow" if now_s >= self.step_s + patience_s else ""
