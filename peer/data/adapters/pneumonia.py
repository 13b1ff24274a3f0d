"""Chest X-rays of children with and without pneumonia.

Layout: ``{train,val,test}/{NORMAL,PNEUMONIA}/*.jpeg``, in ``chest_xray``; a name begins with the patient
(``person12_bacteria_47``, ``IM-0115-0001``, ``NORMAL2-IM-1427-0001``; in a later release ``VIRUS-28501-0001``).
Whether the numbers of persons with bacteria and with viruses, or of the published sides, are the same persons was not
published: equal numbers count as one subject, and all pictures are in ``training``, with the published side as
``published_split``. FedDAL prints 5,863 pictures; the release holds 5,856. Some are stored in colour: of those a grey
copy is made.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer.data.adapters import picture_files, prepared_folder
from peer.data.adapters.public_set import Publication, PublicSet, PublishedCount, by_class, by_folder, locate

CLASSES = ("NORMAL", "PNEUMONIA")
SPLITS = ("train", "val", "test")
FILE = re.compile(r"(person[0-9]+|(?:NORMAL2-)?IM-[0-9]+|(?:BACTERIA|VIRUS|NORMAL)-[0-9]+)(?:_(?:bacteria|virus)_|-).+")
PATHOGENS = ("bacteria", "virus")
SITE, IMAGES = "guangzhou", "images"

PUBLICATION = Publication(
    task="pneumonia",
    title="Chest X-ray images (pneumonia)",
    kind="classification",
    spatial_dims=2,
    channels=("grey",),
    classes=CLASSES,
    layout="{train,val,test}/{NORMAL,PNEUMONIA}/*.jpeg (chest_xray)",
    reference="Kermany et al., Cell 172(5), 2018, 1122-1131",
    licence="CC BY 4.0",
    counts=(
        PublishedCount("samples", 5856),
        *by_class(CLASSES, (1583, 4273)),
        PublishedCount("published split train", 5216, {"published_split": "train"}),
        PublishedCount("published split val", 16, {"published_split": "val"}),
        PublishedCount("published split test", 624, {"published_split": "test"}),
    ),
)


def prepare(out: Path, *, source: Path) -> dict[str, Any]:
    """Write ``pool.json`` and ``summary.json``.

    Args:
        out: a folder that is empty or not there.
        source: the folder with ``train/PNEUMONIA``, or one above it.

    Returns:
        The summary.

    Raises:
        DataError: the source is something else.
        StateError: ``out`` is not empty.
        DiskError: ``out`` cannot be written.
    """
    base = locate(source, "train/PNEUMONIA", publication=PUBLICATION).parents[1]
    prepared_folder.make_empty(out)
    pool = PublicSet(PUBLICATION)
    for split, label, path in by_folder(base, SPLITS, CLASSES):
        match = FILE.fullmatch(path.stem)
        if not match:
            pool.dropped["a name of another form"] += 1
            continue
        copy = Path(IMAGES) / f"{split}-{path.stem}.png"
        image = picture_files.readable(path, mode="L", copy=out / copy)
        pool.add(
            {
                "image": str(image if image == path else copy),
                "label": label,
                "subject": match[1],
                "site": SITE,
                "pathogen": next((name for name in PATHOGENS if name in path.stem.lower()), None),
                "published_split": split,
            }
        )
    return pool.write(out, source=source)
