"""The state machines of all sites in one process, on a simulated network with a virtual clock.

The simulation does in memory what daemons do over gRPC. The schedule decides which site may fetch
which artifact. Artifacts are files in each site's folder; the network hard-links them to their
receivers. Rows are persisted before any command that depends on them. Heartbeats arrive at once, so
that no site is ever silent. Links fail as the experiment says.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.core import access, commands, events, rows, site_memory
from peer.core.artifacts import Artifact, Purpose
from peer.core.liveness import HeardPeers
from peer.core.machine import SiteMachine
from peer.core.messages import LastHeard, Unavailable
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.lab.experiments.simulated_epochs import SimulatedEpochs
from peer.lab.experiments.simulated_sums import ORDERS, SimulatedSums
from peer.site.records.journal import Journal

WORK_S = 1.0
"""Virtual seconds of a command to a worker; equal for all networks, so that no site is a straggler."""
ANSWER_S = 0.01
"""Virtual seconds from a site's request for an artifact to the answer."""
WAITING_FOR_PEERS = frozenset({Phase.GATHERING, Phase.PACING, Phase.ISOLATED, Phase.HELD, Phase.DONE})
"""Phases in which a site waits for its peers' progress, and not for an artifact or its worker."""

Perform = Callable[[commands.Command], events.Event]
"""A site's worker: carries out a command and returns the event with the result."""
LinkDown = Callable[[int, SiteName, SiteName], bool]
"""``link_down(round, sender, receiver)``: whether the directed link is down in the round."""


@dataclass(slots=True)
class SimulatedSite:
    """One simulated site.

    Attributes:
        memory: the state recovered from its stored rows.
        artifacts: its folder of artifact files; None in tests without files.
        pending_fetches: the unanswered fetches, by origin and purpose.
        waiting_peers: the sites, each with the purpose, whose fetches wait until this site has the artifact.
        exit: the command that ended the site; None while it runs.
        started: whether it is a member, or will be one as far as the sites know now.
    """

    rules: Rules
    memory: site_memory.Memory
    perform: Perform
    journal: Journal
    artifacts: Path | None = None
    machine: SiteMachine = field(init=False)
    pending_fetches: dict[tuple[SiteName, Purpose], commands.Fetch] = field(default_factory=dict)
    waiting_peers: set[tuple[SiteName, Purpose]] = field(default_factory=set)
    exit: commands.Exit | None = None
    started: bool = False


def restore_site(
    rules: Rules, stored: Sequence[site_memory.Row], perform: Perform, journal: Journal, artifacts: Path | None
) -> SimulatedSite:
    """Restore a site from its stored rows; it fetches artifacts whose files are missing again."""
    present = None if artifacts is None else {path.stem for path in artifacts.glob("*.safetensors")}
    memory = site_memory.recover(stored, present=present)  # type: ignore[arg-type]  # file names of ours are digests
    return SimulatedSite(rules, memory, perform, journal, artifacts)


def _same_epoch(caller: SiteMachine, origin: SiteMachine, round: int) -> bool:
    """Return whether both follow the same amendment in a round: a caller may have chosen its sources before."""
    return caller.lived_rules.epoch(round).digest == origin.rules.epoch(round).digest


