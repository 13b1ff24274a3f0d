"""A bundle, read, checked and run by MONAI's own tools: it predicts as the site does."""

import csv
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import monai.bundle
import nibabel
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.bundle.properties import InferProperties, MetaProperties
from monai.bundle.workflows import ConfigWorkflow
from PIL import Image

from peer.train.images import Preparation
from peer.train.inference.export import monai_bundle
from peer.train.inference.export.graph import quiet
from peer.train.inference.export.process import export
from peer.train.inference.predict import image_reader, predict
from peer.train.settings import IntensitySettings
from peer.train.trainer import INITIAL
from tests.fakes import phantoms
from tests.fakes.image_files import FRAMES, PIXELS, picture, volume

pytestmark = pytest.mark.e2e

Exported = Callable[[str], tuple[Any, dict[str, Any]]]
REQUIRED = (
    "version changelog monai_version pytorch_version numpy_version required_packages_version task description authors "  # noqa: SIM905
    "copyright network_data_format".split()
)
"""Keys of metadata.json that MONAI's specification demands."""


@pytest.fixture
def exported(make_hospital: Callable[[str], Any], facts: dict[str, Any], tmp_path: Path) -> Exported:
    """Make a hospital with such a task, and export its model to the folder ``bundle``: the hospital, and the card."""

    def make(kind: str) -> tuple[Any, dict[str, Any]]:
        hospital = make_hospital(kind)
        return hospital, export(hospital.trainer(), INITIAL, (), form="bundle", out=tmp_path / "bundle", facts=facts)

    return make


