"""The process that exports: its answer, its metrics, and one line for an error."""

import dataclasses
import json
import math
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from peer.core.targets import Target
from peer.core.worker_protocol import to_json
from peer.train.errors import UnusableConfigurationError
from peer.train.inference import predict
from peer.train.inference.export import monai_bundle
from peer.train.inference.export.equivalence import DRAWN_ROWS, READ, TOLERANCE, Samples
from peer.train.inference.export.load import digest
from peer.train.inference.export.process import _graph, export, in_float32, main
from peer.train.settings import TaskSettings
from peer.train.trainer import INITIAL, Trainer

pytestmark = pytest.mark.e2e


def test_it_answers_with_the_card_and_the_digest_and_leaves_the_site_alone(
    make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path, answer_of: Any
) -> None:
    hospital = make_hospital("time_series")
    before = sorted(Path(hospital.setting.home).rglob("*"))
    request = {"setting": to_json(hospital.setting), "state": INITIAL, "sources": [], "form": "bundle"}
    answer = answer_of(main, {**request, "out": str(tmp_path / "m.zip"), "facts": facts})
    assert (answer["sha256"], answer["bytes"]) == digest(tmp_path / "m.zip")
    with zipfile.ZipFile(tmp_path / "m.zip") as archive:
        names = {name.removeprefix("m/") for name in archive.namelist()}
        assert json.loads(archive.read(f"m/{monai_bundle.CARD}")) == answer["card"]
        assert archive.read(f"m/{monai_bundle.README}").decode().startswith("# Model of alpha")
    assert names == {
        monai_bundle.METADATA, monai_bundle.INFERENCE, monai_bundle.WEIGHTS, monai_bundle.README, monai_bundle.CARD,
        monai_bundle.LICENCE,
    }  # fmt: skip
    assert not (tmp_path / "m").exists()
    assert sorted(Path(hospital.setting.home).rglob("*")) == before


def test_an_export_computes_on_the_cpu_in_float32(make_hospital: Callable[[str], Any]) -> None:
    setting = make_hospital("time_series").setting
    fast = {**setting.site["training"], "device": "cuda", "precision": "bf16"}
    export_setting = in_float32(dataclasses.replace(setting, site={**setting.site, "training": fast}))
    assert export_setting.site["training"] == {**setting.site["training"], "device": "cpu", "precision": "fp32"}
    assert export_setting.site["model"] == setting.site["model"]
    assert export_setting.site["data"] == setting.site["data"]
    on_disk = {**setting.site, "data": {**setting.site["data"], "cache": "disk"}}
    export_setting = in_float32(dataclasses.replace(setting, site=on_disk))
    assert export_setting.site["data"]["cache"] == "none", "all samples would go into the temporary folder"


def test_a_state_that_is_not_there_is_one_line(
    make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path, answer_of: Any
) -> None:
    request = {"setting": to_json(make_hospital("time_series").setting), "state": "round-000009/train"}
    request |= {"sources": [], "form": "onnx", "out": str(tmp_path / "m.onnx"), "facts": facts}
    with pytest.raises(SystemExit, match="checkpoint 'round-000009/train' is not in"):
        answer_of(main, request)
    assert not (tmp_path / "m.onnx").exists()


CELLS = [
    ("45,male,yes,2.5", (45, 1, 1, 2.5)),
    ("20,female,no,-20", (20, 0, 0, -20)),
    ("46,,NA,", (46, math.nan, math.nan, math.nan)),
    ("?,male,0,-9", (math.nan, 1, 0, -9)),
    (",,,20", (math.nan, math.nan, math.nan, 20)),
]
"""Cells of a table as a hospital has them, and the numbers that the graph takes of them."""
MISFITS = [
    ((450, 1, 1, 2.5), ",male,yes,2.5"),
    ((45, 2, 1, 2.5), "45,,yes,2.5"),
    ((45, 0.5, -1, 2.5), "45,,,2.5"),
    ((45, 1, 2, math.inf), "45,male,,"),
]
"""Numbers of which some do not fit, and cells that are empty in their places."""


@pytest.mark.parametrize(
    ("form", "target"),
    [("onnx", "class"), ("onnx", "labels"), ("onnx", "number"), ("onnx", "survival"), ("pt2", "survival")],
)
def test_the_graph_of_a_table_takes_what_a_hospital_has(
    make_hospital: Callable[..., Any],
    facts: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer_of: Any,
    form: str,
    target: str,
) -> None:
    hospital, out = make_hospital("tabular", target), tmp_path / f"model.{form}"
    card = export(Trainer(hospital.setting), INITIAL, (), form=form, out=out, facts=facts)
    table = tmp_path / "new.csv"
    cells = [cells for cells, _ in CELLS] + [cells for _, cells in MISFITS]
    table.write_text("\n".join(["AGE,sex,Smoker,base excess", *cells, "450,male,yes,1"]) + "\n")
    inputs = {"inputs": [str(table)], "out": "unused"}
    site = answer_of(predict.main, {"setting": to_json(hospital.setting), "state": INITIAL, "sources": [], **inputs})
    exported = answer_of(predict.main, {"model": str(out), "sha256": digest(out)[0], **inputs})
    (key,) = {"probabilities", "value", "survival"} & site["predictions"][0].keys()
    expected = np.array([row[key] for row in site["predictions"]]).reshape(len(cells), -1)
    numbers = np.array([row for _, row in CELLS] + [row for row, _ in MISFITS], dtype=np.float32)
    assert run_alone(out, numbers) == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert len(np.unique(expected.round(3), axis=0)) > len(CELLS), "the rows differ in what is predicted"
    predicted = np.array([row[key] for row in exported["predictions"]]).reshape(len(cells), -1)
    assert predicted == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert site["skipped"] == exported["skipped"], "a table with a value that does not fit is left out by both"
    (skipped,) = site["skipped"]
    assert "450 is outside 20 to 90 years" in skipped["reason"]
    assert np.isnan(run_alone(out, np.full((1, 4), np.nan, dtype=np.float32))).all()
    assert card["checks"][-1]["source"] == READ
    if target == "survival":
        monkeypatch.chdir(tmp_path)
        check_card(out, capsys)
    if (form, target) == ("onnx", "survival"):
        check_texts(out)


