"""Local and Global Test from runs, by hand."""

import pytest

from fakes.report_folders import SETTING, set_values
from peer.lab.report.comparison import summarise_method
from peer.lab.report.results import read

LOCAL = {"Local": "local"}


def test_the_mean_is_over_sites_inside_a_fold_and_then_over_folds(make) -> None:
    folder = make(methods=LOCAL, folds=2, seeds=(0,), sites=("a", "b"))
    set_values(
        folder,
        lambda run, model, site: run["fold"] / 10 + (0.5 if model == site else 0.3) + (model == "b") * 0.1,
    )
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
    set_values(folder, lambda run, model, site: 0.5 + 0.1 * run["fold"] + 0.2 * run["seed"])
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.local.mean.folds == pytest.approx((0.6, 0.7))


def test_without_folds_the_spread_is_over_seeds(make) -> None:
    folder = make(methods=LOCAL, seeds=(5, 7, 9), sites=("a", "b"))
    summary = summarise_method(read(folder), SETTING, "Local", "auc")
    assert summary.units == (5, 7, 9)


def test_an_undefined_value_is_left_out_and_counted(make) -> None:
    folder = make(methods=LOCAL, seeds=(0,), sites=("a", "b"))
    set_values(folder, lambda run, model, site: None if site == "b" else 0.8)
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
    set_values(folder, lambda run, model, site: {"a": 0.2, "b": 0.4, "c": 0.9}[site])
    summary = summarise_method(read(folder), SETTING, "Local", "auc", without=("c",))
    assert summary.local.mean.mean == pytest.approx(0.3)
    assert summary.overall.mean.mean == pytest.approx(0.3)


def test_nothing_ran(make) -> None:
    results = read(make(methods=LOCAL))
    assert summarise_method(results, SETTING, "FedSKD", "auc") is None
    assert summarise_method(results, SETTING, "Local", "auc", links="half") is None
