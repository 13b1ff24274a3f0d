"""Duration of the commands for which a person waits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from row import Row, below

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
PROGRAM = Path(sys.executable).with_name("mhfl-peer")
BEST_OF = 5
START_S_MAX = 0.3


def measure(*, quick: bool) -> list[Row]:
    """``--help``, and ``status`` of a site whose daemon is down."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(EXAMPLES / "federation.toml", folder / "draft.toml")
        seconds(folder, "federation", "create", "draft.toml", "--out", "ca")
        seconds(folder, "site", "init", "--federation", "ca/federation.toml", "--site", "europe")
        return [
            below(f"mhfl-peer {command}", min(seconds(folder, command) for _ in range(BEST_OF)), "s", START_S_MAX)
            for command in ("--help", "status")
        ]


def seconds(folder: Path, *arguments: str) -> float:
    """The wall time of one run of the program, with its state in ``folder``."""
    environment = {**os.environ, "MHFL_HOME": str(folder / "home")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
    start = time.perf_counter()
    subprocess.run([PROGRAM, *arguments], cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start
