"""Chest X-rays of children with and without pneumonia.

Layout: ``{train,val,test}/{NORMAL,PNEUMONIA}/*.jpeg``, in ``chest_xray``; a name begins with the
patient (``person12_bacteria_47``, ``IM-0115-0001``, ``NORMAL2-IM-1427-0001``; in a later release
``VIRUS-28501-0001``). The publishers do not say whether equal numbers, of bacteria and viruses or
of the published splits, are the same person. The adapter counts equal numbers as one subject (see
`class_folders`). FedDAL counts 5,863 pictures; the release holds 5,856. The adapter writes grey
copies of the pictures stored in colour.
"""

from __future__ import annotations

import re
from pathlib import Path

from peer.lab.datasets import class_folders
from peer.lab.datasets.class_folders import SIDES
from peer.lab.datasets.public_set import Publication, PublishedCount, by_class, by_split

CLASSES = ("NORMAL", "PNEUMONIA")
FILE = re.compile(r"(person[0-9]+|(?:NORMAL2-)?IM-[0-9]+|(?:BACTERIA|VIRUS|NORMAL)-[0-9]+)(?:_(?:bacteria|virus)_|-).+")
PATHOGENS = ("bacteria", "virus")

PUBLICATION = Publication(
    task="pneumonia",
    title="Chest X-ray images (pneumonia)",
    channels=("grey",),
    classes=CLASSES,
    layout="{train,val,test}/{NORMAL,PNEUMONIA}/*.jpeg (chest_xray)",
    reference="Kermany et al., Cell 172(5), 2018, 1122-1131",
    licence="CC BY 4.0",
    counts=(PublishedCount("samples", 5856), *by_class(CLASSES, (1583, 4273)), *by_split(SIDES, (5216, 16, 624))),
)


def pathogen(path: Path) -> dict[str, str | None]:
    """Return the pathogen in a picture's name; its value is None if the name has none."""
    return {"pathogen": next((name for name in PATHOGENS if name in path.stem.lower()), None)}


prepare = class_folders.make_adapter(
    PUBLICATION, marker="train/PNEUMONIA", site="guangzhou", name=FILE, mode="L", extra_keys=pathogen
).prepare
