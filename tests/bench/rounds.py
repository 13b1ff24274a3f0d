"""How long a permutation round of four daemons takes, training left out, and how much memory a daemon needs for it.

Four real daemons (``still.py``): enrolled, mutual TLS on loopback, manifests signed and checked, artifacts verified and
on disk, journal and egress ledger. A round lasts from the end of all trainings to the last site's next order to train.
The yardstick moves artifacts of the same size in the same permutation between four processes (``bare.py``); both ways
run in turn, so that they see the same machine. ``python tests/bench/rounds.py MB [ROUNDS]`` prints every round.
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

from row import Row, below

from peer.core.roster import SiteName
from peer.demo.local_federation import LEAVE_S, LocalFederation

HERE = Path(__file__).resolve().parent
SITES = tuple(SiteName(name) for name in ("africa", "america", "asia", "europe"))
ROUNDS: Mapping[int, int] = {20: 11, 60: 11, 250: 3, 1024: 1}
"""How many rounds of each size, in MB of 2²⁰ bytes, are measured."""
RATIO_SIZES = (20, 60)
RATIO_MAX = 1.8
MEMORY_MB_MAX = 120
KIB_A_MB = 1e6 / 1024

DRAFT = """
name = "bench"
rounds = {rounds}
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "fedskd"
[schedule]
kind = "derangement"
[pace]
wait_max_s = 120
"""
SITE = """
[data]
input_size = [8]
"""


class Measured(NamedTuple):
    """Seconds of every round of both ways, and the highest peak memory of a daemon in MB."""

    ours: list[float]
    bare: list[float]
    peak_mb: float


class Crew:
    """Four processes that are told and answer in lines."""

    def __init__(self, script: str, loopback: LocalFederation, megabytes: int) -> None:
        self.script = script
        self.processes = {
            name: subprocess.Popen(
                [sys.executable, HERE / script, loopback.home, loopback.federation.name, name, str(megabytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for name in SITES
        }

    def tell(self, lines: Mapping[SiteName, str]) -> None:
        """One line to each."""
        for name, line in lines.items():
            stdin = self.processes[name].stdin
            assert stdin is not None
            stdin.write(f"{line}\n".encode())
            stdin.flush()

    def hear(self) -> dict[SiteName, list[str]]:
        """The words of the next line of each, once all have spoken."""
        said = {}
        for name, process in self.processes.items():
            assert process.stdout is not None
            said[name] = process.stdout.readline().decode().split()
            if not said[name]:
                raise RuntimeError(f"{self.script} of {name} ended; what it wrote stands above")
        return said

    def leave(self) -> None:
        """The end of their input ends them; ``TimeoutExpired`` when it does not, after they are killed."""
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        try:
            for process in self.processes.values():
                process.wait(LEAVE_S)
        finally:
            for process in self.processes.values():
                process.kill()


def measure(*, quick: bool) -> list[Row]:
    """Both ways at every size, their ratio where it is bounded, and the memory of the daemons."""
    rows = []
    for megabytes, rounds in {20: 5}.items() if quick else ROUNDS.items():
        measured = run(megabytes, rounds)
        ours, bare = statistics.median(measured.ours), statistics.median(measured.bare)
        what = f"round of 4 peers, {megabytes} MB"
        rows.append(Row(f"{what}: bare stream", bare, "s"))
        if megabytes in RATIO_SIZES:
            rows += [Row(what, ours, "s"), below(f"{what} / bare stream", ours / bare, "", RATIO_MAX)]
        else:
            rows.append(Row(what, ours, "s", "passes", met=True))
        rows.append(below(f"{what}: a daemon's peak memory", measured.peak_mb, "MB", MEMORY_MB_MAX))
    return rows


def run(megabytes: int, rounds: int) -> Measured:
    """Found a federation and measure so many rounds of it; the first exchange, before them, warms both ways up."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loopback = LocalFederation.create(folder, DRAFT.format(rounds=rounds + 1), dict.fromkeys(SITES, SITE))
        bare, sites = (Crew(script, loopback, megabytes) for script in ("bare.py", "still.py"))
        stack.callback(bare.leave)
        stack.callback(sites.leave)
        bare.tell(dict.fromkeys(SITES, json.dumps(bare.hear())))
        origins = sources(sites.hear(), 1)
        measured = Measured([], [], 0.0)
        for number in range(2, rounds + 2):
            sites.hear()  # that the artifacts are made
            if number == 2:
                bare_round(bare, origins)
            measured.bare.append(bare_round(bare, origins))
            began_s = time.perf_counter()
            sites.tell(dict.fromkeys(SITES, "go"))
            ordered = sites.hear()
            measured.ours.append(time.perf_counter() - began_s)
            origins = sources(ordered, number)
        sites.hear()
        return measured._replace(peak_mb=max(map(peak_mb, sites.processes.values())))


def bare_round(crew: Crew, origins: Mapping[SiteName, str]) -> float:
    """The seconds of one round of the yardstick."""
    began_s = time.perf_counter()
    crew.tell(origins)
    crew.hear()
    return time.perf_counter() - began_s


def sources(ordered: Mapping[SiteName, list[str]], round: int) -> dict[SiteName, str]:
    """Whose artifact each site has in a round; ``RuntimeError`` when one has to do without."""
    found = {}
    for name, (_, number, *origins) in ordered.items():
        if int(number) != round or len(origins) != 1:
            raise RuntimeError(f"{name} trains in round {number} with artifacts of {origins}, expected one in {round}")
        found[name] = origins[0]
    return found


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """VmHWM of a process that runs."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / KIB_A_MB


def main(megabytes: int, rounds: int) -> None:
    """Every round of one size."""
    measured = run(megabytes, rounds)

    def shown(seconds: Iterable[float]) -> str:
        return " ".join(f"{second:.3f}" for second in seconds)

    print(f"bare {shown(measured.bare)}\nours {shown(measured.ours)}")
    ratio = statistics.median(measured.ours) / statistics.median(measured.bare)
    print(f"ratio {ratio:.2f}, peak memory of a daemon {measured.peak_mb:.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 11)
