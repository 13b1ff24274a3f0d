"""The choice between candidates: by validation samples, never by test samples, and shown."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, set_values, texts
from peer.errors import StateError
from peer.lab.report.choice import choose, table
from peer.lab.report.results import read
from peer.lab.report.write import report

CANDIDATES = ("fedskd+gamma-1.0", "fedskd+gamma-10.0")
LABELS = {"Local": "local", **dict.fromkeys(CANDIDATES, "fedskd")}
Score = Callable[[str, int, str], tuple[float | None, float]]


@pytest.fixture
def swept(make) -> Callable[[Score], Path]:
    """Writes runs with the validation metric and loss that ``score`` gives for candidate, seed and site."""

    def write(score: Score) -> Path:
        folder = make(methods=LABELS)
        for document in change_documents(folder, "experiment.json"):
            for label, gamma in zip(CANDIDATES, (1.0, 10.0), strict=True):
                document["methods"][label] |= {"candidate_of": "fedskd", "parameters": {"gamma": gamma, "taps": [4]}}
        for result in change_documents(folder, "runs/*fedskd*/result.json"):
            for site, facts in result["sites"].items():
                value, loss = score(result["method"], result["seed"], site)
                metrics = {"validation_loss": loss} | ({} if value is None else {"validation_auc": value})
                facts["rounds"][-1]["metrics"] = facts["rounds"][-1]["metrics"] | metrics
        return folder

    return write


def first_then_second(candidate: str, seed: int, site: str) -> tuple[float, float]:
    """The first candidate is better in seed 0, and the second in seed 1."""
    return (0.9 if (candidate == CANDIDATES[0]) == (seed == 0) else 0.6), 0.5


def test_each_seed_takes_its_best_candidate_on_validation_samples(swept) -> None:
    folder = swept(first_then_second)
    set_values(folder, lambda result, model, site: 0.99 if result["method"] == CANDIDATES[1] else 0.51)  # test samples
    results = choose(read(folder))
    assert results.methods == ["Local", "fedskd"]
    assert [run.matrix["africa"]["africa"]["auc"] for run in results.select(SETTING, "fedskd")] == [0.51, 0.99]
    assert results.experiment["methods"]["fedskd"]["parameters"] == {"taps": [4]}
    assert texts(table(results, SETTING, name="choice")) == {
        CANDIDATES[0]: {"row": "fedskd", "validation AUC": "0.750 ± 0.150", "chosen": "1 of 2"},
        CANDIDATES[1]: {"row": "fedskd", "validation AUC": "0.750 ± 0.150", "chosen": "1 of 2"},
    }


@pytest.mark.parametrize("value", [0.8, None])
def test_of_equal_candidates_and_of_those_without_the_metric_the_one_of_lower_loss_is_chosen(
    swept, value: float | None
) -> None:
    results = choose(read(swept(lambda candidate, seed, site: (value, 0.4 if candidate == CANDIDATES[1] else 0.5))))
    assert [score.candidate for score in results.scores if score.is_chosen] == [CANDIDATES[1]] * 2


def test_sites_without_the_metric_are_left_out_of_the_mean(swept) -> None:
    results = choose(read(swept(lambda candidate, seed, site: (None if site == "asia" else 0.7, 0.5))))
    assert [score.value for score in results.scores] == [pytest.approx(0.7)] * 4


def test_there_is_no_choice_between_some_of_the_candidates(swept) -> None:
    folder = swept(first_then_second)
    name = f"sites.heterogeneous.all.{CANDIDATES[0]}.fold-0.seed-1"
    (folder / "runs" / name / "result.json").unlink()
    results = choose(read(folder))
    assert [run.seed for run in results.select(SETTING, "fedskd")] == [0]
    assert results.unfinished == [name]


def test_a_report_without_any_choice_says_so(make) -> None:
    folder = make(methods=dict.fromkeys(CANDIDATES, "fedskd"), seeds=(0,))
    for document in change_documents(folder, "experiment.json"):
        for label in CANDIDATES:
            document["methods"][label]["candidate_of"] = "fedskd"
    next(folder.glob("runs/*gamma-10*/result.json")).unlink()
    with pytest.raises(StateError, match="no row has all its candidates yet"):
        choose(read(folder))


@pytest.mark.e2e
def test_the_report_has_the_chosen_row_and_the_candidates(swept, tmp_path: Path) -> None:
    document: Any = report(swept(first_then_second), tmp_path / "report", resamples=0)
    main, *_, candidates = document["results"][0]["tables"]
    assert [row["label"] for row in main["rows"]] == ["Local", "fedskd"]
    assert [row["label"] for row in candidates["rows"]] == [*CANDIDATES]
    page = (tmp_path / "report" / "report.md").read_text()
    assert "Candidates a row: fedskd 2. Without a choice: Local." in page


def test_results_without_candidates_stay(make) -> None:
    results = read(make(methods={"Local": "local"}))
    assert choose(results) is results
    assert table(results, SETTING, name="choice") is None


def test_a_renamed_row_keeps_its_candidates(swept) -> None:
    folder = swept(first_then_second)
    shutil.rmtree(folder / f"runs/sites.heterogeneous.all.{CANDIDATES[0]}.fold-0.seed-1")
    shutil.rmtree(folder / "runs/sites.heterogeneous.all.Local.fold-0.seed-1")
    results = choose(read(folder)).with_rows({"fedskd": "FedSKD"})
    assert [run.method for run in results.runs] == ["FedSKD"]
    assert {score.row for score in results.scores} == {"FedSKD"}
    assert results.unfinished == [f"sites.heterogeneous.all.{CANDIDATES[0]}.fold-0.seed-1"]
