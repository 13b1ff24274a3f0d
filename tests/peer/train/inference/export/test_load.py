"""The digest of an export is that of `sha256sum`."""

import hashlib
import json
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.json_documents import change_documents
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.export import graph, monai_bundle
from peer.train.inference.export.load import digest, open_model
from peer.train.inference.export.process import export
from peer.train.inference.predict import predict
from peer.train.trainer import INITIAL, Trainer

pytestmark = pytest.mark.e2e


def test_a_file_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (1 << 21))
    assert digest(tmp_path / "a") == (hashlib.sha256(b"x" * (1 << 21)).hexdigest(), 1 << 21)


def test_a_folder_has_that_of_the_list_of_its_files(tmp_path: Path) -> None:
    for name in ("models/model.pt", "configs/b.json", "LICENSE"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    command = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    output = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert digest(tmp_path) == (output.split()[0], 36)
    before = digest(tmp_path)
    (tmp_path / "LICENSE").rename(tmp_path / "LICENCE")
    assert digest(tmp_path) != before


@pytest.mark.parametrize("name", ["LICENSE\n{}  docs", "LICENSE\r{}  docs"])
def test_no_folder_is_taken_for_another_by_the_names_in_it(tmp_path: Path, name: str) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    for path in (good / "LICENSE", good / "docs" / "card.json", other / "card.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    file_name = name.format(hashlib.sha256(b"card.json").hexdigest())
    bad = tmp_path / "bad" / file_name
    bad.mkdir(parents=True)
    (bad / "card.json").write_text("LICENSE")
    with pytest.raises(ValueError, match="or a name of several lines, and has no digest"):
        digest(tmp_path / "bad")
    (good / "docs" / "card.json").unlink()
    (good / "docs").rmdir()
    (good / "docs").symlink_to(other)
    with pytest.raises(ValueError, match="it holds 'docs', a link"):
        digest(good)


MakeHospital = Callable[[str], Any]


@pytest.mark.parametrize("name", [pytest.param("model.onnx", marks=pytest.mark.nightly), "model.zip"])
def test_a_file_predicts_what_the_sites_mixture_predicts(
    make_mixing: Callable[..., Any], facts: dict[str, Any], tmp_path: Path, name: str
) -> None:
    site = make_mixing()
    form = "onnx" if name.endswith("onnx") else "bundle"
    trainer = Trainer(site.setting)
    card = export(trainer, site.state, site.sources, form=form, out=tmp_path / name, facts=facts)
    assert sorted(card["network"]["experts"]) == ["beta"]
    trainer.load(site.state, site.sources)
    predicts_as_the_site(tmp_path / name, trainer, site.data)
    assert open_model(tmp_path / name).card == json.loads(json.dumps(card))


def predicts_as_the_site(path: Path, trainer: Trainer, data: Path) -> None:
    inputs = [data / "datalist.json"]
    own = predict(trainer, inputs, path.parent)
    predicted = predict(open_model(path, sha256=digest(path)[0]), inputs, path.parent)
    assert len(own["predictions"]) == 6
    assert predicted["skipped"] == own["skipped"] == []
    for mine, theirs in zip(predicted["predictions"], own["predictions"], strict=True):
        assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("segmentation", "bundle"), pytest.param("super_resolution", "model.onnx", marks=pytest.mark.nightly)],
)
def test_label_maps_and_images_are_the_sites(
    make_hospital: MakeHospital, facts: dict[str, Any], tmp_path: Path, name: str, kind: str
) -> None:
    hospital = make_hospital(kind)
    form = "onnx" if name.endswith("onnx") else "bundle"
    export(hospital.trainer(), INITIAL, (), form=form, out=tmp_path / name, facts=facts)
    inputs = [hospital.data / ("3.nii.gz" if kind == "segmentation" else "3.png")]
    (own,) = predict(hospital.trainer(), inputs, tmp_path / "own")["predictions"]
    (from_bundle,) = predict(open_model(tmp_path / name), inputs, tmp_path / "found")["predictions"]
    assert Path(from_bundle["output"]).read_bytes() == Path(own["output"]).read_bytes()


def test_a_pt2_predicts_what_the_site_predicts(
    make_hospital: MakeHospital, facts: dict[str, Any], tmp_path: Path
) -> None:
    hospital, path = make_hospital("time_series"), tmp_path / "model.pt2"
    export(hospital.trainer(), INITIAL, (), form="pt2", out=path, facts=facts)
    predicts_as_the_site(path, hospital.trainer(), hospital.data)


