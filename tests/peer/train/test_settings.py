"""The recipe: the documents with the plan's defaults filled in."""

from pathlib import Path

import pytest

from peer.core.plan import Work
from peer.core.worker_protocol import WorkerSetting
from peer.errors import ConfigError
from peer.methods.registry import PLANS
from peer.site.config.schema import FederationConfig
from peer.site.config.site_tables import TrainingConfig
from peer.train.settings import AugmentationSettings, TrainingSettings

TASK = {"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2, "same_input_size": True}
FEDERATION = {"name": "test", "rounds": 1, "task": TASK, "method": {"name": "local"}, "site": [{"name": "alpha"}]}


def settings(federation: dict, site: dict) -> TrainingSettings:
    return TrainingSettings.of(
        WorkerSetting("alpha", "cd" * 32, {**FEDERATION, **federation}, site, "/h/gen-0001", "/etc/site")
    )


def test_defaults_are_those_of_the_plan() -> None:
    read = settings(
        {"method": {"name": "fedskd", "gamma": 100.0}, "stages": {"train": {"count": 7}}},
        {"data": {"input_size": [4, 4, 4], "regions": None}, "model": {"name": "resnet10", "head": None}},
    )
    assert read.parameters == {
        "gamma": 100.0,
        "terms": ["batch", "position", "region"],
        "taps": [1, 2, 3, 4],
        "activation": 0.0,
        "position_form": "auto",
        "accumulate": "float32",
        "segmentation_loss": "dice_ce",
    }
    assert read.works == {"train": Work("step", 7, 1e-4, 0.0)}
    assert read.data.input_size == (4, 4, 4)
    assert (read.data.normalise, read.data.cache, read.data.regions) == ("none", "memory", None)
    assert read.data.augmentation == AugmentationSettings(0.5, 15.0, 0.05, 0.1, 0.8)
    assert read.model == {"name": "resnet10", "parameters": {}, "features": []}
    assert read.training == TrainingConfig()
    assert read.plan is PLANS["fedskd"]
    assert read.artifacts == Path("/h/gen-0001/artifacts")


def test_signals_are_not_reversed_unless_the_site_says_so() -> None:
    def flip(size: list[int], augmentation: dict) -> float:
        data = {"input_size": size, "augmentation": augmentation}
        return settings({}, {"data": data, "model": {"name": "m"}}).data.augmentation.flip

    assert [flip([8], {"flip": None}), flip([8, 8], {"flip": None}), flip([8, 8, 8], {})] == [0.0, 0.5, 0.5]
    assert [flip([8], {"flip": 0.3}), flip([8, 8], {"flip": 0.3})] == [0.3, 0.3]


def test_what_becomes_of_a_nan_is_part_of_the_digest_where_it_is_given() -> None:
    def read(**data: str) -> TrainingSettings:
        return settings({}, {"data": {"input_size": [4], **data}, "model": {"name": "m"}})

    assert read().digest() != read(nan="background").digest()
    assert "nan" not in repr(read().data)  # sites without the key keep the digests of 0.3.0


@pytest.mark.parametrize(
    "keys",
    [{"class_weights": "balanced"}, {"class_sampling": "balanced"}, {"label_smoothing": 0.1}, {"clip_norm": 1.0}],
)
def test_what_changes_gradients_is_part_of_the_digest_where_it_is_given(keys: dict) -> None:
    def digest(**training: object) -> str:
        site = {"data": {"input_size": [4]}, "model": {"name": "m"}, "training": training}
        return settings({}, site).digest()

    assert digest(**keys) != digest() == digest(class_weights=None, label_smoothing=0.0, clip_norm=None)


def test_the_scale_of_super_resolution() -> None:
    def scale(**data: int | None) -> int | None:
        site = {"data": {"input_size": [4], **data}, "model": {"name": "m"}}
        return settings({}, site).data.scale

    assert [scale(), scale(scale=None), scale(scale=4)] == [None, None, 4]


def test_paths_are_relative_to_the_site_file() -> None:
    bare = settings({}, {"data": {"input_size": [4], "datalist": "lists/a.json"}, "model": {"name": "m"}})
    assert bare.data.datalist == Path("/etc/site/lists/a.json")
    assert bare.data.root == Path("/etc/site/lists")
    data = {"input_size": [4, 4], "root": "/mnt/images", "regions": "atlas.nii.gz", "augmentation": {"flip": 0.0}}
    data_settings = settings({}, {"data": data, "model": {"name": "m"}}).data
    assert (data_settings.root, data_settings.regions) == (Path("/mnt/images"), Path("/etc/site/atlas.nii.gz"))
    assert data_settings.augmentation == AugmentationSettings(0.0, 15.0, 0.05, 0.1, 0.8)


def test_documents_are_validated() -> None:
    with pytest.raises(ConfigError, match=r"federation.toml: wires: unknown key \(did you mean 'wire'\?\)"):
        settings({"wires": "float32"}, {"data": {"input_size": [4, 4, 4]}})
    with pytest.raises(ConfigError, match=r"site.toml: training.threads: expected at least 1, found 0"):
        settings({}, {"data": {"input_size": [4, 4, 4]}, "training": {"threads": 0}})


@pytest.mark.parametrize("method", sorted(PLANS))
@pytest.mark.parametrize("sites", [1, 2, 4])
def test_a_validated_document_is_valid_again(method: str, sites: int) -> None:
    keys = {"name": method} | ({"public_sha256": "ab" * 32} if PLANS[method].public else {})
    roster = [{"name": f"site-{number}"} for number in range(sites)]
    shared = {"shared_model": {"name": "resnet10"}} if PLANS[method].shared != "maybe" else {}
    kind = "segmentation" if "classification" in PLANS[method].not_for else "classification"
    document = {**FEDERATION, "task": {**TASK, "kind": kind}, "method": keys, "site": roster, **shared}
    federation = FederationConfig.model_validate(document)
    assert FederationConfig.model_validate(federation.model_dump(mode="json")) == federation
