"""A tiny experiment on synthetic images."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

TEXT = """
name = "trial"
title = "Synthetic squares"
rounds = 2
seeds = [0]
test_share = 0.25

[task]
kind = "classification"
spatial_dims = 2
in_channels = 1
classes = 2

[data]
pool = "pool/pool.json"
input_size = [8, 8]

[training]
device = "cpu"
batch_size = 4

[budget]
steps = 2
minor_steps = 1

[partitions.even]
kind = "equal"
sites = ["africa", "asia", "europe"]

[models.mixed]
africa = {name = "resnet10", width = 4, max_pool = false}
asia = {name = "resnet10", width = 5, max_pool = false}
europe = {name = "resnet10", width = 6, max_pool = false}

[proxy]
name = "resnet10"
width = 4
max_pool = false

[messenger]
name = "messenger_classification"
width = 4
"""
METHODS = "[methods.local]\n[methods.fedskd]\n"


def write_pool(folder: Path) -> None:
    """Write synthetic images; those of class 1 have a brighter square."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    entries = []
    for index in range(48):
        image = random.random((8, 8), dtype=np.float32)
        image[2:6, 2:6] += 0.5 * (index % 2)
        np.save(folder / f"images/{index}.npy", image)
        entries.append(
            {"image": f"images/{index}.npy", "label": index % 2, "subject": f"s{index}", "sex": "fm"[index // 2 % 2]}
        )
    (folder / "pool.json").write_text(json.dumps({"training": entries, "test": []}))


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Path]:
    """Write the experiment; each change replaces a text that is in it."""

    def write(methods: str = METHODS, *, replace: Mapping[str, str] | None = None) -> Path:
        if not (tmp_path / "pool").exists():
            write_pool(tmp_path / "pool")
        text = TEXT + methods
        for before, after in (replace or {}).items():
            assert before in text, before
            text = text.replace(before, after)
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write
