"""The process that exports: its answer, its metrics, and one line for an error."""

import dataclasses
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.core.worker_protocol import to_json
from peer.train.errors import UnusableConfigurationError
from peer.train.inference import predict
from peer.train.inference.export import monai_bundle
from peer.train.inference.export.load import digest
from peer.train.inference.export.process import export, in_float32, main
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


@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_the_model_of_a_table_predicts_its_rows_as_the_site_does(
    make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path, answer_of: Any, form: str
) -> None:
    hospital, out = make_hospital("tabular"), tmp_path / f"m.{form}"
    card = export(Trainer(hospital.setting), INITIAL, (), form=form, out=out, facts=facts)
    assert card["input"]["steps"][1] == (
        "age: (2 x - 110) / 70; and 1 where the value is missing, whose other channels are then 0."
    )
    table = tmp_path / "new.csv"
    table.write_text("AGE,sex\n45,male\n46,\n450,female\n")
    inputs = {"inputs": [str(table)], "out": "unused"}
    site = answer_of(predict.main, {"setting": to_json(hospital.setting), "state": INITIAL, "sources": [], **inputs})
    exported = answer_of(predict.main, {"model": str(out), "sha256": digest(out)[0], **inputs})
    assert [row["file"] for row in site["predictions"]] == ["new.csv line 2", "new.csv line 3"]
    for own, other in zip(site["predictions"], exported["predictions"], strict=True):
        assert own["probabilities"] == pytest.approx(other["probabilities"], rel=1e-4)
    assert site["skipped"] == exported["skipped"]
    (skipped,) = site["skipped"]
    assert skipped["file"] == "new.csv line 4"
    assert "450 is outside 20 to 90" in skipped["reason"]


def test_a_bundle_is_refused_for_a_table(
    make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    trainer = Trainer(make_hospital("tabular").setting)
    with pytest.raises(UnusableConfigurationError, match="export this model as onnx or pt2"):
        export(trainer, INITIAL, (), form="bundle", out=tmp_path / "m", facts=facts)
    assert not (tmp_path / "m").exists()


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
