"""What goes wrong in a run, drawn from its seed: faults of processes, disks, clocks, networks and workers."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.core import events
from peer.core.secure_sum import members_min
from simulation.network import Link
from simulation.sites import NAMES, Shape, Site

if TYPE_CHECKING:
    from simulation.seeded_run import Simulation

FAULTS_MAX = 6
VISITS_SHARE = 0.11
STALENESS_SHARE = 0.4
SUMS_SHARE = 0.4
STORAGE_SHARE = 0.25
FAULTS_END_S = 30.0
"""After this time nothing new goes wrong, and what can be mended is mended."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at_s: seconds after the start.
        kind: a key of ``FAULTS``.
        site: the site that it concerns.
        lasts_s: when it is mended.
        amount: its strength in [0, 1].
    """

    at_s: float
    kind: str
    site: str
    lasts_s: float
    amount: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.site} at {self.at_s:.1f} s for {self.lasts_s:.1f} s ({self.amount:.2f})"


def draw_shape(rng: random.Random, *, small: bool) -> Shape:
    """A federation of two to five sites, with one of the choreographies; a ``small`` one has three
    sites and three rounds at most, and waits less long at its end.
    """
    names = NAMES[: rng.choice((2, 2, 2, 3, 3, 3, 3, 3, 4, 5))]
    method, parameters = rng.choice(
        (
            ("fedskd", ""),
            ("fedskd", "activation = 0.5"),
            ("fedavg", ""),
            ("fedavg", ""),
            ("fedcross", ""),
            ("dflmoe", ""),
        )
    )
    top = rng.choice(("", "", "global_test = true", "evaluation_every = 2"))
    fallback = "stale" if method in ("fedskd", "fedcross") and rng.random() < 0.3 else "self"
    schedule = rng.choice(("permutation", "derangement", "ring"))
    rounds = rng.choice((3, 3, 4, 5))
    if small:
        names = names if len(names) <= 3 else names[:2]
        return Shape(names, method, 3, schedule, fallback, parameters, top, linger_s=30)
    return Shape(names, method, rounds, schedule, fallback, parameters, top)


def with_visits(rng: random.Random, shape: Shape) -> Shape:
    """The shape, or now and then the same with models that visit; all else is drawn before, and stays as it is."""
    if rng.random() > VISITS_SHARE:
        return shape
    parameters = f"visits = {rng.randint(1, len(shape.names) - 1)}"
    changes = {"method": "fedvisit", "schedule": "ring", "fallback": "self", "parameters": parameters}
    return dataclasses.replace(shape, **changes)


def with_staleness(rng: random.Random, shape: Shape) -> Shape:
    """The shape, or now and then the same with artifacts of the round before, where its method can use these."""
    can = shape.method == "dflmoe" or (shape.method == "fedskd" and not shape.parameters)
    return dataclasses.replace(shape, staleness=1) if can and rng.random() < STALENESS_SHARE else shape


def with_sums(rng: random.Random, shape: Shape, liars: int) -> Shape:
    """The shape, or now and then the same with secure sums, where its method averages and enough sites are honest."""
    colluders = max(1, liars)
    lends = "global_test" in shape.top
    enough = len(shape.names) >= members_min(len(shape.names), colluders)
    if shape.method != "fedavg" or lends or not enough or rng.random() > SUMS_SHARE:
        return shape
    return dataclasses.replace(shape, colluders=colluders)


def draw_liars(rng: random.Random, shape: Shape) -> tuple[str, ...]:
    """The members that lie for the whole run: fewer than half, or one of two."""
    if rng.random() > 0.4:
        return ()
    return tuple(rng.sample(shape.names, rng.randint(1, max(1, (len(shape.names) - 1) // 2))))


def draw_fault(
    rng: random.Random,
    kinds: Iterable[str],
    site: Callable[[], str],
    *,
    begins: Sequence[float] = (),
    lasts_s: Sequence[float] = (1.0, 5.0, 20.0, 60.0),
) -> Fault:
    """One of these kinds; ``begins`` are the parts of the time for faults of which one has its begin."""
    return Fault(
        at_s=rng.random() * FAULTS_END_S * (rng.choice(begins) if begins else 1.0),
        kind=rng.choice(tuple(kinds)),
        site=site(),
        lasts_s=rng.choice(lasts_s) * (0.5 + rng.random()),
        amount=rng.random(),
    )


def draw_faults(rng: random.Random, shape: Shape) -> list[Fault]:
    return [
        draw_fault(rng, FAULTS, lambda: rng.choice(shape.names), begins=(0.1, 0.3, 0.6, 1.0))
        for _ in range(rng.randint(0, FAULTS_MAX))
    ]


def draw_storage_faults(rng: random.Random, shape: Shape, *, slow: bool) -> list[Fault]:
    """Now and then some faults of what keeps the artifacts; all else is drawn before, and stays as it is.

    ``slow`` disks give a liar time, who sends again what is being refused.
    """
    if slow:
        return [Fault(0.0, "slow_disk", name, FAULTS_END_S, 0.4 * rng.random()) for name in shape.names]
    if rng.random() > STORAGE_SHARE:
        return []
    return [
        draw_fault(rng, STORAGE_FAULTS, lambda: rng.choice(shape.names), lasts_s=(5.0, 20.0))
        for _ in range(rng.randint(1, 3))
    ]


Undo = Callable[[], None]


def change(what: Any, name: str, value: Any, *, mended: Any) -> Undo:
    """Set an attribute until it is mended."""
    setattr(what, name, value)
    return lambda: setattr(what, name, mended)


def crash_at_write(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The process dies in one of its next writes, with the machine or without it."""
    site.power, site.down_s = fault.amount * 1000 % 2 < 1.2, fault.lasts_s
    return change(site.disk, "crash_at", site.disk.operations + 1 + int(fault.amount * 80), mended=None)


