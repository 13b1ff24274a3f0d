"""Kaplan-Meier curves by predicted risk: who is in which half, and that a report without times has none."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.report_folders import compared
from peer.lab.report import plotting, survival_curves
from peer.lab.report.survival_curves import log_rank_p, split_by_risk
from peer.survival import log_rank

ENDS = np.array([6.0, 12.0])


def run(**people: Any) -> Any:
    """A run whose sites have these test persons: predicted survival at both ends, time and event of each."""
    arrays: dict[str, Any] = {}
    for site, rows in people.items():
        table = np.array(rows, dtype=np.float64)
        arrays |= {f"p/{site}/{site}": table[:, :2], f"t/{site}": table[:, 2:]}
    return SimpleNamespace(sites=list(people), arrays=lambda name: arrays)


RUN = run(
    a=[(0.9, 0.8, 12.0, 0), (0.5, 0.1, 2.0, 1), (0.8, 0.7, 9.0, 1), (0.6, 0.3, 5.0, 1)],
    b=[(0.3, 0.2, 11.0, 0), (0.2, 0.1, 1.0, 1)],  # the safer one of b has a higher risk than all but one of a
)


def test_each_sites_persons_are_divided_at_the_median_of_their_own_risk() -> None:
    both = split_by_risk([RUN], ENDS, 12.0)
    assert both is not None
    higher, lower = both
    assert higher.times.tolist() == [2.0, 5.0, 1.0]
    assert lower.times.tolist() == [12.0, 9.0, 11.0]
    assert (higher.events.sum(), lower.events.sum()) == (3, 1)
    assert higher.curves.tolist() == [[0.5, 0.1], [0.6, 0.3], [0.2, 0.1]]


def test_a_site_of_one_person_and_a_run_without_predictions_divide_nobody() -> None:
    assert split_by_risk([run(a=[(0.5, 0.1, 2.0, 1)])], ENDS, 6.0) is None
    assert split_by_risk([SimpleNamespace(sites=["a"], arrays=lambda name: {})], ENDS, 6.0) is None  # type: ignore[list-item]


def test_the_figure_has_a_panel_a_method_and_classes_have_none(make: Any) -> None:
    _, comparison = compared(make(methods={"Local": "local"}, seeds=(0,), sites=("a", "b")))
    styles = plotting.assign_styles({"Local": "local"})
    assert survival_curves.figure(comparison, styles, name="t") is None
    task = {"kind": "tabular", "target": "survival", "times": [6, 12], "unit": "months"}
    results = SimpleNamespace(kind="survival", experiment={"task": task}, select=lambda setting, label: [RUN])
    with plotting.plot_style():
        figure = survival_curves.figure(
            SimpleNamespace(results=results, labels=["Local"], setting=None),
            styles,
            name="t",  # type: ignore[arg-type]
        )
    assert figure is not None
    assert figure.drawing.count('id="t-axes_') == 1
    assert "months" in figure.drawing
    assert "p = " in figure.drawing or "p &lt; " in figure.drawing


def test_the_log_rank_test_is_that_of_each_runs_halves_and_repeated_runs_do_not_sharpen_it() -> None:
    both = split_by_risk([RUN], ENDS, 12.0)
    assert both is not None
    expected = log_rank([2, 5, 1, 12, 9, 11], [1, 1, 1, 0, 1, 0], [0, 0, 0, 1, 1, 1])
    assert log_rank_p(both, ENDS) == pytest.approx(expected)
    assert expected is not None
    words = f", p = {expected:.3f}"
    assert survival_curves._log_rank_words([RUN], ENDS, 12.0) == words
    assert survival_curves._log_rank_words([RUN] * 20, ENDS, 12.0) == words
    assert survival_curves._log_rank_words([run(a=[(0.5, 0.1, 2.0, 1)])], ENDS, 12.0) == ""


def test_the_calibration_table_has_what_simulate_measured(make: Any) -> None:
    _, comparison = compared(make(methods={"Local": "local"}, seeds=(0,), sites=("a", "b")))
    assert survival_curves.calibration_table(comparison, name="t") is None
    results = comparison.results
    results.experiment["task"]["target"] = "survival"
    results.experiment["task"]["times"] = [6, 12]
    for each in results.runs:
        for row in each.matrix.values():
            for values in row.values():
                values.update(observed_expected=1.25, calibration_slope=0.5, observed_higher_risk=0.375)
    table = survival_curves.calibration_table(comparison, name="t")
    assert table is not None
    (row,) = table.rows
    shown = {(column.group, column.name): cell.value for column, cell in zip(table.columns, row.cells, strict=True)}
    assert shown["Local Test", "O/E"] == 1.25
    assert shown["Local Test", "slope"] == 0.5
    assert shown["survival, higher risk", "observed"] == 0.375
    assert shown["survival, lower risk", "predicted"] is None