def run_alone(path: Path, rows: np.ndarray) -> np.ndarray:
    """Run the file as somebody without this program does."""
    if path.suffix == ".onnx":
        (output,) = onnxruntime.InferenceSession(str(path)).run(None, {"columns": rows})
        return np.asarray(output)
    return torch.export.load(path).module()(torch.from_numpy(rows)).detach().numpy()


def check_card(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card of a table names its columns, and its example runs."""
    text = out.with_name(f"{out.name}.md").read_text()
    for line in (
        "2. age: a number from 20 to 90 years.",
        "3. sex: 0 for female, 1 for male.",
        "4. smoker: 1 for yes, 0 for no.",
        "One input, `columns` (batch, 4), float32; one output, `survival`; any batch.",
    ):
        assert line in text.splitlines()
    program = text.split("```python\n")[1].split("```")[0]
    capsys.readouterr()
    exec(program, {})
    row = np.array([[55, 0, 1, math.nan]], dtype=np.float32)
    printed = [float(number) for number in re.findall(r"\d\.\d+", capsys.readouterr().out)]
    assert printed == pytest.approx(run_alone(out, row)[0].tolist(), abs=1e-3)


def check_texts(out: Path) -> None:
    """An ONNX file has its columns and its target as texts."""
    texts = onnxruntime.InferenceSession(str(out)).get_modelmeta().custom_metadata_map
    sex = json.loads(texts["columns"])[1]
    assert (sex["name"], sex["kind"], sex["levels"]) == ("sex", "category", ["female", "male"])
    target = json.loads(texts["target"])
    assert (target["times"], target["horizon"], target["unit"]) == ([6, 12], 12, "months")


def test_without_test_rows_the_comparison_draws_some(
    make_hospital: Callable[..., Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    hospital = make_hospital("tabular")
    datalist = hospital.data / "datalist.json"
    datalist.write_text(json.dumps({**json.loads(datalist.read_text()), "test": []}))
    card = export(Trainer(hospital.setting), INITIAL, (), form="pt2", out=tmp_path / "m.pt2", facts=facts)
    assert {check["source"] for check in card["checks"]} == {DRAWN_ROWS}


def test_a_bundle_is_refused_for_a_table(
    make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    trainer = Trainer(make_hospital("tabular").setting)
    with pytest.raises(UnusableConfigurationError, match="export this model as onnx or pt2"):
        export(trainer, INITIAL, (), form="bundle", out=tmp_path / "m", facts=facts)
    assert not (tmp_path / "m").exists()


def test_a_network_that_no_graph_can_hold_is_refused_with_a_remedy_that_exists(
    make_hospital: Callable[..., Any], tmp_path: Path
) -> None:
    class Undecided(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs**2 if inputs.sum() > 0 else inputs

    card = {"network": {"network": {"name": "own"}}, "input": {"free_size": False, "name": "columns"}}
    samples = Samples((torch.ones(4),), (), READ)
    for kind, target, remedy in (
        ("tabular", "class", "`mhfl-peer predict`"),
        ("time_series", "survival", "`mhfl-peer predict`"),
        ("time_series", "class", "export it as a bundle"),
    ):
        task = TaskSettings(kind, 1, 1, 2, target=Target(target))
        with pytest.raises(UnusableConfigurationError, match=f"own cannot be exported to a graph: .*{remedy}"):
            _graph(tmp_path / "m.pt2", Undecided(), card, lambda inputs: inputs, samples, task, form="pt2")  # type: ignore[arg-type]


def test_what_was_left_out_makes_the_export_be_measured_itself(
    make_mixing: Callable[..., Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    site = make_mixing()
    facts_left_out = {**facts, "left_out": {"beta": "its manifest does not say reexport = true"}}
    card = export(Trainer(site.setting), site.state, (), form="bundle", out=tmp_path / "m", facts=facts_left_out)
    trainer = Trainer(site.setting)
    trainer.load(site.state)
    assert card["metrics"]["exported"] == trainer.evaluate(trainer.data.test)
    assert "experts" not in card["network"]
    text = (tmp_path / "m" / monai_bundle.README).read_text()
    assert "this is the local expert alone" in text
