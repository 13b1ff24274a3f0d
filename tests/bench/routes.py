"""Throughput and heartbeats by each route: direct, through squid, through a relay, through both, and on a thin line.

``python tests/bench/run.py routes``. As root on Linux with squid, every end is on a host of its own
(``tests/fakes/namespaces.py``). Elsewhere all ends are on loopback, and what needs more is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from row import Row, below
from transfer import AFRICA, EUROPE, FEDERATION, FolderService, admit, describe, make_offer, pki, write_artifact

from fakes import namespaces, squid
from peer import allocator
from peer.core import limits
from peer.core.messages import Heartbeat
from peer.core.roster import Roster, Sha256, SiteName
from peer.net.relay.parking import Parkings
from peer.net.relay.server import RelayServer
from peer.net.transport.client import ExchangeClient, Unreachable
from peer.net.transport.proxy import Proxy, direct
from peer.net.transport.server import ExchangeServer

GATE = SiteName("gate")
PORT = 443
SLOW_MEGABITS = 10
BEATS = 20
BEAT_S = 0.2
LIMIT_S = 180.0
PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)


class BeatingService(FolderService):
    """Sends artifacts, and answers heartbeats."""

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        return pulse


async def until_end(port: int) -> None:
    """Say where this process listens, and wait until the bench ends it."""
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def relay(folder: Path, host: str, port: int) -> None:
    keys = pki(folder, GATE)
    server = RelayServer(GATE, lambda: keys.stream_context(ssl.PROTOCOL_TLS_SERVER), frozenset({EUROPE}))
    await until_end(await server.start(host, port))
    await server.stop()


async def serve(folder: Path, listen: str, relay_address: str) -> None:
    """Europe: it listens, and parks at the relay."""
    keys = pki(folder, EUROPE)
    server = ExchangeServer(BeatingService(folder), pki=keys, roster=Roster.of([EUROPE, AFRICA]))
    port = await server.start(listen)
    parkings = Parkings(
        [(GATE, relay_address)], pki=keys, listen=listen, proxy_for=direct, on_caller=server.note_relayed
    )
    parkings.start(port)
    await until_end(port)
    await parkings.close()
    await server.stop()


async def call(folder: Path, address: str, proxy: str, sha256: Sha256, repetitions: int) -> None:
    """Africa: print how long heartbeats and artifacts took by one route."""
    through = None if not proxy else Proxy(proxy.rpartition(":")[0], int(proxy.rpartition(":")[2]))
    client = ExchangeClient(
        pki=pki(folder, AFRICA),
        federation=FEDERATION,
        address=lambda _: address,
        proxy_for=lambda peer, where: through,
    )
    offer = make_offer(describe(folder, sha256))
    inbox = folder / "inbox"
    inbox.mkdir(exist_ok=True)

    async def beat() -> float:
        began_s = time.perf_counter()
        await client.beat(EUROPE, PULSE)
        return time.perf_counter() - began_s

    async with asyncio.timeout(LIMIT_S):
        while True:  # until europe has parked
            with contextlib.suppress(Unreachable):
                await beat()
                break
        figures: dict[str, list[float]] = {"idle": [await beat() for _ in range(BEATS)], "beside": [], "fetch": []}
        (await client.fetch(offer, inbox)).unlink()  # the first one opens the second connection
        for _ in range(repetitions):
            began_s = time.perf_counter()
            fetching = asyncio.ensure_future(client.fetch(offer, inbox))
            while not fetching.done():
                figures["beside"].append(await beat())
                await asyncio.wait([fetching], timeout=BEAT_S)
            (await fetching).unlink()
            figures["fetch"].append(time.perf_counter() - began_s)
    await client.close()
    print(json.dumps(figures))


class Bench:
    """Europe, the relay and squid, each on a host of its own where that can be."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        admit(self.folder, (EUROPE, AFRICA, GATE))
        self.hosts = None
        if not namespaces.missing():
            self.hosts = stack.enter_context(namespaces.hosts(EUROPE, AFRICA, GATE, "proxy"))
        self.proxy = ""
        if self.hosts and not squid.missing():
            stack.enter_context(squid.Squid(self.hosts.inside("proxy"), self.hosts.address["proxy"]))
            self.proxy = f"{self.hosts.address['proxy']}:{squid.PROXY_PORT}"
        self.gate = self._start(GATE, "relay")
        self.europe = self._start(EUROPE, "serve", self.gate)

    def _command(self, host: str, *words: object) -> list[str]:
        command = [sys.executable, __file__, *map(str, words)]
        return self.hosts.inside(host, *command) if self.hosts else command

    def _start(self, host: SiteName, way: str, *words: str) -> str:
        """Start a process that listens; its address."""
        address = self.hosts.address[host] if self.hosts else "127.0.0.1"
        asked = PORT if self.hosts else 0
        command = self._command(host, way, self.folder, address, asked, *words)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.communicate)
        assert process.stdout is not None
        return f"{address}:{process.stdout.readline().strip()}"

    @property
    def ways(self) -> Mapping[str, tuple[str, str]]:
        """The address and the proxy of each route."""
        ways = {"direct": (self.europe, ""), "by relay": (self.gate, "")}
        if self.proxy:
            ways |= {"by proxy": (self.europe, self.proxy), "by proxy and relay": (self.gate, self.proxy)}
        return ways

    def time(self, way: tuple[str, str], sha256: str, repetitions: int) -> Any:
        command = self._command(AFRICA, "call", self.folder, *way, sha256, repetitions)
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=2 * LIMIT_S)
        return json.loads(finished.stdout)


def measure(*, quick: bool) -> list[Row]:
    """A route's throughput, and its heartbeats alone and beside an artifact."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench(stack)
        megabytes, repetitions = (20, 3) if quick else (250, 5)
        sha256 = write_artifact(bench.folder, megabytes).sha256
        for name, way in bench.ways.items():
            rows += figures(name, bench.time(way, sha256, repetitions), megabytes)
        if bench.hosts:
            bench.hosts.slow_down(AFRICA, SLOW_MEGABITS)
            megabytes = 4 if quick else 12
            sha256 = write_artifact(bench.folder, megabytes).sha256
            for name, way in bench.ways.items():
                rows += figures(f"{SLOW_MEGABITS} Mbit/s {name}", bench.time(way, sha256, 1), megabytes)
    return rows


def figures(name: str, seconds: Mapping[str, Sequence[float]], megabytes: int) -> list[Row]:
    """The rows of a route; no heartbeat may take as long as a call may."""
    beside_ms = [1000 * each for each in seconds["beside"]]
    limit_ms = 1000 * limits.BEAT_S * limits.BEAT_TIMEOUT_SHARE
    return [
        Row(f"{name}: {megabytes} MB", megabytes / statistics.median(seconds["fetch"]), "MB/s"),
        Row(f"{name}: heartbeat", 1000 * statistics.median(seconds["idle"]), "ms"),
        Row(f"{name}: heartbeat beside an artifact, median", statistics.median(beside_ms), "ms"),
        below(f"{name}: heartbeat beside an artifact, most", max(beside_ms), "ms", limit_ms),
    ]


if __name__ == "__main__":
    allocator.keep_memory_small()  # as a daemon does
    match sys.argv[1:]:
        case ["relay", folder, host, port]:
            asyncio.run(relay(Path(folder), host, int(port)))
        case ["serve", folder, host, port, gate]:
            asyncio.run(serve(Path(folder), f"{host}:{port}", gate))
        case ["call", folder, address, proxy, sha256, repetitions]:
            asyncio.run(call(Path(folder), address, proxy, Sha256(sha256), int(repetitions)))
