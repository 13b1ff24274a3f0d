"""Sites in one process: their state machines, a network of hard links, and a clock that only events move.

What the daemons do over gRPC happens here in memory: the schedule decides who may have what, artifacts are files in
each site's folder, rows are persisted before what depends on them. Every site hears every other at once, so nobody is
ever silent; links fail where the experiment says so.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.core import access, commands, events, site_memory
from peer.core.liveness import Peers
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, Unavailable
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.core.state import Phase
from peer.records.journal import Journal

WORK_S = 1.0
"""Virtual seconds that every order to a worker takes: sites advance together, whatever their networks cost."""
ANSWER_S = 0.01
"""Virtual seconds from a question to a peer to its answer."""
HEEDFUL = frozenset({Phase.GATHERING, Phase.PACING, Phase.ISOLATED, Phase.DONE})
"""Phases in which a site waits for what others do, and not for an artifact or its worker."""

Perform = Callable[[commands.Command], events.Event]
"""A site's worker: carries out an order and gives the event that answers it."""
Lost = Callable[[int, SiteName, SiteName], bool]
"""Whether the link from a site (second) to another (third) is down in a round."""


@dataclass(slots=True)
class SimulatedPeers(Peers):
    """What a site knows of its peers where everybody hears everybody: one table of pulses for all."""

    pulses: dict[SiteName, Heartbeat] = field(default_factory=dict)

    def pulse(self, site: SiteName) -> Heartbeat | None:
        return self.pulses.get(site)

    def silent_at_s(self, site: SiteName) -> float:
        return math.inf

    def present(self, sites: Iterable[SiteName], now_s: float) -> list[SiteName]:
        """All that ever said something."""
        return [site for site in sites if site in self.pulses]


@dataclass(slots=True)
class SimulatedSite:
    """One simulated site.

    Attributes:
        round: its state machine.
        perform: its worker.
        record: takes its rows.
        artifacts: its folder of artifact files; nothing where no files are moved.
    """

    round: SiteMachine
    perform: Perform
    record: Journal
    artifacts: Path | None = None
    asked: dict[SiteName, commands.Fetch] = field(default_factory=dict)
    asking: set[SiteName] = field(default_factory=set)
    exit: commands.Exit | None = None


def place(
    rules: Rules, rows: Sequence[site_memory.Row], perform: Perform, record: Journal, artifacts: Path | None
) -> SimulatedSite:
    """A site as its rows left it; what needs an artifact file that is gone is asked for again."""
    present = None if artifacts is None else {path.stem for path in artifacts.glob("*.safetensors")}
    memory = site_memory.recover(rows, present=present)  # type: ignore[arg-type]  # file names of ours are digests
    return SimulatedSite(SiteMachine(rules, memory), perform, record, artifacts)


