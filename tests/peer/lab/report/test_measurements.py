"""Local and Global Test from the matrices of runs, by hand."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import cohen_kappa_score

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, TWO, compared, set_values
from peer.core.metrics import METRICS_OF
from peer.lab.report.measurements import Measurements, Scores, mean_cells
from peer.lab.report.results import read

LOCAL = {"Local": "local"}
# Two sites, three folds. The diagonals are (.6, .8), (.7, .9), (.8, .7).
FOLDS = [
    {"asia": {"asia": 0.6, "europe": 0.4}, "europe": {"asia": 0.6, "europe": 0.8}},
    {"asia": {"asia": 0.7, "europe": 0.5}, "europe": {"asia": 0.5, "europe": 0.9}},
    {"asia": {"asia": 0.8, "europe": 0.6}, "europe": {"asia": 0.7, "europe": 0.7}},
]


def scores_of(folder: Path, metric: str = "auc", **options: Any) -> Scores:
    return Measurements(read(folder)).scores(SETTING, metric, **options)


@pytest.fixture
def folds(make) -> Path:
    folder = make(methods=LOCAL, folds=3, seeds=(0,), sites=("asia", "europe"), insight=False)
    return set_values(folder, lambda run, model, site: FOLDS[run["fold"]][model][site])


def test_local_test_is_the_diagonal_and_global_test_the_mean_of_each_row(folds: Path) -> None:
    scores = scores_of(folds)
    assert scores.by_test["local"]["asia"].tolist() == [0.6, 0.7, 0.8]
    assert scores.by_test["global"]["asia"].tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert scores.by_test["global"]["europe"].tolist() == pytest.approx([0.7, 0.7, 0.7])
    assert scores.means["local"].to_dict() == pytest.approx({("Local", 0): 0.7, ("Local", 1): 0.8, ("Local", 2): 0.75})
    assert scores.means["global"].tolist() == pytest.approx([0.6, 0.65, 0.7])
    # Inside the folds: .7, .8, .75. Averaging the clients' deviations, .082 both, would give another.
    cell = mean_cells(scores.means["local"], factor=100, ddof=0)["Local"]
    assert (cell.value, cell.std) == pytest.approx((75, 100 * math.sqrt(0.005 / 3)))
    sample = mean_cells(scores.means["local"], factor=1, ddof=1)["Local"]
    assert sample.std == pytest.approx(statistics.stdev((0.7, 0.8, 0.75)))


def test_values_are_found_by_fold_and_site(folds: Path) -> None:
    scores = scores_of(folds)
    assert scores.by_site("local", "Local")[1] == {"asia": 0.7, "europe": 0.9}
    assert scores.by_site("local", "FedSKD") == {}
    assert scores.matrix.xs(("Local", 2, "europe")).to_dict() == {"asia": 0.7, "europe": 0.7}


def test_seeds_are_averaged_inside_their_fold(make) -> None:
    folder = make(methods=LOCAL, folds=2, seeds=(0, 1), sites=("a", "b"), insight=False)
    set_values(folder, lambda run, model, site: 0.5 + 0.1 * run["fold"] + 0.2 * run["seed"])
    means = scores_of(folder).means["local"]
    assert means.to_dict() == pytest.approx({("Local", 0): 0.6, ("Local", 1): 0.7})


def test_without_folds_the_spread_is_over_seeds(make) -> None:
    means = scores_of(make(methods=LOCAL, seeds=(9, 5, 7), sites=("a", "b"), insight=False)).means["local"]
    assert list(means.index) == [("Local", 5), ("Local", 7), ("Local", 9)]


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_an_undefined_value_is_left_out_and_counted_in_every_mean_above_it(make, nothing: float | None) -> None:
    folder = make(methods=LOCAL, seeds=(0, 1), sites=("a", "b"), insight=False)
    set_values(folder, lambda run, model, site: nothing if site == "b" and run["seed"] == 0 else 0.8)
    scores = scores_of(folder)
    assert scores.means["local"].tolist() == pytest.approx([0.8, 0.8])
    assert scores.by_test["global"]["b"].tolist() == pytest.approx([0.8, 0.8])
    assert (scores.undefined("local"), scores.undefined("global")) == ({"Local": 1}, {"Local": 2})


def test_a_fold_without_a_value_has_no_mean_and_no_part_in_the_deviation(make) -> None:
    folder = make(methods=LOCAL, seeds=(0, 1, 2, 3), sites=("a", "b"), insight=False)
    set_values(folder, lambda run, *_: (0.6, 0.7, None, 0.8)[run["seed"]])
    cell = mean_cells(scores_of(folder).means["local"], factor=1, ddof=0)["Local"]
    assert (cell.value, cell.std) == pytest.approx((0.7, math.sqrt(0.02 / 3)))
    set_values(folder, lambda *_: None)
    assert mean_cells(scores_of(folder).means["local"], factor=1, ddof=0) == {}


def test_a_model_that_cannot_be_tried_everywhere_has_no_global_test(make) -> None:
    scores = scores_of(make(kind="super_resolution", methods=LOCAL, seeds=(0,)), "psnr")
    assert scores.means["local"].tolist() == pytest.approx([27.0])
    assert scores.means["global"].isna().all()


def test_a_model_that_one_run_did_not_try_everywhere_has_no_global_test_in_any(make) -> None:
    folder = make(methods=LOCAL, seeds=(0, 1), sites=("a", "b", "c"), insight=False)
    set_values(folder, lambda *_: 0.5)
    for result in change_documents(folder, "runs/*seed-1/result.json"):
        result["matrix"]["a"]["b"] = {}
    measured = Measurements(read(folder))
    scores = measured.scores(SETTING, "auc")
    assert scores.by_test["global"]["a"].isna().all()
    assert scores.means["global"].tolist() == [0.5, 0.5]
    assert scores.undefined("global") == {"Local": 6}
    assert not measured.scores(SETTING, "auc", without=["b"]).by_test["global"].isna().any(axis=None)


def test_some_sites_can_be_left_out(make) -> None:
    folder = make(methods=LOCAL, seeds=(0,), sites=("a", "b", "c"), insight=False)
    set_values(folder, lambda run, model, site: {"a": 0.2, "b": 0.4, "c": 0.9}[site])
    means = scores_of(folder, without=("c",)).means
    assert (means["local"].tolist(), means["global"].tolist()) == (pytest.approx([0.3]), pytest.approx([0.3]))


def test_nothing_ran(make) -> None:
    folder = make(methods=LOCAL, insight=False)
    assert scores_of(folder, links="half").means["global"].empty


def test_further_metrics_of_classes_come_from_the_predictions(make) -> None:
    folder = make(methods={"Local": "local"}, seeds=(0,), classes=2, further_metrics=["kappa"])
    results = read(folder)
    (run,) = results.runs
    values = Measurements(results).values(SETTING, "kappa").set_index(["model", "split"])["value"]
    predictions = run.predictions("africa", "asia")
    assert values["africa", "asia"] == pytest.approx(cohen_kappa_score(predictions[1], predictions[0].argmax(1)))
    assert results.metrics == [*METRICS_OF["classification"], "kappa"]


def test_a_further_metric_of_label_maps_is_better_where_it_is_lower_and_says_what_is_undefined(make) -> None:
    folder = make(methods=TWO, seeds=(0,), kind="segmentation", further_metrics=["hd95"])
    set_values(folder, lambda result, model, site: 2.0 if result["method"] == "Local" else 1.0, "hd95")
    set_values(folder, lambda result, model, site: 3.0, "hd95_undefined")
    _, comparison = compared(folder, "hd95")
    assert comparison.best("local") == ["FedSKD", "Local"]
    assert comparison.table.title == "HD95, voxels"
    assert not comparison.has_bounds
    notes = " ".join(comparison.table.notes)
    assert "of the classes that truth and prediction both have" in notes
    assert "Of 288 values of the sites' own test samples 24 are undefined" in notes
