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
