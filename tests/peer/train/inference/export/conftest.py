"""Sites with a first state, a task each, and the facts of their journals."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

from peer.core import commands
from peer.core.artifacts import Source
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.train.trainer import INITIAL, Trainer

AFFINE = np.array([[-2.0, 0, 0, 30], [0, 1.5, 0, -20], [0, 0, 1.5, 10], [0, 0, 0, 1]])
MONAI_UNET = {
    "name": "monai.networks.nets.UNet",
    "parameters": {"channels": [4, 8], "strides": [2]},
    "features": ["model.0"],
    "head": "model.2",
}


@dataclass(frozen=True, slots=True)
class Hospital:
    """A site with its first state, and its folder of images."""

    setting: WorkerSetting
    data: Path

    def trainer(self) -> Trainer:
        """A trainer with the state loaded."""
        trainer = Trainer(self.setting)
        trainer.load(INITIAL)
        return trainer


MakeHospital = Callable[..., Hospital]
TARGETS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "class": ({"classes": 2}, lambda age: age % 2),
    "labels": (
        {"target": "labels", "classes": 2, "class_names": ["pain", "fever"]}, lambda age: [age % 2, age // 2 % 2]
    ),
    "number": ({"target": "number", "classes": 1, "range": [0, 60]}, lambda age: age - 20.5),
    "survival": (
        {"target": "survival", "classes": 2, "times": [6, 12], "unit": "months"},
        lambda age: {"time": age - 29, "event": age % 2 == 0},
    ),
}  # fmt: skip
"""What the rows of a table are labelled with: keys of ``[task]``, and the label by age."""


@pytest.fixture
def make_hospital(make_setting: Callable[..., WorkerSetting], signals: Path) -> MakeHospital:
    """Makes a site whose task is ``time_series``, ``tabular`` with one of ``TARGETS``, ``segmentation`` (of volumes, of
    volumes that are ``turned`` to RAS, or of pictures as ``planes``) or ``super_resolution``.
    """

    def make(kind: str, target: str = "class") -> Hospital:
        data: dict[str, Any] = {}
        task: dict[str, Any] = {"kind": kind}
        model: dict[str, Any] = {}
        if kind in ("segmentation", "turned"):
            task |= {"kind": "segmentation", "spatial_dims": 3, "in_channels": 1}
            data = {"input_size": [8, 8, 8], "normalise": "unit"}
            if kind == "turned":
                data |= {"orientation": "RAS", "intensity": ["percentiles", 5, 90], "nan": "background"}
            model = MONAI_UNET
            volumes(signals)
        elif kind == "planes":
            task |= {"kind": "segmentation", "spatial_dims": 2, "in_channels": 1}
            data = {"input_size": [8, 12], "normalise": "unit"}
            model = MONAI_UNET
            planes(signals)
        elif kind == "tabular":
            keys, label = TARGETS[target]
            task = {"kind": kind, "spatial_dims": 1, "in_channels": 9, "column": TABLE, **keys}
            data = {"input_size": []}
            model = {"name": "ft_transformer", "parameters": {"width": 4}}
            rows(signals, label)
        elif kind == "super_resolution":
            task |= {"spatial_dims": 2, "in_channels": 3, "classes": 3}
            data = {"input_size": [6, 6], "scale": 2}
            model = {"name": "srcnn", "parameters": {"width": 4, "scale": 2}}
            pictures(signals)
        else:
            data = {"normalise": "zscore"}
        setting = make_setting(method={"name": "local"}, task=task, data=data, model=model)
        Trainer(setting).perform(commands.Initialise(1, 1))
        return Hospital(setting, signals)

    return make


TABLE = [
    {"name": "age", "kind": "number", "range": [20.0, 90.0], "unit": "years"},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
    {"name": "smoker", "kind": "flag"},
    {"name": "base excess", "kind": "number", "range": [-20.0, 20.0], "unit": "mmol/l", "missing": ["-9"]},
]


def rows(folder: Path, label: Callable[[int], Any]) -> None:
    """Rows of a table, of which some lack a value; the label follows from the age."""
    entries = [
        {"image": f"row {age}", "label": label(age), "row": {
            "age": age, "sex": "male" if age % 3 else None, "smoker": age % 5 == 0, "base excess": age / 7 - 5,
        }}
        for age in range(30, 42)
    ]  # fmt: skip
    (folder / "datalist.json").write_text(json.dumps({"training": entries[:8], "test": entries[8:]}))


def volumes(folder: Path) -> None:
    """Volumes that have to shrink along one axis and to grow along another, with label maps."""
    draw = np.random.default_rng(3)
    images = [draw.random((10, 6, 8), dtype=np.float32) * 100 for _ in range(4)]
    write_pairs(folder, ".nii.gz", images, lambda path, values: nibabel.save(nibabel.Nifti1Image(values, AFFINE), path))


def planes(folder: Path) -> None:
    """Pictures that are wider than high, with label maps."""
    draw = np.random.default_rng(5)
    images = [draw.integers(0, 256, (7, 12), dtype=np.uint8) for _ in range(4)]
    write_pairs(folder, ".png", images, lambda path, values: Image.fromarray(values).save(path))


def write_pairs(
    folder: Path, ending: str, images: list[np.ndarray], save: Callable[[Path, np.ndarray], object]
) -> None:
    """Images and the maps of their brighter halves, two for training and two for the test."""
    items = []
    for index, image in enumerate(images):
        save(folder / f"{index}{ending}", image)
        save(folder / f"{index}-label{ending}", (image > image.max() / 2).astype(np.uint8))
        items.append({"image": f"{index}{ending}", "label": f"{index}-label{ending}"})
    (folder / "datalist.json").write_text(json.dumps({"training": items[:2], "test": items[2:]}))


def pictures(folder: Path) -> None:
    """Pictures of two sizes, which are their own targets."""
    draw = np.random.default_rng(4)
    for index in range(4):
        pixels = draw.integers(0, 256, (14 + 2 * index, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    names = [f"{index}.png" for index in range(4)]
    (folder / "datalist.json").write_text(json.dumps({"training": names[:2], "test": names[2:]}))


@dataclass(frozen=True, slots=True)
class Mixing:
    """A site that mixes its own prediction with beta's, after a first round."""

    setting: WorkerSetting
    state: str
    sources: tuple[Source, ...]
    data: Path


@pytest.fixture
def make_mixing(make_setting: Callable[..., WorkerSetting], signals: Path) -> Callable[..., Mixing]:
    """Makes such a site; the name and the parameters are the method's."""

    def make(name: str = "dflmoe", **parameters: Any) -> Mixing:
        method = {"name": name, **parameters}
        alpha = make_setting(site="alpha", method=method, steps=2)
        beta = make_setting(site="beta", method=method, steps=2, model={"name": "resnet5", "parameters": {"width": 6}})
        started = {site.site_name: Trainer(site).perform(commands.Initialise(1, 1)).state for site in (alpha, beta)}
        published = Trainer(beta).perform(commands.Train(1, 1, 2, "local", started["beta"], ()))
        name = f"{published.artifact.sha256}.safetensors"
        shutil.copy(Path(beta.home) / "artifacts" / name, Path(alpha.home) / "artifacts" / name)
        sources = (Source(SiteName("beta"), 1, published.artifact),)
        trainer = Trainer(alpha)
        local = trainer.perform(commands.Train(1, 1, 2, "local", started["alpha"], sources))
        decided = trainer.perform(commands.Train(1, 1, 2, "decide", local.state, sources))
        return Mixing(alpha, decided.state, sources, signals)

    return make
