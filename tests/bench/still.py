"""A site's daemon without training: ``python tests/bench/still.py HOME FEDERATION SITE MEGABYTES [OPTION ...]``.

Everything but the worker is real. The fake worker writes a new artifact of this size for each round
and waits. The process prints ``ordered ROUND ORIGIN`` when a round's exchange is over and
journalled, and ``ready`` once the round's artifact is on disk. A line of input then ends the
training. With ``--on-demand``, the worker writes the artifact only after a line of input, too: it
takes neither cores nor disk from sites whose round goes on. With ``--disk=MB_S``, a sync of an
artifact lasts as long as on a disk that writes so many megabytes a second. With ``--mortal``, the
process kills itself when half of the first artifact has left that it trained. The end of the input
stops the daemon.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from transfer import write_artifact

from peer import allocator
from peer.core import commands, events
from peer.core.artifacts import Artifact
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.daemon import startup
from peer.daemon.control_server import ControlServer
from peer.daemon.dispatch import Daemon
from peer.daemon.operator_service import OperatorService
from peer.net.transport.transfer import OutgoingArtifact
from peer.site.config import logs
from peer.site.config.site_folder import SiteFolder, make_private

STATE = "none"


class FakeWorker:
    """What a daemon calls of its worker process; a subclass carries out its orders."""

    pid = None

    def __init__(self, daemon: Daemon, megabytes: int) -> None:
        self._daemon = daemon
        self._megabytes = megabytes
        self._work: asyncio.Task[None] | None = None

    async def use(self, setting: WorkerSetting) -> None:
        """No setting matters to it."""

    async def close(self) -> None:
        """Cancel the order that the worker carries out."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work)


class StillWorker(FakeWorker):
    """Carries out the orders that occur before the last round's training ends."""

    def __init__(
        self, daemon: Daemon, megabytes: int, lines: asyncio.StreamReader, *, on_demand: bool, mortal: bool
    ) -> None:
        super().__init__(daemon, megabytes)
        self._on_demand = on_demand
        self._mortal = mortal
        self._lines = lines

    async def send(self, order: commands.Command) -> None:
        """Begin to carry out an order."""
        match order:
            case commands.Initialise():
                self._begin(self._initialise(order))
            case commands.Train():
                self._begin(self._train(order))
            case commands.Halt(generation, attempt):
                await self.close()
                self._daemon.report(events.Halted(generation, attempt))
            case _:
                raise ValueError(f"{type(order).__name__} does not occur in a measured round")

    async def _initialise(self, order: commands.Initialise) -> None:
        artifact = await asyncio.to_thread(self._write_artifact)
        self._daemon.report(events.Initialised(order.generation, order.attempt, STATE, artifact, {}, 1, "cpu"))

    async def _train(self, order: commands.Train) -> None:
        print("ordered", order.round, *(source.origin for source in order.sources), flush=True)
        artifact = None
        if self._on_demand:
            await self._lines.readline()
            await self._daemon.store.sync()  # a measured round has its disk to itself
            await self._daemon.store.delete_discarded(self._daemon.store.spares)
        if order.round < self._daemon.federation.rounds:
            artifact = await asyncio.to_thread(self._write_artifact)
        print("ready", flush=True)
        if not await self._lines.readline():
            self._daemon.report(events.StopRequested())
            return
        if self._mortal:
            die_in_transfer(self._megabytes << 19)
        identity = (order.generation, order.round, order.attempt, order.stage)
        self._daemon.report(events.Trained(*identity, STATE, artifact, {}, 1, 0.0))

    def _write_artifact(self) -> Artifact:
        """Write an artifact and sync it: the kernel must not write it back during the measured round."""
        folder = self._daemon.artifacts
        artifact: Artifact = write_artifact(folder, self._megabytes)
        with (folder / f"{artifact.sha256}.safetensors").open("rb") as file:
            os.fsync(file.fileno())
        return dataclasses.replace(artifact, owner=self._daemon.own.name)


def make_daemon(folder: SiteFolder) -> Daemon:
    """The daemon of a new generation."""
    federation, site, own = startup.load(folder)
    return Daemon(folder=folder, federation=federation, site=site, own=own, generation=folder.create_generation())


async def serve(folder: SiteFolder, megabytes: int, *, on_demand: bool, mortal: bool) -> None:
    """Run the daemon of a new generation until its input ends."""
    daemon = make_daemon(folder)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    worker = StillWorker(daemon, megabytes, lines, on_demand=on_demand, mortal=mortal)
    daemon.worker_process = worker  # type: ignore[assignment]  # has what the daemon calls
    control = ControlServer(OperatorService(daemon))
    await control.start(folder.prepare_control_socket())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, daemon.report, events.StopRequested())
    try:
        await daemon.run(ignore_port)
    finally:
        await control.stop()


async def ignore_port(port: int) -> None:
    """The daemon calls it with its port, which no test needs."""


def slow_down_disk(megabytes_per_s: float) -> None:
    """Have every later sync of a file of a megabyte or more wait for a slow disk."""
    sync = os.fsync

    def sync_slowly(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size >= 1 << 20:
            time.sleep(size / megabytes_per_s / (1 << 20))
        sync(descriptor)

    os.fsync = sync_slowly


def die_in_transfer(size: int) -> None:
    """Have this process kill itself once it has sent so many bytes of an artifact."""
    send = OutgoingArtifact.send

    async def send_part(artifact: OutgoingArtifact, write: Callable[[bytes], Awaitable[None]], **options: Any) -> None:
        async def write_or_die(chunk: bytes) -> None:
            if artifact.sent >= size:
                os.kill(os.getpid(), signal.SIGKILL)
            await write(chunk)

        await send(artifact, write_or_die, **options)

    OutgoingArtifact.send = send_part  # type: ignore[method-assign]


def run_locked(folder: SiteFolder, work: Coroutine[None, None, None]) -> None:
    """Lock the site's folder, as ``start`` does, and serve until the work is over."""
    make_private(folder.logs)
    with folder.locked():
        logs.set_up(folder.logs, {}, quiet=True)
        allocator.keep_memory_small()
        asyncio.run(work)


def main() -> None:
    """Serve a site."""
    home, federation, name, megabytes, *options = sys.argv[1:]
    for option in options:
        if option.startswith("--disk="):
            slow_down_disk(float(option.removeprefix("--disk=")))
    folder = SiteFolder(Path(home), federation, SiteName(name))
    behaviour = {"on_demand": "--on-demand" in options, "mortal": "--mortal" in options}
    run_locked(folder, serve(folder, int(megabytes), **behaviour))


if __name__ == "__main__":
    main()
