import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.datasets import prepare, refuses, write_picture
from peer.errors import StateError
from peer.lab.datasets import polyp

MASK = np.zeros((6, 8), dtype=np.uint8)
MASK[1:4, 2:6] = 255


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The four collections as their publishers unpack them, ClinicDB with TIFF and PNG."""
    base = tmp_path / "in"
    for images, masks, names in (
        ("CVC-ColonDB/images/{}.png", "CVC-ColonDB/masks/{}.png", (1, 2)),
        ("ETIS-LaribPolypDB/ETIS-LaribPolypDB/{}.tif", "ETIS-LaribPolypDB/Ground Truth/p{}.tif", (1, 2, 3)),
        ("CVC-ClinicDB/PNG/Original/{}.png", "CVC-ClinicDB/PNG/Ground Truth/{}.png", (1, 25, 26, 612)),
        ("CVC-ClinicDB/TIF/Original/{}.tif", "CVC-ClinicDB/TIF/Ground Truth/{}.tif", (1, 25, 26, 612)),
        ("Kvasir-SEG/images/{}.jpg", "Kvasir-SEG/masks/{}.jpg", ("cju0qkwl35piu0993l0dewei2",)),
    ):
        for name in names:
            write_picture(base / images.format(name))
            write_picture(base / masks.format(name), "RGB" if "Kvasir" in masks else "L", MASK)
    write_picture(base / "CVC-ColonDB" / "images" / "without-mask.png")
    (base / "Kvasir-SEG" / "kavsir_bboxes.json").touch()
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(polyp, tmp_path, source=source)
    assert not test
    assert list(summary["sites"]) == ["cvc-colondb", "etis", "cvc-clinicdb", "kvasir"]
    assert [entry["site"] for entry in training] == [
        *["cvc-colondb"] * 2, *["etis"] * 3, *["cvc-clinicdb"] * 4, "kvasir",
    ]  # fmt: skip
    assert training[0] == {
        "image": str(source / "CVC-ColonDB" / "images" / "1.png"), "label": "cvc-colondb/masks/1.png",
        "site": "cvc-colondb",
    }  # fmt: skip
    assert [entry["subject"] for entry in training[5:]] == [
        "cvc-clinicdb-sequence-01", "cvc-clinicdb-sequence-01", "cvc-clinicdb-sequence-02", "cvc-clinicdb-sequence-29",
        "kvasir-cju0qkwl35piu0993l0dewei2",
    ]  # fmt: skip
    for entry in training[:9]:
        with Image.open(tmp_path / "out" / entry["label"]) as image:
            np.testing.assert_array_equal(np.asarray(image), MASK // 255)
    assert "kvasir: 1000 expected, 1 found" in summary["warnings"]
    unknown = [warning.partition(":")[0] for warning in summary["warnings"] if "may divide a video" in warning]
    assert unknown == ["cvc-colondb", "etis"]
    # A site has its own datalist, and TIFF becomes PNG.
    etis = json.loads((tmp_path / "out" / "etis" / "datalist.json").read_text())
    assert [(entry["image"], entry["label"]) for entry in etis["training"]] == [
        (f"images/{name}.png", f"masks/{name}.png") for name in (1, 2, 3)
    ]
    published = source / "ETIS-LaribPolypDB" / "ETIS-LaribPolypDB" / "1.tif"
    with Image.open(tmp_path / "out" / "etis" / "images" / "1.png") as copy, Image.open(published) as image:
        np.testing.assert_array_equal(np.asarray(copy), np.asarray(image))
    clinic = json.loads((tmp_path / "out" / "cvc-clinicdb" / "datalist.json").read_text())
    assert clinic["training"][0]["image"] == str(source / "CVC-ClinicDB" / "PNG" / "Original" / "1.png")


def test_the_sequences_are_29_in_order_of_612_frames() -> None:
    assert len(polyp.SEQUENCES) == 29
    assert list(polyp.SEQUENCES) == sorted(set(polyp.SEQUENCES))
    assert polyp.subject_of("cvc-clinicdb", "200") != polyp.subject_of("cvc-clinicdb", "206")
    assert polyp.subject_of("cvc-clinicdb", "200") == polyp.subject_of("cvc-clinicdb", "205")
    assert polyp.subject_of("cvc-clinicdb", "frame") is None


def test_a_collection_that_is_not_there_is_a_warning(tmp_path: Path, source: Path) -> None:
    (source / "ETIS-LaribPolypDB").rename(tmp_path / "elsewhere")
    summary, _, _ = prepare(polyp, tmp_path, source=source)
    assert any(w.startswith("etis: 196 expected, none found; give --source the folder") for w in summary["warnings"])
    assert not (tmp_path / "out" / "etis").exists()


def test_what_is_missing_or_does_not_fit_is_named(tmp_path: Path, source: Path) -> None:
    refuses(polyp, tmp_path / "absent", "absent is no folder; give --source the folder with a folder for each")
    (tmp_path / "empty").mkdir()
    refuses(polyp, tmp_path / "empty", "empty holds no sample of polyp")
    refuses(polyp, source, "is not empty", StateError, out=source)
    write_picture(source / "CVC-ColonDB" / "masks" / "2.png", "L", MASK[:, :7])
    refuses(polyp, source, r"the mask .*2\.png has 7 x 6 pixels, its picture 8 x 6")
