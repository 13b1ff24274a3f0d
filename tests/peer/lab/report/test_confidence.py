"""Paired differences and the bootstrap."""

import numpy as np
import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, TWO, compared
from peer.classification import auc
from peer.lab.report.confidence import bootstrap_table, local_interval, paired_table
from peer.lab.report.results import read


def test_every_method_is_compared_with_the_best(make) -> None:
    _, comparison = compared(make(methods=TWO, folds=5, seeds=(0,)))
    table = paired_table(comparison, name="p")
    rows = {row.label: row.cells for row in table.rows}
    ours, best = (comparison.final_mean(label, "local") for label in ("Local", "FedSKD"))
    assert rows["Local"][0].value == pytest.approx(ours - best)
    assert rows["FedSKD"][0].text == "best"
    assert table.columns[0].group == "Local Test, against FedSKD"


def test_one_run_has_nothing_to_pair(make) -> None:
    _, comparison = compared(make(methods=TWO, seeds=(0,)))
    assert paired_table(comparison, name="p") is None


def test_the_interval_holds_the_mean_over_sites_of_the_auc(make) -> None:
    results = read(make(methods=TWO, seeds=(0,), classes=2))
    (run,) = results.select(SETTING, "FedSKD")
    interval = local_interval(results, [run], resamples=50)
    by_hand = [auc(*run.predictions(site, site)) for site in run.sites]
    assert interval.value == pytest.approx(np.mean(by_hand))
    assert interval.low < interval.value < interval.high
    assert interval.subjects == 4 * 18, "two images each"


def test_the_same_subjects_are_drawn_in_every_seed(make) -> None:
    results = read(make(methods=TWO, seeds=(0, 1)))
    interval = local_interval(results, results.select(SETTING, "Local"), resamples=10)
    assert interval.subjects == 4 * 18


def test_dense_tasks_take_the_scores_of_their_samples(make) -> None:
    results, comparison = compared(make(kind="segmentation", methods=TWO, seeds=(0,)), "dice")
    table = bootstrap_table(comparison, resamples=20, name="b")
    (run,) = results.select(SETTING, "Local")
    by_hand = np.mean([np.mean([score["dice"] for score in scores]) for scores in run.scores.values()])
    assert {row.label: row.cells[0].value for row in table.rows}["Local"] == pytest.approx(by_hand)


def test_without_predictions_there_is_no_interval(make) -> None:
    folder = make(methods=TWO)
    for path in folder.glob("runs/*/predictions.npz"):
        path.unlink()
    _, comparison = compared(folder)
    assert bootstrap_table(comparison, resamples=10, name="b") is None


def test_a_subject_that_is_at_two_sites_is_one(make) -> None:
    folder = make(methods=TWO, seeds=(0,), sites=("coarse", "fine"))
    for samples in change_documents(folder, "runs/*/samples.json"):
        samples["fine"] = samples["coarse"]
    results = read(folder)
    interval = local_interval(results, results.select(SETTING, "Local"), resamples=10)
    assert interval.subjects == 18
