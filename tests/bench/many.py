"""How a federation of real daemons grows with its number of sites.

Everything but the worker is real: enrolment, processes, mutual TLS, heartbeats, manifests, journal
and ledger. The worker (``tests/fakes/worker.py``) trains nothing and answers at once, so that a
round is as short as the daemons allow, and every figure is of the daemons alone.

``python tests/bench/many.py --sites 4 8 16 --rounds 20 --pattern permutation --out FILE`` measures
one federation after the other and writes FILE as JSON after each. ``many_plot.py`` draws it. A daemon
takes some 100 MB of memory and a second of a core to start. ``--limit-s`` ends a federation earlier;
its figures are then of the rounds that all sites have committed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from row import KIB_A_MB, Row, below, peak_kib

from peer import __version__
from peer.core.roster import SiteName
from peer.errors import DaemonDown
from peer.lab.demo.local_federation import LocalFederation
from peer.methods.registry import PLANS
from peer.site.records.journal import Journal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fakes.drafts import draft

TESTS = Path(__file__).resolve().parents[1]

METHODS: Mapping[str, str] = {
    "permutation": "fedskd",
    "circulate": "fedcross",
    "all_to_all": "fedavg",
    "visit": "fedvisit",
    "secure": "fedavg",
}
"""The method that stands for each pattern; all move whole models. "secure" is all to all, under masks."""
NUMBERS = 256
"""Numbers of an artifact, unless told otherwise: 1 KiB, so that its bytes do not hide the messages around it."""
SITE = "[data]\ninput_size = [8]\n"
SILENCE_S = 120.0
"""Two cores start 64 daemons, one after the other: nobody counts as silent meanwhile."""
IDLE_S = 12.0
"""How long the daemons only send heartbeats, which is as in a long training."""
POLL_S = 0.5
STARTS_AT_ONCE = 4
"""Daemons that start at once, on one machine: calls of more would time out, and be made again."""
START_S = 120.0
"""Until a daemon serves, at most."""
FIRST_S = 600.0
"""Until the first round is over, at most, after the last start."""
ROUND_S = 60.0
"""For each further round, at most."""
MESSAGES_PER_PEER_MAX = 16
"""A site's messages to one peer in a round of a few seconds, whatever the number of sites."""


class ManySites(LocalFederation):
    """Daemons whose workers train nothing."""

    plan: Sequence[str] = ()
    numbers = NUMBERS

    @property
    def program(self) -> tuple[str, ...]:  # type: ignore[override]  # the pattern decides what the worker makes
        worker = [
            sys.executable,
            "-I",
            "-S",
            str(TESTS / "fakes" / "worker.py"),
            "obeys",
            str(self.numbers),
            *self.plan,
        ]
        return (sys.executable, "-P", str(TESTS / "fakes" / "daemon.py"), json.dumps(worker))


def measure(*, quick: bool) -> list[Row]:
    """Messages to a peer in a round at two sizes: their number must not grow with that of the sites."""
    rows = []
    for sites in (4, 8):
        run = run_daemons("permutation", sites, rounds=10)  # fewer are over before the first look at them
        label = f"{sites} daemons, permutation"
        each = run["messages"] / (sites - 1)
        rows += [
            Row(f"{label}: round", run["round_s"], "s"),
            below(f"{label}: a site's messages to one peer in a round", each, "", MESSAGES_PER_PEER_MAX),
            Row(f"{label}: CPU of a daemon in a round", run["cpu_s"], "s"),
        ]
    return rows


