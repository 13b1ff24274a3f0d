"""A federation in memory: real state machines, with a simulated clock, network and workers."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from peer.core import access, commands, events
from peer.core.machine import SiteMachine
from peer.core.messages import PURPOSES, Artifact, EvaluationResult, Heartbeat, Hello, Seen, Unavailable
from peer.core.phases import Phase
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import PaceRules, Rules
from peer.core.site_memory import Row, recover
from peer.methods.registry import PLANS
from simulation.audit import Audit, as_stored

KEY = RoundKey(bytes(range(32)))
FEDERATION = Sha256("fe" * 32)
BEAT_S = 3.0
SITES = ("africa", "america", "asia", "europe", "oceania")


def make_rules(site: str, sites: Sequence[str], **changes: Any) -> Rules:
    """Rules of a small federation with short waits."""
    fields: dict[str, Any] = {
        "site": SiteName(site),
        "roster": Roster.of(sites),
        "federation": FEDERATION,
        "round_key": KEY,
        "method": "fedskd",
        "rounds": 4,
        "pace": PaceRules(linger_s=60.0),
        **changes,
    }
    return Rules(plan=PLANS[fields["method"]], **fields)


def make_artifact(owner: str, text: str, *, steps: int = 0, kind: Any = "model") -> Artifact:
    """An artifact whose digest is that of the text."""
    digest = Sha256(hashlib.sha256(text.encode()).hexdigest())
    return Artifact(kind, SiteName(owner), digest, len(text), steps, {"name": "net"}, ())


def own_figures(lent: bool) -> dict[str, float]:
    """The metrics of a site's model on its own test split."""
    return {"auc": 0.5, "samples": 30.0} if lent else {"auc": 0.5}


def greeting_of(rules: Rules, generation: int, seen: Seen | None = None) -> Hello:
    """The greeting of a site with these rules."""
    evaluates = rules.evaluation_denied is None if rules.global_test else None
    return Hello(1, FEDERATION, rules.roster.digest, generation, 0.0, seen, evaluates=evaluates)


WORKER_ORDERS = (commands.Initialise, commands.Train, commands.Aggregate, commands.Adopt, commands.Evaluate)


