"""Whole daemons in one process: real journals, real TLS on loopback, workers without torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from peer.core import commands, events
from peer.daemon import startup
from peer.daemon.dispatch import Daemon
from peer.lab.demo.local_federation import LocalFederation
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

LIMIT_S = 60.0


class Running:
    """Daemons of one federation, each in a task of its own."""

    def __init__(self, loopback: LocalFederation, fake_worker: Callable[..., tuple[str, ...]]) -> None:
        self.loopback = loopback
        self.fake_worker = fake_worker
        self.daemons: dict[str, Daemon] = {}
        self.tasks: dict[str, asyncio.Task[commands.Exit]] = {}

    def make(self, name: str, mode: str = "works", *, numbers: int = 64, **options: Any) -> Daemon:
        folder = self.loopback.folder(name)
        federation, site, own = startup.load(folder)
        folder.logs.mkdir(exist_ok=True)
        generation = max(folder.generations(), default=0) or folder.create_generation()
        identities = {"folder": folder, "federation": federation, "site": site, "own": own}
        worker = self.fake_worker(mode, numbers=numbers)
        self.daemons[name] = Daemon(**identities, generation=generation, worker=worker, **options)
        return self.daemons[name]

    async def start(self, name: str, mode: str = "works", **options: Any) -> Daemon:
        """Make a daemon, start it, and wait until it serves; its end is ``tasks[name]``."""
        return await self.run(name, self.make(name, mode, **options))

    async def run(self, name: str, daemon: Daemon) -> Daemon:
        """Start a daemon that was made before, as ``start`` does."""
        ready = asyncio.Event()

        async def serving(port: int) -> None:
            ready.set()

        task = self.tasks[name] = asyncio.create_task(daemon.run(serving))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return daemon

    async def end(self, *names: str) -> list[Any]:
        ends = [self.tasks[name] for name in names or self.tasks]
        return await asyncio.wait_for(asyncio.gather(*ends), LIMIT_S)

    async def stop(self) -> None:
        for name, task in self.tasks.items():
            if not task.done():
                self.daemons[name].report(events.StopRequested())
        ends = await asyncio.wait_for(asyncio.gather(*self.tasks.values(), return_exceptions=True), LIMIT_S)
        assert all(isinstance(end, commands.Exit) for end in ends), ends

    def rows(self, name: str) -> list[tuple[str, int, Any]]:
        folder = self.loopback.folder(name)
        journal = Journal(folder.generation(folder.generations()[-1]) / "journal.db", read_only=True)
        rows = list(journal.rows())
        journal.close()
        return rows

    def kinds(self, name: str) -> list[str]:
        return [kind for kind, _, _ in self.rows(name)]

    def sent(self, name: str) -> list[dict[str, Any]]:
        ledger = Ledger(self.loopback.folder(name).egress_db, read_only=True)
        transfers, problems = ledger.transfers(), ledger.verify()
        ledger.close()
        assert problems == []
        return transfers


async def until(daemon: Daemon, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The first status that satisfies a condition, checked after every event of the daemon."""

    async def look() -> dict[str, Any]:
        while True:
            changed, status = daemon.changed, daemon.status()
            if holds(status):
                return status
            await changed.wait()

    return await asyncio.wait_for(look(), LIMIT_S)
