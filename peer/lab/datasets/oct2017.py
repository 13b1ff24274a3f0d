"""OCT2017: optical coherence tomography of the retina, four classes.

Layout: ``{train,val,test}/{CNV,DME,DRUSEN,NORMAL}/<class>-<patient>-<number>.jpeg``. Equal patient
numbers of different classes and published splits count as one subject (see `class_folders`). The
counts are those of the second release; the third has 108,309 training pictures.
"""

from __future__ import annotations

import re

from peer.lab.datasets import class_folders
from peer.lab.datasets.class_folders import SIDES
from peer.lab.datasets.public_set import Publication, PublishedCount, by_class, by_split

CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")

PUBLICATION = Publication(
    task="oct2017",
    title="OCT2017",
    channels=("grey",),
    classes=CLASSES,
    layout="{train,val,test}/{CNV,DME,DRUSEN,NORMAL}/*.jpeg (OCT2017)",
    reference="Kermany et al., Cell 172(5), 2018, 1122-1131",
    licence="CC BY 4.0",
    counts=(
        PublishedCount("samples", 84484),
        *by_class(CLASSES, (37455, 11598, 8866, 26565)),
        *by_split(SIDES, (83484, 32, 968)),
    ),
)
prepare = class_folders.make_adapter(
    PUBLICATION, marker="train/CNV", site="oct2017", name=re.compile(r"[A-Z]+-([0-9]+)-[0-9]+")
).prepare
