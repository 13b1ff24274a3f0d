"""Calibration in the report: from the stored predictions, site by site."""

import numpy as np
import pytest
from sklearn.metrics import mean_squared_error

from fakes.report_folders import SETTING, compared
from peer.lab.report import calibration, plotting

TWO = {"Centralised": "centralised", "FedSKD": "fedskd"}


def test_the_scores_are_the_means_over_sites_of_the_stored_predictions(make) -> None:
    results, comparison = compared(make(methods=TWO, seeds=(0, 1), sites=("a", "b")))
    table = calibration.table(comparison, name="t")
    expected = []
    for run in results.select(SETTING, "FedSKD"):
        with np.load(run.folder / "predictions.npz") as arrays:
            for site in ("a", "b"):
                truth = np.eye(3)[arrays[f"y/{site}"]]
                expected.append(3 * mean_squared_error(truth, arrays[f"p/{site}/{site}"].astype(np.float64)))
    names = [f"{column.group}: {column.name}" for column in table.columns]
    row = next(row for row in table.rows if row.label == "FedSKD")
    assert row.cells[names.index("Local Test: Brier")].value == pytest.approx(np.mean(expected))
    assert row.cells[names.index("Local Test: Brier")].value < row.cells[names.index("Global Test: Brier")].value
    assert [each.ranked for each in table.rows] == [False, True]


def test_label_maps_have_no_calibration(make) -> None:
    _, comparison = compared(make(kind="segmentation", methods=TWO, seeds=(0,)), "dice")
    assert calibration.table(comparison, name="t") is None
    assert calibration.diagram(comparison, {}, name="t") is None


def test_the_diagram_has_a_panel_a_method(make) -> None:
    _, comparison = compared(make(methods=TWO, seeds=(0,), sites=("a", "b")))
    styles = plotting.assign_styles(TWO)
    with plotting.plot_style():
        figure = calibration.diagram(comparison, styles, name="t")
    assert figure.drawing.count('id="t-axes_') == len(TWO)
