"""`predict` as a person and a script see it: a CSV, or a file an image, and its errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fakes.cli import drawn, refused, run
from fakes.sites import INITIALISED, append_rows, committed, replace_module
from peer.cli.predict import _format_csv, _render
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.kept_configuration import keep_configuration

pytestmark = pytest.mark.usefixtures("at_home")
STATE = "round-000001/train"


def call(*words: str | Path) -> Result:
    return run("predict", "--site", "asia", *words)


def test_an_input_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    assert "nowhere is not there" in refused(
        "UsageError", "predict", "--site", "asia", tmp_path / "nowhere", "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    """Asia's folder after a first round."""
    folder = enrolled.folder("asia")
    append_rows(folder, INITIALISED, committed(1, STATE))
    checkpoint = folder.generation(1) / "checkpoints" / STATE
    checkpoint.mkdir(parents=True)
    (checkpoint / "dam.safetensors").touch()
    return folder


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Path]:
    """Replaces the module that needs torch in new processes: it answers and stores the request."""

    def stand_in(answer: dict[str, Any]) -> Path:
        request = tmp_path / "request.json"
        program = f"import sys; open({str(request)!r}, 'w').write(sys.stdin.read()); print({json.dumps(answer)!r})"
        replace_module("peer.train.inference.predict", program, tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        for name in ("new.json", "a.nii", "broken.npy"):
            (tmp_path / name).touch()
        return request

    return stand_in


LEFT_OUT = {"file": "broken.npy", "reason": "not an image"}


def test_classes_go_to_a_csv_and_what_was_left_out_is_named(
    folder: SiteFolder, tmp_path: Path, answering: Callable[[dict[str, Any]], Path]
) -> None:
    predictions = [
        {"file": "a,b.npy", "class": 1, "probabilities": [1e-07, 1.0]},
        {"file": "c.npy", "class": 0, "probabilities": [0.75, 0.25]},
    ]
    request_file = answering({"predictions": predictions, "skipped": [LEFT_OUT]})
    table = tmp_path / "new" / "classes.csv"
    result = call("new.json", "broken.npy", "--out", table, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "site": "asia", "generation": 1, "round": 1, "choice": "", "task": "classification", "out": str(table),
        "predictions": predictions, "skipped": [LEFT_OUT],
    }  # fmt: skip
    assert table.read_text() == 'file,class_0,class_1,predicted\n"a,b.npy",1e-07,1.0,1\nc.npy,0.75,0.25,0\n'
    request = json.loads(request_file.read_text())
    assert (request["inputs"], request["state"], request["sources"]) == (["new.json", "broken.npy"], STATE, [])
    assert request["setting"]["base_folder"] == str(folder.path)
    assert not Path(request["setting"]["home"]).exists(), "a folder of its own, for as long as the prediction takes"
    again = refused("StateError", "predict", "--site", "asia", "new.json", "--out", table)
    assert again == f"mhfl-peer: {table} exists; remove it, or name another file with --out\n"


def test_nothing_predicted_is_an_error_after_the_document(
    folder: SiteFolder, tmp_path: Path, answering: Callable[[dict[str, Any]], Path]
) -> None:
    answering({"predictions": [], "skipped": [LEFT_OUT]})
    result = call("broken.npy", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 10
    assert json.loads(result.stdout)["skipped"] == [LEFT_OUT]
    assert result.stderr == (
        "mhfl-peer: nothing could be predicted: broken.npy: not an image; see the files left out\n"
    )
    assert not list((tmp_path / "out").iterdir())


def test_label_maps_go_to_the_folder(folder: SiteFolder, tmp_path: Path, answering) -> None:
    segment(folder)
    request_file = answering({"predictions": [{"file": "a.nii", "output": "out/a.nii"}], "skipped": []})
    result = call("a.nii", "--out", tmp_path / "out", "--json")
    assert (result.exit_code, json.loads(result.stdout)["out"]) == (0, str(tmp_path / "out"))
    assert json.loads(request_file.read_text())["out"] == str(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def segment(folder: SiteFolder) -> None:
    """Give the federation another task."""
    text = folder.federation_toml.read_text()
    folder.federation_toml.write_text(text.replace('"classification"', '"segmentation"'))


def test_an_untrained_site_is_refused(enrolled: LocalFederation, tmp_path: Path) -> None:
    folder = enrolled.folder("asia")
    words = (tmp_path, "--out", tmp_path / "out")
    assert call(*words).exit_code == 6
    append_rows(folder, INITIALISED)
    untrained = "mhfl-peer: the model of asia is untrained: no round is finished; see `mhfl-peer status`\n"
    assert refused("StateError", "predict", "--site", "asia", *words) == untrained
    assert not (tmp_path / "out").exists()


def test_a_site_that_is_configured_otherwise_than_it_was_trained_is_refused(folder: SiteFolder, tmp_path: Path) -> None:
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    keep_configuration(folder, 1, federation, site)
    folder.site_toml.write_text(folder.site_toml.read_text().replace("input_size = [8]", "input_size = [9]"))
    problem = refused("StateError", "predict", "--site", "asia", tmp_path, "--out", tmp_path / "out")
    assert "data.input_size was [8] when this generation began and is [9] now" in problem


def test_label_maps_need_a_folder_with_nothing_in_it(folder: SiteFolder, tmp_path: Path) -> None:
    segment(folder)
    result = call(tmp_path, "--out", tmp_path / "out.csv")
    assert (result.exit_code, result.stderr) == (
        2,
        f"mhfl-peer: --out {tmp_path}/out.csv: segmentation writes one file an input; name a folder\n",
    )
    (tmp_path / "thesis.txt").touch()
    result = call(tmp_path, "--out", tmp_path)
    assert (result.exit_code, "is not empty" in result.stderr) == (6, True)


def test_an_exported_file_needs_no_site(tmp_path: Path, answering: Callable[[dict[str, Any]], Path]) -> None:
    predictions = [{"file": "a.nii", "class": 1, "probabilities": [0.25, 0.75]}]
    exported_by = {
        "site": "asia",
        "generation": 2,
        "round": 9,
        "task": "time_series",
        "columns": ["class_0", "class_1"],
    }
    request_file = answering({**exported_by, "predictions": predictions, "skipped": []})
    (tmp_path / "asia.onnx").touch()
    result = run("predict", "a.nii", "--model", "asia.onnx", "--out", tmp_path / "out", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "site": "asia", "generation": 2, "round": 9, "task": "time_series", "model": "asia.onnx",
        "out": str(tmp_path / "out" / "predictions.csv"), "predictions": predictions, "skipped": [],
    }  # fmt: skip
    assert (tmp_path / "out" / "predictions.csv").read_text().splitlines()[1] == "a.nii,0.25,0.75,1"
    request = json.loads(request_file.read_text())
    assert (request["model"], request["sha256"], request["inputs"]) == ("asia.onnx", "", ["a.nii"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "nowhere.onnx"), "--model nowhere.onnx is not there"),
        (("--model", "a.pt2"), "--model a.pt2: opening a .pt2 can run code that is in it; give --sha256"),
        (("--model", "a.pt2", "--site", "asia"), "--site and --model name two models"),
        (("--sha256", "ab"), "--sha256 is the digest of a file, and there is no --model"),
    ],
)
def test_a_model_that_is_not_clearly_meant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.npy", "a.pt2"):
        (tmp_path / name).touch()
    assert message in refused("UsageError", "predict", "a.npy", *words, "--out", "out")
    assert not (tmp_path / "out").exists()


def draw(document: dict[str, Any]) -> str:
    return drawn(_render({"site": "asia", "round": 3, "out": "masks", **document}), width=120)


def test_people_see_the_first_results_what_was_left_out_and_where_the_rest_is() -> None:
    classes = [{"file": f"{index}.npy", "class": 1, "probabilities": [0.25, 0.75]} for index in range(22)]
    text = draw({"predictions": classes, "skipped": [{"file": "[b]x", "reason": "broken"}]})
    lines = [line.split() for line in text.splitlines()]
    assert ["19.npy", "1", "0.750"] in lines
    assert ["20.npy", "1", "0.750"] not in lines
    assert ["and", "2", "more"] in lines
    assert ["[b]x", "broken"] in lines
    assert text.rstrip().endswith("asia's model after round 3: 22 predicted, 1 left out; see masks")


def test_classes_have_their_names() -> None:
    rows = [{"file": "a.npy", "class": 1, "class_name": "malignant", "probabilities": [0.25, 0.75]}]
    assert "a.npy 1 malignant 0.750" in " ".join(draw({"predictions": rows, "skipped": []}).split())
    table = _format_csv(rows, ["benign", "malignant"]).decode()
    assert table == "file,p(benign),p(malignant),predicted,predicted_name\na.npy,0.25,0.75,1,malignant\n"


def test_people_see_the_files_of_label_maps() -> None:
    text = draw({"predictions": [{"file": "ct.nii", "output": "masks/ct.nii"}], "skipped": []})
    assert ["ct.nii", "masks/ct.nii"] in [line.split() for line in text.splitlines()]
    assert "left out " not in text.splitlines()[0]
