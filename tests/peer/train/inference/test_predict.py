"""Predictions of new data: images, results, and skipped files with a reason."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fakes.function_trainer import FunctionTrainer
from fakes.hospital import MakeSetting
from peer.core import commands
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.train.images import Preparation
from peer.train.inference.export.process import export
from peer.train.inference.model_state import ModelState, pinned
from peer.train.inference.predict import find_images, main, predict
from peer.train.trainer import INITIAL, Trainer

AFFINE = np.diag([2.0, 2.0, 3.0, 1.0])


def half_bright(path: Path, shape: tuple[int, ...] = (6, 8, 10)) -> np.ndarray:
    """A synthetic volume whose second half along the last axis is 1."""
    image = np.zeros(shape, dtype=np.float32)
    image[..., shape[-1] // 2 :] = 1
    nibabel.save(nibabel.Nifti1Image(image, AFFINE), path)
    return image


# --- tasks ----------------------------------------------------------------------------------------------------------
def test_classes_are_probabilities_in_the_order_of_the_inputs(make_setting: MakeSetting, tmp_path: Path) -> None:
    fake = FunctionTrainer(make_setting(), lambda images: torch.stack([images[:, 0, 0], images[:, 1, 0]], dim=1))
    for name, values in (("b", (1.0, 3.0)), ("a", (2.0, 2.0))):
        signals = np.repeat(np.array(values, dtype=np.float32)[:, None], 50, axis=1)
        signals[:, -1] += 1
        np.save(tmp_path / f"{name}.npy", signals)
    answer = predict(fake, [tmp_path / "b.npy", tmp_path / "a.npy"], tmp_path / "out")
    share = 1 / (1 + np.exp(-2))
    predictions = [
        {"file": str(tmp_path / "b.npy"), "class": 1, "probabilities": pytest.approx([1 - share, share], rel=1e-5)},
        {"file": str(tmp_path / "a.npy"), "class": 0, "probabilities": [0.5, 0.5]},
    ]
    assert answer == {"predictions": predictions, "skipped": []}
    assert fake.seen == [(1, 2, 24)] * 2
    assert not (tmp_path / "out").exists()


def test_a_volume_gets_a_label_map_on_its_own_grid(volumes: FunctionTrainer, tmp_path: Path) -> None:
    image = half_bright(tmp_path / "ct.nii.gz")
    answer = predict(volumes, [tmp_path / "ct.nii.gz"], tmp_path / "out")
    output = tmp_path / "out" / "ct.nii.gz"
    assert answer["predictions"] == [{"file": str(tmp_path / "ct.nii.gz"), "output": str(output)}]
    assert volumes.seen == [(1, 1, 4, 4, 4)]
    labels = nibabel.load(output)
    assert np.array_equal(labels.get_fdata(), image)
    assert np.array_equal(labels.affine, AFFINE)


def test_a_picture_is_enlarged_at_its_own_size_and_in_bytes(pictures: FunctionTrainer, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    np.save(tmp_path / "in.npy", pixels.transpose(2, 0, 1) / np.float32(255))
    np.save(tmp_path / "wide.npy", np.full((3, 4, 4), 1.5, dtype=np.float32))
    inputs = [tmp_path / name for name in ("in.png", "in.npy", "wide.npy")]
    answer = predict(pictures, inputs, tmp_path / "out")
    assert pictures.seen == [(1, 3, 5, 7)] * 2
    larger = np.asarray(Image.open(tmp_path / "out" / "in.png"))
    assert np.array_equal(larger, pixels.repeat(2, axis=0).repeat(2, axis=1))
    assert np.load(tmp_path / "out" / "in.npy").shape == (3, 10, 14)
    reason = "holds values from 1.5 to 1.5; super-resolution takes those in [0, 1]"
    assert answer["skipped"] == [{"file": str(tmp_path / "wide.npy"), "reason": reason}]


# --- skipped inputs -----------------------------------------------------------------------------------------------
def test_what_cannot_be_used_is_named_and_the_rest_goes_on(volumes: FunctionTrainer, tmp_path: Path) -> None:
    half_bright(tmp_path / "good.nii")
    half_bright(tmp_path / "four.nii", (4, 4, 4, 2))
    (tmp_path / "broken.nii").write_bytes(b"not a volume")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.json").write_text("[]")
    names = ("missing.nii", "broken.nii", "four.nii", "notes.txt", "empty", "list.json", "good.nii")
    answer = predict(volumes, [tmp_path / name for name in names], tmp_path / "out")
    assert [row["file"] for row in answer["predictions"]] == [str(tmp_path / "good.nii")]
    reasons = {Path(row["file"]).name: row["reason"] for row in answer["skipped"]}
    assert list(reasons) == list(names[:-1])
    assert reasons["missing.nii"] == f"{tmp_path / 'missing.nii'} does not exist"
    assert reasons["four.nii"] == "has 2 channels, [task] in_channels is 1"
    assert reasons["notes.txt"].startswith("has the ending '.txt', none of .npz, ")
    assert reasons["empty"] == "holds no image"
    assert reasons["list.json"] == "has no list 'test' or 'training' of images"
    assert all("\n" not in reason and reason for reason in reasons.values())


def test_what_the_network_cannot_take_is_left_out(make_setting: MakeSetting, tmp_path: Path) -> None:
    def refuse(images: Tensor) -> Tensor:
        raise MemoryError("too large\nfor this device")

    np.save(tmp_path / "a.npy", np.eye(2, 24, dtype=np.float32))
    answer = predict(FunctionTrainer(make_setting(), refuse), [tmp_path / "a.npy"], tmp_path)
    assert answer["skipped"] == [{"file": str(tmp_path / "a.npy"), "reason": "too large for this device"}]


def test_no_result_replaces_another(volumes: FunctionTrainer, tmp_path: Path) -> None:
    inputs = [tmp_path / "one" / "ct.nii", tmp_path / "two" / "ct.nii"]
    for path in inputs:
        path.parent.mkdir()
        half_bright(path)
    answer = predict(volumes, inputs, tmp_path / "out")
    assert len(answer["predictions"]) == 1
    reason = f"its result would replace that of {inputs[0]}; predict it by itself"
    assert answer["skipped"] == [{"file": str(inputs[1]), "reason": reason}]


def test_a_result_in_an_input_folder_is_no_input(volumes: FunctionTrainer, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        half_bright(tmp_path / folder / f"{folder}.nii")
    inputs = [tmp_path / "one", tmp_path / "two"]
    answer = predict(volumes, inputs, tmp_path / "two" / "masks")
    assert [Path(row["file"]).name for row in answer["predictions"]] == ["one.nii", "two.nii"]


# --- images ---------------------------------------------------------------------------------------------------------
def places(inputs: list[Path], *, dims: int = 3, **data: Any) -> list[str]:
    known = SimpleNamespace(input_size=(8,) * dims, datalist=Path("datalist.json"), root=Path(), **data)
    return [str(item.relative_path) for item in find_images(inputs, known)]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_folder_is_its_images_and_those_below_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "p2/ct.nii.gz", "p1/ct.NII", "a.npy", "README", "notes.txt", ".hidden.npy", ".git/x.npy")
    assert places([tmp_path]) == ["a.npy", "p1/ct.NII", "p2/ct.nii.gz"]


def test_a_folder_of_slices_is_one_volume_or_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "study", "1.dcm", "2.dcm", "later/IM1", "later/IM2")
    assert places([tmp_path / "study"]) == ["study", "later"]
    monkeypatch.chdir(tmp_path / "study")
    assert places([Path()]) == ["study", "later"]
    assert places([tmp_path]) == ["study", "study/later"]
    assert places([tmp_path], dims=2) == ["study/1.dcm", "study/2.dcm", "study/later/IM1", "study/later/IM2"]


def test_a_datalists_test_images_else_its_training_images(tmp_path: Path) -> None:
    outside = str(tmp_path / "elsewhere.nii")
    document = {"training": ["t.nii"], "test": ["a/b.nii", {"image": ["c1.nii", "c2.nii"], "label": 1}, outside, 3]}
    path = tmp_path / "new.json"
    path.write_text(json.dumps(document))
    data = SimpleNamespace(input_size=(8,), datalist=Path("datalist.json"), root=Path())
    images = list(find_images([path], data))
    assert [(item.name, item.images, str(item.relative_path)) for item in images[:3]] == [
        ("a/b.nii", (tmp_path / "a/b.nii",), "a/b.nii"),
        ("c1.nii", (tmp_path / "c1.nii", tmp_path / "c2.nii"), "c1.nii"),
        (outside, (Path(outside),), "elsewhere.nii"),
    ]
    assert images[3].problem == "'image' must be a path or a list of paths, not 3"
    del document["test"]
    path.write_text(json.dumps(document))
    assert places([path]) == ["t.nii"]
    (own,) = find_images([path], SimpleNamespace(input_size=(8,), datalist=path, root=Path("root")))
    assert own.images == (Path("root/t.nii"),)


# --- a process of its own -------------------------------------------------------------------------------------------
@pytest.fixture
def trained(make_setting: MakeSetting) -> WorkerSetting:
    """A site with its first checkpoint."""
    setting = make_setting(method={"name": "local"})
    Trainer(setting).perform(commands.Initialise(1, 1))
    return setting


def test_a_worker_at_work_is_left_alone(trained: WorkerSetting) -> None:
    unfinished = Path(trained.home) / "checkpoints" / "round-000000" / ".unfinished-train"
    unfinished.mkdir()
    before = sorted(Path(trained.home).rglob("*"))
    state = ModelState(Path(trained.home, "journal.db"), trained, INITIAL, (), 1, 1)
    with pinned(lambda: state) as own:
        Trainer(own.setting).load(INITIAL)
        assert own.setting.home != trained.home
    assert not Path(own.setting.home).exists()
    assert sorted(Path(trained.home).rglob("*")) == before


def test_the_answer_is_the_models(trained: WorkerSetting, signals: Path, answer_of: Any) -> None:
    wave = signals / "test1.npz"
    request = {"setting": to_json(trained), "state": INITIAL, "sources": [], "inputs": [str(wave)], "out": "unused"}
    (prediction,) = answer_of(main, request)["predictions"]
    trainer = Trainer(trained)
    trainer.load(INITIAL)
    logits = trainer.predict(Preparation(2, (24,))([wave])[None])
    assert prediction["file"] == str(wave)
    assert prediction["probabilities"] == pytest.approx(logits[0].softmax(dim=0).tolist(), rel=1e-5)
    assert prediction["class"] == int(logits[0].argmax())


def test_a_state_that_is_not_there_is_one_line(trained: WorkerSetting, answer_of: Any) -> None:
    request = {"setting": to_json(trained), "state": "round-000009/train", "sources": [], "inputs": [], "out": ""}
    with pytest.raises(SystemExit, match="checkpoint 'round-000009/train' is not in"):
        answer_of(main, request)


# --- an exported file -----------------------------------------------------------------------------------------------
def test_an_exported_file_answers_for_the_site_it_came_from(
    trained: WorkerSetting, facts: dict[str, Any], signals: Path, tmp_path: Path, answer_of: Any
) -> None:
    export(Trainer(trained), INITIAL, (), form="bundle", out=tmp_path / "bundle", facts=facts)
    inputs = {"inputs": [str(signals / "test1.npz")], "out": str(tmp_path / "out")}
    site = answer_of(main, {"setting": to_json(trained), "state": INITIAL, "sources": [], **inputs})
    request = {"model": str(tmp_path / "bundle"), "sha256": "", **inputs}
    answer = answer_of(main, request)
    (row,), (expected,) = answer.pop("predictions"), site["predictions"]
    assert row["probabilities"] == pytest.approx(expected["probabilities"], rel=1e-4)
    assert answer == {
        "site": "alpha", "generation": 1, "round": 1, "task": "time_series", "columns": ["class_0", "class_1"],
        "skipped": [],
    }  # fmt: skip
    with pytest.raises(SystemExit, match="its SHA-256 is"):
        answer_of(main, {**request, "sha256": "00" * 32})
