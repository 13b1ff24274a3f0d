"""Run what is too long for every change, and write how it ended into ``tests/nightly.txt``: ``make nightly``."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".txt")
SEEDS = 10_000
CI_SEEDS = 250  # of the same commit, which test_seeds.py plays
FUZZ_S = 1200
CHAOS_S = 600


def main() -> int:
    """Run all parts, whatever one of them finds; the exit status is 1 if one failed."""
    commit = _git("rev-parse", "HEAD")
    first = int(commit[:8], 16) + CI_SEEDS
    changed = " and what was not committed" if _git("status", "--porcelain") else ""
    cores = os.cpu_count() or 1
    pytest = ["-m", "pytest", "--numprocesses", str(2 * cores), "--dist", "loadfile", "-m", "nightly"]
    pytest += ["--timeout", "900", "-r", "s"]
    parts = {
        "nightly tests": pytest,
        "simulation": ["tests/simulation/run.py", "--seeds", f"{first}:{first + SEEDS}", "--jobs", str(cores)],
        "fuzz": ["tests/fuzz/run.py", "--seconds", str(FUZZ_S)],
        "chaos": ["tests/chaos/run.py", "--seconds", str(CHAOS_S)],
    }
    lines, failed = [f"commit {commit}{changed}, {datetime.date.today()}"], False
    for name, words in parts.items():
        began_s = time.monotonic()
        status, last = _run([sys.executable, *words])
        failed |= status != 0
        lines.append(
            f"{name}: {'failed' if status else 'passed'} in {(time.monotonic() - began_s) / 60:.0f} min: {last}"
        )
        RECORD.write_text("\n".join(lines) + "\n", "utf-8")
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
