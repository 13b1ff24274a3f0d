"""`mhfl-peer evaluation`: a row a cell, reasons of missing cells, the mean with its count."""

import json
from typing import Any

import pytest

from fakes.cli import run
from fakes.sites import append_rows
from peer.lab.demo.local_federation import LocalFederation

REPORT = {"generation": 1, "round": 1, "sha256": "ab" * 32, "samples": 20, "metrics": {"auc": 0.7}, "unmeasured": ""}
OWN = ("evaluated", 1, {"metrics": {"auc": 0.5, "loss": 0.25, "samples": 30.0}})
THEIRS = ("report", 1, {"site": "europe", "report": REPORT})


@pytest.fixture
def shown(enrolled: LocalFederation) -> Any:
    """Calls the command on a journal with these rows, and returns its output."""

    def show(*rows: tuple[str, int, Any], options: tuple[str, ...] = ()) -> str:
        append_rows(enrolled.folder("asia"), *rows)
        result = run("--home", enrolled.home, "evaluation", "--site", "asia", *options)
        assert result.exit_code == 0, result.output
        return result.stdout

    return show


def test_a_whole_row_ends_in_its_global_test(shown: Any) -> None:
    lines = [line.split() for line in shown(OWN, THEIRS).splitlines()]
    assert ["1", "asia", "30", "AUC", "0.5"] in lines
    assert ["1", "europe", "20", "AUC", "0.7"] in lines
    assert ["1", "mean", "(Global", "Test)", "-", "AUC", "0.6"] in lines


def test_calibration_of_survival_is_in_words(shown: Any) -> None:
    figures = {"c_index": 0.7, "observed_expected": 1.25, "calibration_slope": 0.8, "log_rank_p": 0.0123}
    halves = {"predicted_higher_risk": 0.4, "observed_higher_risk": 0.35}
    text = " ".join(shown(("evaluated", 1, {"metrics": {**figures, **halves, "samples": 30.0}})).split())
    for words in ("C-index 0.7", "observed/expected events", "1.25", "calibration slope 0.8", "log-rank p", "0.0123"):
        assert words in text


def test_a_missing_cell_has_its_reason_and_the_mean_its_count(shown: Any) -> None:
    lapsed = ("lapsed", 1, {"reasons": {"europe": "not permitted by europe"}, "retired": False})
    text = shown(OWN, lapsed)
    assert "not permitted by europe" in text
    assert "mean of 1 of 2" in text
    assert "Global Test" not in text


def test_the_document_has_the_promised_keys(shown: Any) -> None:
    (record,) = json.loads(shown(OWN, THEIRS, options=("--json",)))
    assert set(record) == {"round", "cells", "mean", "global_test"}
    assert record["cells"]["asia"] == {"metrics": {"auc": 0.5, "loss": 0.25}, "counts": {"samples": 30}}
    assert record["mean"]["loss"] == {"value": 0.25, "sites": 1}
    assert record["global_test"] == {"auc": pytest.approx(0.6)}
