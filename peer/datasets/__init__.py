"""Data sets that ``mhfl-peer data prepare`` turns into one folder a site, with a datalist that the site can train on.

Every module has ``prepare(out, *, seed=0) -> summary``; it is imported only when its data set is asked for.
"""

DATASETS: dict[str, str] = {
    "atlas-fmri": "peer.datasets.atlas",
    "dermoscopy-sr": "peer.datasets.dermoscopy",
    "eeg": "peer.datasets.eeg",
    "lidc": "peer.datasets.lidc",
    "mni-tissue": "peer.datasets.tissue",
}
