"""Rounds and bytes to a target, by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import compared, set_values, texts
from peer.lab.report import plotting, rounds_to_target

MIB = 1 << 20
METHODS = {"Centralised": "centralised", "Local": "local", "FedSKD": "fedskd"}
CURVES = {"Local": [0.5, 0.6, 0.7], "FedSKD": [0.6, 0.75, 0.9], "Centralised": [0.7, 0.8, 0.9]}


def with_curves(folder: Path, curve: Callable[[str, int], list[float]]) -> Path:
    """Give every site this curve, evaluated in every round, and one MiB sent in every round."""
    for document in change_documents(folder, "runs/*/result.json"):
        values = curve(document["method"], document["seed"])
        for site in document["sites"].values():
            site["rounds"] = [
                {"round": number, "metrics": {"auc": value}} for number, value in enumerate(values, start=1)
            ]
            site["sent_bytes_by_round"] = {str(number): MIB for number in range(1, 4)}
    return set_values(folder, lambda run, *_: curve(run["method"], run["seed"])[-1])


def drawn(folder: Path, *targets: float) -> list[Any]:
    """The figure and the table, or nothing."""
    results, comparison = compared(folder)
    styles = plotting.assign_styles({label: results.method_of(label) for label in results.methods})
    with plotting.plot_style():
        return list(rounds_to_target.figure_and_table(comparison, styles, targets=targets, name="target"))


def shown(folder: Path, *targets: float) -> dict[str, dict[str, str]] | None:
    _, table = drawn(folder, *targets) or (None, None)
    return None if table is None else texts(table)


@pytest.fixture
def folder(make: Any) -> Path:
    return make(methods=METHODS, seeds=(0, 1), sites=("a", "b"))


def test_by_default_the_targets_are_what_local_ends_with_and_half_of_the_room(folder: Path) -> None:
    rows = shown(with_curves(folder, lambda method, seed: [value + 0.01 * seed for value in CURVES[method]]))
    assert list(rows) == ["Local", "FedSKD"]
    alone, half = "Local's last: 0.705", "half of the room: 0.805"
    # The mean of local's ends is 0.705: its seed 0 ends at 0.70 and does not reach it.
    assert rows["Local"][f"{alone}: runs"] == "1 of 2"
    assert (rows["FedSKD"][f"{alone}: rounds"], rows["FedSKD"][f"{alone}: MiB"]) == ("2.0", "2.00")
    assert (rows["FedSKD"][f"{half}: rounds"], rows["FedSKD"][f"{half}: MiB"]) == ("3.0", "3.00")
    assert rows["Local"][f"{half}: runs"] == "0 of 2"
    assert rows["Local"][f"{half}: rounds"] == "–"


def test_a_target_can_be_named(folder: Path) -> None:
    rows = shown(with_curves(folder, lambda method, seed: CURVES[method]), 0.6)
    assert rows["FedSKD"]["Local Test AUC 0.600: rounds"] == "1.0"
    assert rows["Local"]["Local Test AUC 0.600: rounds"] == "2.0"


def test_without_curves_there_is_neither_figure_nor_table(folder: Path) -> None:
    assert drawn(with_curves(folder, lambda method, seed: CURVES[method][-1:])) == []


def test_the_figure_has_the_methods_over_rounds_and_those_that_send_over_bytes(folder: Path) -> None:
    with_curves(folder, lambda method, seed: CURVES[method])
    for document in change_documents(folder, "runs/*.Local.*/result.json"):
        for site in document["sites"].values():
            site["sent_bytes_by_round"] = {str(number): 0 for number in range(1, 4)}
    figure, _ = drawn(folder)
    lines = {method: figure.drawing.count(f"stroke: {plotting.METHOD_COLOURS[method]}") for method in METHODS.values()}
    assert lines["fedskd"] > lines["local"] > lines["centralised"] == 0