class SimulatedNetwork:
    """Runs the sites until each has carried out ``Exit``.

    Args:
        sites: every site that takes part now or later, by name.
        epochs: the changes of members; without them all sites are members for good.
        forge: returns the artifact that a site sends in place of its own.
        watch: called with a site's name and state machine after each of its events.
    """

    def __init__(
        self,
        sites: Mapping[SiteName, SimulatedSite],
        *,
        link_down: LinkDown = lambda round, sender, receiver: False,
        forge: Callable[[SiteName, Artifact], Artifact] = lambda site, artifact: artifact,
        watch: Callable[[SiteName, SiteMachine], None] = lambda site, round: None,
        epochs: SimulatedEpochs | None = None,
    ) -> None:
        self.sites, self._link_down, self._forge, self._watch = sites, link_down, forge, watch
        self._epochs = epochs
        if epochs is not None:
            epochs.learn_due({name: site.memory.committed for name, site in sites.items()})
            for site in sites.values():
                site.rules = site.rules.amended(epochs.known)
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counter = itertools.count()
        self._heard, self._greeted = HeardPeers(), set(sites)
        self._announced = False
        self._sums = SimulatedSums(
            sites,
            forge,
            lambda round, sender, receiver: not self._link_down(round, sender, receiver),
            lambda name, event: self._schedule(ANSWER_S, self._handle, name, event),
        )
        for site in sites.values():
            site.machine = self._machine(site)

    def run(self) -> None:
        """Run every site from the state of its rows to its end."""
        self._start([name for name, site in self.sites.items() if name in site.rules.epochs.names])
        while self._heap:
            self._advance_clock()
        left_behind = [name for name, site in self.sites.items() if site.exit is None]
        if left_behind:
            phases = ", ".join(f"{name}: {self.sites[name].machine.phase}" for name in left_behind)
            raise RuntimeError(f"nothing can happen any more, but sites have not left ({phases})")

    def _start(self, names: Sequence[SiteName]) -> None:
        for name in names:
            self.sites[name].started = True
            self._publish_heartbeat(name, self.sites[name])
        for name in names:
            self._schedule(0.0, self._handle, name, events.Began())

    def _learn_due(self, epochs: SimulatedEpochs) -> None:
        """Tell every site of the changes that are due, and start the sites that they add."""
        committed = {name: site.machine.memory.committed for name, site in self.sites.items() if site.started}
        if not epochs.learn_due(committed):
            return
        known = epochs.known
        for name, site in self.sites.items():
            if site.started:
                self._schedule(0.0, self._handle, name, events.EpochsLearned(known))
            else:
                site.rules = site.rules.amended(known)
                site.machine = self._machine(site)
        self._start([name for name, site in self.sites.items() if not site.started and name in known.names])

    def _machine(self, site: SimulatedSite) -> SiteMachine:
        """Build a site's machine; the secrets of its sums never get lost here."""
        rounds = frozenset(range(1, site.rules.rounds + 1))
        return SiteMachine(site.rules, site.memory, heard=self._heard, greeted=self._greeted, sum_rounds=rounds)

    def _advance_clock(self) -> None:
        """Carry out all actions of the next instant, then wake the sites that wait for peers."""
        self.now_s = self._heap[0][0]
        while self._heap and self._heap[0][0] <= self.now_s:
            _, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)
            if self._announced and not (self._heap and self._heap[0][0] <= self.now_s):
                self._announced = False
                for name, site in self.sites.items():
                    if site.started and site.exit is None and site.machine.phase in WAITING_FOR_PEERS:
                        self._handle(name, events.Ticked())

    def _schedule(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._counter), action, arguments))

    def _handle(self, name: SiteName, event: events.Event) -> None:
        site = self.sites[name]
        if site.exit is not None:
            return
        committed = site.machine.memory.committed
        ordered = site.machine.handle(event, now_s=self.now_s)
        for command in ordered:
            self._carry_out(name, site, command)
        self._watch(name, site.machine)
        if any(isinstance(command, commands.Persist) for command in ordered):  # only rows change a site's answers
            self._retry_waiting_peers(name)
        if self._epochs is not None and site.machine.memory.committed != committed:
            self._learn_due(self._epochs)

    def _carry_out(self, name: SiteName, site: SimulatedSite, command: commands.Command) -> None:
        match command:
            case commands.Persist(kind, round, body, cause):
                site.journal.append(kind, round, body, cause)
            case commands.Announce():
                self._publish_heartbeat(name, site)
                self._announced = True
            case commands.Fetch():
                site.pending_fetches[command.origin, command.purpose] = command
                self._schedule(ANSWER_S, self._fetch, name, command)
            case commands.CancelFetch(origin, purpose):
                site.pending_fetches.pop((origin, purpose), None)
            case commands.Discard(sha256):
                if site.artifacts is not None:
                    (site.artifacts / f"{sha256}.safetensors").unlink(missing_ok=True)
            case commands.WakeAt(at_s):
                if at_s < math.inf:
                    self._schedule(at_s - self.now_s, self._handle, name, events.Ticked())
            case commands.Exit():
                self._publish_heartbeat(name, site)
                self._announced, site.exit = True, command
                self._sums.show(name)
            case commands.Halt(generation, attempt):
                self._schedule(0.0, self._handle, name, events.Halted(generation, attempt))
            case _ if isinstance(command, ORDERS):
                self._sums.carry_out(name, command)
            case commands.Publish():
                pass  # peers read the artifact from this site's memory; within one process no signature is needed
            case _:
                self._schedule(WORK_S, self._perform, name, command)

    def _perform(self, name: SiteName, command: commands.Command) -> None:
        site = self.sites[name]
        if site.exit is None:
            self._handle(name, site.perform(command))

    def _publish_heartbeat(self, name: SiteName, site: SimulatedSite) -> None:
        """Deliver the site's heartbeat to all sites; it never expires."""
        pulse = site.machine.pulse()
        self._heard[name] = LastHeard(pulse, math.inf, pulse.published_round)

    def _fetch(self, name: SiteName, command: commands.Fetch) -> None:
        """Answer a site's fetch, now or once the origin has the artifact."""
        site, origin = self.sites[name], self.sites.get(command.origin)
        if site.pending_fetches.get((command.origin, command.purpose)) is not command:
            return
        order = (command.generation, command.round, command.attempt, command.origin)
        if origin is None or not origin.started or self._link_down(command.round, command.origin, name):
            answer: Any = Unavailable.SKIPPED
        elif not _same_epoch(site.machine, origin.machine, command.round):
            answer = Unavailable.SKIPPED
        else:
            query: Any = {"for_round": command.round, "owner": command.owner, "purpose": command.purpose}
            denial = access.denial(origin.machine.rules, caller=name, kind=command.kind, **query)
            if denial is not None:
                raise RuntimeError(f"{name} asked {command.origin} out of turn: {denial}")
            answer = access.answer(origin.machine.rules, origin.machine.memory, **query)
            if answer == Unavailable.NOT_YET and origin.exit is None:
                origin.waiting_peers.add((name, command.purpose))
                return
        del site.pending_fetches[command.origin, command.purpose]
        if isinstance(answer, Unavailable):
            reason = Unavailable.SKIPPED if answer == Unavailable.NOT_YET else answer
            self._handle(name, events.ArtifactUnavailable(*order, command.purpose, reason))
            return
        round, artifact = answer
        assert origin is not None
        if artifact.commitments is None:  # of a masked one, the forger has masked what it forged
            artifact = self._forge(command.origin, artifact)
        self._copy_artifact(origin, site, artifact.sha256)
        row = rows.ReceivedRow(
            command.round,
            peer=command.origin,
            purpose=command.purpose,
            kind_of_artifact=artifact.kind,
            sha256=artifact.sha256,
            bytes=artifact.bytes,
            outcome="complete",
        )
        site.journal.append(row.kind, row.round, row.body())
        generation = origin.machine.memory.generation
        self._handle(name, events.ArtifactArrived(*order, generation, round, command.purpose, artifact))

    def _retry_waiting_peers(self, name: SiteName) -> None:
        """Retry the fetches that wait for an artifact of this site."""
        origin = self.sites[name]
        if not origin.waiting_peers:
            return
        waiting = [(caller, (name, purpose)) for caller, purpose in sorted(origin.waiting_peers)]
        origin.waiting_peers = set()
        pending = [(caller, self.sites[caller].pending_fetches.get(key)) for caller, key in waiting]
        self._schedule(0.0, self._fetch_all, [(caller, command) for caller, command in pending if command is not None])

    def _fetch_all(self, waiting: Sequence[tuple[SiteName, commands.Fetch]]) -> None:
        for caller, command in waiting:
            self._fetch(caller, command)

    def _copy_artifact(self, origin: SimulatedSite, receiver: SimulatedSite, sha256: str) -> None:
        """Hard-link the file to the receiver's folder, or copy it if links are impossible."""
        if origin.artifacts is None or receiver.artifacts is None:
            return
        source, target = (folder / f"{sha256}.safetensors" for folder in (origin.artifacts, receiver.artifacts))
        if target.exists():
            return
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
