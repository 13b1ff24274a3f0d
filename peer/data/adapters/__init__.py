"""Data sets that ``mhfl-peer data prepare`` turns into datalists for sites and experiments.

The module of each data set has ``prepare(out, *, ...) -> summary``, and is imported only when its
data set is prepared. An installed package names the modules of its data sets by entry points.
``prepare`` raises ``DataError`` where the data or the package that holds them is missing or
damaged, ``StateError`` where ``out`` is not empty, and ``DiskError`` where it cannot be written.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from peer.errors import DataError

PACKAGED: dict[str, str] = {
    "atlas-fmri": "peer.data.adapters.atlas",
    "dermoscopy-sr": "peer.data.adapters.dermoscopy",
    "digits": "peer.data.adapters.digits",
    "eeg": "peer.data.adapters.eeg",
    "lidc": "peer.data.adapters.lidc",
    "mni-tissue": "peer.data.adapters.tissue",
}
"""Read from installed packages; ``prepare(out, *, seed=0, ...)`` writes sites' folders or a pool."""

PUBLISHED: dict[str, str] = {
    "abide": "peer.data.adapters.abide",
    "breakhis": "peer.data.adapters.breakhis",
    "derm7pt": "peer.data.adapters.derm7pt",
    "fed-isic2019": "peer.data.adapters.isic",
    "fed-ixi": "peer.data.adapters.ixi",
    "lung-masks": "peer.data.adapters.lungs",
    "oct2017": "peer.data.adapters.oct2017",
    "odir": "peer.data.adapters.odir",
    "pneumonia": "peer.data.adapters.pneumonia",
    "polyp": "peer.data.adapters.polyp",
    "sleep-edf": "peer.data.adapters.sleep",
}
"""Read from a downloaded folder; ``prepare(out, *, source, ...)`` writes ``pool.json``."""

DATASETS: dict[str, str] = {**PACKAGED, **PUBLISHED}

ENTRY_POINTS = "mhfl_peer.datasets"
"""The group in which an installed package names the modules of its data sets: ``name = "module"``.
"""


def installed_datasets() -> list[str]:
    names = {entry_point.name for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted(names - DATASETS.keys())


def dataset_module(name: str) -> ModuleType:
    """The module that prepares a data set; ``DataError`` unless exactly one package has it."""
    if name in DATASETS:
        return importlib.import_module(DATASETS[name])
    entry_points = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name))
    packages = [f"{point.dist.name}=={point.dist.version}" for point in entry_points if point.dist is not None]
    if len(entry_points) != 1:
        raise DataError(
            f"data set {name!r} comes with {' and '.join(packages) or 'no package that is installed'}",
            "install the one package that you want it from",
        )
    module = entry_points[0].load()
    if not isinstance(module, ModuleType) or not hasattr(module, "prepare"):
        raise DataError(f"data set {name!r} of {packages[0]} names no module with prepare()", "ask its makers")
    return module
