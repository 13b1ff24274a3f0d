"""Run what is too long for every change, and write how it ended into ``tests/nightly.txt``: ``make nightly``.

``python tests/nightly.py simulation chaos`` runs these parts alone; the other lines of the record stay.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".txt")
SEEDS = 10_000
CI_SEEDS = 25  # of the same commit, which test_seeds.py plays
FUZZ_S = 1200
CHAOS_S = 600


def main() -> int:
    """Run the named parts, or all, whatever one of them finds; the exit status is 1 if one failed."""
    commit = _git("rev-parse", "HEAD")
    first = int(commit[:8], 16) + CI_SEEDS
    changed = " and what was not committed" if _git("status", "--porcelain", "--", ":!tests/nightly.txt") else ""
    today, cores = datetime.date.today(), os.cpu_count() or 1
    pytest = ["-m", "pytest", "--numprocesses", str(2 * cores), "--dist", "loadfile", "-m", "nightly"]
    pytest += ["--timeout", "900", "-r", "s"]
    parts = {
        "tests": pytest,
        "simulation": ["tests/simulation/run.py", "--seeds", f"{first}:{first + SEEDS}", "--jobs", str(cores)],
        "fuzz": ["tests/fuzz/run.py", "--seconds", str(FUZZ_S)],
        "chaos": ["tests/chaos/run.py", "--seconds", str(CHAOS_S)],
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(parts))
    names = parser.parse_args().parts or list(parts)
    if unknown := set(names) - set(parts):
        parser.error(f"no part is called {min(unknown)!r}; there are {' '.join(parts)}")
    failed = False
    for name in names:
        began_s = time.monotonic()
        status, last = _run([sys.executable, *parts[name]])
        failed |= status != 0
        lines = dict(line.split(": ", 1) for line in RECORD.read_text("utf-8").splitlines())
        minutes = (time.monotonic() - began_s) / 60
        lines[name] = f"{'failed' if status else 'passed'} in {minutes:.0f} min: {last}; {commit}{changed}, {today}"
        RECORD.write_text("".join(f"{part}: {lines[part]}\n" for part in parts if part in lines), "utf-8")
    print(RECORD.read_text("utf-8"), end="")
    return int(failed)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(command: list[str]) -> tuple[int, str]:
    """The exit status of a command whose output is shown, and its last line."""
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
    return process.returncode, last


if __name__ == "__main__":
    sys.exit(main())
