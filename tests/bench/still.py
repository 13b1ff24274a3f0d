"""A site's daemon without training: ``python tests/bench/still.py HOME FEDERATION SITE MEGABYTES``.

Everything but the worker is the real thing. In the worker's place stands one that has a new artifact of the wanted size
ready and waits. On its output stands ``ordered ROUND ORIGIN`` when a round's exchange is over and journalled, and
``ready`` once the round's artifact is on disk; a line of input then ends the training. The end of the input stops it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Coroutine
from pathlib import Path

from transfer import artifact

from peer.config import logs
from peer.config.site_folder import SiteFolder, make_private
from peer.core import commands, events
from peer.core.messages import Artifact
from peer.core.roster import SiteName
from peer.daemon import startup
from peer.daemon.dispatch import Daemon
from peer.daemon.operator_service import OperatorService
from peer.transport.control import ControlServer

STATE = "none"


class Still:
    """Stands where the foreman stands; it answers the orders that occur before the last round's training ends."""

    pid = None

    def __init__(self, daemon: Daemon, megabytes: int, lines: asyncio.StreamReader) -> None:
        self._daemon = daemon
        self._megabytes = megabytes
        self._lines = lines
        self._work: asyncio.Task[None] | None = None

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
                raise ValueError(f"{type(order).__name__} belongs to no round that is measured")

    async def close(self) -> None:
        """Drop the order in hand."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work)

    async def _initialise(self, order: commands.Initialise) -> None:
        made = await asyncio.to_thread(self._make)
        self._daemon.report(events.Initialised(order.generation, order.attempt, STATE, made, {}, 1, "cpu"))

    async def _train(self, order: commands.Train) -> None:
        print("ordered", order.round, *(source.origin for source in order.sources), flush=True)
        made = None
        if order.round < self._daemon.federation.rounds:
            made = await asyncio.to_thread(self._make)
        print("ready", flush=True)
        if not await self._lines.readline():
            self._daemon.report(events.StopRequested())
            return
        said = (order.generation, order.round, order.attempt, order.stage)
        self._daemon.report(events.Trained(*said, STATE, made, {}, 1, 0.0))

    def _make(self) -> Artifact:
        """A new artifact, on disk, so that writing it back does not disturb the round that it is made for."""
        folder = self._daemon.artifacts
        made: Artifact = artifact(folder, self._megabytes)
        with (folder / f"{made.sha256}.safetensors").open("rb") as file:
            os.fsync(file.fileno())
        return dataclasses.replace(made, owner=self._daemon.own.name)


async def serve(folder: SiteFolder, megabytes: int) -> None:
    """Run the daemon of a new generation until its input ends."""
    federation, site, own = startup.load(folder)
    daemon = Daemon(folder=folder, federation=federation, site=site, own=own, generation=folder.create_generation())
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    daemon.worker_process = Still(daemon, megabytes, lines)  # type: ignore[assignment]  # all that a daemon asks of its foreman
    control = ControlServer(OperatorService(daemon))
    await control.start(folder.prepare_control_socket())
    daemon.stop_on_signals()
    try:
        await daemon.run(listening)
    finally:
        await control.stop()


async def listening(port: int) -> None:
    """Nobody needs to be told."""


def main() -> None:
    """Hold the site's folder and serve."""
    home, federation, name, megabytes = sys.argv[1:]
    folder = SiteFolder(Path(home), federation, SiteName(name))
    make_private(folder.logs)
    with folder.locked():
        logs.set_up(folder.logs, {}, quiet=True)
        startup.keep_memory_small()
        asyncio.run(serve(folder, int(megabytes)))


if __name__ == "__main__":
    main()
