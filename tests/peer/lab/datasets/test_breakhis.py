from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_picture
from peer.errors import UsageError
from peer.lab.datasets import breakhis

FILES = [
    "benign/SOB/adenosis/SOB_B_A_14-22549AB/40X/SOB_B_A-14-22549AB-40-001.png",
    "benign/SOB/adenosis/SOB_B_A_14-22549AB/400X/SOB_B_A-14-22549AB-400-001.png",
    "benign/SOB/adenosis/SOB_B_A_14-22549CD/40X/SOB_B_A-14-22549CD-40-002.png",
    "benign/SOB/phyllodes_tumor/SOB_B_PT_14-21998AB/100X/SOB_B_PT-14-21998AB-100-007.png",
    "malignant/SOB/ductal_carcinoma/SOB_M_DC_14-13412/200X/SOB_M_DC-14-13412-200-001.png",
    "malignant/SOB/lobular_carcinoma/SOB_M_LC_14-13412/200X/SOB_M_LC-14-13412-200-001.png",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in" / "BreaKHis_v1" / "histology_slides" / "breast"
    for file in FILES:
        write_picture(base / file)
    (base / "README.txt").touch()
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(breakhis, tmp_path, source=tmp_path / "in")
    assert not test
    assert training[1] == {
        "image": str(source / FILES[0]), "label": 0, "subject": "case-14-22549", "site": "breakhis",
        "slide": "SOB_B_A_14-22549AB", "lesion": "adenosis", "tumour": "benign", "magnification": 40,
    }  # fmt: skip
    assert [entry["label"] for entry in training] == [0, 0, 0, 2, 4, 5]
    assert sorted({entry["magnification"] for entry in training}) == [40, 100, 200, 400]
    # The parts of a case are one subject, and so is the case that is filed twice.
    assert [entry["subject"] for entry in training] == [*["case-14-22549"] * 3, "case-14-21998", *["case-14-13412"] * 2]
    assert "slides, by folder: 82 expected, 5 found" in summary["warnings"]
    assert "40X: 1995 expected, 2 found" in summary["warnings"]


def test_super_resolution_has_no_labels(tmp_path: Path, source: Path) -> None:
    summary, training, _ = prepare(breakhis, tmp_path, source=source, task="super_resolution")
    assert len(training) == 6
    assert not any("label" in entry for entry in training)
    assert "adenosis: 444 expected, 3 found" in summary["warnings"]


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    write_picture(source / "benign/SOB/adenosis/SOB_B_A_14-22549AB/40X/copy.png")
    assert breakhis.prepare(tmp_path / "a", source=source)["dropped"] == {"a name of another form": 1}
    refuses(breakhis, source, "task is 'segmentation', none of", UsageError, task="segmentation")
    refuses(breakhis, source / "malignant", "malignant holds no benign/SOB; give --source the folder with breast")
    (tmp_path / "empty" / "benign" / "SOB").mkdir(parents=True)
    refuses(breakhis, tmp_path / "empty", "empty holds no sample of breakhis")
