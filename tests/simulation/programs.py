"""The programs that sites run: this one, and others before and after it, as peers and disks see them.

A later program speaks other versions of the protocol, knows a feature more, and may keep its journal
in another form. An earlier one knows no feature: what this program says beside version 1 is taken
from its messages, and it answers no later call. All else is this program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc
from google.protobuf.message import DecodeError

from peer.core import limits
from peer.core.messages import FEATURES
from peer.daemon import service
from peer.pb import peer_pb2 as pb
from peer.site.membership import epoch_rules
from peer.site.records import journal
from simulation.faults import FAULTS_END_S
from simulation.loop import PROCESS
from simulation.network import Failed
from simulation.sites import Shape

if TYPE_CHECKING:
    from simulation.amendments import Act
    from simulation.seeded_run import Simulation

UPGRADED_SHARE = 0.08
BACK_SHARE = 0.3
NEW_FEATURE = "tells-the-weather"
LATER_CALLS = ("/GetAmendments", "/CompareManifests", "/GetSum")
WITHOUT_FEATURES: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "/Hello": (pb.Greeting, ("protocol_max", "features", "head")),
    "/Beat": (pb.Pulse, ("head", "proof", "notice")),
}
"""By call, the message of both directions, and its fields that programs without features do not know."""
DOWN_S = 0.2


@dataclass(frozen=True)
class Program:
    """A version of the program.

    Attributes:
        lowest, highest: the versions of the protocol that it speaks.
        journal: how many versions its journal's schema is ahead of this program's.
    """

    name: str
    lowest: int = limits.PROTOCOL_VERSION
    highest: int = limits.PROTOCOL_VERSION_MAX
    features: tuple[str, ...] = FEATURES
    journal: int = 0

    def speaks_with(self, other: Program) -> bool:
        return max(self.lowest, other.lowest) <= min(self.highest, other.highest)

    def check_call(self, path: str) -> None:
        """``Failed`` where this program has no such call."""
        if not self.features and path.endswith(LATER_CALLS):
            raise Failed(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    def read(self, path: str, data: bytes) -> bytes:
        """A message as this program writes or reads it."""
        kind, unknown = WITHOUT_FEATURES.get(f"/{path.rpartition('/')[2]}", (None, ()))
        if self.features or kind is None:
            return data
        try:
            message = kind.FromString(data)
        except DecodeError:  # a liar's
            return data
        for name in unknown:
            message.ClearField(name)
        return bytes(message.SerializeToString())

    def has(self, requires: Any) -> bool:
        """Whether it has what an amendment requires of every site's program."""
        return requires is None or (requires.protocol <= self.highest and set(requires.features) <= set(self.features))


EARLIER = Program("earlier", features=())
PRESENT = Program("present")
NEXT = Program("next", 1, 2, (*FEATURES, NEW_FEATURE))
LATER = Program("later", 2, 2, (*FEATURES, NEW_FEATURE), journal=1)
ROLLS = ((EARLIER, PRESENT), (PRESENT, NEXT), (NEXT, LATER), (PRESENT, LATER), (PRESENT, LATER))
"""From which program to which all sites change; the last has no version in common with the one before."""


@dataclass(frozen=True)
class Upgrade:
    """An operator installs another program, which the daemon runs from its next start on.

    Attributes:
        at_s: seconds after the start.
        killed: the daemon is killed for that, and not stopped.
    """

    at_s: float
    site: str
    program: Program
    killed: bool

    def __str__(self) -> str:
        return f"{self.site} runs the {self.program.name} program from {self.at_s:.1f} s on"


@dataclass(frozen=True)
class Roll:
    """All sites change from one program to another, one by one; some go back for a while."""

    first: Program = PRESENT
    last: Program = PRESENT
    upgrades: tuple[Upgrade, ...] = ()


def with_upgrades(rng: random.Random, shape: Shape, acts: Sequence[Act]) -> tuple[Shape, Roll]:
    """The shape, and the programs of its sites; in most seeds this one alone.

    Programs without secure sums read no federation.toml that asks for them.
    """
    if rng.random() > UPGRADED_SHARE or shape.colluders:
        return shape, Roll()
    first, last = rng.choice([roll for roll in ROLLS if not acts or roll[0] is not EARLIER])
    upgrades = []
    for name in rng.sample(shape.names, rng.randint(1, len(shape.names))):
        at_s = rng.random() * FAULTS_END_S
        upgrades.append(Upgrade(at_s, name, last, rng.random() < 0.5))
        if rng.random() < BACK_SHARE:
            at_s += rng.random() * (FAULTS_END_S - at_s)
            upgrades.append(Upgrade(at_s, name, first, rng.random() < 0.5))
    ordered = tuple(sorted(upgrades, key=lambda upgrade: upgrade.at_s))
    return dataclasses.replace(shape, stay=True), Roll(first, last, ordered)


def install(run: Simulation, upgrade: Upgrade) -> None:
    """Install a program at a site, and start it."""
    site = run.sites[upgrade.site]
    run.trace(f"UPGRADE {upgrade}")
    site.programs.append(upgrade.program)
    site.down_s = DOWN_S
    if upgrade.killed:
        run.take_down(site)
    elif site.daemon is not None:
        run.stop(site)


def program() -> Program:
    """The program of the present process."""
    process = PROCESS.get()
    return LATER if process is None or process.program is None else process.program


class Limits:
    """``peer.core.limits`` with the present program's versions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(limits, name)

    @property
    def PROTOCOL_VERSION(self) -> int:  # noqa: N802
        return program().lowest

    @property
    def PROTOCOL_VERSION_MAX(self) -> int:  # noqa: N802
        return program().highest


class Features(Sequence[str]):
    """The present program's features."""

    def __getitem__(self, index: Any) -> Any:
        return program().features[index]

    def __len__(self) -> int:
        return len(program().features)


class HighestVersion:
    """The highest version that the present program speaks, as a number to compare with."""

    def __lt__(self, other: int) -> bool:
        return program().highest < other

    def __str__(self) -> str:
        return str(program().highest)


@contextlib.contextmanager
def mounted() -> Iterator[None]:
    """Let each process have the constants of its program."""
    open_database = journal.open_database

    def open_as_program(*where: Any, version: int, migrations: Mapping[int, str] | None = None, **options: Any) -> Any:
        if migrations is not None:  # a journal
            migrations = {**migrations, version: "CREATE TABLE IF NOT EXISTS later (value INTEGER) STRICT;"}
            version += program().journal
        return open_database(*where, version=version, migrations=migrations, **options)

    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (service, "limits", Limits()),
            (service, "FEATURES", Features()),
            (epoch_rules, "FEATURES", Features()),
            (epoch_rules, "PROTOCOL_VERSION_MAX", HighestVersion()),
            (journal, "open_database", open_as_program),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
