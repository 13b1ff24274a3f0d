"""A worker without torch, in the loop of the daemons: it trains nothing, and writes real files.

An artifact is a safetensors file whose numbers are drawn anew at each training, as on a GPU that
does not repeat itself. A checkpoint is a file with the model's history: which rounds it was trained
in, and with which artifacts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peer import files
from peer.core import limits
from peer.methods.registry import PLANS
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.invariants import Referee

NUMBERS = 16
"""Of an artifact, while no fault makes it larger."""
NOT_A_NUMBER = b"\xff" * 4
PIDS = itertools.count(1 << 23)  # above the system's largest: no signal meets a real process


@dataclass
class Pace:
    """How a site's worker works now; faults change it."""

    work_s: float = 1.0
    numbers: int = NUMBERS
    hung_until_s: float = 0.0
    crashes: int = 0


class NoLog:
    """In place of the log that takes a worker's output: this worker writes none."""

    def __init__(self, path: Path) -> None:
        pass

    @contextlib.contextmanager
    def writer(self) -> Iterator[int]:
        yield -1

    async def last_line(self) -> str:
        return "it said nothing"


@dataclass
class SimulatedWorker:
    """A worker process and the daemon's line to it, as asyncio's transports show them."""

    process: Process
    pace: Pace
    rng: random.Random
    watcher: Referee
    pid: int = field(default_factory=lambda: next(PIDS))
    code: int | None = None

    def __post_init__(self) -> None:
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ended: asyncio.Event = asyncio.Event()
        self._buffer = b""
        self._protocol: Any = None
        self._task: asyncio.Task[None] | None = None

    # --- the process, as asyncio.subprocess.Process calls it ---
    def get_pid(self) -> int:
        return self.pid

    def get_returncode(self) -> int | None:
        return self.code

    async def _wait(self) -> int | None:
        await self._ended.wait()
        return self.code

    def kill(self) -> None:
        self._end(-9)

    def terminate(self) -> None:
        self._end(-15)

    def _end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self._ended.set()
            if self._task is not None:
                self._task.cancel()
            if self._protocol is not None:
                asyncio.get_running_loop().call_soon(self._hang_up)

    def _hang_up(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.eof_received()
            protocol.connection_lost(None)

    # --- the line, as asyncio.StreamWriter calls it ---
    def connect(self, protocol: Any) -> SimulatedWorker:
        self._protocol = protocol
        protocol.connection_made(self)
        self._task = asyncio.get_running_loop().create_task(self._work())
        return self

    def write(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._orders.put_nowait(json.loads(line))

    def writelines(self, lines: Any) -> None:
        self.write(b"".join(lines))

    def is_closing(self) -> bool:
        return self._protocol is None or self.process.dead

    def abort(self) -> None:
        """The daemon closes the line, and the worker ends."""
        self._end(0)

    close = abort

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    # --- the work ---
    async def _work(self) -> None:
        setting = await self._orders.get()
        hands = Hands(setting, self.pace, self.rng, self.watcher)
        while True:
            order = await self._orders.get()
            try:
                await self._perform(hands, order)
            except OSError:
                self._end(1)
                return
            except Exception as error:
                self.watcher.fail(f"{self.process.site}'s worker: {type(error).__name__}: {error}")

    async def _perform(self, hands: Hands, order: dict[str, Any]) -> None:
        kind = order["type"]
        if kind == "Halt":
            self._say("Halted", order)
            return
        steps = 4 if kind == "Train" else 1
        for step in range(1, steps + 1):
            await asyncio.sleep(self.pace.work_s / steps * (0.5 + self.rng.random()))
            await asyncio.sleep(max(0.0, self.pace.hung_until_s - asyncio.get_running_loop().time()))
            if self.pace.crashes:
                self.pace.crashes -= 1
                self._end(-9)
                await asyncio.sleep(3600.0)
            if kind == "Train":
                self._say("Progressed", order, stage=order["stage"], step=step, steps=steps, losses={"total": 0.5})
        try:
            kind, facts = getattr(hands, kind.lower())(order)
        except Unusable as error:
            source = error.source
            facts = {"origin": source["origin"], "sha256": source["artifact"]["sha256"], "lost": error.lost}
            kind, facts = "ArtifactRejected", facts | {"reason": "its file is gone" if error.lost else "it holds a NaN"}
        self._say(kind, order, **facts)

    def _say(self, kind: str, order: Mapping[str, Any], **facts: Any) -> None:
        answer = {key: order[key] for key in ("generation", "round", "attempt") if key in order}
        if self._protocol is not None:
            self._protocol.data_received(json.dumps({"type": kind, **answer, **facts}).encode() + b"\n")


def artifact_file(numbers: bytes) -> bytes:
    """A safetensors file of one tensor, whose float32 numbers these bytes are."""
    place = {"dtype": "F32", "shape": [len(numbers) // 4], "data_offsets": [0, len(numbers)]}
    header = json.dumps({"w": place}).encode()
    return struct.pack("<Q", len(header)) + header + numbers


class Unusable(Exception):  # noqa: N818 - the name is the fact
    """A source holds no numbers, or its file is gone."""

    def __init__(self, source: Mapping[str, Any], *, lost: bool) -> None:
        self.source, self.lost = source, lost


class Hands:
    """Carries out orders: reads and writes the files of a site."""

    def __init__(self, setting: Mapping[str, Any], pace: Pace, rng: random.Random, watcher: Referee) -> None:
        self._site, self._home = setting["site_name"], Path(setting["home"])
        self._plan = PLANS[setting["federation"]["method"]["name"]]
        self._sums = setting["federation"]["aggregate"]["secure"]
        self._pace, self._rng, self._watcher = pace, rng, watcher

    def initialise(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        given = self._artifact(1) if self._plan.published == "commit" else None
        self._save("initial", [], given)
        samples = {"training": 4, "test": 20, "unreadable": 0}
        return "Initialised", {"state": "initial", "artifact": given, "samples": samples, "threads": 1, "device": "cpu"}

    def train(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        round, stage, circulate = order["round"], order["stage"], order["circulate"]
        history = self._load(order["base"])["history"]
        digests = [self._read(order, source) for source in order["sources"]]
        steps = max((source["artifact"]["steps"] for source in order["sources"]), default=0) + 1
        steps = min(steps, limits.STEPS_MAX)
        given, visits = None, self._plan.pattern == "visit"
        returned = [
            self._artifact(round, owner=source["artifact"]["owner"], steps=steps, kind="return")
            for source in (order["sources"] if visits else ())
        ]
        if self._plan.published in (stage, "commit") and not visits:
            given = self._artifact(round, owner=circulate or self._site, steps=steps)
        state = order["base"] if circulate else f"round-{round:06}-{stage}"
        if not circulate:
            self._save(state, [*history, [round, stage, digests]], given)
        done = {"metrics": {"train_total": 0.5}, "threads": 1, "duration_s": 0.25}
        return "Trained", {"stage": stage, "state": state, "artifact": given, "returned": returned, **done}

    def aggregate(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        round, base = order["round"], self._load(order["base"])
        digests = [self._read(order, source) for source in order["sources"]]
        if self._plan.pattern == "visit":
            return self._merge(order, base["history"], digests)
        own = [base["given"]["sha256"]] if base["given"] else []  # who joins has nothing to average in its first round
        if order["total"] is not None:
            digests = [self._read_total(order, own)]
            own = []
        mean = hashlib.sha256("".join(sorted([*own, *digests])).encode()).hexdigest()
        state = f"round-{round:06}-mean"
        self._save(state, [*base["history"], [round, "mean", digests]], base["given"])
        names = sorted({self._site, *(source["origin"] for source in order["sources"])})
        return "Aggregated", {"state": state, "sha256": mean, "contributors": names}

    def _read_total(self, order: Mapping[str, Any], own: list[str]) -> str:
        """Use the sum of the contributors' artifacts: its file must be whole, and be their sum."""
        digest: str = order["total"]["sha256"]
        path = files.artifact_path(self._home / "artifacts", digest)
        if not path.exists() and self._watcher.may_vanish(self._site, digest):
            raise Unusable({"origin": self._site, "artifact": order["total"]}, lost=True)
        content = path.read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, f"{self._site}: the file of a total is not whole: {path}"
        (length,) = struct.unpack_from("<Q", content)
        places, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        first, last = places["w"]["data_offsets"]
        self._watcher.added_up(self._site, order, own[0], np.frombuffer(data[first:last]))
        return digest

    def _merge(self, order: Mapping[str, Any], history: list[Any], digests: list[str]) -> tuple[str, dict[str, Any]]:
        """Average the own model with the copies that came home."""
        round, state = order["round"], f"round-{order['round']:06}-merged"
        copies = {source["artifact"]["owner"] for source in order["sources"]}
        assert copies <= {self._site}, f"{self._site} merges models of {copies}"
        given = self._artifact(round + 1)
        self._save(state, [*history, [round, "merged", digests]], given)
        names = sorted({self._site, *(source["origin"] for source in order["sources"])})
        facts = {"state": state, "sha256": given["sha256"], "contributors": names, "artifact": given}
        return "Aggregated", facts

    def adopt(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        history = self._load(order["base"])["history"]
        digest = self._read(order, order["source"])
        artifact = self._artifact(order["round"], steps=order["source"]["artifact"]["steps"])
        self._save("home", [*history, [order["round"], "home", [digest]]], artifact)
        return "Adopted", {"state": "home", "artifact": artifact}

    def evaluate(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self._load(order["base"])
        lent = {"artifact": self._artifact(order["round"])} if order["lent"] else {}
        return "Evaluated", {"metrics": {"auc": 0.75, "samples": 20.0}, **lent}

    def measure(self, order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self._read(order, order["source"])
        return "Measured", {"metrics": {"auc": 0.5, "samples": 20.0}}

    def _artifact(self, round: int, *, owner: str = "", steps: int = 0, kind: str = "") -> dict[str, Any]:
        """A fresh model, written durably."""
        numbers = self._pace.numbers
        drawn = self._rng.randbytes(4 * numbers)
        if self._sums:  # any bytes may be no number, which no sum has a place for
            drawn = (np.frombuffer(drawn, "<i4") / 2**25).astype("<f4").tobytes()
        content = artifact_file(drawn)
        digest = hashlib.sha256(content).hexdigest()
        files.write_file(files.artifact_path(self._home / "artifacts", digest), content)
        self._watcher.made(self._site, round, owner or self._site, digest, drawn)
        own = {
            "kind": kind or self._plan.artifact or "model",
            "owner": owner or self._site,
            "spec": {"name": "resnet10"},
        }
        return {**own, "steps": steps, "sha256": digest, "bytes": len(content)}

    def _read(self, order: Mapping[str, Any], source: Mapping[str, Any]) -> str:
        """Use a source: its file must be whole."""
        digest: str = source["artifact"]["sha256"]
        path = files.artifact_path(self._home / "artifacts", digest)
        if not path.exists() and self._watcher.may_vanish(self._site, digest):
            raise Unusable(source, lost=True)
        content = path.read_bytes() if path.exists() else b""
        assert hashlib.sha256(content).hexdigest() == digest, f"{self._site}: the file of a source is not whole: {path}"
        if content.endswith(NOT_A_NUMBER * NUMBERS):
            raise Unusable(source, lost=False)
        self._watcher.used(self._site, order, source)
        return digest

    def _save(self, state: str, history: list[Any], given: Any) -> None:
        document = json.dumps({"history": history, "given": given})
        files.write_file(self._home / "checkpoints" / state, document.encode())

    def _load(self, state: str) -> dict[str, Any]:
        path = self._home / "checkpoints" / state
        assert path.exists(), f"{self._site}: the journal names a state that is not on disk: {state}"
        loaded: dict[str, Any] = json.loads(path.read_bytes())
        return loaded


def spawn(pace_of: Callable[[str], Pace], rng_of: Callable[[str], random.Random], watcher: Referee) -> Any:
    """How the loop starts a worker."""

    def start(process: Process, command: tuple[str, ...]) -> SimulatedWorker:
        worker = SimulatedWorker(process, pace_of(process.site), rng_of(process.site), watcher)
        process.disk.newest_worker = worker
        return worker

    assert not os.path.exists(f"/proc/{1 << 23}"), "a process of this machine has the number of a simulated one"
    return start
