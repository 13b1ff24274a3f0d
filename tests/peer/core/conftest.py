"""A federation in memory: real state machines, a virtual clock, and a network and workers that do as they are told."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from peer.core import commands, events, turn
from peer.core.facts import PURPOSES, Artifact, Greeting, Unavailable
from peer.core.replay import Memory, recover
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.round import Round
from peer.core.rules import Pace, Rules
from peer.core.site import Phase

KEY = RoundKey(bytes(range(32)))
FEDERATION = Sha256("fe" * 32)
BEAT_S = 3.0


def make_rules(site: str, sites: tuple[str, ...], **changes: Any) -> Rules:
    """Rules of a small federation with short waits."""
    fields: dict[str, Any] = {
        "site": SiteName(site),
        "roster": Roster.of(sites),
        "federation": FEDERATION,
        "round_key": KEY,
        "method": "fedskd",
        "rounds": 4,
        "pace": Pace(linger_s=60.0),
    }
    return Rules(**{**fields, **changes})


def make_artifact(owner: str, text: str, *, steps: int = 0, kind: Any = "model") -> Artifact:
    """An artifact whose digest is that of the text."""
    digest = Sha256(hashlib.sha256(text.encode()).hexdigest())
    return Artifact(kind, SiteName(owner), digest, len(text), steps, {"name": "net"}, ())


@dataclasses.dataclass
class Machine:
    """One site: its process (a Round, or nothing while it is dead) and its disk."""

    rules: Rules
    round: Round | None = None
    rows: list[tuple[str, int, Any]] = dataclasses.field(default_factory=list)
    files: set[Sha256] = dataclasses.field(default_factory=set)
    life: int = 0
    exit: commands.Exit | None = None
    cancelled: set[tuple[SiteName, int]] = dataclasses.field(default_factory=set)
    sent: list[tuple[SiteName, int, str]] = dataclasses.field(default_factory=list)


class World:
    """N sites, one heap of things to come. ``cut`` holds directed links that lose everything."""

    def __init__(
        self, sites: tuple[str, ...], *, seed: int = 0, work_s: float = 2.0, dead: tuple[str, ...] = (), **changes: Any
    ) -> None:
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.work_s = work_s
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = itertools.count()
        self.machines = {SiteName(name): Machine(make_rules(name, sites, **changes)) for name in sites}
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[str, float] = {}
        for name in self.machines:
            if name not in dead:
                self.start(name)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.counter), action))

    def delay_s(self, scale: float = 0.05) -> float:
        """A random delay."""
        return self.random.uniform(0.2, 1.8) * scale

    def start(self, name: str) -> None:
        """Start a daemon on what its disk says."""
        machine = self.machines[SiteName(name)]
        memory = recover(machine.rows, present=set(machine.files)) if machine.rows else Memory()
        machine.round = Round(machine.rules, memory)
        machine.life += 1
        self.feed(machine, events.Began())
        self._beat_loop(machine, machine.life)

    def kill(self, name: str) -> None:
        """``kill -9``: everything that is not on disk is gone."""
        machine = self.machines[SiteName(name)]
        machine.round = None
        machine.life += 1

    def feed(self, machine: Machine, event: events.Event) -> None:
        """Hand an event to a site and carry out what it commands."""
        if machine.round is None or machine.exit is not None:
            return
        for command in machine.round.handle(event, now_s=self.now_s):
            getattr(self, "_" + type(command).__name__.lower())(machine, command)

    def run(self, *, until: Callable[[], bool], limit_s: float = 20_000.0) -> None:
        """Let time pass until something holds."""
        end_s = self.now_s + limit_s
        while not until():
            assert self.heap, "nothing can happen any more"
            at_s, _, action = heapq.heappop(self.heap)
            assert at_s <= end_s, {
                name: (m.round and m.round.phase, m.round and m.round.number) for name, m in self.machines.items()
            }
            self.now_s = max(self.now_s, at_s)
            action()

    def run_to_end(self, limit_s: float = 20_000.0) -> None:
        """Until every site that lives has left."""
        self.run(
            until=lambda: all(m.exit is not None or m.round is None for m in self.machines.values()), limit_s=limit_s
        )

    def committed(self, name: str) -> list[tuple[int, Any]]:
        """The committed rounds of a site."""
        return [(round, body) for kind, round, body in self.machines[SiteName(name)].rows if kind == "committed"]

    def final_states(self) -> dict[str, str]:
        """The last checkpoint of every site: a digest of everything that made it."""
        return {name: self.committed(name)[-1][1]["state"] for name in self.machines}

    def _later(self, machine: Machine, delay_s: float, make: Callable[[], events.Event | None]) -> None:
        life = machine.life

        def action() -> None:
            if machine.life == life and (event := make()) is not None:
                self.feed(machine, event)

        self.at(delay_s, action)

    def _linked(self, a: str, b: str) -> bool:
        return (a, b) not in self.cut and (b, a) not in self.cut

    def _beat_loop(self, machine: Machine, life: int) -> None:
        def action() -> None:
            if machine.life == life and machine.exit is None:
                self._announce(machine, commands.Announce())
                self.at(BEAT_S, action)

        self.at(self.delay_s(1.0), action)

    def _persist(self, machine: Machine, command: commands.Persist) -> None:
        machine.rows.append((command.kind, command.round, command.body))

    def _publish(self, machine: Machine, command: commands.Publish) -> None:
        assert any(kind == "published" and round == command.round for kind, round, _ in machine.rows)
        assert command.artifact.sha256 in machine.files

    def _announce(self, machine: Machine, command: commands.Announce) -> None:
        assert machine.round is not None
        pulse, me = machine.round.pulse(), machine.rules.site
        for name, other in self.machines.items():
            if name == me or not self._linked(me, name) or other.round is None or other.exit is not None:
                continue
            seen = other.round.seen(me)
            greeting = Greeting(1, FEDERATION, machine.rules.roster.digest, pulse.generation, 0.0, seen)
            if me not in other.round.greeted:
                back = dataclasses.replace(greeting, seen=machine.round.seen(name))
                self._later(other, self.delay_s(), lambda back=back: events.PeerGreeted(me, back))
                self._later(machine, self.delay_s(), lambda n=name, g=greeting: events.PeerGreeted(n, g))
            self._later(other, self.delay_s(), lambda: events.PeerHeard(me, pulse))

    def _fetch(self, machine: Machine, command: commands.Fetch) -> None:
        me, origin = machine.rules.site, self.machines[command.origin]
        machine.cancelled.discard((command.origin, command.attempt))

        def ask() -> events.Event | None:
            if (command.origin, command.attempt) in machine.cancelled:
                return None
            found: Any = Unavailable.NOT_YET
            if self._linked(me, command.origin) and origin.round is not None and origin.exit is None:
                request = {"for_round": command.round, "owner": command.owner, "purpose": command.purpose}
                reason = turn.denial(origin.rules, caller=me, kind=command.kind, **request)
                assert reason is None, reason
                found = turn.answer(origin.rules, origin.round.memory, **request)
            answer = (command.generation, command.round, command.attempt, command.origin)
            if found == Unavailable.NOT_YET:
                self._later(machine, self.delay_s(0.5), ask)
                return None
            if isinstance(found, Unavailable):
                return events.ArtifactUnavailable(*answer, command.purpose, found)
            true_round, artifact = found
            origin.sent.append((me, command.round, command.purpose))
            machine.files.add(artifact.sha256)
            generation = origin.round.memory.generation
            return events.ArtifactArrived(*answer, generation, true_round, command.purpose, artifact)

        assert command.purpose in PURPOSES
        self._later(machine, self.delay_s(), ask)

    def _cancelfetch(self, machine: Machine, command: commands.CancelFetch) -> None:
        for attempt in range(10_000):
            machine.cancelled.add((command.origin, attempt))

    def _discard(self, machine: Machine, command: commands.Discard) -> None:
        machine.files.discard(command.sha256)

    def _wakeat(self, machine: Machine, command: commands.WakeAt) -> None:
        self._later(machine, command.at_s - self.now_s, events.Ticked)

    def _exit(self, machine: Machine, command: commands.Exit) -> None:
        self._announce(machine, commands.Announce())
        machine.exit = command

    def _work(self, machine: Machine, make: Callable[[], events.Event]) -> None:
        self._later(machine, self.delay_s(self.slow.get(machine.rules.site, self.work_s)), make)

    def _result(self, machine: Machine, text: str, *, owner: str = "", steps: int = 0) -> tuple[str, Artifact]:
        artifact = make_artifact(owner or machine.rules.site, text, steps=steps)
        machine.files.add(artifact.sha256)
        return artifact.sha256, artifact

    def _initialise(self, machine: Machine, command: commands.Initialise) -> None:
        state, artifact = self._result(machine, f"initial {machine.rules.site}")
        event = events.Initialised(command.generation, command.attempt, state, artifact, {}, 1, "cpu")
        self._work(machine, lambda: event)

    def _train(self, machine: Machine, command: commands.Train) -> None:
        for source in command.sources:
            assert source.artifact.sha256 in machine.files, "a source is not on disk"
        used = "+".join(source.artifact.sha256 for source in command.sources)
        steps = max((source.artifact.steps for source in command.sources), default=0) + 1
        text = f"{command.circulate or machine.rules.site} {command.round} {command.stage} {command.base} {used}"
        if command.circulate:
            text = f"{command.circulate} {command.round} {used} at {machine.rules.site}"
        digest, artifact = self._result(machine, text, owner=command.circulate or "", steps=steps)
        state = command.base if command.circulate else digest
        answer = (command.generation, command.round, command.attempt, command.stage)
        self._work(machine, lambda: events.Trained(*answer, state, artifact, {}, 1, 1.0))

    def _adopt(self, machine: Machine, command: commands.Adopt) -> None:
        digest, artifact = self._result(machine, f"home {command.source.artifact.sha256}")
        answer = (command.generation, command.round, command.attempt)
        self._work(machine, lambda: events.Adopted(*answer, digest, artifact))

    def _evaluate(self, machine: Machine, command: commands.Evaluate) -> None:
        answer = (command.generation, command.round, command.attempt)
        self._work(machine, lambda: events.Evaluated(*answer, {"auc": 0.5}))

    def _halt(self, machine: Machine, command: commands.Halt) -> None:
        self._work(machine, lambda: events.Halted(command.generation, command.attempt))


@pytest.fixture
def world() -> type[World]:
    """The class: a test builds its own federation."""
    return World


@pytest.fixture
def phases() -> type[Phase]:
    """Phases by name."""
    return Phase
