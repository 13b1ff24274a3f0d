"""A model in daily use: a real daemon trains it on synthetic volumes, and meanwhile it segments another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from peer.loopback import Loopback

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 2
DRAFT = f"""
name = "cubes"
rounds = {ROUNDS}
[task]
kind = "segmentation"
spatial_dims = 3
in_channels = 1
classes = 2
[method]
name = "local"
[stages.train]
unit = "step"
count = 40
learning_rate = 1e-2
"""
SITE = """
[data]
datalist = "{datalist}"
input_size = [12, 12, 12]
[model]
name = "unet"
[model.parameters]
width = 4
depth = 1
[training]
device = "cpu"
"""
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
    for index in range(12):
        volume(folder, str(index), (12, 12, 12), seed=index)
        items.append({"image": f"{index}.nii.gz", "label": f"{index}-label.nii.gz"})
    (folder / "datalist.json").write_text(json.dumps({"training": items[:10], "test": items[10:]}))
    return SITE.format(datalist=folder / "datalist.json")


def test_the_model_of_a_running_site_segments_a_volume_of_another_size(site: str, tmp_path: Path, tools: Any) -> None:
    labels = volume(tmp_path, "new", (20, 16, 14), seed=99)
    (tmp_path / "broken.nii.gz").write_bytes(b"not a volume")
    with Loopback.found(tmp_path / "federation", DRAFT, {"europe": site}) as loopback:
        loopback.start("europe", "--stay")
        tools.wait_until(
            lambda: loopback.show("europe", "status")["committed"] == ROUNDS, what=lambda: loopback.console("europe")
        )
        home = loopback.folder("europe").generation(1)
        before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.suffix != ".db-shm"}
        command = [sys.executable, "-m", "peer.cli", "--home", str(loopback.home), "predict"]
        inputs = [str(tmp_path / name) for name in ("new.nii.gz", "broken.nii.gz")]
        done = subprocess.run(
            [*command, *inputs, "--out", str(tmp_path / "masks"), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert {path: path.stat().st_mtime_ns for path in before} == before
    document = json.loads(done.stdout)
    assert (document["site"], document["round"], document["task"]) == ("europe", ROUNDS, "segmentation")
    assert [Path(row["file"]).name for row in document["skipped"]] == ["broken.nii.gz"]
    (row,) = document["predictions"]
    found = nibabel.load(row["output"])
    assert (found.shape, found.get_data_dtype()) == (labels.shape, np.uint8)
    assert np.array_equal(found.affine, AFFINE)
    mask = np.asanyarray(found.dataobj)
    assert 2 * (mask & labels).sum() / (mask.sum() + labels.sum()) > 0.8
