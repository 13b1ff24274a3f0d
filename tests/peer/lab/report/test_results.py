"""Reading a folder of runs."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import TWO
from peer.errors import StateError, UsageError
from peer.lab.report.results import read


def test_runs_are_found_by_setting_label_and_links(make) -> None:
    results = read(make(methods=TWO, folds=2, seeds=(3, 4), partitions=("a", "b")))
    assert results.settings == [("a", "heterogeneous"), ("b", "heterogeneous")]
    selected = results.select(("b", "heterogeneous"), "FedSKD")
    assert [(run.fold, run.seed) for run in selected] == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert results.select(("b", "heterogeneous"), "FedSKD", "half") == []
    assert results.labels(("a", "heterogeneous")) == ["Local", "FedSKD"]
    assert results.repeats == "2 folds, each the mean of 2 seeds"
    assert results.unfinished == []


def test_pooled_training_data_is_nobodys(make) -> None:
    results = read(make(methods={"Centralised": "centralised", "Local": "local"}, seeds=(2, 1)))
    run = results.representative_run("sites")
    assert (run.method, run.seed) == ("Local", 1)
    assert results.representative_run("others") is None


def test_what_is_not_there_is_known(make) -> None:
    folder = make(methods=TWO, folds=3, seeds=(0,))
    missing = [f"sites.heterogeneous.all.FedSKD.fold-{fold}.seed-0" for fold in (1, 2)]
    (folder / "runs" / missing[0] / "result.json").unlink()
    shutil.rmtree(folder / "runs" / missing[1])
    assert read(folder).unfinished == missing


def test_predictions_come_as_probabilities_and_labels(make) -> None:
    (run, *_) = read(make(methods=TWO, classes=4)).runs
    predictions = run.predictions("africa", "asia")
    assert predictions[0].shape == (36, 4)
    assert predictions[1].dtype == np.int64
    assert run.predictions("africa", "nowhere") is None
    assert run.arrays("panels") == {}


def test_no_experiment_is_a_mistake_in_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no results: there is no experiment\.json; name what `simulate --out`"):
        read(tmp_path)


def test_another_format_is_refused_with_the_version_that_reads_it(make) -> None:
    folder = make(methods=TWO, format=2, version="9.1.0")
    with pytest.raises(
        StateError, match=r"experiment\.json is of format 2; .* format 1; report with .* mhfl-peer 9\.1\.0"
    ):
        read(folder)


def test_no_finished_run_is_said(make) -> None:
    folder = make(methods=TWO)
    for path in folder.glob("runs/*/result.json"):
        path.unlink()
    with pytest.raises(StateError, match="no run has finished yet"):
        read(folder)


@pytest.mark.parametrize(
    ("pattern", "content", "message"),
    [
        ("experiment.json", "{", r"experiment\.json"),
        ("experiment.json", "[1]", r"experiment\.json"),
        ("runs/*/result.json", '{"format": 7}', "is of format 7"),
    ],
)
def test_a_document_that_cannot_be_used_is_named(make, pattern: str, content: str, message: str) -> None:
    folder = make(methods=TWO)
    next(folder.glob(pattern)).write_text(content)
    with pytest.raises(StateError, match=message):
        read(folder)


def test_arrays_that_hold_objects_are_never_unpickled(make) -> None:
    run = read(make(methods=TWO)).runs[0]
    np.savez(run.folder / "diagnosis.npz", basis=np.array([{"a": 1}], dtype=object))
    with pytest.raises(StateError, match=r"diagnosis\.npz cannot be read"):
        run.arrays("diagnosis")


def test_a_damaged_archive_is_named(make) -> None:
    run = read(make(methods=TWO)).runs[0]
    (run.folder / "features.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(StateError, match=r"features\.npz cannot be read"):
        run.arrays("features")


def test_what_the_experiment_does_not_name_any_more_is_not_reported(make) -> None:
    folder = make(methods=TWO, seeds=(0, 1, 2))
    for document in change_documents(folder, "experiment.json"):
        document["seeds"] = [0, 1]
    results = read(folder)
    assert {run.seed for run in results.runs} == {0, 1}
    assert results.repeats == "2 seeds"


def test_chosen_rows_have_their_order_and_their_names(make) -> None:
    folder = make(methods={**TWO, "FedDAL": "feddal"}, seeds=(0,))
    for label in ("FedDAL", "FedSKD"):
        shutil.rmtree(folder / f"runs/sites.heterogeneous.all.{label}.fold-0.seed-0")
    all_results = read(folder)
    results = all_results.with_rows({"FedSKD": "ours", "Local": "alone"})
    assert results.methods == ["ours", "alone"]
    assert [run.method for run in results.runs] == ["alone"]
    assert results.method_of("ours") == "fedskd"
    assert all_results.with_rows({}) is all_results


def test_a_row_that_is_none_and_two_with_one_name_are_refused(make) -> None:
    results = read(make(methods=TWO))
    with pytest.raises(UsageError, match=r"no row 'fedskd' in .*; it has Local, FedSKD"):
        results.with_rows({"fedskd": "ours"})
    with pytest.raises(UsageError, match="two rows would have one name"):
        results.with_rows({"FedSKD": "ours", "Local": "ours"})
