"""Real daemons in trouble: ``make chaos SECONDS=600``.

``python tests/chaos/run.py [--seconds N] [--seed S] [--sites N]`` starts a federation of real daemons
and workers, and breaks something every few seconds: processes are killed or stopped, a worker's
memory or a site's disk is taken away, a network is cut, half open, slow or lossy. After the given
seconds it heals everything, waits for the last round, and examines every journal and ledger.

As root on Linux each site has a network of its own and a small disk in memory; otherwise those
faults are left out, and the first line says so. All traffic stays in the networks that it creates.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from fakes import namespaces  # noqa: E402
from fakes.drafts import draft, site_text  # noqa: E402
from fakes.hospital import LENGTH, write_signals  # noqa: E402
from fakes.namespaces import Hosts  # noqa: E402
from peer.audit.verification import verify  # noqa: E402
from peer.errors import PeerError  # noqa: E402
from peer.lab.demo.local_federation import LocalFederation  # noqa: E402
from peer.site.config import toml  # noqa: E402
from peer.site.records.history import committed_rounds  # noqa: E402
from peer.site.records.journal import Journal  # noqa: E402

NAMES = ("asia", "africa", "america", "europe", "oceania")
DISK_MIB = 96
FAULT_S = (1.0, 12.0)
PAUSE_S = (0.5, 4.0)
END_S = 300.0
EXITS = {0: "in order", -signal.SIGKILL: "killed", 9: "disk full", 15: "worker out of memory"}
"""The only ends of a daemon that these faults may cause."""
DRAFT = draft(
    "chaos",
    rounds=100_000,
    task={"kind": "time_series", "spatial_dims": 1, "in_channels": 2, "classes": 2},
    stages={"train": {"unit": "step", "count": 6, "learning_rate": 1e-3}},
    pace={"linger_s": 3600, "wait_max_s": 60, "deadline_floor_s": 2, "silence_s": 3, "beat_s": 0.5, "isolated_s": 5},
)


def main() -> int:
    """Break, heal, examine; the exit status is 1 if a promise did not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=None, help="of the order of faults; default: the time")
    parser.add_argument("--sites", type=int, default=4, choices=range(2, len(NAMES) + 1))
    parser.add_argument("--keep", action="store_true", help="leave the sites' folders for a look")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(isolated(NAMES[: arguments.sites]))
        print(f"seed {seed}, {arguments.sites} sites, {machine.words}", flush=True)
        federation = Federation(machine)
        try:
            counts = federation.suffer(random.Random(seed), seconds=arguments.seconds)
            problems = federation.examine()
        finally:
            federation.stop()
            if arguments.keep:
                kept = Path(tempfile.mkdtemp(prefix="mhfl-chaos-"))
                shutil.copytree(machine.folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
                print(f"kept in {kept}")
    print(", ".join(f"{fault} {count}" for fault, count in sorted(counts.items())))
    for problem in problems:
        print(f"PROBLEM {problem}")
    print(f"{'0 passed, 1 failed' if problems else '1 passed, 0 failed'}")
    return 1 if problems else 0


def sh(*words: object, check: bool = True) -> None:
    subprocess.run([str(word) for word in words], check=check, capture_output=True)


class Machine:
    """Where the sites live: a folder each, and if possible a network and a disk each."""

    def __init__(self, folder: Path, sites: tuple[str, ...], networks: Hosts | None) -> None:
        self.folder, self.sites, self.networks = folder, sites, networks
        self.words = "a network and a disk for each" if networks else "no networks and disks of their own (not root)"

    def disk(self, site: str) -> Path:
        """The folder that holds everything of the site."""
        return self.folder / "home" / "chaos" / site

    def inside(self, site: str, *words: object) -> list[str]:
        """A command in the site's network."""
        return self.networks.inside(site, *words) if self.networks else [*map(str, words)]

    def raise_disk(self, site: str) -> None:
        """Move a site's folder to a small disk in memory."""
        folder = self.disk(site)
        moved = folder.with_name(f"{site}.moved")
        folder.rename(moved)
        folder.mkdir(mode=0o700)
        sh("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0700", "tmpfs", folder)
        shutil.copytree(moved, folder, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(moved)


@contextlib.contextmanager
def isolated(sites: tuple[str, ...]) -> Iterator[Machine]:
    """A machine for the sites, which is cleared at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mhfl-chaos-"))
    missing = namespaces.missing() or ("" if shutil.which("mount") else "not in PATH: mount")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        networks = None
        with contextlib.suppress(subprocess.CalledProcessError):  # some containers have namespaces and no bridges
            networks = None if missing else stack.enter_context(namespaces.hosts(*sites))
        machine = Machine(folder, sites, networks)
        for site in sites if networks else ():
            stack.callback(sh, "umount", "-l", machine.disk(site), check=False)
        yield machine


class Site(LocalFederation):
    """Daemons that start in their own network."""

    machine: Machine

    def start(self, name: str, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        self.program = tuple(self.machine.inside(name, *LocalFederation.program))  # type: ignore[misc]
        return super().start(name, *options, environment=environment)


class Federation:
    """The daemons under trial, and the faults that are under way."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        texts = {
            name: site_text(
                LENGTH,
                datalist=write_signals(machine.folder / "data" / name, seed=index, sizes={"training": 16, "test": 8}),
                model={"name": "resnet10", "parameters": {"width": 4 + index}},
                training={"device": "cpu", "threads": 1, "batch_size": 4},
            )
            for index, name in enumerate(machine.sites)
        }
        self.sites = Site.create(machine.folder / "made", DRAFT, texts)
        shutil.move(self.sites.home, machine.folder / "home")
        self.sites.home = machine.folder / "home"
        self.sites.machine = machine
        self.ends: Counter[str] = Counter()
        self.problems: list[str] = []
        self.healing: list[tuple[float, Callable[[], None]]] = []
        self.stopped_until: dict[str, float] = {}
        for name in machine.sites:
            if machine.networks:
                self._address(name)
                machine.raise_disk(name)
            self.sites.start(name)

    def _address(self, name: str) -> None:
        """Let a site listen in its own network, and find the others there."""
        path = self.sites.folder(name).site_toml
        _, _, text = path.read_text().partition("\n")
        at = {site: f"{address}:7443" for site, address in self.machine.networks.address.items()}
        path.write_text(toml.text({"listen": at.pop(name)}) + text + toml.text({"addresses": at}))

    def suffer(self, draw: random.Random, *, seconds: float) -> Counter[str]:
        """Break things until the time is over, then heal everything and wait for common rounds."""
        counts: Counter[str] = Counter()
        faults = [self.kill, self.freeze, self.kill_worker, self.freeze_worker, self.starve_worker]
        if self.machine.networks:
            faults += [self.cut, self.half_open, self.throttle, self.lose, self.fill_disk]
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            fault, victim = draw.choice(faults), draw.choice(self.machine.sites)
            if fault(victim, draw.uniform(*FAULT_S)):
                counts[fault.__name__.replace("_", " ")] += 1
            self.tend(draw.uniform(*PAUSE_S))
        self.tend(0, heal_all=True)
        counts["rounds"] = self.settle()
        return counts + Counter({f"ended: {end}": count for end, count in self.ends.items()})

    def tend(self, seconds: float, *, heal_all: bool = False) -> None:
        """Heal what is due and start again what has ended, for so long."""
        until_s = time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            due = [heal for at_s, heal in self.healing if heal_all or at_s <= now_s]
            self.healing = [] if heal_all else [(at_s, heal) for at_s, heal in self.healing if at_s > now_s]
            for heal in due:
                heal()
            for name, daemon in list(self.sites.daemons.items()):
                code = daemon.poll()
                if code is None or (not heal_all and self.stopped_until.get(name, 0) > now_s):
                    continue
                if code not in EXITS:
                    self.problems.append(f"{name} ended with {code}: {self.sites.console(name)[-1500:]}")
                self.ends[EXITS.get(code, str(code))] += 1
                self.sites.start(name)
            if now_s >= until_s:
                return
            time.sleep(0.1)

    def resume(self) -> None:
        """Do what an operator does for a site whose own worker had too little memory."""
        for name in self.machine.sites:
            with contextlib.suppress(PeerError, OSError):
                if self.sites.show(name, "status")["phase"] == "failed":
                    self.sites.control(name).act("resume")

    def settle(self) -> int:
        """After healing, every site must commit three more rounds; returns the newest."""
        begun = {name: self.newest(name) for name in self.machine.sites}
        end_s = time.monotonic() + END_S
        while not all(self.newest(name) >= max(begun.values()) + 3 for name in begun):
            if time.monotonic() > end_s:
                after = {name: self.newest(name) for name in begun}
                self.problems.append(f"not every site went on after the end of the faults: {begun} -> {after}")
                self.problems += [f"{name} has on its disk: {self.largest(name)}" for name in begun]
                break
            self.resume()
            self.tend(0.5, heal_all=True)
        return max(map(self.newest, self.machine.sites))

    def largest(self, name: str) -> list[tuple[int, str]]:
        """The largest files on a site's disk, in bytes."""
        disk = self.machine.disk(name)
        files = [(path.stat().st_size, str(path.relative_to(disk))) for path in disk.rglob("*") if path.is_file()]
        return sorted(files, reverse=True)[:4]

    def newest(self, name: str) -> int:
        return max((record["round"] for record in self.records(name)), default=0)

    def rows(self, name: str) -> list[tuple[str, int, Any]]:
        folder = self.sites.folder(name)
        rows: list[tuple[str, int, Any]] = []
        for number in folder.generations():
            with contextlib.suppress(PeerError, OSError):
                journal = Journal(folder.generation(number) / "journal.db", read_only=True)
                rows += journal.rows()
                journal.close()
        return rows

    def records(self, name: str) -> list[dict[str, Any]]:
        return [dict(record.document()) for record in committed_rounds(self.rows(name))]

    def stop(self) -> None:
        self.sites.__exit__()

    def examine(self) -> list[str]:
        """Every promise that did not hold, after a stop in order."""
        for name in self.machine.sites:
            self.sites.daemons[name].send_signal(signal.SIGTERM)  # type: ignore[index]
        for name in self.machine.sites:
            try:
                code = self.sites.daemons[name].wait(60)  # type: ignore[index]
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                self.problems.append(f"{name} did not stop in order ({code}): {self.sites.console(name)[-1500:]}")
        published: dict[tuple[str, int], set[str]] = {}
        for name in self.machine.sites:
            rows = self.rows(name)
            numbers = [round for kind, round, _ in rows if kind == "committed"]
            if numbers != sorted(set(numbers)):
                self.problems.append(f"{name} committed a round twice, or out of order")
            refused = [body for kind, _, body in rows if kind == "refused"]
            self.problems += [f"{name} blames {body['origin']}: {body['reason']}" for body in refused]
            for kind, round, body in rows:
                if kind == "published":
                    published.setdefault((name, round), set()).add(body["artifact"]["sha256"])
        self.problems += [
            f"{name} made two artifacts of round {round}" for (name, round), made in published.items() if len(made) > 1
        ]
        for name in self.machine.sites:
            for source in (source for record in self.records(name) for source in record["sources"]):
                origin = (source["site"], source["round"])
                if source.get("sha256") and source["sha256"] not in published.get(origin, set()):
                    self.problems.append(f"{name} trained on what {source['site']} never published: {source}")
            try:
                self.problems += [
                    f"ledger of {name}: {problem}" for problem in verify(self.sites.folder(name))["problems"]
                ]
            except PeerError as error:
                self.problems.append(f"ledger of {name}: {error}")
        return self.problems

    # The faults. Each says whether it could begin, and is healed after its seconds.

    def pids(self, name: str) -> tuple[int | None, int | None]:
        """The processes of a site's daemon and worker."""
        with contextlib.suppress(PeerError, OSError):
            status = self.sites.show(name, "status")
            return status["pid"], status["worker_pid"]
        return None, None

    def kill(self, name: str, seconds: float) -> bool:
        self.stopped_until[name] = time.monotonic() + seconds / 3
        return self._signal(self.pids(name)[0], signal.SIGKILL)

    def kill_worker(self, name: str, seconds: float) -> bool:
        return self._signal(self.pids(name)[1], signal.SIGKILL)

    def freeze(self, name: str, seconds: float) -> bool:
        return self._freeze(self.pids(name)[0], seconds)

    def freeze_worker(self, name: str, seconds: float) -> bool:
        return self._freeze(self.pids(name)[1], seconds)

    def starve_worker(self, name: str, seconds: float) -> bool:
        """Take the memory away that the worker does not have yet."""
        worker = self.pids(name)[1]
        if worker is None or not self.newest(name):  # it is still loading libraries
            return False
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
            pages = int(Path(f"/proc/{worker}/statm").read_text().split()[0])
            _, hard = resource.prlimit(worker, resource.RLIMIT_AS)
            resource.prlimit(worker, resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))

            def give_back() -> None:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(worker, resource.RLIMIT_AS, (hard, hard))

            self._heal(seconds, give_back)
            return True
        return False

    def fill_disk(self, name: str, seconds: float) -> bool:
        ballast = self.machine.disk(name) / "ballast"
        free = shutil.disk_usage(ballast.parent).free
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - (64 << 10)))

        def empty() -> None:  # on some kernels the pages outlive the name
            with contextlib.suppress(FileNotFoundError):
                os.truncate(ballast, 0)
                ballast.unlink()

        self._heal(seconds, empty)
        return True

    def cut(self, name: str, seconds: float) -> bool:
        return self._rules(name, seconds, ("INPUT", "-j", "DROP"), ("OUTPUT", "-j", "DROP"))

    def half_open(self, name: str, seconds: float) -> bool:
        return self._rules(name, seconds, ("INPUT", "-j", "DROP"))

    def lose(self, name: str, seconds: float) -> bool:
        return self._rules(
            name, seconds, ("INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP")
        )

    def throttle(self, name: str, seconds: float) -> bool:
        queue = ("dev", "eth0", "root")
        slow = ("tbf", "rate", "1mbit", "burst", "16kb", "latency", "200ms")
        sh(*self.machine.inside(name, "tc", "qdisc", "replace", *queue, *slow))
        self._heal(seconds, lambda: sh(*self.machine.inside(name, "tc", "qdisc", "del", *queue), check=False))
        return True

    def _rules(self, name: str, seconds: float, *rules: tuple[str, ...]) -> bool:
        for chain, *rest in rules:
            sh(*self.machine.inside(name, "iptables", "-A", chain, *rest, "-i" if chain == "INPUT" else "-o", "eth0"))

            def heal(chain: str = chain, rest: list[str] = rest) -> None:
                way = "-i" if chain == "INPUT" else "-o"
                sh(*self.machine.inside(name, "iptables", "-D", chain, *rest, way, "eth0"), check=False)

            self._heal(seconds, heal)
        return True

    def _signal(self, process: int | None, number: signal.Signals) -> bool:
        with contextlib.suppress(ProcessLookupError):
            if process is not None:
                os.kill(process, number)
                return True
        return False

    def _freeze(self, process: int | None, seconds: float) -> bool:
        if not self._signal(process, signal.SIGSTOP):
            return False
        self._heal(seconds, lambda: self._signal(process, signal.SIGCONT) and None)
        return True

    def _heal(self, seconds: float, heal: Callable[[], None]) -> None:
        self.healing.append((time.monotonic() + seconds, heal))


if __name__ == "__main__":
    sys.exit(main())
