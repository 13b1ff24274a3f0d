"""What a daemon leaves in the folder of a site, and a stand-in for a module that needs torch."""

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from peer.core.rows import CommittedRow
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal

Row = tuple[str, int, dict[str, Any]]
TRANSFER = {"peer": "europe", "purpose": "train", "kind": "model", "round": 1, "generation": 1, "sha256": "ab" * 32}
"""What a ledger says of an artifact before it leaves; the bytes are missing."""
INITIAL = "round-000000/initial"
INITIALISED: Row = ("initialised", 0, {"state": INITIAL, "artifact": None, "samples": {}, "publish": None})


def committed(number: int, state: str, **body: Any) -> Row:
    """The row of a round in which asia trained alone."""
    row = CommittedRow(
        number, generation=1, sources=(), contributors=("asia",), missing={"europe": "silent"}, below_quorum=False,
        skipped=(), artifact_sha256=None, metrics={}, threads=1, duration_s=1.0, state=state,
    )  # fmt: skip
    return row.kind, number, {**row.body(), **body}


def append_rows(folder: SiteFolder, *rows: tuple[Any, ...], generation: int = 1) -> None:
    """Append rows to the journal of a generation, which begins if it is not there."""
    if generation not in folder.generations():
        folder.create_generation(generation)
    with contextlib.closing(Journal(folder.generation(generation) / "journal.db")) as journal:
        for row in rows:
            journal.append(*row)


def append_paced_rounds(folder: SiteFolder, first: int, last: int, *, pace_s: float, ago_s: float = 0.0) -> None:
    """Append these rounds as committed at such a pace, the last one so many seconds ago."""
    with pytest.MonkeyPatch.context() as clock:
        ended_s = time.time() - ago_s
        for number in range(first, last + 1):
            clock.setattr(time, "time", lambda at_s=ended_s - (last - number) * pace_s: at_s)
            append_rows(folder, ("opened", number, {"sources": [], "jumped": False}), committed(number, INITIAL))


def begin_generation(folder: SiteFolder, *rows: Row) -> None:
    append_rows(folder, *rows, generation=folder.create_generation())


def replace_module(module: str, program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes run this program instead of the module."""
    *packages, name = module.split(".")
    path = folder / "elsewhere"
    for package in packages:
        path /= package
        path.mkdir(parents=True)
        (path / "__init__.py").touch()
    (path / f"{name}.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder / "elsewhere"))


def round_body(**changes: Any) -> dict[str, Any]:
    """The body of the row `committed`, with every key."""
    body = {"generation": 1, "sources": [], "contributors": ["asia"], "missing": {}, "below_quorum": False}
    body |= {"skipped": [], "artifact_sha256": None, "metrics": {}, "threads": 1, "state": "s"}
    return {**body, "duration_s": 2.5, **changes}