class SimulatedNetwork:
    """Sites that run until all have left.

    Args:
        places: every site of the roster that takes part, by name.
        lost: which links are down.
        watch: called with the site after each of its events, as an operator would look at it.
    """

    def __init__(
        self,
        places: Mapping[SiteName, SimulatedSite],
        *,
        lost: Lost = lambda round, sender, receiver: False,
        watch: Callable[[SiteName, SiteMachine], None] = lambda site, round: None,
    ) -> None:
        self.places, self._lost, self._watch = places, lost, watch
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()
        self._pulses: dict[SiteName, Heartbeat] = {}
        self._news = False
        for site in places.values():
            rules = site.round.rules
            site.round.neighbours = SimulatedPeers(silence_s=rules.pace.silence_s, pulses=self._pulses)
            site.round.greeted |= rules.peers

    def run(self) -> None:
        """From the beginning, or from what the rows say, to the end of every site."""
        for name, site in self.places.items():
            self._pulses[name] = site.round.pulse()
        for name in self.places:
            self._at(0.0, lambda name=name: self._feed(name, events.Began()))  # type: ignore[misc]
        while self._heap:
            self._pass_time()
        left_behind = [name for name, site in self.places.items() if site.exit is None]
        if left_behind:
            phases = ", ".join(f"{name}: {self.places[name].round.phase}" for name in left_behind)
            raise RuntimeError(f"nothing can happen any more, but sites have not left ({phases})")

    def _pass_time(self) -> None:
        """Everything that is due at the next instant; then those who wait for the others look at them."""
        self.now_s = self._heap[0][0]
        while self._heap and self._heap[0][0] <= self.now_s:
            heapq.heappop(self._heap)[2]()
            if self._news and not (self._heap and self._heap[0][0] <= self.now_s):
                self._news = False
                for name, site in self.places.items():
                    if site.exit is None and site.round.phase in HEEDFUL:
                        self._feed(name, events.Ticked())

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._counter), action))

    def _feed(self, name: SiteName, event: events.Event) -> None:
        site = self.places[name]
        if site.exit is not None:
            return
        for command in site.round.handle(event, now_s=self.now_s):
            self._carry_out(name, site, command)
        self._watch(name, site.round)
        self._answer_again(name)

    def _carry_out(self, name: SiteName, site: SimulatedSite, command: commands.Command) -> None:
        match command:
            case commands.Persist(kind, round, body):
                site.record.append(kind, round, body)
            case commands.Announce():
                self._pulses[name] = site.round.pulse()
                self._news = True
            case commands.Fetch():
                site.asked[command.origin] = command
                self._at(ANSWER_S, lambda: self._ask(name, command))
            case commands.CancelFetch(origin, _):
                site.asked.pop(origin, None)
            case commands.Discard(sha256):
                if site.artifacts is not None:
                    (site.artifacts / f"{sha256}.safetensors").unlink(missing_ok=True)
            case commands.WakeAt(at_s):
                if at_s < math.inf:
                    self._at(at_s - self.now_s, lambda: self._feed(name, events.Ticked()))
            case commands.Exit():
                self._pulses[name] = site.round.pulse()
                self._news, site.exit = True, command
            case commands.Publish():
                pass  # the schedule answers from memory; nothing is signed, since nobody could forge it here
            case _:
                self._at(WORK_S, lambda: self._feed(name, site.perform(command)))

    def _ask(self, name: SiteName, command: commands.Fetch) -> None:
        """Answer a site's question for an artifact, now or when its origin has it."""
        site, origin = self.places[name], self.places.get(command.origin)
        if site.asked.get(command.origin) is not command:
            return
        order = (command.generation, command.round, command.attempt, command.origin)
        if origin is None or self._lost(command.round, command.origin, name):
            found: Any = Unavailable.SKIPPED
        else:
            request: Any = {"for_round": command.round, "owner": command.owner, "purpose": command.purpose}
            reason = access.denial(origin.round.rules, caller=name, kind=command.kind, **request)
            if reason is not None:
                raise RuntimeError(f"{name} asked {command.origin} out of turn: {reason}")
            found = access.answer(origin.round.rules, origin.round.memory, **request)
            if found == Unavailable.NOT_YET and origin.exit is None:
                origin.asking.add(name)
                return
        del site.asked[command.origin]
        if isinstance(found, Unavailable):
            gone = Unavailable.SKIPPED if found == Unavailable.NOT_YET else found
            self._feed(name, events.ArtifactUnavailable(*order, command.purpose, gone))
            return
        round, artifact = found
        assert origin is not None
        self._move(origin, site, artifact.sha256)
        what = {"peer": command.origin, "purpose": command.purpose, "kind": artifact.kind, "sha256": artifact.sha256}
        site.record.append("received", command.round, {**what, "bytes": artifact.bytes, "outcome": "complete"})
        generation = origin.round.memory.generation
        self._feed(name, events.ArtifactArrived(*order, generation, round, command.purpose, artifact))

    def _answer_again(self, name: SiteName) -> None:
        """Whoever waits for something of this site asks again."""
        origin = self.places[name]
        asking, origin.asking = sorted(origin.asking), set()
        for caller in asking:
            command = self.places[caller].asked.get(name)
            if command is not None:
                self._at(0.0, lambda caller=caller, command=command: self._ask(caller, command))  # type: ignore[misc]

    def _move(self, origin: SimulatedSite, receiver: SimulatedSite, sha256: str) -> None:
        """The file at its receiver: a hard link where the file system has them."""
        if origin.artifacts is None or receiver.artifacts is None:
            return
        source, target = (folder / f"{sha256}.safetensors" for folder in (origin.artifacts, receiver.artifacts))
        if target.exists():
            return
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
