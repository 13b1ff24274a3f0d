"""Local and Global Test from runs, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.research.report.comparison import line
from peer.research.report.results import read

SETTING = ("sites", "heterogeneous")
ONE = {"Local": "local"}


def rewrite(folder: Path, value: Callable[[int, int, str, str], float | None]) -> None:
    """Set every AUC by fold, seed, model's and data's site."""
    for path in folder.glob("runs/*/result.json"):
        document = json.loads(path.read_text())
        for model, row in document["matrix"].items():
            for site, cell in row.items():
                found = value(document["fold"], document["seed"], model, site)
                cell.pop("auc")
                cell |= {} if found is None else {"auc": found}
        path.write_text(json.dumps(document))


def test_the_mean_is_over_sites_inside_a_fold_and_then_over_folds(make) -> None:
    folder = make(methods=ONE, folds=2, seeds=(0,), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: fold / 10 + (0.5 if model == site else 0.3) + (model == "b") * 0.1)
    found = line(read(folder), SETTING, "Local", "auc")
    assert found is not None
    assert found.units == (0, 1)
    assert found.local.cells["a"].mean == pytest.approx(0.55)
    assert found.local.cells["b"].mean == pytest.approx(0.65)
    assert found.local.mean.folds == pytest.approx((0.55, 0.65))
    assert found.local.mean.std == pytest.approx(0.05)
    assert found.overall.cells["a"].mean == pytest.approx(0.45)
    assert found.matrix["a"]["b"] == pytest.approx(0.35)
    assert found.means("global") == pytest.approx({0: 0.45, 1: 0.55})


def test_seeds_are_averaged_inside_their_fold(make) -> None:
    folder = make(methods=ONE, folds=2, seeds=(0, 1), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: 0.5 + 0.1 * fold + 0.2 * seed)
    found = line(read(folder), SETTING, "Local", "auc")
    assert found is not None
    assert found.local.mean.folds == pytest.approx((0.6, 0.7))


def test_without_folds_the_spread_is_over_seeds(make) -> None:
    folder = make(methods=ONE, seeds=(5, 7, 9), sites=("a", "b"))
    found = line(read(folder), SETTING, "Local", "auc")
    assert found is not None
    assert found.units == (5, 7, 9)


def test_an_undefined_value_is_left_out_and_counted(make) -> None:
    folder = make(methods=ONE, seeds=(0,), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: None if site == "b" else 0.8)
    found = line(read(folder), SETTING, "Local", "auc")
    assert found is not None
    assert found.local.mean.mean == pytest.approx(0.8)
    assert found.local.mean.undefined == 1
    assert found.overall.cells["b"].mean == pytest.approx(0.8)


def test_a_model_that_cannot_be_tried_everywhere_has_no_global_test(make) -> None:
    found = line(read(make(kind="super_resolution", methods=ONE, seeds=(0,))), SETTING, "Local", "psnr")
    assert found is not None
    assert found.local.mean.mean == pytest.approx(27.0)
    assert found.overall.mean.mean is None


def test_some_sites_can_be_left_out(make) -> None:
    folder = make(methods=ONE, seeds=(0,), sites=("a", "b", "c"))
    rewrite(folder, lambda fold, seed, model, site: {"a": 0.2, "b": 0.4, "c": 0.9}[site])
    found = line(read(folder), SETTING, "Local", "auc", without=("c",))
    assert found is not None
    assert found.local.mean.mean == pytest.approx(0.3)
    assert found.overall.mean.mean == pytest.approx(0.3)


def test_nothing_ran(make) -> None:
    results = read(make(methods=ONE))
    assert line(results, SETTING, "FedSKD", "auc") is None
    assert line(results, SETTING, "Local", "auc", links="half") is None
