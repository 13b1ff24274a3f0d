"""Lung masks: 704 chest X-rays of Montgomery County and Shenzhen.

Layout: ``CXR_png`` and ``masks`` side by side, in ``Lung Segmentation``, and perhaps ``ClinicalReadings``. Montgomery's
masks have their pictures' names, Shenzhen's end in ``_mask``; a name ends in 1 where tuberculosis was found. 96 of the
800 pictures have no mask and are left out. Label maps of 0 and 1 are made from the masks, grey copies from what is
stored in colour. The papers part the pictures at random, not by hospital: there is only the pool.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer.data.adapters import picture_files
from peer.data.adapters.public_set import Adapter, Publication, PublicSet, PublishedCount, pictures

HOSPITALS = {"MCUCXR": "montgomery", "CHNCXR": "shenzhen"}
FILE = re.compile(r"(?P<subject>(?P<hospital>MCUCXR|CHNCXR)_[0-9]+)_(?P<tuberculosis>[01])")
SEX = re.compile(r"(?:Sex:\s*|^\s*)(?P<sex>[FM])(?:emale|ale)?\b", re.IGNORECASE)
AGE = re.compile(r"\b0*(?P<years>[0-9]{1,3})\s?Y", re.IGNORECASE)
SEXES = {"f": "female", "m": "male"}

PUBLICATION = Publication(
    task="lung-masks",
    title="Lung masks of Montgomery County and Shenzhen",
    kind="segmentation",
    spatial_dims=2,
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


def gather(pool: PublicSet, shown: Path) -> None:
    """Add every picture that has a mask."""
    base = shown.parent
    masks = {path.stem.removesuffix("_mask"): path for path in pictures(base / "masks")}
    for path in pictures(shown):
        if (match := pool.match(FILE, path.stem)) is None:
            continue
        if path.stem not in masks:
            pool.dropped["no mask"] += 1
        else:
            copy, label = (Path(kind) / f"{path.stem}.png" for kind in ("images", "masks"))
            image = picture_files.entry(path, mode="L", out=pool.out, copy=copy)
            picture_files.label_map(masks[path.stem], picture=path, made=pool.out / label)
            pool.add(
                {
                    "image": image,
                    "label": label.as_posix(),
                    "subject": match["subject"],
                    "site": HOSPITALS[match["hospital"]],
                    "tuberculosis": int(match["tuberculosis"]),
                    **reading(base / "ClinicalReadings" / f"{path.stem}.txt"),
                }
            )


def reading(path: Path) -> dict[str, Any]:
    """The sex and the age in years that a clinical reading begins with, where it is there and says them."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    sex, age = SEX.search(text), AGE.search(text)
    return {"sex": SEXES[sex["sex"].lower()] if sex else None, "age": int(age["years"]) if age else None}


ADAPTER = Adapter(PUBLICATION, gather, [["CXR_png"]])
prepare = ADAPTER.prepare
