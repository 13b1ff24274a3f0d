"""A site's state and the few operations that change it; ``peer.core.machine`` handles its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from peer.core import commands, events, limits, liveness, rows
from peer.core.commands import Command, Source
from peer.core.exchange import Exchange
from peer.core.global_test_memory import NO_ANSWER, EvaluationTasks, LentModel
from peer.core.liveness import AWAY, Peers
from peer.core.messages import Heartbeat, LastHeard, Seen
from peer.core.phases import NEXT, Phase
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.site_memory import Memory, OpenRound
from peer.core.worker_protocol import to_json

HALT_S = 60.0
"""How long a leaving site waits for the worker's checkpoint: usually 1 s, more on a slow disk."""


class IllegalTransitionError(Exception):
    """An event or a step that cannot occur in this phase: a bug of this program, never of a peer."""


class SiteState:
    """A site's memory, its phase, and the commands of the event that it processes.

    Args:
        rules: the federation as the site sees it.
        memory: the fold of the journal, from ``peer.core.site_memory.recover``; empty for a new
            site.
        heard: when each peer was heard last, and its state. The simulator shares one table among
            its sites.
        greeted: peers that count as greeted from the start.
        chance: a random number in [0, 1) of this start, for ``later_generation``.
    """

    def __init__(
        self,
        rules: Rules,
        memory: Memory | None = None,
        *,
        heard: dict[SiteName, LastHeard] | None = None,
        greeted: Iterable[SiteName] = (),
        chance: float = 0.0,
    ) -> None:
        self.rules = rules
        self.memory = memory if memory is not None else Memory()
        self.phase = Phase.NEW
        self.peers = Peers(silence_s=rules.pace.silence_s, heard={} if heard is None else heard)
        self.greeted = set(greeted)
        self.chance = chance
        self.accepts_evaluation: dict[SiteName, bool | None] = {}
        self.evaluation_tasks = EvaluationTasks()
        self.exchange: Exchange | None = None
        self.compared: set[Sha256] = set()
        self.progress: events.Progressed | None = None
        self.refusals: deque[dict[str, Any]] = deque(maxlen=limits.REFUSALS_SHOWN_MAX)
        self.reported_faults: dict[SiteName, set[str]] = {}
        self.failure = ""
        self.attempt = 0
        self.failures = 0
        self.alone = False
        self.round_ended = False
        self.now_s = 0.0
        self.since_s = 0.0
        self.wake_s: float | None = None
        self.out: list[Command] = []
        self.cause = rows.Cause(0, "")
        self.steps: list[tuple[Phase, Phase]] = []

    @property
    def number(self) -> int:
        """The round in progress, or the last one that is over."""
        return self.memory.open.number if self.memory.open is not None else self.memory.committed

    def pulse(self) -> Heartbeat:
        """The site's own heartbeat."""
        return Heartbeat(
            generation=self.memory.generation,
            round=self.number,
            phase=str(self.phase),
            progress=self.progress.told_share if self.progress is not None else 0.0,
            published_round=max((key[0] for key in self.memory.published), default=0),
            committed_round=self.memory.committed,
            aggregate=self.memory.aggregate,
        )

    def seen(self, site: SiteName) -> Seen | None:
        """The newest artifact that this site remembers from a peer."""
        digests = self.memory.first_digests.get(site, {})
        newest = max(reversed(digests), key=lambda each: each[:2], default=None)  # of one round, the last to arrive
        return None if newest is None else Seen(newest[0], newest[1], digests[newest])

    @property
    def opened(self) -> OpenRound:
        """The round in progress; ``IllegalTransitionError`` when there is none."""
        if self.memory.open is None:
            raise IllegalTransitionError(f"no round is open in phase {self.phase}")
        return self.memory.open

    def emit(self, command: Command) -> None:
        self.out.append(command)

    def persist(self, row: rows.JournalRow) -> None:
        """Apply a row to memory, and order the daemon to append it to the journal."""
        self.memory.apply(row)
        self.emit(commands.Persist(row.kind, row.round, row.body(), to_json(self.cause)))

    def enter(self, phase: Phase) -> None:
        """Change the phase and announce it to the peers; of several changes in an event, only the last."""
        if phase != self.phase:
            if phase not in NEXT[self.phase]:
                raise IllegalTransitionError(f"from phase {self.phase} to {phase}")
            self.steps.append((self.phase, phase))
            self.phase, self.since_s = phase, self.now_s
            self.out = [command for command in self.out if not isinstance(command, commands.Announce)]
            self.emit(commands.Announce())

    def publish_due(self) -> None:
        """Publish the artifacts that the last row made due, if any; after a crash the restart does."""
        for (round, _), artifact in list(self.memory.publications_due.items()):
            self.persist(rows.PublishedRow(round, artifact=artifact))
            self.emit(commands.Publish(round, artifact))

    def ignore(self, event: events.Event, reason: str | None = None) -> None:
        """Journal an event that came too late or belongs to another phase, and change nothing else."""
        name, phase = type(event).__name__, str(self.phase)
        self.persist(rows.IgnoredRow(self.number, event=name, phase=phase, reason=reason))

    def unreported(self, lent: LentModel) -> dict[SiteName, str]:
        """The peers that have not reported on a lent model, each with the reason."""
        reasons = {}
        for name in self.rules.roster.others(self.rules.site):
            pulse = self.peers.pulse(name)
            if name in lent.reports:
                continue
            if name in self.rules.without:
                reasons[name] = "absent"
            elif name in self.accepts_evaluation and self.accepts_evaluation[name] is None:
                reasons[name] = "its program does not support it"
            elif self.accepts_evaluation.get(name) is False:
                reasons[name] = f"not permitted by {name}"
            elif self.peers.silent(name, self.now_s):
                reasons[name] = "silent"
            else:
                reasons[name] = pulse.phase if pulse is not None and pulse.phase in AWAY else NO_ANSWER
        return reasons

    def lapse(self, round: int, *, retired: bool) -> None:
        """Journal which peers have not reported on the lent model of a round.

        ``retired`` ends the lending.
        """
        reasons = self.unreported(self.memory.evaluation.lent[round])
        if reasons or retired:
            self.persist(rows.LapsedRow(round, reasons=reasons, retired=retired))

    def refuse(self, origin: SiteName, reason: str) -> None:
        """Journal why something that a peer sent or did was refused."""
        self.persist(rows.RefusedRow(self.number, origin=origin, reason=reason))
        self.refusals.append({"site": origin, "round": self.number, "reason": reason})

    def report_fault(self, name: SiteName, reason: str) -> None:
        """Journal that a peer broke the protocol: once a reason, and at most
        ``REFUSALS_PER_PEER_MAX`` times.

        The peer's own words are in the reason, so without a bound it could fill the disk.
        """
        reported = self.reported_faults.setdefault(name, set())
        if reason not in reported and len(reported) < limits.REFUSALS_PER_PEER_MAX:
            reported.add(reason)
            self.refuse(name, reason)

    def artifacts_on_disk(self) -> list[Source]:
        """Received artifacts, and the site's own ones as sources."""
        own = [Source(self.rules.site, key[0], artifact) for key, artifact in self.memory.published.items()]
        if self.memory.artifact is not None:
            own.append(Source(self.rules.site, self.memory.committed, self.memory.artifact))
        return [*self.memory.received.values(), *own]

    def sources_in_use(self) -> tuple[Source, ...]:
        """The artifacts that the phase of the open round uses: the returns once these were chosen."""
        current = self.opened
        return current.returned if self.chose_returns() else current.sources

    def chose_returns(self) -> bool:
        """Whether the phase that the open round is in follows the wait for the returns."""
        phases, position = self.rules.phases(self.opened.number), self.opened.position
        return 0 < position <= len(phases) and phases[position - 1] == "returns"

    def patience_s(self, name: SiteName) -> float:
        """How long to wait for a peer that lives and does not get on."""
        memory = self.memory
        in_vain_s = memory.in_vain_s.get(name, 0.0)
        return liveness.patience_s(in_vain_s=in_vain_s, trained_s=memory.trained_s, pace=self.rules.pace)

    @property
    def received_bytes_max(self) -> int:
        """The most bytes that an artifact of a peer may have: a multiple of the own one's."""
        own = [source.artifact.bytes for source in self.artifacts_on_disk() if source.origin == self.rules.site]
        if self.memory.open is not None and self.memory.open.artifact is not None:
            own.append(self.memory.open.artifact.bytes)
        ratio = self.rules.received_ratio_max
        if not own or not ratio:
            return limits.ARTIFACT_BYTES_MAX
        return min(limits.ARTIFACT_BYTES_MAX, max(limits.RECEIVED_BYTES_FLOOR, int(ratio * max(own))))

    def next_attempt(self) -> int:
        """The number of the next order; no earlier order of this process had it."""
        self.attempt += 1
        return self.attempt

    def cancel_exchange(self) -> None:
        """End the exchange and cancel its fetches."""
        if self.exchange is not None:
            for want in self.exchange.wants.values():
                if want.open:
                    self.emit(commands.CancelFetch(want.origin, self.exchange.purpose))
        self.exchange = None

    def leave(self, fault: str = "", reason: str = "") -> None:
        """End the daemon in order; ``fault`` names what made it impossible to go on."""
        self.cancel_exchange()
        for round in self.memory.evaluation.lent:
            self.lapse(round, retired=False)
        self.persist(rows.LeftRow(self.memory.committed, fault=fault, reason=reason))
        self.enter(Phase.GONE)
        self.emit(commands.Exit(fault, reason))

    def wake(self, others_s: Iterable[float] = ()) -> None:
        """Order a tick for the end of the next wait: one of the rounds, or one of ``others_s``.

        Nothing is ordered where that time has not changed.
        """
        due = [at_s for at_s in (*self._due(), *others_s) if at_s > self.now_s]
        at_s = min(due, default=None)
        if at_s != self.wake_s:
            self.wake_s = at_s
            if at_s is not None:
                self.emit(commands.WakeAt(at_s))

    def _due(self) -> list[float]:
        waits = self.rules.pace
        if self.exchange is not None:
            return self.exchange.due_s(self.peers, self.rules)
        if self.phase == Phase.GATHERING:
            gather = [] if waits.gather_s is None else [self.peers.began_s + waits.gather_s]
            unready = any(not self.peers.ready(name) for name in self.greeted)
            return [*gather, self.since_s + waits.wait_max_s] if unready else gather
        if self.phase == Phase.PACING:
            return [self.peers.silent_at_s(site) for site in self.rules.others]
        if self.phase == Phase.ISOLATED:
            return [self.since_s + waits.isolated_s]
        if self.phase == Phase.DONE:
            return [self.since_s + waits.linger_s]
        if self.phase == Phase.LEAVING:
            return [self.since_s + HALT_S]
        return []
