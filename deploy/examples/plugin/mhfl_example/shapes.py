"""Discs and squares on 16 x 16 pixels, drawn from a seed: not medical, and quick to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.train.data import prepared_folder

SIDE = 16
NOISE = 0.2


def prepare(out: Path, *, seed: int = 0, samples: int = 120) -> dict[str, Any]:
    """Write one pool for an experiment to divide.

    Args:
        out: a folder that is empty or not there.
        seed: of places, sizes and noise.
        samples: how many images, half of them discs.

    Returns:
        The summary.
    """
    prepared_folder.make_empty(out)
    (out / "images").mkdir()
    random = np.random.default_rng(seed)
    entries = []
    for index in range(samples):
        name, label = f"images/{index:04d}.npy", index % 2
        np.save(out / name, _image(random, square=bool(label)))
        entries.append({"image": name, "label": label, "subject": f"shape-{index:04d}"})
    prepared_folder.write_json(out / "pool.json", {"training": entries, "test": []})
    summary = {"dataset": "shapes", "samples": samples, "source": "drawn"}
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def _image(random: np.random.Generator, *, square: bool) -> NDArray[np.float32]:
    radius = random.uniform(3, 6)
    middle = random.uniform(radius, SIDE - radius, size=2)
    rows, columns = np.abs(np.indices((SIDE, SIDE)) - middle[:, None, None])
    inside = np.maximum(rows, columns) < radius if square else np.hypot(rows, columns) < radius
    image: NDArray[np.float32] = inside + NOISE * random.standard_normal((SIDE, SIDE), dtype=np.float32)
    return image.astype(np.float32)
