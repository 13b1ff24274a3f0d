"""The columns of a table in federation.toml, and the keys of ``[data]`` that fit it."""

from pathlib import Path
from typing import Any

import pytest

from peer.errors import ConfigError
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

BASE: dict[str, Any] = {
    "name": "trial",
    "rounds": 3,
    "task": {"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
    "method": {"name": "fedskd"},
    "site": [{"name": "europe"}, {"name": "asia"}],
}


def federation(**changes: Any) -> FederationConfig:
    return FederationConfig.parse(toml.text({**BASE, **changes}), "federation.toml")


def site(tmp_path: Path, **data: Any) -> SiteConfig:
    return SiteConfig.parse(toml.text({"data": data}), tmp_path / "site.toml")


AGE = {"name": "age", "kind": "number", "range": [20, 90]}
PAIN = {"name": "pain", "kind": "category", "levels": ["none", "some", "much"]}


def tabular(*columns: Any, **changes: Any) -> dict[str, Any]:
    return {"task": {"kind": "tabular", "classes": 2, "column": list(columns or (AGE, PAIN)), **changes}}


def test_the_sizes_of_a_row_follow_from_its_columns() -> None:
    config = federation(**tabular())
    assert (config.task.spatial_dims, config.task.in_channels) == (1, 6)
    assert [column.to_column().channels for column in config.task.column] == [2, 4]
    again = FederationConfig.parse(toml.text({**BASE, "task": config.task.document()}), "federation.toml")
    assert again.task == config.task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"kind": "tabular", "classes": 2}}, "task.column: a table needs columns"),
        (tabular(in_channels=3), "task.in_channels: is 6 for these columns; leave it out"),
        (tabular(AGE, {**AGE, "name": "Age "}), "task.column: 'age' stands there 2 times"),
        (tabular({**AGE, "range": [90, 20]}), r"task.column\[0\].range: 90 is not below 20"),
        (tabular({"name": "age", "kind": "number"}), r"task.column\[0\].range: a number has one"),
        (tabular({**PAIN, "range": [0, 1]}), r"task.column\[0\].range: a category has none"),
        (tabular({**PAIN, "levels": ["none", "None"]}), r"task.column\[0\].levels: needs two or more different names"),
        (tabular({"name": "ill", "kind": "flag", "levels": ["a", "b"]}), r"task.column\[0\].levels: a flag has none"),
        ({"task": {**BASE["task"], "column": [AGE]}}, "task.column: a classification task has none"),
        ({**tabular(), "method": {"name": "lc_fed"}}, "method.name: lc_fed is not defined for tabular"),
    ],
)
def test_wrong_columns(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        federation(**changes)


@pytest.mark.parametrize(
    ("target", "classes", "keys"),
    [
        ("labels", 2, {"class_names": ["pain", "fever"]}),
        ("number", 1, {"range": [0, 60], "unit": "days"}),
        ("survival", 3, {"times": [6, 12, 24], "unit": "months", "horizon": 12}),
    ],
)
def test_the_outputs_of_a_network_follow_from_the_target(target: str, classes: int, keys: dict[str, Any]) -> None:
    tables = ({"column": [AGE], "kind": "tabular"}, {"kind": "classification", "spatial_dims": 2, "in_channels": 1})
    for table in tables:
        task = federation(task={**table, "target": target, **keys}).task
        assert (task.classes, task.objective) == (classes, target)
        assert federation(task=task.document()).task == task
    assert "target" not in federation(**tabular()).task.document(), "digests of other federations stay"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target": "number"}, "task.range: a number needs the lowest and the highest value"),
        ({"target": "number", "range": [9, 1]}, "task.range: a number needs the lowest and the highest value"),
        ({"target": "number", "range": [0, 1], "classes": 2}, "task.classes: is 1 for this target; leave it out"),
        ({"target": "number", "range": [0, 1], "times": [1]}, "task.times: target = 'number' has none; leave it out"),
        ({"target": "number", "range": [0, 1], "class_names": ["a"]}, "task.class_names: a number has no classes"),
        ({"target": "labels", "classes": 2}, "task.class_names: several labels need their names"),
        ({"target": "survival", "classes": 2}, "task.times: needs the ends of the intervals"),
        ({"target": "survival", "times": [6, 6]}, "task.times: needs the ends of the intervals"),
        ({"target": "survival", "times": [6, 12], "horizon": 7}, "task.horizon: is none of times"),
        ({"target": "class", "classes": 2, "horizon": 7}, "task.horizon: target = 'class' has none"),
    ],
)
def test_keys_that_do_not_fit_the_target(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        federation(task={"kind": "tabular", "column": [AGE], **keys})


def test_a_map_has_no_other_target_and_some_methods_have_none() -> None:
    with pytest.raises(ConfigError, match=r"task.target: segmentation predicts a map or an image"):
        federation(task={**BASE["task"], "kind": "segmentation", "target": "number", "range": [0, 1], "classes": 1})
    survival = {"kind": "tabular", "column": [AGE], "target": "survival", "times": [6]}
    with pytest.raises(ConfigError, match=r"pooled_head is not defined for survival: sums .*; take another"):
        federation(task=survival, method={"name": "pooled_head"}, shared_model={"name": "linear"})
    with pytest.raises(ConfigError, match=r"method.name: fedproto is not defined for survival; take another method"):
        federation(
            task={"kind": "tabular", "column": [AGE], "target": "survival", "times": [6]}, method={"name": "fedproto"}
        )


@pytest.mark.parametrize(
    ("target", "training", "message"),
    [
        ({"target": "number", "range": [0, 9]}, {"class_weights": [1.0]}, "number has no classes; leave it out"),
        ({"target": "survival", "times": [9]}, {"label_smoothing": 0.1}, "survival has no classes; leave it out"),
        ({"target": "labels", "class_names": ["a"]}, {"label_smoothing": 0.1}, ""),
        ({"target": "labels", "class_names": ["a"]}, {"class_weights": "balanced"}, ""),
        ({"target": "labels", "class_names": ["a"]}, {"class_weights": [1.0, 2.0]}, "2 numbers for 1 classes"),
        ({"target": "labels", "class_names": ["a"]}, {"class_sampling": "balanced"}, "of labels has no single class"),
        ({"target": "number", "range": [0, 1]}, {"class_sampling": "balanced"}, "of number has no single class"),
        ({"target": "survival", "times": [9]}, {"class_sampling": "balanced"}, "of survival has no single class"),
        ({"classes": 2}, {"class_sampling": "balanced"}, ""),
        (
            {"classes": 2},
            {"class_sampling": "balanced", "class_weights": "balanced"},
            "every class counts alike; leave out one",
        ),
        ({"target": "labels", "class_names": ["a"]}, {"class_weights": [2.0]}, ""),
    ],
)
def test_the_keys_of_training_fit_the_target(
    tmp_path: Path, target: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    config = SiteConfig.parse(toml.text({"data": {}, "training": training}), tmp_path / "site.toml")
    founded = federation(task={"kind": "tabular", "column": [AGE], **target})
    if not message:
        check_site(founded, config, "europe")
        return
    with pytest.raises(ConfigError, match=message):
        check_site(founded, config, "europe")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"input_size": [8]}, "data.input_size: is for images and signals"),
        ({"normalise": "unit"}, "data.normalise: is for images and signals"),
        ({"columns": {"Pain": "x"}}, r"data.columns.Pain: the federation has no such column \(did you mean 'pain'\?\)"),
    ],
)
def test_a_table_has_no_keys_of_images(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    check_site(federation(**tabular()), site(tmp_path), "europe")
    with pytest.raises(ConfigError, match=message):
        check_site(federation(**tabular()), site(tmp_path, **data), "europe")


def test_images_need_a_size_and_have_no_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.columns: classification has no table.*data.input_size is missing"):
        check_site(federation(), site(tmp_path, columns={"age": "Alter"}), "europe")