def kill(run: Simulation, site: Site, fault: Fault) -> Undo:
    site.down_s = fault.lasts_s
    run.take_down(site, power=fault.amount < 0.6)
    return lambda: None


def partition(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The sites fall into two groups."""
    rng = random.Random(fault.amount)
    group = {site.name, *(name for name in run.sites if rng.random() < 0.3)}
    group |= {relay for relay in run.shape.relay_names if rng.random() < 0.3}
    places = (*run.sites, *run.shape.relay_names)
    pairs = [(a, b) for a in places for b in places if (a in group) != (b in group)]
    return change_links(run, pairs, cut=True)


def one_way(run: Simulation, site: Site, fault: Fault) -> Undo:
    """What a site sends to one other is lost; it hears the other."""
    others = [name for name in run.sites if name != site.name]
    return change_links(run, [(site.name, others[int(fault.amount * len(others))])], cut=True)


def lossy(run: Simulation, site: Site, fault: Fault) -> Undo:
    """Connections of a site break now and then, before a call was served or after; some arrive twice."""
    return change_links(run, links_of(run, site.name), loss=0.05 + 0.4 * fault.amount, repeat=0.5 * fault.amount)


def slow_line(run: Simulation, site: Site, fault: Fault) -> Undo:
    """Messages take long, and arrive in another order than they were sent."""
    return change_links(run, links_of(run, site.name), delay_s=2.0 * fault.amount, jitter_s=4.0 * fault.amount)


def clock_jump(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The wall clock jumps, by a day at most, and stays there."""
    site.skew_s += (fault.amount - 0.5) * 2 * 86_400.0
    return lambda: None


def full_disk(run: Simulation, site: Site, fault: Fault) -> Undo:
    site.disk.was_full = True
    return change(site.disk, "full", True, mended=False)


def slow_disk(run: Simulation, site: Site, fault: Fault) -> Undo:
    """What a thread does with files takes long: much may happen between two looks at one file."""
    return change(site.disk, "slow_s", 2.0 * fault.amount, mended=0.0)


def vanishing_file(run: Simulation, site: Site, fault: Fault) -> Undo:
    """Someone deletes what a site has received, as soon as something is there: also between a look and an opening."""
    left = [True]

    def delete() -> None:
        for path in received_files(site) if left[0] else ():
            run.trace(f"{path.name[:12]} of {site.name} vanishes")
            site.disk.unlink(str(path), path.unlink)
            site.vanished.add(path.stem)
            left[0] = False
        if left[0]:
            run.loop.call_later(0.1 + fault.amount, delete)

    def undo() -> None:
        left[0] = False

    delete()
    return undo


def received_files(site: Site) -> list[Path]:
    """The artifacts on a site's disk that its journal names as received, and that it serves to nobody."""
    if site.daemon is None:
        return []
    memory, folder = site.daemon.machine.memory, site.daemon.artifacts
    served = {artifact.sha256 for artifact in memory.published.values()}
    return [path for path in sorted(folder.glob("*.safetensors")) if path.stem in memory.received.keys() - served]


def slow_worker(run: Simulation, site: Site, fault: Fault) -> Undo:
    return change(site.pace, "work_s", 2.0 + 30.0 * fault.amount, mended=1.0)


def hung_worker(run: Simulation, site: Site, fault: Fault) -> Undo:
    return change(site.pace, "hung_until_s", run.loop.time() + 4 * fault.lasts_s, mended=0.0)


def dying_worker(run: Simulation, site: Site, fault: Fault) -> Undo:
    return change(site.pace, "crashes", 1 + int(4 * fault.amount), mended=0)


def pause(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The operator pauses the site and forgets it for a while."""
    if site.daemon is not None:
        site.daemon.report(events.PauseRequested())
    return lambda: resume(site)


def stop(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The operator stops the site; it starts again later."""
    site.down_s = fault.lasts_s
    run.stop(site)
    return lambda: None


def restore_backup(run: Simulation, site: Site, fault: Fault) -> Undo:
    """The operator copies the stopped site's folder, and puts the copy back later."""
    kept = site.folder.path.with_name(f"{site.name}.backup")
    if site.liar is not None or kept.exists():
        return lambda: None
    run.take_down(site)
    shutil.copytree(site.folder.path, kept)
    journal_ahead = site.journal_ahead

    def undo() -> None:
        if site.left or not kept.exists():
            return
        run.take_down(site)
        shutil.rmtree(site.folder.path)
        shutil.move(kept, site.folder.path)
        site.disk.settle()
        site.journal_ahead = journal_ahead
        run.referee.restored(site)
        run.trace(f"{site.name} is restored")

    return undo


def resume(site: Site) -> None:
    """What an operator does at a site that waits for one."""
    if site.daemon is not None and site.daemon.machine.phase in ("paused", "failed"):
        site.daemon.report(events.ResumeRequested())


FAULTS: Mapping[str, Callable[[Simulation, Site, Fault], Undo]] = {
    function.__name__: function
    for function in (
        crash_at_write,
        kill,
        partition,
        one_way,
        lossy,
        slow_line,
        clock_jump,
        full_disk,
        slow_worker,
        hung_worker,
        dying_worker,
        pause,
        stop,
        restore_backup,
    )
}


STORAGE_FAULTS: Mapping[str, Callable[[Simulation, Site, Fault], Undo]] = {
    function.__name__: function for function in (slow_disk, vanishing_file)
}


def links_of(run: Simulation, place: str) -> list[tuple[str, str]]:
    """Both directions between a site or a relay and all others."""
    others = [name for name in (*run.sites, *run.shape.relay_names) if name != place]
    return [(place, name) for name in others] + [(name, place) for name in others]


def change_links(run: Simulation, pairs: list[tuple[str, str]], **changes: float) -> Undo:
    links = [run.network.link(*pair) for pair in pairs]
    undo = [change(link, name, changes[name], mended=getattr(Link, name)) for link in links for name in changes]
    return lambda: [mend() for mend in undo]