def run_daemons(
    pattern: str,
    sites: int,
    *,
    rounds: int,
    pace: Mapping[str, float] | None = None,
    limit_s: float = math.inf,
    numbers: int = NUMBERS,
    log: Callable[[str], None] = lambda text: None,
) -> Any:
    """Run one federation to its last round, or for ``limit_s``; its figures, each for one site and one round.

    ``idle_cpu`` and ``idle_messages`` are for one site and one second, after the last round. ``pace`` has
    further keys of the table ``[pace]``.
    """
    end_s = time.monotonic() + limit_s
    names = [SiteName(f"site-{number:03d}") for number in range(sites)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mhfl-many-")))
        began_s = time.perf_counter()
        federation = enrol(folder, names, pattern=pattern, rounds=rounds, pace=pace or {}, numbers=numbers)
        log(f"enrolled in {time.perf_counter() - began_s:.1f} s")
        began_s = time.perf_counter()
        stack.enter_context(federation)
        start_all(federation, names, end_s=end_s)
        log(f"{sites} daemons started in {time.perf_counter() - began_s:.1f} s")
        first = wait_for(federation, names[0], 1, end_s=min(end_s, time.monotonic() + FIRST_S))
        start_s = time.perf_counter() - began_s
        log(f"round {first} is over {start_s:.1f} s after the first start")
        cpu_s = total_cpu_s(federation)
        rounds_end_s = time.monotonic() + ROUND_S * rounds
        last = wait_for(federation, names[0], rounds, end_s=min(end_s, rounds_end_s), may_end=True)
        cpu_s = total_cpu_s(federation) - cpu_s
        committed = [
            wait_for(federation, name, rounds, end_s=min(end_s, time.monotonic() + ROUND_S), may_end=True)
            for name in names
        ]
        done = rounds if min(committed) >= rounds else min(committed) - 1  # the row that counts may be missing yet
        log(f"{done} rounds are over {time.perf_counter() - began_s:.1f} s after the first start")
        if done <= first:
            raise RuntimeError(f"only {done} rounds are over after {limit_s:.0f} s")
        idle_s = max(IDLE_S, 2 * federation.federation.beat_s)
        idle = measure_idle(federation, names[0], seconds=idle_s) if done == rounds else {}
        peak_mb = max(peak_kib(process.pid) for process in federation.daemons.values()) / KIB_A_MB
        federation.__exit__()
        journals = [federation.folder(name).generation(1) for name in names]
        figures = summarise([read_journal(path, done) for path in journals], done)
        orders = [(int(count) / ended, int(size) / ended) for count, size, ended in map(read_orders, journals)]
        for name in names:
            if federation.daemons[name].returncode:
                raise RuntimeError(
                    f"{name} ended with {federation.daemons[name].returncode}: {federation.console(name)}"
                )
    return {
        "pattern": pattern,
        "sites": sites,
        "rounds": done,
        "beat_s": federation.federation.beat_s,
        "start_s": start_s,
        **figures,
        "cpu_s": cpu_s / sites / max(1, last - first),
        **idle,
        "peak_mb": peak_mb,
        "orders": statistics.mean(count for count, _ in orders),
        "order_bytes": statistics.mean(size for _, size in orders),
    }


def enrol(
    folder: Path, names: Sequence[SiteName], *, pattern: str, rounds: int, pace: Mapping[str, float], numbers: int
) -> ManySites:
    """Found the federation of a pattern, and enrol its sites."""
    method = METHODS[pattern]
    plan = PLANS[method]
    more: dict[str, Any] = {"shared_model": {"name": "resnet10"}} if plan.shared == "itself" else {}
    if pattern == "secure":
        more["aggregate"] = {"secure": True}
    text = draft("many", rounds=rounds, method=method, pace={"silence_s": SILENCE_S, **pace}, **more)
    federation = ManySites.create(folder, text, dict.fromkeys(names, SITE))
    federation.plan = (plan.pattern, str(plan.artifact), str(plan.published))
    federation.numbers = numbers
    return federation


def start_all(federation: LocalFederation, names: Sequence[SiteName], *, end_s: float) -> None:
    """Start the daemons, ``STARTS_AT_ONCE`` at a time: a later one waits until an earlier one answers."""
    for index, name in enumerate(names):
        federation.start(name, "--stay", environment={"PYTHONPATH": str(TESTS.parent)})
        if index >= STARTS_AT_ONCE:
            wait_for(federation, names[index - STARTS_AT_ONCE], 0, end_s=min(end_s, time.monotonic() + START_S))


def wait_for(federation: LocalFederation, name: SiteName, round: int, *, end_s: float, may_end: bool = False) -> int:
    """Wait until a site has committed a round; the newest round that it has committed.

    Round 0 is there as soon as the daemon answers. ``may_end``: at the end of the time, any round will do.
    """
    committed = -1
    while time.monotonic() < end_s or (may_end and committed < 0):
        for other, daemon in federation.daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{other} ended with {daemon.returncode}: {federation.console(other)[-2000:]}")
        with contextlib.suppress(DaemonDown):
            committed = federation.show(name, "status")["committed"]
            if committed >= round:
                return committed
        time.sleep(POLL_S)
    if may_end:
        return committed
    raise RuntimeError(f"{name} has not committed round {round} in time: {federation.console(name)[-2000:]}")


def measure_idle(federation: LocalFederation, name: SiteName, *, seconds: float) -> dict[str, float]:
    """A daemon's CPU, messages and their bytes in a second of heartbeats alone."""

    def spoken() -> Counter[str]:
        total: Counter[str] = Counter()
        for peer in federation.show(name, "status")["peers"].values():
            total.update(peer["spoken"])
        return total

    before, cpu_s, began_s = spoken(), total_cpu_s(federation), time.monotonic()
    time.sleep(seconds)
    seconds = time.monotonic() - began_s
    cpu_s, after = total_cpu_s(federation) - cpu_s, spoken()
    return {
        "idle_cpu": cpu_s / seconds / len(federation.daemons),
        "idle_messages": (after["messages"] - before["messages"]) / seconds,
        "idle_bytes": (after["bytes"] - before["bytes"]) / seconds,
    }


def total_cpu_s(federation: LocalFederation) -> float:
    """The CPU that all daemons have used; their workers are left out while they live."""
    ticks = 0
    for process in federation.daemons.values():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def read_journal(home: Path, rounds: int) -> dict[str, Any]:
    """A journal's rows by kind, its size, its commits' times, and the messages that were sent by each commit.

    Rows of later rounds are left out.
    """
    journal = Journal(home / "journal.db", read_only=True)
    try:
        records = journal.records()
    finally:
        journal.close()
    commits = [record for record in records if record["kind"] == "committed" and record["round"] <= rounds]
    spoken: dict[int, list[int]] = {}
    for record, after in itertools.pairwise(record for record in records if record["kind"] in ("committed", "spoken")):
        if (record["kind"], after["kind"]) == ("committed", "spoken"):
            counts = after["body"].values()
            spoken[record["round"]] = [sum(count[key] for count in counts) for key in ("messages", "bytes")]
    in_rounds = [record for record in records if commits[0]["seq"] < record["seq"] <= commits[-1]["seq"]]
    return {
        "rows": Counter(record["kind"] for record in in_rounds),
        "row_bytes": sum(len(json.dumps(record["body"])) for record in in_rounds),
        "commits": {record["round"]: record["time"] for record in commits},
        "spoken": spoken,
        "received": [
            record["body"]["bytes"] for record in records if record["kind"] == "received" and record["round"] <= rounds
        ],
    }


def read_orders(home: Path) -> tuple[int, int, int]:
    """The number of the orders that a worker has had, their bytes, and the rounds that its site has committed."""
    count, size = map(int, (home / "orders").read_text().split())
    with contextlib.closing(Journal(home / "journal.db", read_only=True)) as journal:
        return count, size, len(journal.records(("committed",)))


def summarise(journals: Sequence[Mapping[str, Any]], rounds: int) -> dict[str, Any]:
    """Figures of a round, over all sites: of the rounds between the first commit and the last."""
    ends = [max(journal["commits"][round] for journal in journals) for round in range(1, rounds + 1)]
    between = rounds - 1

    def spoken(index: int) -> float:
        return statistics.mean(
            (journal["spoken"][rounds][index] - journal["spoken"][1][index]) / between for journal in journals
        )

    kinds: Counter[str] = Counter()
    for journal in journals:
        kinds.update(journal["rows"])
    return {
        "round_s": (ends[-1] - ends[0]) / between,
        "messages": spoken(0),
        "message_bytes": spoken(1),
        "artifacts": statistics.mean(len(journal["received"]) for journal in journals) / rounds,
        "artifact_bytes": statistics.mean(sum(journal["received"]) for journal in journals) / rounds,
        "rows": kinds.total() / len(journals) / between,
        "row_bytes": statistics.mean(journal["row_bytes"] for journal in journals) / between,
        "rows_by_kind": {kind: count / len(journals) / between for kind, count in sorted(kinds.items())},
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "mhfl_peer": __version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def print_figures(run: Mapping[str, Any]) -> None:
    """Print the figures of a run that are no tables, in one line."""
    shown = {key: value for key, value in run.items() if not isinstance(value, dict)}
    line = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items())
    print(", ".join(line), flush=True)


def write(path: Path, runs: Iterable[Mapping[str, Any]], **facts: Any) -> None:
    """Write the runs so far; a file of another command keeps its other runs."""
    document = json.loads(path.read_text()) if path.exists() else {"runs": []}
    fresh = {(run["pattern"], run["sites"]): run for run in (*document["runs"], *runs)}
    ordered = [fresh[key] for key in sorted(fresh)]
    path.write_text(json.dumps({**facts, "machine": machine(), "runs": ordered}, indent=1) + "\n")


def main() -> int:
    """Measure the federations that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pattern", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--numbers", type=int, default=NUMBERS, help="float32 numbers of an artifact")
    parser.add_argument("--beat-s", type=float, help="seconds between heartbeats; left out: the federation's own rule")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="seconds that a federation may take")
    parser.add_argument("--out", type=Path, help="the JSON file, to which the runs are added")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, at which the daemons are ended
    pace = {} if arguments.beat_s is None else {"beat_s": arguments.beat_s}
    options = {"rounds": arguments.rounds, "pace": pace, "limit_s": arguments.limit_s, "numbers": arguments.numbers}
    for pattern in arguments.pattern:
        for sites in arguments.sites:
            run = run_daemons(pattern, sites, **options, log=lambda text: print(" ", text, flush=True))
            print_figures(run)
            if arguments.out:
                write(arguments.out, [run], load="daemons")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS.parent))
    sys.exit(main())
