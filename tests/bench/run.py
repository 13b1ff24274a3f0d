"""Measure the program against its targets: ``python tests/bench/run.py [--quick] [NAME ...]``.

The exit status is 1 if a target is missed or a measurement failed. The targets are for an idle
machine.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import traceback
from pathlib import Path

from row import Row

HERE = Path(__file__).resolve().parent
MODULES = (
    "cli",
    "schedule",
    "simulator",
    "similarity",
    "transfer",
    "routes",
    "rounds",
    "overlap",
    "many",
    "memory",
    "epochs",
    "leak",
    "status",
    "gpu",
)
LINE = "{:<58} {:>10} {:<6} {:>8}  {}"
VERDICT = {True: "met", False: "MISSED", None: ""}


def main() -> int:
    """Run the benchmarks; the exit status is 0 if every target is met."""
    present = [name for name in MODULES if (HERE / f"{name}.py").is_file()]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*present, []], metavar="NAME", help=f"of {', '.join(present)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repetitions")
    arguments = parser.parse_args()
    sys.path[:0] = [str(HERE.parents[0]), str(HERE.parents[1])]
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    print(LINE.format("measurement", "figure", "unit", "target", "").rstrip())
    all_met = True
    for name in arguments.names or present:
        for row in measure(name, quick=arguments.quick):
            print(
                LINE.format(row.label, f"{row.figure:.4g}", row.unit, row.target, VERDICT[row.met]).rstrip(), flush=True
            )
            all_met = all_met and row.met is not False
    return 0 if all_met else 1


def measure(name: str, *, quick: bool) -> list[Row]:
    """A module's rows; a failure is a row too, so that the other modules are still measured."""
    try:
        return list(importlib.import_module(name).measure(quick=quick))
    except Exception:
        traceback.print_exc()
        return [Row(f"{name}: failed", float("nan"), "", "", met=False)]


if __name__ == "__main__":
    sys.exit(main())
