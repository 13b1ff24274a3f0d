"""Fed-IXI of FLamby: T1-weighted brains with brain masks, three hospitals, the published split of each.

Layout: ``IXI_sample/IXI<number>-<hospital>-<scan>/{T1,label}/*.nii.gz`` (the sample of IXI on
Mendeley Data) and FLamby's ``metadata_tiny.csv``, which has the split. The folder's name contains
the hospital.
"""

from __future__ import annotations

import re
from pathlib import Path

from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, PublishedCount, by_site, read_table

SITES = {"Guys": "guys", "HH": "hh", "IOP": "iop"}
SIZES = ((249, 62), (145, 36), (59, 15))
SUBJECTS, TABLE = "IXI_sample", "metadata_tiny.csv"
FOLDER = re.compile(r"IXI(?P<number>[0-9]{3})-(?P<hospital>Guys|HH|IOP)-[0-9]+")
SIDES = {"train": "training", "test": "test"}

PUBLICATION = Publication(
    task="fed-ixi",
    title="Fed-IXI (FLamby)",
    kind="segmentation",
    spatial_dims=3,
    channels=("T1",),
    classes=("background", "brain"),
    layout=f"{SUBJECTS} and FLamby's {TABLE} (flamby/datasets/fed_ixi/metadata)",
    reference="Ogier du Terrail et al., FLamby, NeurIPS 2022; IXI data set, brain-development.org",
    licence="CC BY-SA 3.0",
    counts=(PublishedCount("samples", 566), *by_site(tuple(SITES.values()), SIZES)),
    federated=True,
)


def gather(pool: PublicSet, base: Path, table: Path) -> None:
    """Add every brain whose split is in the table."""
    sides = {row["Patient ID"].zfill(3): row["Split"] for row in read_table(table, ("Patient ID", "Split"))}
    for path in sorted(base.iterdir()):
        match = FOLDER.fullmatch(path.name)
        if not match:
            continue
        files = [sorted((path / kind).glob("*.nii.gz")) for kind in ("T1", "label")]
        if not all(files):
            pool.absent += [
                f"{path.name}/{kind}" for kind, matches in zip(("T1", "label"), files, strict=True) if not matches
            ]
        elif sides.get(match["number"]) not in SIDES:
            pool.dropped[f"not in {TABLE}"] += 1
        else:
            image, label = (matches[0] for matches in files)
            pool.add(
                image=str(image),
                label=str(label),
                subject=f"IXI{match['number']}",
                site=SITES[match["hospital"]],
                side=SIDES[sides[match["number"]]],
            )


prepare = Adapter(PUBLICATION, gather, [[SUBJECTS], [TABLE]]).prepare
