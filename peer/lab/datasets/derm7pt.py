"""Derm7pt: dermoscopy of 1,011 lesions in five classes (the Seven-Point Checklist's data).

Layout: ``meta/meta.csv``, ``meta/{train,valid,test}_indexes.csv`` and ``images/``, in
``release_v0``. The 20 diagnoses form five groups, as in the publishers' own code. A case is one
lesion with one dermoscopic picture; its patient was not published. ``meta.csv`` writes the names of
some files in another letter case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from peer.errors import DataError
from peer.lab.datasets.public_set import (
    Adapter,
    Publication,
    PublicSet,
    PublishedCount,
    by_class,
    by_split,
    read_table,
)

CLASSES = ("BCC", "NEV", "MEL", "MISC", "SK")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "BCC": ("basal cell carcinoma",),
    "NEV": (
        "blue nevus", "clark nevus", "combined nevus", "congenital nevus", "dermal nevus", "recurrent nevus",
        "reed or spitz nevus",
    ),
    "MEL": (
        "melanoma", "melanoma (in situ)", "melanoma (less than 0.76 mm)", "melanoma (0.76 to 1.5 mm)",
        "melanoma (more than 1.5 mm)", "melanoma metastasis",
    ),
    "MISC": ("dermatofibroma", "lentigo", "melanosis", "miscellaneous", "vascular lesion"),
    "SK": ("seborrheic keratosis",),
}  # fmt: skip
LABELS = {diagnosis: label for label, name in enumerate(CLASSES) for diagnosis in GROUPS[name]}

META = "meta/meta.csv"
SPLITS = ("train", "valid", "test")
SITE = "derm7pt"

PUBLICATION = Publication(
    task="derm7pt",
    title="Derm7pt, dermoscopy",
    classes=CLASSES,
    layout="meta/meta.csv and images/ (release_v0)",
    reference="Kawahara et al., IEEE J Biomed Health Inform 23(2), 2019, 538-546",
    licence="the publishers' terms: research and education, do not redistribute",
    counts=(
        PublishedCount("samples", 1011),
        *by_class(CLASSES, (42, 575, 252, 97, 45)),
        *by_split(SPLITS, (413, 203, 395)),
    ),
)


def gather(pool: PublicSet, meta: Path) -> None:
    """Add the picture of every case."""
    base = meta.parents[1]
    rows = read_table(meta, ("case_num", "diagnosis", "derm", "sex", "location"))
    sides = _sides(base)
    images = base / "images"
    files = {path.relative_to(images).as_posix().lower(): path for path in images.rglob("*") if path.is_file()}
    for index, row in enumerate(rows):
        if row["diagnosis"] not in LABELS:
            raise DataError(f"{meta}: case {row['case_num']} has the unknown diagnosis {row['diagnosis']!r}")
        if row["derm"].lower() not in files:
            pool.absent.append(row["derm"])
            continue
        label = LABELS[row["diagnosis"]]
        pool.add(
            image=str(files[row["derm"].lower()]),
            label=label,
            subject=f"case-{row['case_num']}",
            site=SITE,
            lesion=CLASSES[label],
            diagnosis=row["diagnosis"],
            sex=row["sex"] or None,
            location=row["location"] or None,
            published_split=sides.get(index),
        )


def _sides(base: Path) -> dict[int, str]:
    """Return the published split of each row of the meta-data, counted from 0."""
    sides = {}
    for side in SPLITS:
        path = base / "meta" / f"{side}_indexes.csv"
        for row in read_table(path, ("indexes",)):
            if not row["indexes"].isdecimal():
                raise DataError(f"{path} has the index {row['indexes']!r}", "download it again")
            sides[int(row["indexes"])] = side
    return sides


prepare = Adapter(PUBLICATION, gather, [[META]]).prepare
