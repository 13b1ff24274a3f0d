"""Handwritten digits, 8 x 8 pixels (scikit-learn's ``load_digits``): small, quick, and not medical.

Source: the test part of the UCI data set "Optical Recognition of Handwritten Digits"; 1,797 images
by 13 writers, who are not named, so that every image counts as a subject of its own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from peer.extras import require_extra
from peer.train.data import prepared_folder

LEVEL_MAX = 16.0
"""The brightest value of a pixel."""


def prepare(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write one pool for an experiment to divide; the seed has no effect."""
    require_extra("research", "`data prepare digits`", ("sklearn",))
    from sklearn.datasets import load_digits

    prepared_folder.make_empty(out)
    digits = load_digits()
    (out / "images").mkdir()
    entries = []
    for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        name = f"images/{index:04d}.npy"
        np.save(out / name, (image / LEVEL_MAX).astype(np.float32))
        entries.append({"image": name, "label": int(label), "subject": f"digit-{index:04d}"})
    prepared_folder.write_json(out / "pool.json", {"training": entries, "test": []})
    counts = Counter(str(entry["label"]) for entry in entries)
    summary = {
        "dataset": "digits",
        "samples": len(entries),
        "classes": dict(sorted(counts.items())),
        "source": "scikit-learn load_digits",
    }
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary
