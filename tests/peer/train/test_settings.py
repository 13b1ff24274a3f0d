"""The recipe: the documents with the plan's defaults filled in."""

from pathlib import Path

from peer.core.limits import CHECKPOINT_S
from peer.core.plan import Work
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.train.settings import AugmentationSettings, TrainingSettings

TASK = {"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2, "same_input_size": True}


def settings(federation: dict, site: dict) -> TrainingSettings:
    return TrainingSettings.of(
        WorkerSetting("alpha", "cd" * 32, {"task": TASK, **federation}, site, "/h/gen-0001", "/etc/site")
    )


def test_defaults_are_those_of_the_plan() -> None:
    read = settings(
        {"method": {"name": "fedskd", "gamma": 100.0}, "stages": {"train": {"count": 7, "unit": None}}},
        {"data": {"input_size": [4, 4, 4], "regions": None}, "model": {"name": "resnet10", "head": None}},
    )
    assert read.parameters == {**PLANS["fedskd"].defaults(), "gamma": 100.0}
    assert read.works == {"train": Work("step", 7, 1e-4, 0.0)}
    assert read.data.input_size == (4, 4, 4)
    assert (read.data.normalise, read.data.cache, read.data.regions) == ("none", "memory", None)
    assert read.data.augmentation == AugmentationSettings(0.5, 15.0, 0.05, 0.1, 0.8)
    assert read.model == {"name": "resnet10"}
    assert (read.device, read.precision, read.threads, read.batch_size) == ("auto", "fp32", 1, 8)
    assert read.checkpoint_s == CHECKPOINT_S
    assert read.plan is PLANS["fedskd"]
    assert read.artifacts == Path("/h/gen-0001/artifacts")


def test_signals_are_not_reversed_unless_the_site_says_so() -> None:
    def flip(size: list[int], augmentation: dict) -> float:
        data = {"input_size": size, "augmentation": augmentation}
        return settings({"method": {"name": "local"}}, {"data": data, "model": {"name": "m"}}).data.augmentation.flip

    assert [flip([8], {"flip": None}), flip([8, 8], {"flip": None}), flip([8, 8, 8], {})] == [0.0, 0.5, 0.5]
    assert [flip([8], {"flip": 0.3}), flip([8, 8], {"flip": 0.3})] == [0.3, 0.3]


def test_the_scale_of_super_resolution() -> None:
    def scale(**data: int | None) -> int | None:
        site = {"data": {"input_size": [4], **data}, "model": {"name": "m"}}
        return settings({"method": {"name": "local"}}, site).data.scale

    assert [scale(), scale(scale=None), scale(scale=4)] == [None, None, 4]


def test_paths_are_relative_to_the_site_file() -> None:
    bare = settings(
        {"method": {"name": "local"}}, {"data": {"input_size": [4], "datalist": "lists/a.json"}, "model": {"name": "m"}}
    )
    assert bare.data.datalist == Path("/etc/site/lists/a.json")
    assert bare.data.root == Path("/etc/site/lists")
    data = {"input_size": [4, 4], "root": "/mnt/images", "regions": "atlas.nii.gz", "augmentation": {"flip": 0.0}}
    data_settings = settings({"method": {"name": "local"}}, {"data": data, "model": {"name": "m"}}).data
    assert (data_settings.root, data_settings.regions) == (Path("/mnt/images"), Path("/etc/site/atlas.nii.gz"))
    assert data_settings.augmentation == AugmentationSettings(flip=0.0)