def run(folder: Path, data: Path, results: Path) -> None:
    """What `python -m monai.bundle run` does."""
    places = {"bundle_root": str(folder), "dataset_dir": str(data), "output_dir": str(results)}
    with quiet():
        workflow = ConfigWorkflow(str(folder / monai_bundle.INFERENCE), workflow_type="inference", **places)
        workflow.initialize()
        needed = [known["id"] for known in (*InferProperties.values(), *MetaProperties.values()) if known["required"]]
        assert [name for name in needed if name not in workflow.parser] == []
        workflow.run()
        workflow.finalize()


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A folder for the images to predict, and for nothing else."""
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", ["segmentation", "turned"])
def test_a_bundle_of_a_network_of_monai_segments_as_the_site_does(
    exported: Exported, new: Path, tmp_path: Path, kind: str
) -> None:
    hospital, card = exported(kind)
    text = (tmp_path / "bundle" / monai_bundle.INFERENCE).read_text()
    assert json.loads(text)["network_def"]["_target_"] == card["definition"] == "monai.networks.nets.UNet"
    assert "peer." not in text  # nothing of this program is needed
    assert [check["what"].split(",")[0] for check in card["checks"]] == [
        "this model beside the site's networks",
        "the bundle's network",
        "the bundle's preprocessing beside the site's",
    ]
    for index in (2, 3):
        shutil.copy(hospital.data / f"{index}.nii.gz", new)
    run(tmp_path / "bundle", new, tmp_path / "results")
    own = predict(hospital.trainer(), [new], tmp_path / "own")["predictions"]
    assert len(own) == 2
    for row in own:
        expected = nibabel.load(row["output"])
        (path,) = (tmp_path / "results").glob(f"{Path(row['file']).name.partition('.')[0]}_*.nii.gz")
        saved = nibabel.load(path)
        assert np.array_equal(saved.get_fdata(), expected.get_fdata())
        assert np.allclose(saved.affine, expected.affine)


def test_a_bundle_of_another_network_classifies_as_the_site_does(exported: Exported, new: Path, tmp_path: Path) -> None:
    hospital, card = exported("time_series")
    assert card["definition"] == monai_bundle.BUILD
    for index in range(3):
        shutil.copy(hospital.data / f"test{index}.npz", new)
    run(tmp_path / "bundle", new, tmp_path / "results")
    with (tmp_path / "results" / "predictions.csv").open() as file:
        shares = {Path(row[0]).name: [float(share) for share in row[1:]] for row in csv.reader(file)}
    own = predict(hospital.trainer(), [new], tmp_path / "own")["predictions"]
    assert {Path(row["file"]).name: pytest.approx(row["probabilities"], abs=1e-5) for row in own} == shares


def test_a_bundle_enlarges_pictures_of_any_size(exported: Exported, new: Path, tmp_path: Path) -> None:
    hospital, _ = exported("super_resolution")
    shutil.copy(hospital.data / "3.png", new)
    run(tmp_path / "bundle", new, tmp_path / "results")
    (path,) = (tmp_path / "results").iterdir()
    saved = nibabel.load(path)
    trainer = hospital.trainer()
    load, finish = image_reader(trainer.settings.task, trainer.settings.data)
    expected = trainer.predict(finish(load([new / "3.png"]))[None])[0].numpy()
    # NIfTI has the columns of a picture first, and its channels last.
    assert np.allclose(np.squeeze(saved.get_fdata()).transpose(2, 1, 0), expected, atol=1e-5)
    assert np.allclose(np.abs(np.diag(saved.affine)), [0.5, 0.5, 1, 1])


def test_a_bundle_segments_a_picture_as_the_site_does(exported: Exported, new: Path, tmp_path: Path) -> None:
    hospital, _ = exported("planes")
    shutil.copy(hospital.data / "3.png", new)
    run(tmp_path / "bundle", new, tmp_path / "results")
    (row,) = predict(hospital.trainer(), [new], tmp_path / "own")["predictions"]
    (path,) = (tmp_path / "results").iterdir()
    labels = np.asarray(Image.open(row["output"]))
    assert 0 < labels.mean() < 1
    assert np.array_equal(np.squeeze(nibabel.load(path).get_fdata()).T, labels)


@pytest.mark.parametrize("name", ["a.png", "a.npy", "a.nii.gz", "a.dcm"])
def test_a_bundle_reads_a_picture_as_the_site_does(exported: Exported, tmp_path: Path, name: str) -> None:
    exported("planes")
    reads_as_the_site(tmp_path / "bundle", picture(tmp_path / name, PIXELS), (8, 12))


@pytest.mark.parametrize("name", ["volume.nii.gz", "volume.npy", "frames.dcm", "series"])
def test_a_bundle_reads_a_volume_as_the_site_does(exported: Exported, tmp_path: Path, name: str) -> None:
    exported("segmentation")
    reads_as_the_site(tmp_path / "bundle", volume(tmp_path / name, FRAMES), (8, 8, 8))


def reads_as_the_site(bundle: Path, path: Path, size: tuple[int, ...]) -> None:
    _, prepare = monai_bundle.load(bundle)
    assert np.allclose(prepare({"image": str(path)})["image"], Preparation(1, size, "unit")([path]), atol=1e-6)


def test_monai_loads_the_network_with_its_weights(exported: Exported, tmp_path: Path) -> None:
    hospital, _ = exported("segmentation")
    with quiet():
        network = monai.bundle.load("bundle", bundle_dir=tmp_path, device="cpu", workflow_type="inference")
    image = torch.rand(1, 1, 8, 8, 8)
    with torch.no_grad():
        assert torch.allclose(network.eval()(image), hospital.trainer().predict(image), atol=1e-6)


def test_the_metadata_say_what_the_specification_demands(exported: Exported, tmp_path: Path) -> None:
    exported("segmentation")
    metadata = json.loads((tmp_path / "bundle" / monai_bundle.METADATA).read_text())
    assert not set(REQUIRED) - metadata.keys()
    assert metadata["copyright"] == "CC-BY-4.0"
    image, pred = metadata["network_data_format"]["inputs"]["image"], metadata["network_data_format"]["outputs"]["pred"]
    assert (image["num_channels"], image["spatial_shape"], image["value_range"]) == (1, [8, 8, 8], [0, 1])
    assert (pred["num_channels"], pred["spatial_shape"], sorted(pred["channel_def"])) == (2, [8, 8, 8], ["0", "1"])
    assert (tmp_path / "bundle" / monai_bundle.LICENCE).read_text() == "CC-BY-4.0\n"


def test_what_the_weights_file_holds_is_tensors_alone(exported: Exported, tmp_path: Path) -> None:
    exported("time_series")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = torch.load(tmp_path / "bundle" / monai_bundle.WEIGHTS, weights_only=True)
    assert all(isinstance(tensor, torch.Tensor) for tensor in weights.values())


def preprocessing(**changes: Any) -> Any:
    facts = {"size": [6, 6, 6], "axes": "rows_columns", "free_size": False, "normalise": "none"}
    facts |= {"orientation": "RAS", "spacing": None, "intensity": None, **changes}
    card = {"task": {"kind": "classification", "spatial_dims": len(facts["size"])}, "input": facts}
    config = ConfigParser({"imports": monai_bundle.IMPORTS, "do": monai_bundle.preprocessing(card, arrays="image")})
    with quiet():
        return config.get_parsed_content("do")


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR"])
def test_a_bundle_turns_and_resamples_as_the_site_does(tmp_path: Path, codes: str) -> None:
    phantoms.nifti(tmp_path / "a.nii.gz", codes)
    phantoms.series(tmp_path / "series", codes)
    site = Preparation(1, (6, 6, 6), orientation="RAS", spacing=(1.5, 2.0, 4.0), intensity=IntensitySettings(10, 90))
    prepare = preprocessing(spacing=[1.5, 2.0, 4.0], intensity={"low": 10, "high": 90, "percentiles": False})
    for name in ("a.nii.gz", "series"):
        with quiet():
            image = prepare({"image": str(tmp_path / name)})["image"]
        assert np.allclose(image, site([tmp_path / name]), atol=1e-5), name


def test_a_bundle_fills_nan_as_the_site_does(tmp_path: Path) -> None:
    values = phantoms.PHANTOM.astype(np.float32)
    values[0, 0, 0] = values[1, 2, 3] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, phantoms.turned("RAS")[1]), tmp_path / "a.nii.gz")
    site = Preparation(1, (6, 6, 6), orientation="RAS", nan="background")
    with quiet():
        image = preprocessing(nan="background")({"image": str(tmp_path / "a.nii.gz")})["image"]
    assert np.allclose(image, site([tmp_path / "a.nii.gz"]), atol=1e-5)


@pytest.mark.parametrize("name", ["frames.dcm", "palette.png", "inverted.dcm", "unplaced.nii"])
def test_a_bundle_refuses_what_monai_would_read_otherwise(tmp_path: Path, name: str) -> None:
    path, size = tmp_path / name, [6, 6] if name in ("palette.png", "inverted.dcm") else [6, 6, 6]
    if name == "frames.dcm":
        phantoms.enhanced(path)
    elif name == "palette.png":
        Image.fromarray(PIXELS.astype(np.uint8)).convert("P").save(path)
    elif name == "inverted.dcm":
        phantoms.dataset(path, PIXELS.astype(np.uint8), PhotometricInterpretation="MONOCHROME1").save_as(path)
    else:
        image = phantoms.nifti(path)
        image.set_sform(image.affine, code=0)
        image.set_qform(image.affine, code=0)
        nibabel.save(image, path)
    prepare = preprocessing(size=size, orientation="RAS" if len(size) == 3 else "stored")
    with quiet(), pytest.raises(RuntimeError) as raised:
        prepare({"image": str(path)})
    assert re.search("convert|save the picture|MONAI reads no orientation", str(raised.getrepr(chain=True)))
