"""One run, from its folder to its result."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

from peer.simulation.federation import Simulation
from peer.simulation.harvest import harvest

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
        PeerError: a site cannot train; the message names it.
    """
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
