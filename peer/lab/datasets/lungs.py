"""Lung masks: 704 chest X-rays of Montgomery County and Shenzhen.

Layout: ``CXR_png`` and ``masks`` side by side, in ``Lung Segmentation``, and perhaps
``ClinicalReadings``. Montgomery's masks have their pictures' names, the names of Shenzhen's end in
``_mask``; a picture's name ends in 1 where tuberculosis was found. 96 of the 800 pictures have no
mask and are left out. The adapter writes label maps of 0 and 1 from the masks, and grey copies of
pictures stored in colour. The papers divide the pictures at random, not by hospital, so that the
adapter writes only the pool.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer.lab.datasets import picture_files
from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, PublishedCount, list_pictures

HOSPITALS = {"MCUCXR": "montgomery", "CHNCXR": "shenzhen"}
FILE = re.compile(r"(?P<subject>(?P<hospital>MCUCXR|CHNCXR)_[0-9]+)_(?P<tuberculosis>[01])")
SEX = re.compile(r"(?:Sex:\s*|^\s*)(?P<sex>[FM])(?:emale|ale)?\b", re.IGNORECASE)
AGE = re.compile(r"\b0*(?P<years>[0-9]{1,3})\s?Y", re.IGNORECASE)
SEXES = {"f": "female", "m": "male"}

PUBLICATION = Publication(
    task="lung-masks",
    title="Lung masks of Montgomery County and Shenzhen",
    kind="segmentation",
    channels=("grey",),
    classes=("background", "lung"),
    layout="CXR_png and masks side by side (Lung Segmentation)",
    reference="Jaeger et al., Quant Imaging Med Surg 4(6), 2014, 475-477; masks: Candemir et al. 2014, Stirenko 2018",
    licence="the publishers' terms: research; Shenzhen's masks CC BY-NC-SA 4.0",
    counts=(
        PublishedCount("samples", 704),
        PublishedCount("montgomery", 138, {"site": "montgomery"}),
        PublishedCount("shenzhen", 566, {"site": "shenzhen"}),
    ),
)


def gather(pool: PublicSet, images: Path) -> None:
    """Add every picture that has a mask."""
    base = images.parent
    masks = {path.stem.removesuffix("_mask"): path for path in list_pictures(base / "masks")}
    for path in list_pictures(images):
        if (match := pool.match(FILE, path.stem)) is None:
            continue
        if path.stem not in masks:
            pool.dropped["no mask"] += 1
        else:
            copy, label = (Path(kind) / f"{path.stem}.png" for kind in ("images", "masks"))
            image = picture_files.readable_path(path, mode="L", out=pool.out, copy=copy)
            picture_files.write_label_map(masks[path.stem], picture=path, target=pool.out / label)
            pool.add(
                image=image,
                label=label.as_posix(),
                subject=match["subject"],
                site=HOSPITALS[match["hospital"]],
                tuberculosis=int(match["tuberculosis"]),
                **read_clinical_reading(base / "ClinicalReadings" / f"{path.stem}.txt"),
            )


def read_clinical_reading(path: Path) -> dict[str, Any]:
    """Read the sex and the age in years from a clinical reading; empty if there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    sex, age = SEX.search(text), AGE.search(text)
    return {"sex": SEXES[sex["sex"].lower()] if sex else None, "age": int(age["years"]) if age else None}


prepare = Adapter(PUBLICATION, gather, [["CXR_png"]]).prepare
