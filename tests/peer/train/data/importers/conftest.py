from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.documents.data import DatalistImported
from peer.train.data.importers.candidates import ImportOptions
from peer.train.data.importers.datalist_writer import import_datalist

Import = Callable[..., DatalistImported]


@pytest.fixture
def import_source(tmp_path: Path) -> Import:
    """Import a source into ``datalist.json``; keywords are options."""

    def imported(source: Path, layout: str | None = None, **options: Any) -> DatalistImported:
        return import_datalist(source, tmp_path / "datalist.json", ImportOptions(**options), layout)

    return imported


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of twelve pictures, ``0.npy`` to ``11.npy``."""
    for number in range(12):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number))
    return tmp_path