class Solo:
    """One site driven by hand: the test plays its peers and its worker."""

    def __init__(self, rules: Rules, rows: Sequence[Row] = ()) -> None:
        self.rules = rules
        self.now_s = 1000.0
        self.audit = Audit(())
        self.restart(rows)

    def restart(self, rows: Sequence[Row] | None = None) -> list[commands.Command]:
        """Kill the site and start it again on its journal, or on other rows."""
        rows = self.audit.rows if rows is None else [as_stored(row) for row in rows]
        self.audit = Audit(rows)
        self.site = SiteMachine(self.rules, recover(rows))
        self.order: Any = None
        self.fetches: dict[SiteName, commands.Fetch] = {}
        self.evaluation_fetches: dict[SiteName, commands.Fetch] = {}
        self.wake_s: float | None = None
        self.measure_order: commands.Measure | None = None
        self.reports: list[commands.SendReport] = []
        return self.feed(events.Began())

    def feed(self, event: events.Event, *, crash_after: int | None = None) -> list[commands.Command]:
        """Handle an event; returns the commands. ``crash_after`` kills the site after so many of them."""
        rows_before = len(self.audit.rows)
        out = self.site.handle(event, now_s=self.now_s)
        self.audit.check(self.site, out, self.now_s)
        if crash_after is not None:
            persisted = sum(isinstance(command, commands.Persist) for command in out[:crash_after])
            return self.restart(self.audit.rows[: rows_before + persisted])
        for command in out:
            if isinstance(command, WORKER_ORDERS):
                self.order = command
            elif isinstance(command, commands.Fetch):
                (self.evaluation_fetches if command.purpose == "evaluate" else self.fetches)[command.origin] = command
            elif isinstance(command, commands.CancelFetch):
                (self.evaluation_fetches if command.purpose == "evaluate" else self.fetches).pop(command.origin, None)
            elif isinstance(command, commands.Measure):
                self.measure_order = command
            elif isinstance(command, commands.Dismiss):
                self.measure_order = None
            elif isinstance(command, commands.SendReport):
                self.reports.append(command)
            elif isinstance(command, commands.WakeAt):
                self.wake_s = command.at_s
        return out

    def wait(self, seconds: float) -> list[commands.Command]:
        """Let time pass, with a tick at every time that the site asked for."""
        end_s, out = self.now_s + seconds, []
        for _ in range(100):
            if self.wake_s is None or self.wake_s > end_s:
                break
            self.now_s, self.wake_s = self.wake_s, None
            out += self.feed(events.Ticked())
        else:
            raise AssertionError("the clock rings without end")
        self.now_s = end_s
        return out

    def greet(
        self, *names: str, seen: Seen | None = None, generation: int = 1, evaluates: bool | None = None
    ) -> list[commands.Command]:
        """Peers greet, all if none is named. Like this site, they accept evaluation or do not."""
        out = []
        for name in names or self.rules.others:
            greeting = greeting_of(self.rules, generation, seen)
            if evaluates is not None:
                greeting = dataclasses.replace(greeting, evaluates=evaluates)
            out += self.feed(events.PeerGreeted(SiteName(name), greeting))
        return out

    def examine(self, **figures: float) -> list[commands.Command]:
        """The evaluation process measures the model of the newest order."""
        assert self.measure_order is not None
        order, self.measure_order = self.measure_order, None
        return self.feed(events.Measured(order.generation, order.round, order.attempt, figures or {"samples": 20.0}))

    def answer(self, answer: Any = "taken", reason: str = "") -> list[commands.Command]:
        """The origin answers the oldest report."""
        order = self.reports.pop(0)
        return self.feed(events.ReportAnswered(order.attempt, order.site, answer, reason))

    def report(self, name: str, round: int, artifact: Artifact | None, **changes: Any) -> list[commands.Command]:
        """A peer reports on this site's model."""
        figures: dict[str, Any] = {"samples": 20, "metrics": {"auc": 0.75}} if not changes.get("unmeasured") else {}
        sha256 = artifact.sha256 if artifact is not None else None
        report = EvaluationResult(**{"generation": 1, "round": round, "sha256": sha256, **figures, **changes})
        return self.feed(events.ReportArrived(SiteName(name), report))

    def beat(self, name: str, round: int = 0, phase: str = "train", published: int = 0) -> list[commands.Command]:
        """A peer sends a heartbeat."""
        return self.feed(events.PeerHeard(SiteName(name), Heartbeat(1, round, phase, 0.0, published, round)))

    def prove(self, *names: str, round: int) -> list[commands.Command]:
        """The signatures of these peers show that they have published for this round."""
        return [command for name in names for command in self.feed(events.RoundProved(SiteName(name), round))]

    def lend(self, origin: str, *, crash_after: int | None = None, **changes: Any) -> list[commands.Command]:
        """The lent model that the site fetches arrives from this origin."""
        order = self.evaluation_fetches.pop(SiteName(origin))
        artifact = make_artifact(order.owner, f"{order.owner} after {order.round}")
        return self._arrive(order, crash_after, {"artifact": artifact, **changes})

    def deliver(self, origin: str, *, crash_after: int | None = None, **changes: Any) -> list[commands.Command]:
        """The artifact that the site fetches arrives from this origin; ``changes`` are fields of the event."""
        return self._arrive(self.fetches.pop(SiteName(origin)), crash_after, changes)

    def _arrive(
        self, order: commands.Fetch, crash_after: int | None, changes: dict[str, Any]
    ) -> list[commands.Command]:
        by = f" by {order.origin}" if order.kind == "return" else ""
        fields: dict[str, Any] = {
            "generation": order.generation,
            "round": order.round,
            "attempt": order.attempt,
            "origin": order.origin,
            "origin_generation": 1,
            "true_round": order.round,
            "purpose": order.purpose,
            "artifact": make_artifact(order.owner, f"{order.owner} for {order.round}{by}", kind=order.kind),
        }
        event = events.ArtifactArrived(**{**fields, **changes})
        return self.feed(event, crash_after=crash_after)

    def unavailable(self, origin: str, answer: Unavailable) -> list[commands.Command]:
        """The origin answers that it has no such artifact."""
        order = self.fetches.pop(SiteName(origin))
        fields = (order.generation, order.round, order.attempt, order.origin, order.purpose)
        return self.feed(events.ArtifactUnavailable(*fields, answer))

    def finish(self, *, crash_after: int | None = None) -> list[commands.Command]:
        """The worker carries out its newest order."""
        return self.feed(self.result(), crash_after=crash_after)

    def result(self) -> events.Event:
        """The worker's answer to its newest order."""
        order, me = self.order, self.rules.site
        planned, kind = self.rules.plan.published, self.rules.plan.artifact or "model"
        match order:
            case commands.Initialise(generation, attempt):
                given = make_artifact(me, "initial", kind=kind) if planned == "commit" else None
                return events.Initialised(generation, attempt, "initial", given, {"train": 7}, 1, "cpu")
            case commands.Train(generation, round, attempt, stage, base, sources, circulate):
                steps = max((source.artifact.steps for source in sources), default=0) + 1
                artifact = make_artifact(circulate or me, f"{circulate} {round} {stage}", steps=steps, kind=kind)
                visits = self.rules.plan.pattern == "visit"
                given = artifact if planned in (stage, "commit") and not visits else None
                state = base if circulate else f"{base} {round}{stage}"
                returned = tuple(
                    make_artifact(source.artifact.owner, f"{source.artifact.owner} {round} at {me}", kind="return")
                    for source in (sources if visits else ())
                )
                return events.Trained(generation, round, attempt, stage, state, given, {}, 1, 1.0, returned)
            case commands.Aggregate(generation, round, attempt, base, sources):
                digest = make_artifact(me, f"mean {round}").sha256
                names = tuple(sorted({me, *(source.origin for source in sources)}))
                given = make_artifact(me, f"merged {round}", kind=kind) if planned == "commit" else None
                return events.Aggregated(generation, round, attempt, f"{base} mean", digest, names, artifact=given)
            case commands.Adopt(generation, round, attempt, _, source):
                home = make_artifact(me, f"home {source.artifact.sha256}", steps=source.artifact.steps, kind=kind)
                return events.Adopted(generation, round, attempt, "home", home)
            case commands.Evaluate(generation, round, attempt, base, _, lent):
                artifact = make_artifact(me, f"{me} after {round} {base}") if lent else None
                return events.Evaluated(generation, round, attempt, own_figures(lent), artifact)
        raise AssertionError(f"no order to answer: {order}")

    def fail(self, fault: str = "crash", reason: str = "killed") -> list[commands.Command]:
        """The worker fails at its newest order."""
        return self.feed(events.WorkFailed(self.order.generation, self.order.attempt, fault, reason))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the rows so far."""
        return [kind for kind, _, _ in self.audit.rows]

    def body(self, kind: str) -> Any:
        """The body of the newest row of a kind."""
        return next(body for known, _, body in reversed(self.audit.rows) if known == kind)


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


class Simulation:
    """N sites and one heap of future actions. ``cut`` holds directed links that lose every message."""

    def __init__(
        self, sites: Sequence[str], *, seed: int = 0, work_s: float = 2.0, dead: Sequence[str] = (), **changes: Any
    ) -> None:
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.work_s = self.measure_s = work_s
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = itertools.count()
        self.machines = {SiteName(name): Machine(make_rules(name, sites, **changes)) for name in sites}
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[str, float] = {}
        for name in self.machines:
            if name not in dead:
                self.start(name)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.counter), action))

    def delay_s(self, scale: float = 0.05) -> float:
        return self.random.uniform(0.2, 1.8) * scale

    def start(self, name: str) -> None:
        """Start a daemon on its disk, without the files that memory does not need."""
        machine = self.machines[SiteName(name)]
        machine.audit = Audit(machine.rows)
        memory = recover(machine.rows, present=set(machine.files))
        assert memory == machine.audit.memory, "a file is gone that a row names"
        machine.files &= memory.needed_digests()
        machine.round = SiteMachine(machine.rules, memory)
        machine.life += 1
        machine.fetches = {}
        machine.measuring = None
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

    def pause_for(self, name: str, seconds: float) -> None:
        """Pause a site, and let it go on later."""
        machine = self.machines[SiteName(name)]
        self.feed(machine, events.PauseRequested())
        self.at(seconds, lambda: self.feed(machine, events.ResumeRequested()))

    def stop_for(self, name: str, seconds: float) -> None:
        """Stop a site in order, and start it again later, once it has left."""
        machine = self.machines[SiteName(name)]
        if machine.round is None or machine.exit is not None:
            return
        self.feed(machine, events.StopRequested())

        def again() -> None:
            if machine.exit is not None:
                machine.exit = None
                self.start(name)
            elif machine.round is not None:
                self.at(1.0, again)

        self.at(seconds, again)

    def cut_for(self, sender: str, receiver: str, seconds: float) -> None:
        """Lose every message from one site to another for a while."""
        if sender != receiver:
            self.cut.add((sender, receiver))
            self.at(seconds, lambda: self.cut.discard((sender, receiver)))

    def cut_off(self, name: str) -> None:
        """Cut every link to and from a site."""
        for other in self.machines:
            self.cut |= {(name, other), (other, name)}

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
            if me not in other.round.greeted:
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
                reason = access.denial(origin.rules, caller=me, kind=command.kind, **request)
                assert reason is None, reason
                answered = access.answer(origin.rules, origin.round.memory, **request)
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

    def _work(self, machine: Machine, make: Callable[[], events.Event]) -> None:
        self._later(machine, self.delay_s(self.slow.get(machine.rules.site, self.work_s)), make)

    def _result(self, machine: Machine, text: str, *, owner: str = "", steps: int = 0) -> tuple[str, Artifact]:
        kind = machine.rules.plan.artifact or "model"
        artifact = make_artifact(owner or machine.rules.site, text, steps=steps, kind=kind)
        machine.files.add(artifact.sha256)
        return artifact.sha256, artifact

    def _shared(self, machine: Machine, stage: str) -> bool:
        return machine.rules.plan.published in (stage, "commit")

    def _initialise(self, machine: Machine, command: commands.Initialise) -> None:
        state, artifact = self._result(machine, f"initial {machine.rules.site}")
        given = artifact if self._shared(machine, "") else None
        event = events.Initialised(command.generation, command.attempt, state, given, {}, 1, "cpu")
        self._work(machine, lambda: event)

    def _train(self, machine: Machine, command: commands.Train) -> None:
        for source in command.sources:
            assert source.artifact.sha256 in machine.files, "a source is not on disk"
        used = "+".join(source.artifact.sha256 for source in command.sources)
        steps = max((source.artifact.steps for source in command.sources), default=0) + 1
        text = f"{command.circulate or machine.rules.site} {command.round} {command.stage} {command.base} {used}"
        if command.circulate:
            assert [source.artifact.owner for source in command.sources] == [command.circulate]
            text = f"{command.circulate} {command.round} {used} at {machine.rules.site}"
        digest, artifact = self._result(machine, text, owner=command.circulate or "", steps=steps)
        state = command.base if command.circulate else digest
        visits = machine.rules.plan.pattern == "visit"
        given = artifact if self._shared(machine, command.stage) and not visits else None
        returned = []
        for source in command.sources if visits else ():
            owner, model = source.artifact.owner, source.artifact.sha256
            copy = make_artifact(owner, f"{model} {command.round} at {machine.rules.site}", kind="return")
            machine.files.add(copy.sha256)
            returned.append(copy)
        answer = (command.generation, command.round, command.attempt, command.stage)
        self._work(machine, lambda: events.Trained(*answer, state, given, {}, 1, 1.0, tuple(returned)))

    def _aggregate(self, machine: Machine, command: commands.Aggregate) -> None:
        for source in command.sources:
            assert source.artifact.sha256 in machine.files, "a source is not on disk"
        used = "+".join(source.artifact.sha256 for source in command.sources)
        state = hashlib.sha256(f"mean {command.base} {used}".encode()).hexdigest()
        contributors = tuple(sorted({machine.rules.site, *(source.origin for source in command.sources)}))
        mean = Sha256(hashlib.sha256(f"{command.round} {contributors}".encode()).hexdigest())
        answer = (command.generation, command.round, command.attempt)
        artifact = None
        if machine.rules.plan.pattern == "visit":
            assert all(source.artifact.kind == "return" for source in command.sources)
            assert all(source.artifact.owner == machine.rules.site for source in command.sources)
            assert command.sent is not None or not command.sources
            state, artifact = self._result(machine, f"merged {command.base} {used}")
        self._work(machine, lambda: events.Aggregated(*answer, state, mean, contributors, artifact=artifact))

    def _adopt(self, machine: Machine, command: commands.Adopt) -> None:
        assert command.source.artifact.sha256 in machine.files, "the copy that was handed back is not on disk"
        assert command.source.artifact.owner == machine.rules.site
        digest, artifact = self._result(machine, f"home {command.source.artifact.sha256}")
        answer = (command.generation, command.round, command.attempt)
        self._work(machine, lambda: events.Adopted(*answer, digest, artifact))

    def _evaluate(self, machine: Machine, command: commands.Evaluate) -> None:
        answer = (command.generation, command.round, command.attempt)
        lent = None
        if command.lent:
            lent = make_artifact(machine.rules.site, f"{machine.rules.site} after {command.round} {command.base}")
            machine.files.add(lent.sha256)
        self._work(machine, lambda: events.Evaluated(*answer, own_figures(command.lent), lent))

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

    def _halt(self, machine: Machine, command: commands.Halt) -> None:
        self._work(machine, lambda: events.Halted(command.generation, command.attempt))


@pytest.fixture
def simulation() -> type[Simulation]:
    """The class: a test builds its own federation."""
    return Simulation


@pytest.fixture
def solo() -> Callable[..., Solo]:
    """Makes a site to drive by hand: ``solo(site, sites, rows=..., **rules)``."""

    def make(site: str = "europe", sites: Sequence[str] = SITES[:4], *, rows: Sequence[Row] = (), **rules: Any) -> Solo:
        return Solo(make_rules(site, sites, **rules), rows)

    return make


@pytest.fixture
def rules() -> Callable[..., Rules]:
    """Makes rules: ``rules(site, sites, **changes)``."""
    return make_rules


@pytest.fixture
def artifact() -> Callable[..., Artifact]:
    """Makes an artifact: ``artifact(owner, text, steps=..., kind=...)``."""
    return make_artifact


@pytest.fixture
def audit() -> type[Audit]:
    """The class that checks a site's commands after every event."""
    return Audit


@pytest.fixture
def phases() -> type[Phase]:
    """Phases by name."""
    return Phase
