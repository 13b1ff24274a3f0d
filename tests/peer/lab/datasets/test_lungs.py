from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.datasets import prepare, refuses, write_picture
from peer.errors import StateError
from peer.lab.datasets import lungs

MASK = np.zeros((6, 8), dtype=np.uint8)
MASK[1:5, 1:3] = MASK[1:5, 5:7] = 255


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in" / "Lung Segmentation"
    for name, mode, mask, reading in (
        ("CHNCXR_0001_0", "RGB", "CHNCXR_0001_0_mask", "Male 45yrs\nnormal"),
        ("CHNCXR_0327_1", "L", "CHNCXR_0327_1_mask", "female, 9 yrs\nPTB"),
        ("CHNCXR_0328_1", "L", None, "Male 30yrs\n"),
        ("MCUCXR_0001_0", "L", "MCUCXR_0001_0", "Patient's Sex: F\nPatient's Age: 027Y\n\nnormal"),
        ("MCUCXR_0002_0", "L", "MCUCXR_0002_0", None),
    ):
        write_picture(base / "CXR_png" / f"{name}.png", mode)
        if mask:
            write_picture(base / "masks" / f"{mask}.png", "L", MASK)
        if reading:
            (base / "ClinicalReadings").mkdir(exist_ok=True)
            (base / "ClinicalReadings" / f"{name}.txt").write_text(reading)
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(lungs, tmp_path, source=tmp_path / "in")
    assert not test
    assert training == [
        {
            "image": "images/CHNCXR_0001_0.png", "label": "masks/CHNCXR_0001_0.png", "subject": "CHNCXR_0001",
            "site": "shenzhen", "tuberculosis": 0, "sex": "male", "age": 45,
        },
        {
            "image": str(source / "CXR_png" / "CHNCXR_0327_1.png"), "label": "masks/CHNCXR_0327_1.png",
            "subject": "CHNCXR_0327", "site": "shenzhen", "tuberculosis": 1, "sex": "female", "age": 9,
        },
        {
            "image": str(source / "CXR_png" / "MCUCXR_0001_0.png"), "label": "masks/MCUCXR_0001_0.png",
            "subject": "MCUCXR_0001", "site": "montgomery", "tuberculosis": 0, "sex": "female", "age": 27,
        },
        {
            "image": str(source / "CXR_png" / "MCUCXR_0002_0.png"), "label": "masks/MCUCXR_0002_0.png",
            "subject": "MCUCXR_0002", "site": "montgomery", "tuberculosis": 0,
        },
    ]  # fmt: skip
    for entry in training:
        with Image.open(tmp_path / "out" / entry["label"]) as image:
            np.testing.assert_array_equal(np.asarray(image), MASK // 255)
    with Image.open(tmp_path / "out" / training[0]["image"]) as image:
        assert image.mode == "L"
    assert summary["dropped"] == {"no mask": 1}
    assert summary["warnings"] == [
        "samples: 704 expected, 4 found", "montgomery: 138 expected, 2 found", "shenzhen: 566 expected, 2 found",
    ]  # fmt: skip


def test_what_is_missing_or_does_not_fit_is_named(tmp_path: Path, source: Path) -> None:
    write_picture(source / "CXR_png" / "copy.png")
    assert lungs.prepare(tmp_path / "a", source=source)["dropped"] == {"no mask": 1, "a name of another form": 1}
    refuses(lungs, source, "is not empty", StateError, out=tmp_path / "a")
    refuses(lungs, source / "masks", "masks holds no CXR_png; give --source the folder with CXR_png and masks")
    write_picture(source / "masks" / "MCUCXR_0001_0.png", "L", MASK[:5])
    refuses(lungs, source, r"MCUCXR_0001_0\.png has 8 x 5 pixels, its picture 8 x 6")
    (source / "masks").rename(tmp_path / "elsewhere")
    refuses(lungs, source, "holds no sample of lung-masks")
