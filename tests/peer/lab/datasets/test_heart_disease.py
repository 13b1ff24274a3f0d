"""Heart disease: the hospitals' patients are those that the package has, and the federation's columns fit them."""

import json
from pathlib import Path

import pytest

from peer.lab.datasets import heart_disease
from peer.lab.experiments.experiment import Experiment
from peer.train.data.datalist import inspect_datalist

pytestmark = pytest.mark.data
PRESET = Path(__file__).parents[4] / "deploy/examples/experiments/heart-disease.toml"


@pytest.mark.parametrize(
    ("complete", "patients", "ill"),
    [(False, (304, 293, 123, 200), (139, 106, 115, 149)), (True, (304, 260, 46, 130), (139, 98, 45, 101))],
)
def test_every_hospital_has_its_patients(
    tmp_path: Path, complete: bool, patients: tuple[int, ...], ill: tuple[int, ...]
) -> None:
    summary = heart_disease.prepare(tmp_path, complete=complete)
    splits = [splits["training"] for splits in summary["sites"].values()]
    assert list(summary["sites"]) == ["cleveland", "hungary", "switzerland", "va-long-beach"]
    assert tuple(split["samples"] for split in splits) == patients
    assert tuple(split["classes"]["disease"] for split in splits) == ill
    assert [count["found"] - count["expected"] for count in summary["counts"]] == [1, -1, 0, 0]


def test_the_presets_columns_are_the_adapters_and_every_value_fits(tmp_path: Path) -> None:
    heart_disease.prepare(tmp_path)
    columns = [column.to_column() for column in Experiment.load(PRESET).task.column]
    assert columns == list(heart_disease.COLUMNS.values())
    listed = inspect_datalist(tmp_path / "pool.json", task="tabular", classes=2, columns=columns)
    assert (listed.problems, listed.notes, len(listed.training)) == ((), (), 920)


def test_a_cholesterol_of_0_was_not_measured(tmp_path: Path) -> None:
    heart_disease.prepare(tmp_path)
    entries = json.loads((tmp_path / "pool.json").read_text())["training"]
    swiss = [entry["row"]["cholesterol"] for entry in entries if entry["site"] == "switzerland"]
    assert swiss == [None] * 123
