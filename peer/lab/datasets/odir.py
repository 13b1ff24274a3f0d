"""ODIR-5K: colour pictures of the fundus of both eyes, eight classes.

Layout: ``full_df.csv`` (the table of the set's release on Kaggle, with one label an eye), and the
pictures in ``Training Images`` or, cropped and resized, in ``preprocessed_images``; where both
exist, the adapter reads the former. The original ``data.xlsx`` is not enough, since it labels
patients, not eyes. The papers use 6,400 pictures; the table lists 6,392.
"""

from __future__ import annotations

import re
from pathlib import Path

from peer.errors import DataError
from peer.lab.datasets.public_set import (
    Adapter,
    Publication,
    PublicSet,
    PublishedCount,
    by_class,
    parse_number,
    read_table,
)

CODES = ("N", "D", "G", "C", "A", "H", "M", "O")
CLASSES = (
    "normal", "diabetes", "glaucoma", "cataract", "macular degeneration", "hypertension", "myopia", "other",
)  # fmt: skip
TABLE = "full_df.csv"
FOLDERS = ("Training Images", "preprocessed_images")
LABEL = re.compile(r"\['([NDGCAHMO])'\]")
SITE = "odir"

PUBLICATION = Publication(
    task="odir",
    title="ODIR-5K",
    classes=CLASSES,
    layout=f"{TABLE} and '{FOLDERS[0]}' or {FOLDERS[1]} (data.xlsx has no label an eye)",
    reference="Peking University International Competition on Ocular Disease Intelligent Recognition, 2019",
    licence="the organisers' terms",
    counts=(PublishedCount("samples", 6392), *by_class(CLASSES, (2873, 1608, 284, 293, 266, 128, 232, 708))),
)


def gather(pool: PublicSet, table: Path, images: Path) -> None:
    """Add the picture of every eye that the table lists."""
    for row in read_table(table, ("ID", "Patient Age", "Patient Sex", "labels", "filename")):
        match = LABEL.fullmatch(row["labels"])
        if not match:
            raise DataError(f"{table}: {row['filename']} has the labels {row['labels']!r}, not one of {CODES}")
        picture = images / Path(row["filename"]).name
        if not picture.is_file():
            pool.absent.append(picture.name)
            continue
        pool.add(
            image=str(picture),
            label=CODES.index(match[1]),
            subject=row["ID"],
            site=SITE,
            eye="left" if "left" in picture.stem else "right",
            sex=row["Patient Sex"].lower() or None,
            age=parse_number(row["Patient Age"]),
        )


prepare = Adapter(PUBLICATION, gather, [[TABLE], FOLDERS]).prepare