# --- refused files --------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(make_hospital: MakeHospital, facts: dict[str, Any], tmp_path: Path) -> Path:
    """A good bundle."""
    export(make_hospital("time_series").trainer(), INITIAL, (), form="bundle", out=tmp_path / "bundle", facts=facts)
    return tmp_path / "bundle"


class Runs:
    """A pickle with a call."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_in_a_bundle_is_not_unpickled(folder: Path, tmp_path: Path) -> None:
    torch.save({"weight": Runs(tmp_path / "was here")}, folder / monai_bundle.WEIGHTS)
    with pytest.raises(UnusableConfigurationError, match="bundle cannot be used as a model: Weights only load failed"):
        open_model(folder)
    assert not (tmp_path / "was here").exists()
    pickle.loads(pickle.dumps(Runs(tmp_path / "was here")))  # so the mark would have shown it
    assert (tmp_path / "was here").exists()


def test_the_configuration_of_a_bundle_is_not_run(folder: Path, tmp_path: Path) -> None:
    for config in change_documents(folder, monai_bundle.INFERENCE):
        config["network_def"] = f"$__import__('pathlib').Path({str(tmp_path / 'was here')!r}).touch()"
    assert open_model(folder).settings.task.kind == "time_series"
    assert not (tmp_path / "was here").exists()


def change_card(folder: Path, *keys: str, value: Any) -> None:
    """Change the bundle's card."""
    for table in change_documents(folder, monai_bundle.CARD):
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("network", "network", "name"), "os:system", "its network is not built here: model 'os:system' is not one"),
        (("network", "network", "hyper"), {"width": 10**9}, "may be at most 4096 in a spec from another site"),
        (("network", "network", "hyper"), {"width": 4096}, "its weights are not those of the network"),
        (("schema",), 4, "its model card is not of schema 3"),
        (("input", "axes"), "sideways", "its order of axes is unknown"),
        (("task",), {"kind": "sorcery", "spatial_dims": 1, "in_channels": 2, "classes": 2}, "its task, its normalis"),
        (("task", "classes"), "2", "task.classes: expected int, got str"),
        (("input", "size"), [24, 24], r"its input size \[24, 24\] is not one of 1 dimensions"),
        (("input",), {}, "its model card is incomplete: 'normalise'"),
        (("site",), None, "site: expected str"),
    ],
)
def test_a_card_that_says_what_cannot_be_is_refused(folder: Path, keys: tuple[str, ...], value, reason: str) -> None:
    change_card(folder, *keys, value=value)
    with pytest.raises(UnusableConfigurationError, match=reason):
        open_model(folder)


def test_a_pt2_is_opened_only_if_it_is_the_one_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"anything")
    with pytest.raises(UnusableConfigurationError, match="can run code that is in it: give the SHA-256"):
        open_model(path)
    with pytest.raises(UnusableConfigurationError, match=f"its SHA-256 is {digest(path)[0]}, not abab"):
        open_model(path, sha256="AB" * 32)


def test_what_is_no_model_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "a.onnx", "a.zip"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(UnusableConfigurationError, match=f"{name} cannot be used as a model: "):
            open_model(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("other/docs/readme.txt", "x")
    with pytest.raises(UnusableConfigurationError, match=r"it holds 0 files docs/card.json in a folder"):
        open_model(tmp_path / "a.zip")
    with pytest.raises(UnusableConfigurationError, match="its SHA-256 is"):
        open_model(folder, sha256="00" * 32)


def test_an_onnx_file_of_another_program_has_no_card(tmp_path: Path) -> None:
    program = graph.trace(torch.nn.ReLU(), torch.ones(1, 4), free_space=False, name="relu")
    (tmp_path / "other.onnx").write_bytes(graph.to_onnx(program, output="y", name="relu"))
    with pytest.raises(UnusableConfigurationError, match="it holds no model card of `mhfl-peer export`"):
        open_model(tmp_path / "other.onnx")


@pytest.mark.nightly
def test_a_mixture_that_takes_all_memory_is_not_made(make_mixing, facts: dict[str, Any], tmp_path: Path) -> None:
    site = make_mixing()
    export(Trainer(site.setting), site.state, site.sources, form="bundle", out=tmp_path / "bundle", facts=facts)
    change_card(tmp_path / "bundle", "network", "mixture", "features", value=10**12)
    with pytest.raises(UnusableConfigurationError, match="its weights are not those of the network"):
        open_model(tmp_path / "bundle")


def test_a_pipe_in_a_bundle_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    os.mkfifo(tmp_path / monai_bundle.CARD)
    with pytest.raises(UnusableConfigurationError, match=r"its docs/card.json is no file"):
        open_model(tmp_path)
