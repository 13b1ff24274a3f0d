"""A federation in memory: real state machines, with a simulated clock, network and workers."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from fakes.core_site import amend, carry_out, greeting_of, make_rules
from fakes.core_sums import Sums
from peer.core import access, commands, events
from peer.core.artifacts import PURPOSES
from peer.core.epochs import Epochs
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.secure_exchange import rules_of
from peer.core.site_memory import Row, recover
from peer.site.sums.pair_keys import SumSecrets
from simulation.audit import Audit, as_stored

BEAT_S = 3.0
SITES = ("africa", "america", "asia", "europe", "oceania")


@dataclasses.dataclass
class Machine:
    """One site: its process (``None`` while it is dead) and its disk."""

    rules: Rules
    round: SiteMachine | None = None
    rows: list[Row] = dataclasses.field(default_factory=list)
    files: set[Sha256] = dataclasses.field(default_factory=set)
    life: int = 0
    exit: commands.Exit | None = None
    audit: Audit = dataclasses.field(default_factory=lambda: Audit(()))
    fetches: dict[tuple[SiteName, str], int] = dataclasses.field(default_factory=dict)
    sent: list[tuple[SiteName, int, str]] = dataclasses.field(default_factory=list)
    measuring: commands.Measure | None = None
    fuses: list[int] = dataclasses.field(default_factory=list)
    carried_out: int = 0
    alarm_s: float | None = None
    secrets: dict[int, SumSecrets] = dataclasses.field(default_factory=dict)
    generation: int = 1
    hearing: int = 0


class Simulation(Sums):
    """N sites and one heap of future actions. ``cut`` holds directed links that lose every message.

    ``newcomers`` are the sites that the genesis does not have; ``amend`` adds them.
    """

    def __init__(
        self,
        sites: Sequence[str],
        *,
        seed: int = 0,
        work_s: float = 2.0,
        dead: Sequence[str] = (),
        newcomers: Sequence[str] = (),
        **changes: Any,
    ) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.work_s = self.measure_s = work_s
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = itertools.count()
        genesis = [name for name in sites if name not in newcomers]
        self.machines = {SiteName(name): Machine(make_rules(name, genesis, **changes)) for name in sites}
        self.epochs = self.machines[SiteName(genesis[0])].rules.epochs
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[str, float] = {}
        for name in self.machines:
            if name not in (*dead, *newcomers):
                self.start(name)

    def amend(self, from_round: int, *, late_s: float = 0.5, **changes: Any) -> None:
        """Make an amendment, or with ``leaving`` only a notice; each site learns of it within ``late_s``.

        Who is new starts now.
        """
        before = self.epochs.head.members
        epochs = self.epochs = amend(self.epochs, from_round, **changes)
        news = set(epochs.head.members) - set(before)
        for name, machine in self.machines.items():
            if name in news:
                machine.rules = machine.rules.amended(epochs)
                self.start(name)
            else:
                self.at(self.random.uniform(0.0, late_s), lambda machine=machine: self.teach(machine, epochs))  # type: ignore[misc]

    def teach(self, machine: Machine, epochs: Epochs) -> None:
        """A site learns of the chain, at its next start if it does not run."""
        if epochs.head.number >= machine.rules.epochs.head.number:
            epochs = dataclasses.replace(epochs, leaving=epochs.leaving | machine.rules.epochs.leaving)
            if machine.round is None or machine.exit is not None:
                machine.rules = machine.rules.amended(epochs)
            self.feed(machine, events.EpochsLearned(epochs))

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.counter), action))

    def delay_s(self, scale: float = 0.05) -> float:
        return self.random.uniform(0.2, 1.8) * scale

    def start(self, name: str) -> None:
        """Start a daemon on its disk, without the files that memory does not need."""
        machine = self.machines[SiteName(name)]
        machine.audit = Audit(machine.rows)
        if machine.generation > 1:  # of a backup, whose files may be gone
            machine.audit.memory = recover(machine.rows, present=set(machine.files), generation=machine.generation)
        memory = recover(machine.rows, present=set(machine.files), generation=machine.generation)
        assert memory == machine.audit.memory, "a file is gone that a row names"
        machine.files &= memory.needed_digests()
        machine.round = SiteMachine(machine.rules, memory, sum_rounds=frozenset(machine.secrets))
        machine.life += 1
        machine.fetches = {}
        machine.measuring, machine.hearing = None, 0
        self._beat_loop(machine, machine.life)
        self.feed(machine, events.Began())

    def kill(self, name: str) -> None:
        """``kill -9``: only the disk is left."""
        machine = self.machines[SiteName(name)]
        machine.round = None
        machine.life += 1

    def kill_for(self, name: str, gone_s: float) -> None:
        """Kill a site that runs, and start it again later."""
        machine = self.machines[SiteName(name)]
        if machine.round is not None and machine.exit is None:
            self.kill(name)
            self.at(gone_s, lambda: self.start(name))

    def withhold(self, name: str, claim: Callable[[int, float], Heartbeat]) -> None:
        """Have a dead site greet and beat for ever, and deliver nothing.

        ``claim`` makes its heartbeats from the furthest round of the others and the seconds that
        passed.
        """
        machine, began_s = self.machines[SiteName(name)], self.now_s

        def action() -> None:
            living = [other for other in self.machines.values() if other.round is not None and other.exit is None]
            furthest = max((other.round.number for other in living if other.round is not None), default=0)
            pulse = claim(furthest, self.now_s - began_s)
            for other in living:
                self.feed(other, events.PeerGreeted(machine.rules.site, greeting_of(machine.rules, 1)))
                self.feed(other, events.PeerHeard(machine.rules.site, pulse))
            self.at(BEAT_S, action)

        self.at(self.delay_s(1.0), action)

    def feed(self, machine: Machine, event: events.Event) -> None:
        """Have a site handle an event, and carry out its commands; a fuse kills it between two of them."""
        if machine.round is None or machine.exit is not None:
            return
        out = machine.round.handle(event, now_s=self.now_s)
        machine.rules = machine.round.rules
        machine.audit.check(machine.round, out, self.now_s)
        for command in out:
            if machine.carried_out in machine.fuses:
                machine.fuses.remove(machine.carried_out)
                self.kill_for(machine.rules.site, 4.0)
                return
            machine.carried_out += 1
            getattr(self, "_" + type(command).__name__.lower())(machine, command)

    def run(self, *, until: Callable[[], bool], limit_s: float = 20_000.0) -> None:
        """Let time pass until the condition holds."""
        end_s = self.now_s + limit_s
        while not until():
            assert self.heap, "nothing can happen any more"
            at_s, _, action = heapq.heappop(self.heap)
            assert at_s <= end_s, {
                name: (m.round and m.round.phase, m.round and m.round.number) for name, m in self.machines.items()
            }
            self.now_s = max(self.now_s, at_s)
            action()

    def finished(self) -> bool:
        """Every site has finished its last round and left."""
        return all(m.exit is not None and "finished" in self.kinds(name) for name, m in self.machines.items())

    def run_to_end(self, limit_s: float = 20_000.0) -> None:
        """Run until every site that runs has left."""
        self.run(
            until=lambda: all(m.exit is not None or m.round is None for m in self.machines.values()), limit_s=limit_s
        )

    def committed(self, name: str) -> list[tuple[int, Any]]:
        """The committed rounds of a site."""
        return [(round, body) for kind, round, body in self.machines[SiteName(name)].rows if kind == "committed"]

    def kinds(self, name: str) -> list[str]:
        """The kinds of a site's rows, oldest first."""
        return [kind for kind, _, _ in self.machines[SiteName(name)].rows]

    def made(self, name: str) -> dict[int, str]:
        """By round, the digest of what a site's training made, and that of the initial artifact for round 0."""
        rows = self.machines[SiteName(name)].rows
        artifacts = [(round, body["artifact"]) for kind, round, body in rows if kind in ("initialised", "trained")]
        return {round: artifact["sha256"] for round, artifact in artifacts if artifact is not None}

    def final_states(self) -> dict[str, str]:
        """The last checkpoint of every site: a digest of all that it was trained with."""
        return {name: recover(machine.rows).state for name, machine in self.machines.items()}

    def _later(self, machine: Machine, delay_s: float, make: Callable[[], events.Event | None]) -> None:
        life = machine.life

        def action() -> None:
            if machine.life == life and (event := make()) is not None:
                self.feed(machine, event)

        self.at(delay_s, action)

    def _linked(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self.cut

    def _beat_loop(self, machine: Machine, life: int) -> None:
        def action() -> None:
            if machine.life == life and machine.exit is None:
                self._announce(machine, commands.Announce())
                self.at(BEAT_S, action)

        self.at(self.delay_s(1.0), action)

    def _persist(self, machine: Machine, command: commands.Persist) -> None:
        machine.rows.append(as_stored((command.kind, command.round, command.body)))

    def _publish(self, machine: Machine, command: commands.Publish) -> None:
        row = "evaluated" if command.evaluation else "published"
        assert any(kind == row and round == command.round for kind, round, _ in machine.rows)
        assert command.artifact.sha256 in machine.files

    def _announce(self, machine: Machine, command: commands.Announce) -> None:
        assert machine.round is not None
        pulse, me = machine.round.pulse(), machine.rules.site
        for name, other in self.machines.items():
            if name == me or not self._linked(me, name) or other.round is None or other.exit is not None:
                continue
            answers = self._linked(name, me)
            if me not in other.round.greeted or (answers and name not in machine.round.greeted):
                mine = greeting_of(machine.rules, pulse.generation, machine.round.seen(name))
                self._send(other, events.PeerGreeted(me, mine))
                if answers:
                    theirs = greeting_of(other.rules, other.round.memory.generation, other.round.seen(me))
                    self._send(machine, events.PeerGreeted(name, theirs))
            self._send_pulse(other, me, pulse)
            if answers:
                self._send_pulse(machine, name, other.round.pulse())

    def _send_pulse(self, receiver: Machine, sender: SiteName, pulse: Heartbeat) -> None:
        """A heartbeat after its proof; every site of the simulation has signed what it says."""
        delay_s = self.delay_s()
        if pulse.published_round:
            self._later(receiver, delay_s, lambda: events.RoundProved(sender, pulse.published_round))
        self._later(receiver, delay_s, lambda: events.PeerHeard(sender, pulse))

    def _send(self, machine: Machine, event: events.Event) -> None:
        self._later(machine, self.delay_s(), lambda: event)

    def _fetch(self, machine: Machine, command: commands.Fetch) -> None:
        me, origin = machine.rules.site, self.machines[command.origin]
        key = (command.origin, command.purpose)
        machine.fetches[key] = command.attempt

        def ask() -> events.Event | None:
            if machine.fetches.get(key) != command.attempt:
                return None
            answered: Any = Unavailable.NOT_YET
            generation = 0
            linked = self._linked(me, command.origin) and self._linked(command.origin, me)
            if linked and origin.round is not None and origin.exit is None:
                generation = origin.round.memory.generation
                request: Any = {"for_round": command.round, "owner": command.owner, "purpose": command.purpose}
                expected = machine.rules if machine.round is None else machine.round.lived_rules
                rules = rules_of(origin.round, command.round)
                known = rules.epoch(command.round).digest == expected.epoch(command.round).digest
                known = known and me in origin.rules.epochs.names  # else it does not get through TLS
                reason = access.denial(rules, caller=me, kind=command.kind, **request)
                assert reason is None or not known or me in origin.rules.epochs.gone, reason
                if known and reason is None:  # else the answer is EPOCH, and the site asks again
                    answered = access.answer(rules, origin.round.memory, **request)
            answer = (command.generation, command.round, command.attempt, command.origin)
            if answered == Unavailable.NOT_YET:
                self._later(machine, self.delay_s(0.5), ask)
                return None
            del machine.fetches[key]
            if isinstance(answered, Unavailable):
                return events.ArtifactUnavailable(*answer, command.purpose, answered)
            true_round, artifact = answered
            assert artifact.sha256 in origin.files, "an artifact is offered that is not on disk"
            origin.sent.append((me, command.round, command.purpose))
            machine.files.add(artifact.sha256)
            return events.ArtifactArrived(*answer, generation, true_round, command.purpose, artifact)

        assert command.purpose in PURPOSES
        self._later(machine, self.delay_s(), ask)

    def _cancelfetch(self, machine: Machine, command: commands.CancelFetch) -> None:
        machine.fetches.pop((command.origin, command.purpose), None)

    def _discard(self, machine: Machine, command: commands.Discard) -> None:
        machine.files.discard(command.sha256)

    def _wakeat(self, machine: Machine, command: commands.WakeAt) -> None:
        """One alarm a site, as in the daemon: a new one replaces the former."""
        machine.alarm_s = at_s = command.at_s
        self._later(machine, at_s - self.now_s, lambda: events.Ticked() if machine.alarm_s == at_s else None)

    def _exit(self, machine: Machine, command: commands.Exit) -> None:
        self._announce(machine, commands.Announce())
        machine.exit = command

    def _work(self, machine: Machine, order: Any) -> None:
        """The worker carries out an order; all that it needs is on disk, and so is what it makes."""
        me, visits = machine.rules.site, machine.rules.plan.pattern == "visit"
        sources = (order.source,) if isinstance(order, commands.Adopt) else getattr(order, "sources", ())
        assert machine.files >= {source.artifact.sha256 for source in sources}, "a source is not on disk"
        if isinstance(order, commands.Adopt):
            assert order.source.artifact.owner == me
        if isinstance(order, commands.Aggregate) and visits:
            assert {(source.artifact.kind, source.artifact.owner) for source in sources} <= {("return", me)}
            assert order.sent is not None or not sources
        if isinstance(order, commands.Aggregate) and order.total is not None:
            contributors = sorted({me, *(source.origin for source in sources)})
            assert tuple(contributors) == self.files.totals[order.total.sha256]
            assert order.total.sha256 in machine.files, "the total is not on disk"
        event = carry_out(order, machine.rules)
        made = (getattr(event, "artifact", None), *getattr(event, "returned", ()))
        machine.files |= {artifact.sha256 for artifact in made if artifact is not None}
        self._later(machine, self.delay_s(self.slow.get(machine.rules.site, self.work_s)), lambda: event)

    _initialise = _train = _aggregate = _adopt = _evaluate = _halt = _work

    def _measure(self, machine: Machine, command: commands.Measure) -> None:
        assert machine.measuring is None, "two models are measured at a time"
        assert command.source.artifact.sha256 in machine.files, "a borrowed model is not on disk"
        machine.measuring = command
        figures = {"auc": len(machine.rules.site) / 10, "samples": 20.0}

        def done() -> events.Event | None:
            if machine.measuring is not command:
                return None
            machine.measuring = None
            return events.Measured(command.generation, command.round, command.attempt, figures)

        self._later(machine, self.delay_s(self.measure_s), done)

    def _dismiss(self, machine: Machine, command: commands.Dismiss) -> None:
        machine.measuring = None

    def _sendreport(self, machine: Machine, command: commands.SendReport) -> None:
        me, origin = machine.rules.site, self.machines[command.site]

        def answer() -> events.Event:
            taken = "none"
            linked = self._linked(me, command.site) and self._linked(command.site, me)
            if linked and origin.round is not None and origin.exit is None:
                denied = access.unasked(origin.rules, origin.round.memory, caller=me, report=command.report)
                if denied is None:
                    self.feed(origin, events.ReportArrived(me, command.report))
                taken = "taken" if denied is None and origin.round is not None else "refused" if denied else "none"
            return events.ReportAnswered(command.attempt, command.site, taken)

        self._later(machine, self.delay_s(), answer)
