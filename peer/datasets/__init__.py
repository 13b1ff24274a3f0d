"""Data sets that ``mhfl-peer data prepare`` turns into datalists that a site, or an experiment, can train on.

Every module has ``prepare(out, *, ...) -> summary``; it is imported only when its data set is asked for.
"""

PACKAGED: dict[str, str] = {
    "atlas-fmri": "peer.datasets.atlas",
    "dermoscopy-sr": "peer.datasets.dermoscopy",
    "digits": "peer.datasets.digits",
    "eeg": "peer.datasets.eeg",
    "lidc": "peer.datasets.lidc",
    "mni-tissue": "peer.datasets.tissue",
}
"""Read from installed packages: ``prepare(out, *, seed=0, ...)`` writes one folder a site."""

PUBLISHED: dict[str, str] = {
    "abide": "peer.datasets.abide",
    "breakhis": "peer.datasets.breakhis",
    "derm7pt": "peer.datasets.derm7pt",
    "fed-isic2019": "peer.datasets.isic",
    "fed-ixi": "peer.datasets.ixi",
    "lung-masks": "peer.datasets.lungs",
    "oct2017": "peer.datasets.oct2017",
    "odir": "peer.datasets.odir",
    "pneumonia": "peer.datasets.pneumonia",
    "polyp": "peer.datasets.polyp",
    "sleep-edf": "peer.datasets.sleep",
}
"""Read from a folder that the user has downloaded: ``prepare(out, *, source, ...)`` writes ``pool.json``."""

DATASETS: dict[str, str] = {**PACKAGED, **PUBLISHED}
