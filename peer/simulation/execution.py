"""One run, from its folder to its result."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer.errors import LockedError
from peer.simulation.federation import Simulation
from peer.simulation.harvest import harvest
from peer.simulation.runs import RESULT

WATCH_S = 0.5
"""How often a watcher's file is written."""


def execute(folder: Path, *, keep: bool = False) -> dict[str, Any]:
    """Run what ``run.json`` in the folder says, and write its result.

    Args:
        folder: of ``peer.simulation.runs.Run``.
        keep: leave journals, checkpoints and artifacts, so that `predict` or another federation can use them.

    Returns:
        The document of ``result.json``.

    Raises:
        LockedError: another process carries out this run.
        PeerError: a site cannot train; the message names it.
    """
    with _alone(folder):
        result = folder / RESULT
        if result.exists():  # another process finished it meanwhile
            finished: dict[str, Any] = json.loads(result.read_text())
            return finished
        return _execute(folder, keep=keep)


def _execute(folder: Path, *, keep: bool) -> dict[str, Any]:
    gc.collect()  # of the run before, if there was one
    gc.freeze()  # what was imported stays: the collection after each stage need not look at it
    asked = json.loads((folder / "run.json").read_text())
    started_s = shown_s = time.monotonic()
    key = bytes.fromhex(asked["round_key"])
    simulation = Simulation(folder, round_key=key, loss=asked["loss"], pooled=asked["pooled"])
    progress = folder / "progress"

    def watch(committed: int, rounds: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= WATCH_S:
            shown_s = time.monotonic()
            progress.write_text(f"{committed} {rounds}")

    members = simulation.run(watch)
    result = harvest(simulation, members, asked, folder, seconds=time.monotonic() - started_s)
    progress.unlink(missing_ok=True)
    if not keep:
        simulation.clear()
    return result


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the run for this process; the kernel lets go when the process ends, however it ends.

    A run goes on in its own process when the one that started it is killed: who starts it again must not join in.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"{folder}: another process carries out this run", "wait until it ends, or end it, and run it again"
            ) from None
        yield
