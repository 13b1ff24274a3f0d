"""Local and Global Test from runs, by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.research.report.comparison import summarise_method
from peer.research.report.results import read

SETTING = ("sites", "heterogeneous")
LOCAL = {"Local": "local"}


def rewrite(folder: Path, value: Callable[[int, int, str, str], float | None]) -> None:
    """Set every AUC by fold, seed, model's and data's site."""
    for path in folder.glob("runs/*/result.json"):
        document = json.loads(path.read_text())
        for model, row in document["matrix"].items():
            for site, cell in row.items():
                auc = value(document["fold"], document["seed"], model, site)
                cell.pop("auc")
                cell |= {} if auc is None else {"auc": auc}
        path.write_text(json.dumps(document))


def test_the_mean_is_over_sites_inside_a_fold_and_then_over_folds(make) -> None:
    folder = make(methods=LOCAL, folds=2, seeds=(0,), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: fold / 10 + (0.5 if model == site else 0.3) + (model == "b") * 0.1)
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.units == (0, 1)
    assert summary.local.cells["a"].mean == pytest.approx(0.55)
    assert summary.local.cells["b"].mean == pytest.approx(0.65)
    assert summary.local.mean.folds == pytest.approx((0.55, 0.65))
    assert summary.local.mean.std == pytest.approx(0.05)
    assert summary.overall.cells["a"].mean == pytest.approx(0.45)
    assert summary.matrix["a"]["b"] == pytest.approx(0.35)
    assert summary.means("global") == pytest.approx({0: 0.45, 1: 0.55})


def test_seeds_are_averaged_inside_their_fold(make) -> None:
    folder = make(methods=LOCAL, folds=2, seeds=(0, 1), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: 0.5 + 0.1 * fold + 0.2 * seed)
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.local.mean.folds == pytest.approx((0.6, 0.7))


def test_without_folds_the_spread_is_over_seeds(make) -> None:
    folder = make(methods=LOCAL, seeds=(5, 7, 9), sites=("a", "b"))
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.units == (5, 7, 9)


def test_an_undefined_value_is_left_out_and_counted(make) -> None:
    folder = make(methods=LOCAL, seeds=(0,), sites=("a", "b"))
    rewrite(folder, lambda fold, seed, model, site: None if site == "b" else 0.8)
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.local.mean.mean == pytest.approx(0.8)
    assert summary.local.mean.undefined == 1
    assert summary.overall.cells["b"].mean == pytest.approx(0.8)


def test_a_model_that_cannot_be_tried_everywhere_has_no_global_test(make) -> None:
    summary = summarise_method(read(make(kind="super_resolution", methods=LOCAL, seeds=(0,))), SETTING, "Local", "psnr")
    assert summary.local.mean.mean == pytest.approx(27.0)
    assert summary.overall.mean.mean is None


def test_some_sites_can_be_left_out(make) -> None:
    folder = make(methods=LOCAL, seeds=(0,), sites=("a", "b", "c"))
    rewrite(folder, lambda fold, seed, model, site: {"a": 0.2, "b": 0.4, "c": 0.9}[site])
    summary = summarise_method(read(folder), SETTING, "Local", "auc", without=("c",))
    assert summary.local.mean.mean == pytest.approx(0.3)
    assert summary.overall.mean.mean == pytest.approx(0.3)


def test_nothing_ran(make) -> None:
    results = read(make(methods=LOCAL))
    assert summarise_method(results, SETTING, "FedSKD", "auc") is None
    assert summarise_method(results, SETTING, "Local", "auc", links="half") is None
