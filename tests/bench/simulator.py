"""How a simulated federation grows with its number of sites: state machines, rows and the schedule.

The state machines are those of daemons. The network, the worker and the journal are in memory: the
journal counts its rows and keeps none. The clock is virtual, so that the seconds measured are those
of the state machines and the simulator alone.

``python tests/bench/simulator.py --sites 100 1000 --rounds 5 --pattern permutation --out FILE``
runs each federation in a process of its own and writes FILE as JSON after each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from many import METHODS, print_figures, write  # noqa: E402 - found beside this script
from row import KIB_A_MB, Row, below  # noqa: E402

from fakes.simulated_sites import rules_of  # noqa: E402
from peer.core import commands, events  # noqa: E402
from peer.core.artifacts import Artifact  # noqa: E402
from peer.core.kinds import Kind  # noqa: E402
from peer.core.plan import Plan  # noqa: E402
from peer.core.roster import RoundKey, Sha256, SiteName  # noqa: E402
from peer.core.rules import Rules  # noqa: E402
from peer.lab.experiments.simulated_network import Perform, SimulatedNetwork, SimulatedSite, restore_site  # noqa: E402

SITES, SITES_QUICK, ROUNDS = 1000, 200, 10
LIMIT_S = 60
GROWTH_MAX = 1.6
"""Of the time for a site and round, from N to 4 N sites, where a round's work does not depend on N."""


class CountedRows:
    """A journal, shared by all sites, that counts its rows and their bytes and keeps none."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes = 0

    def append(self, kind: str, round: int, body: Any, cause: Any = None) -> None:
        self.rows[kind] += 1
        self.bytes += len(json.dumps(body))


def measure(*, quick: bool) -> list[Row]:
    """The time of many sites, and how that of a site's round grows where it must not depend on their number."""
    rows = []
    sites = SITES_QUICK if quick else SITES
    for pattern in ("permutation", "circulate", "visit"):
        small, large = (run_process(pattern, number, rounds=ROUNDS) for number in (sites // 4, sites))
        label = f"simulator, {pattern}, no training"
        growth = large["site_round_ms"] / small["site_round_ms"]
        rows += [
            below(f"{label}: {sites} sites x {ROUNDS} rounds", large["seconds"], "s", LIMIT_S),
            below(f"{label}: a site's round with 4 N sites / with N", growth, "", GROWTH_MAX),
        ]
    return rows


def run_process(pattern: str, sites: int, *, rounds: int) -> Any:
    """The figures of one federation, from a process of its own: its memory is that of this federation alone."""
    command = [sys.executable, __file__, "--one", "--pattern", pattern, "--sites", str(sites), "--rounds", str(rounds)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def run(pattern: str, sites: int, *, rounds: int) -> dict[str, Any]:
    """Run one federation to its end; its figures, most of them for one site and one round."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    names = [f"site-{number:05d}" for number in range(sites)]
    rules = rules_of(names, method=METHODS[pattern], rounds=rounds, round_key=RoundKey(bytes(32)))
    journal: Any = CountedRows()
    simulated_sites = {name: restore_site(own, (), untrained(own), journal, None) for name, own in rules.items()}
    began_s = time.process_time()  # other load of the machine does not count
    network = CountingNetwork(simulated_sites)
    network.run()
    seconds = time.process_time() - began_s
    committed = {site.machine.memory.committed for site in simulated_sites.values()}
    if committed != {rounds}:
        raise RuntimeError(f"sites stopped after rounds {sorted(committed)}")
    each = sites * rounds
    return {
        "pattern": pattern,
        "sites": sites,
        "rounds": rounds,
        "seconds": seconds,
        "site_round_ms": seconds / each * 1e3,
        "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / KIB_A_MB,
        "rows": journal.rows.total() / each,
        "row_bytes": journal.bytes / each,
        "rows_by_kind": {kind: count / each for kind, count in sorted(journal.rows.items())},
        "events": network.counts["event"] / each,
        "announcements": network.counts["Announce"] / each,
        "fetches": network.counts["Fetch"] / each,
        "orders": sum(network.counts[kind] for kind in ORDERS) / each,
    }


ORDERS = ("Train", "Aggregate", "Evaluate", "Adopt")


class CountingNetwork(SimulatedNetwork):
    """Counts events and commands."""

    def __init__(self, sites: Mapping[SiteName, SimulatedSite]) -> None:
        super().__init__(sites)
        self.counts: Counter[str] = Counter()

    def _handle(self, name: SiteName, event: events.Event) -> None:
        self.counts["event"] += 1
        super()._handle(name, event)

    def _carry_out(self, name: SiteName, site: SimulatedSite, command: commands.Command) -> None:
        self.counts[type(command).__name__] += 1
        super()._carry_out(name, site, command)


def untrained(rules: Rules) -> Perform:
    """A worker that trains nothing and answers at once."""
    plan: Plan = rules.plan
    own = SiteName(rules.site)

    def artifact(text: str, *, owner: SiteName = own, kind: Kind | None = None, steps: int = 0) -> Artifact:
        digest = Sha256(hashlib.sha256(f"{own} {text}".encode()).hexdigest())
        return Artifact(kind or plan.artifact or "model", owner, digest, 1, steps, {})

    def perform(command: commands.Command) -> events.Event:
        match command:
            case commands.Initialise(generation, attempt):
                first = artifact("initial") if plan.published == "commit" else None
                return events.Initialised(generation, attempt, "initial", first, {}, 1, "cpu")
            case commands.Train(generation, round, attempt, stage, base, sources, circulate):
                visits = plan.pattern == "visit"
                returned = tuple(
                    artifact(f"{round} {source.artifact.owner}", owner=source.artifact.owner, kind="return")
                    for source in (sources if visits else ())
                )
                publishes = plan.published in ("commit", stage) and not visits
                given = artifact(f"{round} {circulate}", owner=circulate or own, steps=round) if publishes else None
                state = base if circulate else f"{round}"
                return events.Trained(generation, round, attempt, stage, state, given, {}, 1, 0.0, returned)
            case commands.Aggregate(generation, round, attempt, base, sources):
                names = tuple(sorted({own, *(source.origin for source in sources)}))
                mean = Sha256(hashlib.sha256(f"mean {round}".encode()).hexdigest())
                merged = artifact(f"merged {round}") if plan.pattern == "visit" else None
                digest = merged.sha256 if merged is not None else mean
                return events.Aggregated(generation, round, attempt, f"{base}+", digest, names, artifact=merged)
            case commands.Adopt(generation, round, attempt):
                return events.Adopted(generation, round, attempt, "home", artifact("home"))
            case commands.Evaluate(generation, round, attempt):
                return events.Evaluated(generation, round, attempt, {})
        raise ValueError(f"{type(command).__name__} does not occur in a measured round")

    return perform


def main() -> int:
    """Run the federations that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pattern", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, help="the JSON file, to which the runs are added")
    parser.add_argument("--one", action="store_true", help="in this process; print the figures as JSON")
    arguments = parser.parse_args()
    for pattern in arguments.pattern:
        for sites in arguments.sites:
            if arguments.one:
                print(json.dumps(run(pattern, sites, rounds=arguments.rounds)))
                continue
            figures = run_process(pattern, sites, rounds=arguments.rounds)
            print_figures(figures)
            if arguments.out:
                write(arguments.out, [figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
