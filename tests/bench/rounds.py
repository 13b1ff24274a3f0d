"""Duration of a permutation round of four daemons without its training, and a daemon's memory
during it.

The daemons are real (``still.py``): enrolled, mutual TLS on loopback, manifests signed and checked,
artifacts verified, journal and egress ledger. A round lasts from the end of all
trainings to the last site's next order to train. For comparison, four processes (``bare.py``) move
artifacts of the same size in the same permutation, and only hash them, or also write them to files.
All run in turn, so that they see the same machine. ``python tests/bench/rounds.py MB [ROUNDS
[OPTION ...]]`` prints every round; the options are those of ``still.py``, such as ``--disk=100``.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from row import KIB_A_MB, Row, below, peak_kib

from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LEAVE_S, LocalFederation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE

HERE = Path(__file__).resolve().parent
SITES = tuple(SiteName(name) for name in ("africa", "america", "asia", "europe"))
ROUNDS: Mapping[int, int] = {20: 11, 60: 11, 250: 5, 1024: 3}
"""Size of the artifact, in MB of 2²⁰ bytes -> number of rounds to measure."""
LARGE_MB = 250
RATIO_MAX, LARGE_RATIO_MAX = 1.3, 1.2
"""The longest round beside the bare stream: below ``LARGE_MB``, and from there on."""
MEMORY_MB_MAX = 120


class Durations(NamedTuple):
    """Seconds of every round of daemons, of bare peers that hash, and of bare peers that also write
    files; and a daemon's highest peak memory in MB.
    """

    ours: list[float]
    bare: list[float]
    kept: list[float]
    peak_mb: float


class Processes:
    """One process a site, which reads and writes lines."""

    def __init__(self, script: str, loopback: LocalFederation, megabytes: int, *options: str) -> None:
        self.script = script
        self.processes = {
            name: subprocess.Popen(
                [
                    sys.executable,
                    HERE / script,
                    loopback.home,
                    loopback.federation.name,
                    name,
                    str(megabytes),
                    *options,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for name in SITES
        }

    def write(self, lines: Mapping[SiteName, str]) -> None:
        """Write one line to each process."""
        for name, line in lines.items():
            stdin = self.processes[name].stdin
            stdin.write(f"{line}\n".encode())
            stdin.flush()

    def read(self) -> dict[SiteName, list[str]]:
        """Wait for the next line of every process; the words of each line."""
        lines = {}
        for name, process in self.processes.items():
            lines[name] = process.stdout.readline().decode().split()
            if not lines[name]:
                raise RuntimeError(f"{self.script} of {name} ended; its output is above")
        return lines

    def end(self) -> None:
        """End the processes by closing their input; kill those that do not end, and raise."""
        for process in self.processes.values():
            process.stdin.close()
        try:
            for process in self.processes.values():
                process.wait(LEAVE_S)
        finally:
            for process in self.processes.values():
                process.kill()


def measure(*, quick: bool) -> list[Row]:
    """Rounds of daemons and bare peers at every size, their ratio, and the daemons' memory."""
    rows = []
    for megabytes, rounds in {20: 5}.items() if quick else ROUNDS.items():
        durations = run(megabytes, rounds)
        ours, bare, kept = map(statistics.median, (durations.ours, durations.bare, durations.kept))
        label = f"round of 4 peers, {megabytes} MB"
        rows.append(Row(f"{label}: bare stream", bare, "s"))
        limit = RATIO_MAX if megabytes < LARGE_MB else LARGE_RATIO_MAX
        rows += [Row(label, ours, "s"), below(f"{label} / bare stream", ours / bare, "", limit)]
        rows.append(Row(f"{label} / bare stream into a file", ours / kept, ""))
        rows.append(below(f"{label}: a daemon's peak memory", durations.peak_mb, "MB", MEMORY_MB_MAX))
    return rows


def run(megabytes: int, rounds: int, *options: str) -> Durations:
    """Found a federation and measure its rounds, after one exchange to warm up; the options are of ``still.py``."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        text = draft("bench", rounds=rounds + 1, schedule=DERANGEMENT, pace={"wait_max_s": 120})
        loopback = LocalFederation.create(folder, text, dict.fromkeys(SITES, SITE))
        bare = Processes("bare.py", loopback, megabytes)
        sites = Processes("still.py", loopback, megabytes, "--on-demand", *options)
        stack.callback(bare.end)
        stack.callback(sites.end)
        bare.write(dict.fromkeys(SITES, json.dumps(bare.read())))
        origins = sources(sites.read(), 1)
        durations = Durations([], [], [], 0.0)
        for number in range(2, rounds + 2):
            sites.write(dict.fromkeys(SITES, "write"))  # no site is in the round any more
            sites.read()  # all say that their artifact is on disk
            if number == 2:
                bare_round(bare, origins)
            durations.bare.append(bare_round(bare, origins))
            began_s = time.perf_counter()
            sites.write(dict.fromkeys(SITES, "go"))
            ordered = sites.read()
            durations.ours.append(time.perf_counter() - began_s)
            # Last: a virtual machine may be busy for a while with giving the memory of deleted files back to its host.
            durations.kept.append(bare_round(bare, {name: f"{origin} keep" for name, origin in origins.items()}))
            origins = sources(ordered, number)
        sites.write(dict.fromkeys(SITES, "write"))
        sites.read()
        peak_mb = max(peak_kib(process.pid) for process in sites.processes.values()) / KIB_A_MB
        return durations._replace(peak_mb=peak_mb)


def bare_round(bare: Processes, lines: Mapping[SiteName, str]) -> float:
    """Run one round of the bare peers, with a line for each; its seconds."""
    began_s = time.perf_counter()
    bare.write(lines)
    bare.read()
    return time.perf_counter() - began_s


def sources(ordered: Mapping[SiteName, list[str]], round: int) -> dict[SiteName, str]:
    """Site -> origin of its artifact in a round; ``RuntimeError`` where a site has none."""
    origin_of = {}
    for name, (_, number, *origins) in ordered.items():
        if int(number) != round or len(origins) != 1:
            raise RuntimeError(f"{name} trains in round {number} with artifacts of {origins}, expected one in {round}")
        origin_of[name] = origins[0]
    return origin_of


def main(megabytes: int, rounds: int = 11, *options: str) -> None:
    """Print every round of one size."""
    durations = run(megabytes, rounds, *options)

    def join(seconds: Iterable[float]) -> str:
        return " ".join(f"{second:.3f}" for second in seconds)

    print(f"bare {join(durations.bare)}\nbare, into files {join(durations.kept)}\nours {join(durations.ours)}")
    ours, bare, kept = map(statistics.median, durations[:3])
    print(f"ours / bare {ours / bare:.2f}, into files {ours / kept:.2f}; peak memory {durations.peak_mb:.0f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
