"""A model in daily use: a real daemon trains it on synthetic volumes, and meanwhile it segments another one.

Then it is taken away, and does the same where no site is.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fakes.cli import run_json
from fakes.drafts import draft, site_text, task
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 2
STAGES = {"train": {"unit": "step", "count": 40, "learning_rate": 1e-2}}
DRAFT = draft(
    "cubes", rounds=ROUNDS, evaluation_every=1, task=task(3, kind="segmentation"), method="local", stages=STAGES
)
MODEL = {"name": "unet", "parameters": {"width": 4, "depth": 1}}
AFFINE = np.array([[-2.0, 0, 0, 30], [0, 1.5, 0, -20], [0, 0, 1.5, 10], [0, 0, 0, 1]])


def volume(folder: Path, name: str, shape: tuple[int, int, int], *, seed: int) -> np.ndarray:
    """Write noise with a bright box somewhere, and its label map beside it; the label map."""
    random = np.random.default_rng(seed)
    image, labels = random.random(shape, dtype=np.float32), np.zeros(shape, dtype=np.uint8)
    corner = [int(random.integers(0, side // 2)) for side in shape]
    box = tuple(slice(start, start + side // 2) for start, side in zip(corner, shape, strict=True))
    image[box] += 1
    labels[box] = 1
    for file, values in ((f"{name}.nii.gz", image), (f"{name}-label.nii.gz", labels)):
        nibabel.save(nibabel.Nifti1Image(values, AFFINE), folder / file)
    return labels


@pytest.fixture
def site(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    items = []
    for index in range(16):
        volume(folder, str(index), (12, 12, 12), seed=index)
        items.append({"image": f"{index}.nii.gz", "label": f"{index}-label.nii.gz"})
    (folder / "datalist.json").write_text(json.dumps({"training": items[:14], "test": items[14:]}))
    text = site_text(12, 12, 12, datalist=folder / "datalist.json", model=MODEL)
    return text.replace("[data]\n", "[data]\nvalidation_share = 0.3\n")


def segmented(document: dict[str, Any]) -> np.ndarray:
    """The label map of the only image."""
    (row,) = document["predictions"]
    image = nibabel.load(row["output"])
    assert image.get_data_dtype() == np.uint8
    assert np.array_equal(image.affine, AFFINE)
    return np.asanyarray(image.dataobj)


@pytest.mark.nightly
def test_the_model_of_a_running_site_segments_a_volume_of_another_size(site: str, tmp_path: Path, tools: Any) -> None:
    labels = volume(tmp_path, "new", (20, 16, 14), seed=99)
    (tmp_path / "broken.nii.gz").write_bytes(b"not a volume")
    inputs, taken = [tmp_path / name for name in ("new.nii.gz", "broken.nii.gz")], tmp_path / "taken.onnx"
    with LocalFederation.create(tmp_path / "federation", DRAFT, {"europe": site}) as loopback:
        loopback.start("europe", "--stay")
        tools.wait_until(
            lambda: loopback.show("europe", "status")["committed"] == ROUNDS, what=lambda: loopback.console("europe")
        )
        home = loopback.folder("europe").generation(1)
        before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.suffix != ".db-shm"}
        document = run_json("--home", loopback.home, "predict", *inputs, "--out", tmp_path / "masks")
        best = run_json("--home", loopback.home, "predict", *inputs, "--round", "best", "--out", tmp_path / "best")
        rounds = {record["round"]: record["metrics"] for record in loopback.show("europe", "rounds")}
        export = run_json("--home", loopback.home, "export", "--format", "onnx", "--out", taken)
        assert {path: path.stat().st_mtime_ns for path in before} == before
        (left,) = loopback.show("europe", "egress")
    elsewhere = run_json(
        "predict", *inputs, "--model", taken, "--sha256", export["sha256"], "--out", tmp_path / "elsewhere"
    )
    for shown in (document, elsewhere):
        assert (shown["site"], shown["round"], shown["task"]) == ("europe", ROUNDS, "segmentation")
        assert [Path(row["file"]).name for row in shown["skipped"]] == ["broken.nii.gz"]
    dice = {number: metrics["validation_dice"] for number, metrics in rounds.items()}
    assert best["round"] == max(dice, key=lambda number: (dice[number], -rounds[number]["validation_loss"], number))
    assert best["choice"].startswith(
        f"the best of its evaluated rounds by validation Dice, {dice[best['round']]:.4f} on "
    )
    assert segmented(best).shape == labels.shape
    mask = segmented(document)
    assert mask.shape == labels.shape
    assert 2 * (mask & labels).sum() / (mask.sum() + labels.sum()) > 0.8
    assert (segmented(elsewhere) != mask).mean() < 1e-3  # a voxel on a boundary may fall to the other side
    assert (left["purpose"], left["kind"], left["outcome"]) == ("export", "onnx", "complete")
    assert (left["sha256"], left["bytes"]) == (hashlib.sha256(taken.read_bytes()).hexdigest(), taken.stat().st_size)
