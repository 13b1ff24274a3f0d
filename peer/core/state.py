"""A site's state and the few operations that change it; ``peer.core.machine`` handles its events."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from peer.core import commands, events, limits, liveness, rows
from peer.core.artifacts import Purpose, Source
from peer.core.commands import Command
from peer.core.cross_evaluation_memory import NO_ANSWER, EvaluationTasks, LentModel
from peer.core.epochs import Epoch, PaceRules
from peer.core.exchange import Exchange, Want
from peer.core.json_codec import to_json
from peer.core.liveness import AWAY, HeardPeers, Peers, Standing
from peer.core.messages import ChainHead, Heartbeat, Seen
from peer.core.phases import BUSY, NEXT, QUEUED, Phase
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.secure_sum import SecureSum
from peer.core.site_memory import Memory, OpenRound
from peer.core.sum_wait import SumWait

HALT_S = 60.0
"""Time limit of a leaving site for the worker's checkpoint: usually 1 s, more on a slow disk."""


class IllegalTransitionError(Exception):
    """An event or a step that cannot occur in this phase: a bug of this program, never of a peer."""


class SiteState:
    """A site's memory, its phase, and the commands of the present event.

    Args:
        rules: the federation as the site sees it.
        memory: the fold of the journal, from ``peer.core.site_memory.recover``; empty for a new site.
        heard: time and state with which each peer was last heard. The simulator shares one table among its sites.
        greeted: peers that count as greeted from the start; the simulator shares one set.
        chance: a random number in [0, 1) of this start, for ``later_generation``.
        sum_rounds: the rounds of whose secure sums this site has its secrets on disk.
    """

    def __init__(
        self,
        rules: Rules,
        memory: Memory | None = None,
        *,
        heard: HeardPeers | None = None,
        greeted: set[SiteName] | None = None,
        chance: float = 0.0,
        sum_rounds: frozenset[int] = frozenset(),
    ) -> None:
        self.rules = rules
        self.memory = memory if memory is not None else Memory()
        self.phase = Phase.NEW
        self.peers = Peers(silence_s=rules.pace.silence_s, heard=HeardPeers() if heard is None else heard)
        self.counted_pace = rules.pace
        self.greeted = set() if greeted is None else greeted
        self.chance = chance
        self.accepts_evaluation: dict[SiteName, bool | None] = {}
        self.evaluation_tasks = EvaluationTasks()
        self.exchange: Exchange | None = None
        self.early: list[Exchange] = []
        self.sums: dict[int, SecureSum] = {}
        self.sum_wait: SumWait | None = None
        self.sum_rounds = sum_rounds
        self.first_told: dict[SiteName, int] = {}
        """By peer, the first round that it told this process."""
        self.compared: set[Sha256] = set()
        self.progress: events.Progressed | None = None
        self.queued = False
        self.refusals: deque[dict[str, Any]] = deque(maxlen=limits.REFUSALS_SHOWN_MAX)
        self.reported_faults: dict[SiteName, set[str]] = {}
        self.failure = ""
        self.departure = ""
        self.attempt = self.ordered = 0
        self.failures = 0
        self.losses: Counter[int] = Counter()
        """By round, the number of received files that the worker found missing."""
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

    @property
    def lived_rules(self) -> Rules:
        """The rules in which the open round keeps the epoch with which it chose its sources."""
        current = self.memory.open
        return self.rules if current is None else self.rules.pinned(current.number, current.epoch)

    @property
    def epoch(self) -> Epoch:
        """The epoch of the open round, or of the next one."""
        current = self.memory.open
        return self.lived_rules.epoch(self.memory.committed + 1 if current is None else current.number)

    @property
    def pace(self) -> PaceRules:
        """The waiting times of the open round, or of the next one."""
        return self.epoch.pace

    def is_held(self, round: int) -> bool:
        """Return whether the site must not open the round now: the round's epoch is held, too few of its members are
        heard, or the site lacks the key of its order.
        """
        epoch = self.rules.epoch(round)
        if epoch.hold or self.rules.lacks_order(round):
            return True
        if epoch.pace.members_min <= 1:
            return False
        return 1 + len(self.peers.present(self.rules.others_in(round), self.now_s)) < epoch.pace.members_min

    @property
    def told_phase(self) -> str:
        return QUEUED if self.queued and self.phase in BUSY else str(self.phase)

    @property
    def head(self) -> ChainHead | None:
        """The newest amendment that this site follows; ``None`` is the genesis."""
        newest = self.rules.epochs.head
        return None if newest.digest is None else ChainHead(newest.number, newest.digest)

    @property
    def heads(self) -> frozenset[ChainHead]:
        """Every amendment that this site follows."""
        epochs = self.rules.epochs.all
        return frozenset(ChainHead(epoch.number, epoch.digest) for epoch in epochs if epoch.digest is not None)

    def is_ahead_of(self, name: SiteName) -> bool:
        """Return whether this site has amendments that a peer, as far as is known, lacks."""
        pulse = self.peers.pulse(name)
        return self.head is not None and (pulse is None or pulse.head != self.head)

    def pulse(self) -> Heartbeat:
        """Build the site's own heartbeat."""
        return Heartbeat(
            generation=self.memory.generation,
            round=self.number,
            phase=self.told_phase,
            progress=self.progress.told_share if self.progress is not None else 0.0,
            published_round=max((key[0] for key in self.memory.published), default=0),
            committed_round=self.memory.committed,
            aggregate=self.told_aggregate,
            head=self.head,
        )

    @property
    def told_aggregate(self) -> Sha256 | None:
        """The mean of the last round; ``None`` if the site learnt later that the round has another epoch: then the
        other sites' means are of other members.
        """
        memory = self.memory
        return memory.aggregate if self.rules.epoch(memory.committed).digest == memory.aggregate_epoch else None

    def seen(self, site: SiteName) -> Seen | None:
        """Return the newest artifact that this site remembers from a peer, or None."""
        digests = self.memory.first_digests.get(site, {})
        newest = max(reversed(digests), key=lambda each: each[:2], default=None)  # of one round, the last to arrive
        return None if newest is None else Seen(newest[0], newest[1], digests[newest])

    @property
    def opened(self) -> OpenRound:
        """The round in progress; raises ``IllegalTransitionError`` if there is none."""
        if self.memory.open is None:
            raise IllegalTransitionError(f"no round is open in phase {self.phase}")
        return self.memory.open

    def emit(self, command: Command) -> None:
        if isinstance(command, commands.WORKER_ORDERS):
            self.ordered = command.attempt
        self.out.append(command)

    def persist(self, row: rows.JournalRow) -> None:
        """Apply a row to memory, and order the daemon to append it to the journal."""
        self.memory.apply(row)
        if self.memory.in_vain_s and isinstance(row, rows.ChosenRow | rows.TrainedRow):
            self.peers.heard.recount_s = -math.inf  # patience depends on the waits in vain and the time trained
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

    def publish_from(self, round: int) -> int | None:
        """Return the last round that a new own artifact serves if it is the first one from this round on.

        ``None`` if the site has published for all of these rounds. With staleness an artifact serves the round after as
        well, or only that one if an earlier artifact serves this one. The round may lie after the federation's last
        one: ``publish_due`` keeps the artifact for it.
        """
        if not self.rules.staleness:
            return round
        last = round + self.rules.staleness
        return None if (last, self.rules.site) in self.memory.published else last

    def publish_due(self) -> None:
        """Publish the artifacts that the last row made due, if any; after a crash the restart does.

        With staleness the artifact also serves earlier rounds that have none. An own artifact for a round after the
        last one stays due, on the disk alone, until an amendment adds that round.
        """
        memory = self.memory
        for (last, owner), artifact in list(memory.publications_due.items()):
            first = max(memory.committed + 1, last - self.rules.staleness)
            earlier = (round for round in range(first, last) if (round, owner) not in memory.published)
            visitor = owner != self.rules.site  # goes home after the last round
            for round in [each for each in (*earlier, last) if visitor or each <= self.rules.rounds]:
                self.persist(rows.PublishedRow(round, artifact=artifact))
                self.emit(commands.Publish(round, artifact))

    def ignore(self, event: events.Event, reason: str | None = None) -> None:
        """Journal an event that came too late or belongs to another phase, and change nothing else."""
        name, phase = type(event).__name__, str(self.phase)
        self.persist(rows.IgnoredRow(self.number, event=name, phase=phase, reason=reason))

    def unreported(self, lent: LentModel) -> dict[SiteName, str]:
        """Return the peers that have not evaluated a lent model, each with the reason."""
        reasons = {}
        for name in self.rules.known:
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
        """Journal which peers have not evaluated the lent model of a round.

        ``retired`` ends the lending.
        """
        reasons = self.unreported(self.memory.evaluation.lent[round])
        if reasons or retired:
            self.persist(rows.LapsedRow(round, reasons=reasons, retired=retired))

    def refuse(
        self, origin: SiteName, reason: str, *, fetched_for: Exchange | None = None, declined: bool = False
    ) -> None:
        """Journal why this site refused something that a peer sent or did, or why the peer ``declined``.

        A refused early fetch counts for the round of the exchange that it was ``fetched_for``.
        """
        early = fetched_for is not None and any(each is fetched_for for each in self.early)
        round = fetched_for.round if early and fetched_for is not None else self.number
        self.persist(rows.RefusedRow(round, origin=origin, reason=reason, declined=declined or None))
        self.refusals.append({"site": origin, "round": round, "reason": reason, "declined": declined})

    def report_fault(self, name: SiteName, reason: str, *, declined: bool = False) -> None:
        """Journal a peer's breach of the protocol, or that it declined a call.

        A reason counts once, and a peer has at most ``REFUSALS_PER_PEER_MAX`` of them: reasons contain the peer's own
        words, and could fill the disk.
        """
        reported = self.reported_faults.setdefault(name, set())
        if reason not in reported and len(reported) < limits.REFUSALS_PER_PEER_MAX:
            reported.add(reason)
            self.refuse(name, reason, declined=declined)

    def artifacts_on_disk(self) -> list[Source]:
        """List received artifacts, and the site's own ones as sources."""
        own = [Source(self.rules.site, key[0], artifact) for key, artifact in self.memory.published.items()]
        if self.memory.artifact is not None:
            own.append(Source(self.rules.site, self.memory.committed, self.memory.artifact))
        return [*self.memory.received.values(), *own]

    def sources_in_use(self) -> tuple[Source, ...]:
        """Return the artifacts that the open round's phase uses: the returns once these were chosen."""
        current = self.opened
        return current.returned if self.chose_returns() else current.sources

    def chose_returns(self) -> bool:
        """Return whether the open round's phase follows the wait for the returns."""
        phases, position = self.lived_rules.phases(self.opened.number), self.opened.position
        return 0 < position <= len(phases) and phases[position - 1] == "returns"

    def patience_s(self, name: SiteName) -> float:
        """Return how long to wait for a live peer that makes no progress."""
        memory = self.memory
        in_vain_s = memory.in_vain_s.get(name, 0.0)
        return liveness.patience_s(in_vain_s=in_vain_s, trained_s=memory.trained_s, pace=self.pace)

    def count_peers(self, round: int | None = None) -> list[tuple[Standing, int]]:
        """Count the peers, all or those of a round, by standing; peers that were never heard are left out."""
        if self.pace is not self.counted_pace:  # silence, patience and the unproven rounds that count follow the epoch
            self.counted_pace, self.peers.heard.recount_s = self.pace, -math.inf
        unproven_max = self.rules.unproven_round_max(self.memory.committed)
        heard = self.peers.recount(self.now_s, patience_s=self.patience_s, unproven_max=unproven_max)
        if not self.rules.members_change:
            return list(heard.counts_without(self.rules.site))
        names = self.rules.others if round is None else self.rules.others_in(round)
        return list(Counter(heard.standings[name] for name in names if name in heard.standings).items())

    @property
    def received_bytes_max(self) -> int:
        """The size limit of a peer's artifact in bytes: a multiple of the own one's."""
        own = [source.artifact.bytes for source in self.artifacts_on_disk() if source.origin == self.rules.site]
        if self.memory.open is not None and self.memory.open.artifact is not None:
            own.append(self.memory.open.artifact.bytes)
        ratio = self.rules.received_ratio_max
        if not own or not ratio:
            return limits.ARTIFACT_BYTES_MAX
        return min(limits.ARTIFACT_BYTES_MAX, max(limits.RECEIVED_BYTES_FLOOR, int(ratio * max(own))))

    def sum_deadline_s(self, wait: SumWait) -> float:
        """Return when the wait of a secure sum's present step ends at the latest, in monotonic seconds."""
        quorum_met = len(wait.machine.keys) >= self.epoch.quorum_others
        return wait.deadline_s(wait_max_s=self.pace.wait_max_s, quorum_met=quorum_met)

    def forget_sums(self, *, before: int) -> None:
        """Delete the secrets of the secure sums before this round: nobody waits for their openings any more."""
        if any(round < before for round in self.sum_rounds):
            self.sum_rounds = frozenset(round for round in self.sum_rounds if round >= before)
            self.emit(commands.ForgetSums(before))
        self.sums = {round: machine for round, machine in self.sums.items() if round >= before}

    def next_attempt(self) -> int:
        """Return the number of the next order; it is new in this process."""
        self.attempt += 1
        return self.attempt

    def cancel_exchange(self) -> None:
        """End the exchange, or the secure sum, and cancel its fetches."""
        if self.exchange is not None:
            self.cancel_fetches(self.exchange.wants.values(), self.exchange.purpose)
        if self.sum_wait is not None:
            self.emit(commands.EndSum())
        self.exchange = self.sum_wait = None

    def cancel_early(self, *, purpose: Purpose | None = None) -> None:
        """Cancel the fetches for the next exchanges, or those for one purpose."""
        for each in [each for each in self.early if purpose in (None, each.purpose)]:
            self.cancel_fetches(each.wants.values(), each.purpose)
            self.early.remove(each)

    def cancel_fetches(self, wants: Iterable[Want], purpose: Purpose) -> None:
        """Cancel the fetches of the open wants."""
        for want in wants:
            if want.open:
                self.emit(commands.CancelFetch(want.origin, purpose))

    def leave(self, fault: str = "", reason: str = "") -> None:
        """End the daemon in order; ``fault`` names what made it impossible to continue."""
        self.cancel_exchange()
        self.cancel_early()
        if self.departure:
            self.forget_sums(before=self.number + 1)
        for round in self.memory.evaluation.lent:
            self.lapse(round, retired=False)
        self.persist(rows.LeftRow(self.memory.committed, fault=fault, reason=reason or self.departure))
        self.enter(Phase.GONE)
        self.emit(commands.Exit(fault, reason or self.departure))

    def wake(self, others_s: Iterable[float] = ()) -> None:
        """Order a tick for the end of the next wait: one of the rounds, or one of ``others_s``.

        Orders nothing if that time has not changed.
        """
        due = [at_s for at_s in (*self._due(), *others_s) if self.now_s < at_s < math.inf]
        at_s = min(due, default=None)
        if at_s != self.wake_s:
            self.wake_s = at_s
            if at_s is not None:
                self.emit(commands.WakeAt(at_s))

    def _due(self) -> list[float]:
        waits = self.pace
        if self.sum_wait is not None:
            fetching = [] if self.exchange is None else self.exchange.due_s(self.peers, self.lived_rules, self.now_s)
            return [*fetching, *self.sum_wait.due_s(self.peers, self.sum_deadline_s(self.sum_wait), self.patience_s)]
        if self.exchange is not None:
            return self.exchange.due_s(self.peers, self.lived_rules, self.now_s)
        if self.phase == Phase.GATHERING:
            gather = [] if waits.gather_s is None else [self.peers.began_s + waits.gather_s]
            unready = any(not standing.ready for standing, _ in self.count_peers(1))
            return [*gather, self.since_s + waits.wait_max_s] if unready else gather
        if self.phase == Phase.PACING:
            return [self.peers.heard.recount_s, self.peers.began_s + self.peers.silence_s]
        if self.phase == Phase.ISOLATED:
            return [self.since_s + waits.isolated_s]
        if self.phase == Phase.DONE:
            return [self.since_s + waits.linger_s]
        if self.phase == Phase.LEAVING:
            return [self.since_s + HALT_S]
        return []
