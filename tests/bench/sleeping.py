"""A site's daemon whose worker sleeps instead of training.

``python tests/bench/sleeping.py HOME FEDERATION SITE MEGABYTES SECONDS`` runs a real daemon. Its worker
takes SECONDS for each order to train, and writes an artifact of that size where a worker would. The
process prints a JSON line at the begin and at the end of each order: the order, its round, its
sources as ``[origin, owner]``, and the time of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from still import FakeWorker, ignore_port, make_daemon, run_locked
from transfer import write_artifact

from peer.core import commands, events
from peer.core.artifacts import Artifact
from peer.core.roster import Sha256, SiteName
from peer.daemon.dispatch import Daemon
from peer.site.config.site_folder import SiteFolder

STATE = "none"
SHORT_S = 0.05
"""Seconds of every order but those to train."""


class SleepingWorker(FakeWorker):
    """Carries out all orders of a measured round."""

    def __init__(self, daemon: Daemon, megabytes: int, seconds: float) -> None:
        super().__init__(daemon, megabytes)
        self._seconds = seconds

    async def send(self, order: commands.Command) -> None:
        """Begin to carry out an order."""
        self._begin(self._answer(order))

    async def _answer(self, order: Any) -> None:
        sources = getattr(order, "sources", ())
        facts = {
            "order": type(order).__name__,
            "round": getattr(order, "round", 0),
            "sources": [[source.origin, source.artifact.owner] for source in sources],
        }
        print(json.dumps({**facts, "at": "begin", "s": time.monotonic()}), flush=True)
        began_s = time.monotonic()
        event = await self._result(order, sources)
        took_s = self._seconds if isinstance(order, commands.Train) else SHORT_S
        await asyncio.sleep(began_s + took_s - time.monotonic())
        print(json.dumps({**facts, "at": "end", "s": time.monotonic()}), flush=True)
        self._daemon.report(event)

    async def _result(self, order: Any, sources: Any) -> events.Event:
        own, rules = self._daemon.own.name, self._daemon.machine.rules
        identity = (order.generation, getattr(order, "round", 0), order.attempt)
        visits = rules.plan.pattern == "visit"
        match order:
            case commands.Initialise():
                return events.Initialised(order.generation, order.attempt, STATE, await self._write(own), {}, 1, "cpu")
            case commands.Train():
                owners = [source.artifact.owner for source in sources] if visits else []
                returned = tuple([await self._write(owner, "return") for owner in owners])
                artifact = None if visits else await self._write(order.circulate or own)
                return events.Trained(*identity, order.stage, STATE, artifact, {}, 1, self._seconds, returned)
            case commands.Aggregate():
                contributors = tuple(sorted({own, *(source.origin for source in sources)}))
                artifact = await self._write(own) if visits else None
                return events.Aggregated(*identity, STATE, Sha256("00" * 32), contributors, artifact=artifact)
            case commands.Adopt():
                return events.Adopted(*identity, STATE, await self._write(own))
            case commands.Evaluate():
                return events.Evaluated(*identity, {})
        return events.Halted(order.generation, order.attempt)

    async def _write(self, owner: str, kind: str | None = None) -> Artifact:
        artifact: Artifact = await asyncio.to_thread(write_artifact, self._daemon.artifacts, self._megabytes)
        kind = kind or self._daemon.machine.rules.plan.artifact
        return dataclasses.replace(artifact, owner=SiteName(owner), kind=kind)


async def serve(folder: SiteFolder, megabytes: int, seconds: float) -> None:
    """Run the daemon of a new generation until it has left."""
    daemon = make_daemon(folder)
    daemon.worker_process = SleepingWorker(daemon, megabytes, seconds)  # type: ignore[assignment]
    await daemon.run(ignore_port)


def main() -> None:
    """Serve a site."""
    home, federation, name, megabytes, seconds = sys.argv[1:]
    folder = SiteFolder(Path(home), federation, SiteName(name))
    run_locked(folder, serve(folder, int(megabytes), float(seconds)))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
