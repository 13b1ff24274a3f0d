"""Data sets that ``mhfl-peer data prepare`` turns into datalists for sites and experiments.

The module of each data set has ``prepare(out, *, ...) -> summary``, and is imported only when its
data set is prepared. An installed package names the modules of its data sets by entry points.
``prepare`` raises ``DataError`` if the data or their package is missing or damaged, ``StateError``
if ``out`` is not empty, and ``DiskError`` if it cannot be written.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from peer.errors import DataError

PACKAGED: dict[str, str] = {
    "arizona-cardiac": "peer.lab.datasets.arizona",
    "atlas-fmri": "peer.lab.datasets.atlas",
    "bone-marrow": "peer.lab.datasets.bone_marrow",
    "dermoscopy-sr": "peer.lab.datasets.dermoscopy",
    "digits": "peer.lab.datasets.digits",
    "eeg": "peer.lab.datasets.eeg",
    "heart-disease": "peer.lab.datasets.heart_disease",
    "lidc": "peer.lab.datasets.lidc",
    "mni-tissue": "peer.lab.datasets.tissue",
    "pbc3": "peer.lab.datasets.pbc3",
    "tonsil-cancer": "peer.lab.datasets.tonsil",
}
"""Read from installed packages; ``prepare(out, *, seed=0, ...)`` writes sites' folders or a pool."""

PUBLISHED: dict[str, str] = {
    "abide": "peer.lab.datasets.abide",
    "breakhis": "peer.lab.datasets.breakhis",
    "derm7pt": "peer.lab.datasets.derm7pt",
    "fed-isic2019": "peer.lab.datasets.isic",
    "fed-ixi": "peer.lab.datasets.ixi",
    "lung-masks": "peer.lab.datasets.lungs",
    "oct2017": "peer.lab.datasets.oct2017",
    "odir": "peer.lab.datasets.odir",
    "pneumonia": "peer.lab.datasets.pneumonia",
    "polyp": "peer.lab.datasets.polyp",
    "sleep-edf": "peer.lab.datasets.sleep",
}
"""Read from a downloaded folder; ``prepare(out, *, source, ...)`` writes ``pool.json``."""

DATASETS: dict[str, str] = {**PACKAGED, **PUBLISHED}

ENTRY_POINTS = "mhfl_peer.datasets"
"""The group in which an installed package names the modules of its data sets: ``name = "module"``."""


def installed_datasets() -> list[str]:
    names = {entry_point.name for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted(names - DATASETS.keys())


def dataset_module(name: str) -> ModuleType:
    """Import the module that prepares a data set. Raise ``DataError`` unless exactly one package has it."""
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
