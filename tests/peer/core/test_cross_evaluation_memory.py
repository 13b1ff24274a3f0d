"""The memory of lent and borrowed models, and the table of evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core.artifacts import UNMEASURED, EvaluationResult, Source
from peer.core.cross_evaluation_memory import (
    NO_ANSWER,
    REASONS,
    ROWS,
    Evaluation,
    LentModel,
    evaluation_records,
    record,
)
from peer.core.rows import GuestRow, LapsedRow, MeasuredRow, MislaidRow, ReportRow, SettledRow
from peer.core.worker_protocol import to_json

SITES = ("africa", "asia", "europe")
KEY = ("asia", 1, 4)
GUEST: dict[str, Any] = {"round": 4, "origin": "asia", "origin_generation": 1}
OWN = {"metrics": {"auc": 0.9, "loss": 0.5, "samples": 30.0, "auc_undefined": 0.0, "validation_auc": 0.1}}


def told(site: str, sha256: str, **changes: Any) -> dict[str, Any]:
    report = EvaluationResult(
        **{"generation": 1, "round": 4, "sha256": sha256, "samples": 20, "metrics": {"auc": 0.6}, **changes}
    )
    return {"site": site, "report": to_json(report)}


def table(*rows: tuple[str, int, Any]) -> list[dict[str, Any]]:
    return evaluation_records(rows, own="europe", sites=lambda _: SITES)


def test_a_guest_is_needed_until_it_is_measured_and_known_for_ever(artifact: Any) -> None:
    model, memory = artifact("asia", "after 4"), Evaluation()
    memory.apply(GuestRow(**GUEST, source=Source("asia", 4, model)))
    assert memory.needed_digests() == {model.sha256}
    report = EvaluationResult(1, 4, model.sha256, 20, {"auc": 0.5})
    memory.apply(MeasuredRow(**GUEST, report=report))
    assert memory.needed_digests() == set()
    assert memory.borrowed[KEY].report == report
    assert not memory.borrowed[KEY].settled
    memory.apply(SettledRow(**GUEST, reason="taken"))
    assert memory.borrowed[KEY].settled


def test_only_models_with_work_left_are_open_and_an_origin_s_generations_are_counted(artifact: Any) -> None:
    model, memory = artifact("asia", "after 4"), Evaluation()
    states = []
    for row in (
        GuestRow(**GUEST, source=Source("asia", 4, model)),
        MislaidRow(**GUEST, fault="process", reason="killed"),
        GuestRow(**GUEST, source=Source("asia", 4, model)),
        MeasuredRow(**GUEST, report=EvaluationResult(1, 4, model.sha256, 20, {"auc": 0.5})),
        SettledRow(**GUEST, reason="taken"),
        SettledRow(**{**GUEST, "origin_generation": 2}, reason="gone"),
    ):
        memory.apply(row)
        states.append((memory.open == {"asia": {KEY}}, memory.generations["asia", 4], memory.changed))
    assert states == [
        (left, count, {"asia"}) for left, count in ((True, 1), (False, 1), (True, 1), (True, 1), (False, 1), (False, 2))
    ]
    memory.apply(GuestRow(**{**GUEST, "round": 5}, source=Source("asia", 5, model)))
    memory.forget_missing_files(set())
    assert memory.open == {}


def test_a_guest_whose_file_is_gone_is_fetched_again(artifact: Any) -> None:
    model, memory = artifact("asia", "after 4"), Evaluation()
    memory.apply(GuestRow(**GUEST, source=Source("asia", 4, model)))
    memory.forget_missing_files({model.sha256})
    assert memory.borrowed[KEY].source is not None
    memory.forget_missing_files(set())
    assert memory.borrowed[KEY].source is None
    assert memory.borrowed[KEY].sha256 == model.sha256, "another model under the same name would show"


def test_a_lent_model_is_needed_until_its_file_is_gone(artifact: Any) -> None:
    model = artifact("europe", "after 4")
    memory = Evaluation(lent={4: LentModel(model)})
    assert memory.needed_digests() == {model.sha256}
    memory.forget_missing_files(set())
    assert memory.needed_digests() == set()


def test_rows_of_a_model_that_is_lent_no_more_change_nothing(artifact: Any) -> None:
    memory = Evaluation()
    memory.apply(ReportRow.from_body(4, told("asia", "ab" * 32)))
    memory.apply(LapsedRow(4, reasons={}, retired=True))
    assert memory == Evaluation()


def test_every_cell_gives_the_unweighted_mean_over_the_sites() -> None:
    rows = [
        ("evaluated", 4, OWN),
        ("report", 4, told("asia", "ab" * 32, metrics={"auc": 0.6, "loss": 1.0})),
        ("report", 4, told("africa", "ab" * 32, samples=2000, metrics={"auc": 0.3, "auc_undefined": 1.0})),
    ]
    (record,) = table(*rows)
    assert record["round"] == 4
    assert record["cells"] == {
        "africa": {"metrics": {"auc": 0.3}, "counts": {"samples": 2000, "auc_undefined": 1}},
        "asia": {"metrics": {"auc": 0.6, "loss": 1.0}, "counts": {"samples": 20}},
        "europe": {"metrics": {"auc": 0.9, "loss": 0.5}, "counts": {"samples": 30, "auc_undefined": 0}},
    }
    assert record["global_test"] == {"auc": pytest.approx(0.6)}, "africa told no loss"
    assert record["mean"] == {
        "auc": {"value": pytest.approx(0.6), "sites": 3},
        "loss": {"value": pytest.approx(0.75), "sites": 2},
    }


def test_a_p_value_is_shown_and_not_averaged() -> None:
    figures = {"c_index": 0.6, "log_rank_p": 0.02, "events": 9.0}
    reports = [("report", 4, told(site, "ab" * 32, metrics=figures)) for site in ("asia", "africa")]
    (record,) = table(("evaluated", 4, OWN), *reports)
    assert record["cells"]["asia"]["metrics"] == {"c_index": 0.6, "log_rank_p": 0.02}
    assert record["cells"]["asia"]["counts"] == {"events": 9, "samples": 20}
    assert "log_rank_p" not in record["mean"].keys() | (record["global_test"] or {}).keys()


def test_without_all_cells_there_is_a_mean_with_its_count_and_no_global_test() -> None:
    rows = [
        ("evaluated", 4, OWN),
        ("report", 4, told("asia", "ab" * 32)),
        ("lapsed", 4, {"reasons": {"africa": "silent"}, "retired": False}),
    ]
    (record,) = table(*rows)
    assert record["cells"]["africa"] == {"reason": "silent"}
    assert record["global_test"] is None
    assert record["mean"]["auc"] == {"value": pytest.approx(0.75), "sites": 2}


def test_figures_that_come_late_take_the_place_of_a_reason_and_not_the_other_way_round() -> None:
    lapsed = ("lapsed", 4, {"reasons": {"asia": "silent"}, "retired": True})
    figures = ("report", 4, told("asia", "ab" * 32))
    for rows in ((lapsed, figures), (figures, lapsed)):
        (record,) = table(("evaluated", 4, OWN), *rows)
        assert record["cells"]["asia"]["metrics"] == {"auc": 0.6}


@pytest.mark.parametrize("unmeasured", UNMEASURED)
def test_a_site_that_says_nothing_says_why(unmeasured: Any) -> None:
    rows = [("evaluated", 4, OWN), ("report", 4, told("asia", "ab" * 32, samples=0, metrics={}, unmeasured=unmeasured))]
    (record,) = table(*rows)
    assert record["cells"]["asia"] == {"reason": REASONS[unmeasured]}


def test_what_is_kept_home_has_the_reason_in_every_other_cell() -> None:
    (record,) = table(("evaluated", 4, {**OWN, "kept_home": "not permitted: because"}))
    assert record["cells"]["asia"] == record["cells"]["africa"] == {"reason": "not permitted: because"}
    assert "metrics" in record["cells"]["europe"]


def test_rounds_are_listed_in_order_and_a_site_without_a_test_split_says_so() -> None:
    records = table(("evaluated", 8, OWN), ("evaluated", 4, {"metrics": {}}))
    assert [record["round"] for record in records] == [4, 8]
    assert records[0]["cells"]["europe"] == {"reason": "no test samples"}
    assert records[1]["cells"]["asia"] == {"reason": NO_ANSWER}


def test_rows_of_other_rounds_and_sites_are_left_out() -> None:
    (record,) = table(
        ("report", 3, told("asia", "ab" * 32)), ("evaluated", 4, OWN), ("report", 4, told("mars", "ab" * 32))
    )
    assert set(record["cells"]) == set(SITES)
    assert record["cells"]["asia"] == {"reason": NO_ANSWER}


def test_nothing_measured_has_no_mean() -> None:
    assert record(1, {"asia": {"reason": "silent"}}) == {
        "round": 1,
        "cells": {"asia": {"reason": "silent"}},
        "mean": {},
        "global_test": None,
    }


def test_the_kinds_are_those_that_change_memory(artifact: Any) -> None:
    typed = [
        GuestRow(**GUEST, source=Source("asia", 4, artifact("asia", "a"))),
        MislaidRow(**GUEST),
        MeasuredRow(**GUEST, report=EvaluationResult(1, 4, None, unmeasured="not_received")),
        SettledRow(**GUEST),
    ]
    assert {type(row) for row in typed} == set(ROWS) - {ReportRow, LapsedRow}
    for row in typed:
        memory = Evaluation()
        memory.apply(row)
        assert memory != Evaluation(), row.kind
