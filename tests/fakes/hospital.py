"""A small hospital: signals whose class is their frequency, a setting, and a trainer for it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.train.data.datalist import inspect_datalist
from peer.train.public_set import digest_images

SIGNALS: dict[str, Any] = {"kind": "time_series", "spatial_dims": 1, "in_channels": 2, "classes": 2}
LENGTH = 24
SIZES = {"training": 10, "test": 6}


@pytest.fixture
def signals(tmp_path: Path) -> Path:
    """The folder of a datalist over two-channel signals of two classes."""
    return write_signals(tmp_path / "data", seed=7, sizes=SIZES).parent


def write_signals(folder: Path, *, seed: int, sizes: Mapping[str, int]) -> Path:
    """Write signals whose class is their frequency, so many of each split; their datalist."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    datalist: dict[str, list[dict[str, Any]]] = {split: [] for split in sizes}
    for split, count in sizes.items():
        for index in range(count):
            label = index % 2
            wave = np.sin(np.arange(LENGTH) * (0.3 + 0.5 * label)) + 0.1 * draw.standard_normal((2, LENGTH))
            np.savez(folder / f"{split}{index}.npz", image=wave.astype(np.float32))
            datalist[split].append({"image": f"{split}{index}.npz", "label": label, "subject": f"{split}-{index}"})
    path = folder / "datalist.json"
    path.write_text(json.dumps(datalist))
    return path


MakeSetting = Callable[..., WorkerSetting]


@pytest.fixture
def make_setting(signals: Path, tmp_path: Path) -> MakeSetting:
    """Makes settings; keywords replace parts of the two documents."""

    def make(
        *,
        site: str = "alpha",
        home: Path | None = None,
        method: Mapping[str, Any] | None = None,
        steps: int = 4,
        learning_rate: float = 1e-2,
        weighting: str = "uniform",
        wire: str = "float32",
        task: Mapping[str, Any] | None = None,
        shared_model: Mapping[str, Any] | None = None,
        aggregate: Mapping[str, Any] | None = None,
        roster: tuple[str, ...] = (),
        **parts: Mapping[str, Any],
    ) -> WorkerSetting:
        home = home or tmp_path / site
        (home / "artifacts").mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "data": {"datalist": "datalist.json", "input_size": [LENGTH], "unreadable_share_max": 0.2},
            "model": {"name": "resnet10", "parameters": {"width": 4}},
            "training": {"device": "cpu", "threads": 1, "batch_size": 4},
            "egress": {"training_set_size": False},
        }
        for table, keys in parts.items():
            document[table] = {**document.get(table, {}), **keys}
        kind = task if task and task.get("kind") == "tabular" else SIGNALS | (task or {})
        chosen = dict(method or {"name": "fedskd"})
        if PLANS[chosen["name"]].public and "public_sha256" not in chosen:
            document["data"] = {"public": "datalist.json", **document["data"]}
            chosen["public_sha256"] = digest_images(inspect_datalist(signals / "datalist.json").training)
        work = {"unit": "step", "count": steps, "learning_rate": learning_rate, "weight_decay": 0.0}
        federation: dict[str, Any] = {
            "name": "test",
            "rounds": 3 if PLANS[chosen["name"]].predicts else 1,
            "weighting": weighting,
            "wire": wire,
            "task": kind,
            "method": chosen,
            "stages": dict.fromkeys(PLANS[chosen["name"]].stages, work),
            "shared_model": shared_model,
            "aggregate": aggregate or {},
            "site": [{"name": name} for name in roster or (site,)],
        }
        documents = [
            toml.validate(table, keys, "test").model_dump(mode="json")
            for table, keys in ((FederationConfig, federation), (SiteConfig, document))
        ]
        return WorkerSetting(site, "ab" * 32, *documents, str(home), str(signals))

    return make


@pytest.fixture
def facts() -> dict[str, Any]:
    """What a journal tells of a site's first round."""
    return {
        "site": "alpha",
        "contact": "",
        "ledger": {"rows": 4, "hash": "cd" * 32},
        "federation": {"name": "test", "digest": "ab" * 32, "sites": ["alpha", "beta"]},
        "method": {"name": "local", "parameters": {}},
        "generation": 1,
        "round": 1,
        "rounds": 3,
        "metrics": {"round": 1, "site": {"auc": 0.5}},
        "contributors": [{"round": 1, "contributors": ["alpha"], "missing": ["beta"]}],
        "left_out": {},
        "precision": "fp32",
        "licence": "CC-BY-4.0",
        "exported": "2026-11-22T10:00:00+00:00",
    }
