"""BreaKHis: microscopy of breast tumours, eight sub-types at four magnifications.

Layout: ``breast/{benign,malignant}/SOB/<sub-type>/<slide>/{40X,100X,200X,400X}/SOB_<B|M>_<type>-<year>-<slide>-<magnification>-<number>.png``
below ``BreaKHis_v1/histology_slides``. Letters after a slide's number name parts of one case
(22549AB, 22549CD), and the release files the case 14-13412 under two sub-types. The number is the
subject, so that a fold divides no case. The papers count 8,000 images; the release holds 7,909.
"""  # noqa: E501 - a path is one line

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, PublishedCount, by_class, list_pictures

FOLDERS = {
    "benign": ("adenosis", "fibroadenoma", "phyllodes_tumor", "tubular_adenoma"),
    "malignant": ("ductal_carcinoma", "lobular_carcinoma", "mucinous_carcinoma", "papillary_carcinoma"),
}
CLASSES = (*FOLDERS["benign"], *FOLDERS["malignant"])
FILE = re.compile(r"SOB_[BM]_[A-Z]+-(?P<case>[0-9]+-[0-9]+)[A-Z]*-(?P<magnification>[0-9]+)-[0-9]+\.png")
TASKS = ("classification", "super_resolution")
SITE = "breakhis"

PUBLICATION = Publication(
    task="breakhis",
    title="BreaKHis",
    classes=CLASSES,
    layout="breast/{benign,malignant}/SOB/<sub-type>/<slide>/<magnification>/*.png (BreaKHis_v1/histology_slides)",
    reference="Spanhol et al., IEEE Trans Biomed Eng 63(7), 2016, 1455-1462",
    licence="CC BY-NC 4.0",
    counts=(
        PublishedCount("samples", 7909),
        *by_class(CLASSES, (444, 1014, 453, 569, 3451, 626, 792, 560)),
        PublishedCount("40X", 1995, {"magnification": 40}),
        PublishedCount("100X", 2081, {"magnification": 100}),
        PublishedCount("200X", 2013, {"magnification": 200}),
        PublishedCount("400X", 1820, {"magnification": 400}),
        PublishedCount("slides, by folder", 82, of="slide"),
    ),
)


def gather(pool: PublicSet, benign: Path, *, task: str = TASKS[0]) -> None:
    """Add every picture; in super-resolution a picture has no label: it is its own target."""
    if task != TASKS[0]:
        pool.publication = _without_labels()
    for tumour, names in FOLDERS.items():
        for name in names:
            for path in sorted((benign.parents[1] / tumour / "SOB" / name).glob("*/*X")):
                for picture in list_pictures(path):
                    _add(pool, picture, tumour, name, labelled=task == TASKS[0])


def _without_labels() -> Publication:
    """Describe the set for super-resolution: samples have no label, so counts use the lesion instead."""
    counts = tuple(
        dataclasses.replace(count, where={"lesion": CLASSES[count.where["label"]]}) if "label" in count.where else count
        for count in PUBLICATION.counts
    )
    return dataclasses.replace(PUBLICATION, kind="super_resolution", classes=(), counts=counts)


def _add(pool: PublicSet, picture: Path, tumour: str, name: str, *, labelled: bool) -> None:
    if (match := pool.match(FILE, picture.name)) is None:
        return
    pool.add(
        image=str(picture),
        label=CLASSES.index(name) if labelled else None,
        subject=f"case-{match['case']}",
        site=SITE,
        slide=picture.parent.parent.name,
        lesion=name,
        tumour=tumour,
        magnification=int(match["magnification"]),
    )


prepare = Adapter(PUBLICATION, gather, [["benign/SOB"]], {"task": TASKS}).prepare
