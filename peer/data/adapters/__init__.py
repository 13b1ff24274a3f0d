"""Data sets that ``mhfl-peer data prepare`` turns into datalists that a site, or an experiment, can train on.

Every module has ``prepare(out, *, ...) -> summary``; it is imported only when its data set is asked for.
"""

PACKAGED: dict[str, str] = {
    "atlas-fmri": "peer.data.adapters.atlas",
    "dermoscopy-sr": "peer.data.adapters.dermoscopy",
    "digits": "peer.data.adapters.digits",
    "eeg": "peer.data.adapters.eeg",
    "lidc": "peer.data.adapters.lidc",
    "mni-tissue": "peer.data.adapters.tissue",
}
"""Read from installed packages: ``prepare(out, *, seed=0, ...)`` writes one folder a site."""

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
"""Read from a folder that the user has downloaded: ``prepare(out, *, source, ...)`` writes ``pool.json``."""

DATASETS: dict[str, str] = {**PACKAGED, **PUBLISHED}
