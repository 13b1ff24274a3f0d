"""Runs seeds of the simulation: one, a range, or as many as fit into a time.

python tests/simulation/run.py --seed 17 --verbose
python tests/simulation/run.py --seeds 0:2000 --jobs 2
python tests/simulation/run.py --seconds 600 --jobs 2
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from simulation.seeded_run import Outcome, Simulation  # noqa: E402

SHOWN_MAX = 20
PROGRESS = 500


def command(seed: int) -> str:
    """What repeats a seed."""
    return f".venv/bin/python tests/simulation/run.py --seed {seed}"


def play(seed: int) -> Outcome:
    """The outcome of a seed; an exception of the simulation itself counts as a violation."""
    try:
        return Simulation(seed).run()
    except Exception:
        return Outcome(seed, traceback.format_exc(), "", 0.0)


def batches(seeds: Iterator[int], size: int, seconds: float) -> Iterator[list[int]]:
    """The seeds in batches, until the time is over; without a limit in one, so that no process waits
    for another.
    """
    end_s = time.monotonic() + seconds
    if math.isinf(seconds):
        yield list(seeds)
        return
    while time.monotonic() < end_s and (batch := list(itertools.islice(seeds, size))):
        yield batch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one seed")
    what.add_argument("--seeds", help="FIRST:END, END excluded")
    what.add_argument("--seconds", type=float, help="as many seeds as fit, from a random one on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="with --seed: every step")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        run = Simulation(arguments.seed, keep_lines=arguments.verbose)
        outcome = run.run()
        print(
            run.shape,
            *run.faults,
            *run.acts,
            *run.roll.upgrades,
            *(f"{name} lies: {', '.join(habits)}" for name, habits in run.liars.items()),
            sep="\n  ",
        )
        print(*outcome.lines, sep="\n")
        verdict = outcome.violation or "holds"
        print(f"seed {outcome.seed}: {verdict} ({outcome.virtual_s:.0f} virtual s, {outcome.digest[:16]})")
        return bool(outcome.violation)
    if arguments.seeds is not None:
        first, _, end = arguments.seeds.partition(":")
        return soak(iter(range(int(first), int(end))), arguments.jobs, float("inf"))
    return soak(itertools.count(random.SystemRandom().randrange(1 << 40)), arguments.jobs, arguments.seconds)


def soak(seeds: Iterator[int], jobs: int, seconds: float) -> int:
    """Play the seeds; print each that fails, and the command that repeats it.

    Several jobs are forked. A process that has used gRPC must not fork them: its objects wait in the
    child, for ever, for a thread that is not there.
    """
    began_s, count, virtual_s, failed = time.monotonic(), 0, 0.0, 0
    with multiprocessing.get_context("fork").Pool(jobs) if jobs > 1 else contextlib.nullcontext() as pool:
        for batch in batches(seeds, 32 * jobs, seconds):
            for outcome in pool.imap_unordered(play, batch) if pool else map(play, batch):
                count, virtual_s = count + 1, virtual_s + outcome.virtual_s
                if count % PROGRESS == 0:
                    print(f"{count} seeds, {failed} failed so far", flush=True)
                if outcome.violation:
                    failed += 1
                    if failed <= SHOWN_MAX:
                        print(f"seed {outcome.seed}: {outcome.violation}")
                        print(f"  repeat it: {command(outcome.seed)}", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{count} seeds, {failed} failed, {virtual_s / 3600:.1f} virtual hours in {took_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
