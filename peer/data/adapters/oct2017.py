"""OCT2017: optical coherence tomography of the retina, four classes.

Layout: ``{train,val,test}/{CNV,DME,DRUSEN,NORMAL}/<class>-<patient>-<number>.jpeg``. Equal patients' numbers of
different classes and published sides count as one subject; all pictures are in ``training``, with the published side as
``published_split``, and a fold made by ``subject`` divides no patient. The counts are those of the second release; the
third has 108,309 pictures to train on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer.data.adapters import prepared_folder
from peer.data.adapters.public_set import Publication, PublicSet, PublishedCount, by_class, by_folder, locate

CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
SPLITS = ("train", "val", "test")
FILE = re.compile(r"[A-Z]+-([0-9]+)-[0-9]+")
SITE = "oct2017"

PUBLICATION = Publication(
    task="oct2017",
    title="OCT2017",
    kind="classification",
    spatial_dims=2,
    channels=("grey",),
    classes=CLASSES,
    layout="{train,val,test}/{CNV,DME,DRUSEN,NORMAL}/*.jpeg (OCT2017)",
    reference="Kermany et al., Cell 172(5), 2018, 1122-1131",
    licence="CC BY 4.0",
    counts=(
        PublishedCount("samples", 84484),
        *by_class(CLASSES, (37455, 11598, 8866, 26565)),
        PublishedCount("published split train", 83484, {"published_split": "train"}),
        PublishedCount("published split val", 32, {"published_split": "val"}),
        PublishedCount("published split test", 968, {"published_split": "test"}),
    ),
)


def prepare(out: Path, *, source: Path) -> dict[str, Any]:
    """Write ``pool.json`` and ``summary.json``.

    Args:
        out: a folder that is empty or not there.
        source: the folder with ``train/CNV``, or one above it.

    Returns:
        The summary.

    Raises:
        DataError: the source is something else.
        StateError: ``out`` is not empty.
        DiskError: ``out`` cannot be written.
    """
    base = locate(source, "train/CNV", publication=PUBLICATION).parents[1]
    prepared_folder.make_empty(out)
    pool = PublicSet(PUBLICATION)
    for split, label, picture in by_folder(base, SPLITS, CLASSES):
        match = FILE.fullmatch(picture.stem)
        if match:
            pool.add(
                {"image": str(picture), "label": label, "subject": match[1], "site": SITE, "published_split": split}
            )
        else:
            pool.dropped["a name of another form"] += 1
    return pool.write(out, source=source)
