import json
from pathlib import Path

import numpy as np
import pytest

from fakes.datasets import prepare, refuses, write_table, write_volume
from peer.lab.datasets import ixi

SUBJECTS = {
    "IXI002-Guys-0828": "test", "IXI012-HH-1211": "test", "IXI013-HH-1212": "train", "IXI016-Guys-0697": "train",
    "IXI035-IOP-0873": "train",
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in"
    sample = base / "IXI Sample Dataset" / "7kd5wj7v7p-3" / "IXI_sample"
    for name in SUBJECTS:
        write_volume(sample / name / "T1" / f"{name}-T1.nii.gz")
        brain = np.zeros((3, 4, 5), dtype=np.uint8)
        brain[1] = 1
        write_volume(sample / name / "label" / f"{name}-T1_mask.nii.gz", brain)
    (sample / "IXI.xls").touch()
    (sample / "notes").mkdir()
    rows = [{"Patient ID": int(name[3:6]), "Manufacturer": 0, "Split": split} for name, split in SUBJECTS.items()]
    write_table(base / "metadata_tiny.csv", rows)
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    sample = source / "IXI Sample Dataset" / "7kd5wj7v7p-3" / "IXI_sample"
    (sample / "IXI035-IOP-0873").rename(sample / "IXI014-HH-1236")
    path = source / "metadata_tiny.csv"
    path.write_text(path.read_text() + '"14","1","train"\n')
    (sample / "IXI999-HH-0001" / "T1").mkdir(parents=True)
    summary, training, test = prepare(ixi, tmp_path, source=source)
    assert [entry["subject"] for entry in training] == ["IXI013", "IXI014", "IXI016"]
    assert test[0] == {
        "image": str(sample / "IXI002-Guys-0828" / "T1" / "IXI002-Guys-0828-T1.nii.gz"),
        "label": str(sample / "IXI002-Guys-0828" / "label" / "IXI002-Guys-0828-T1_mask.nii.gz"),
        "subject": "IXI002",
        "site": "guys",
    }
    hh = json.loads((tmp_path / "out" / "hh" / "datalist.json").read_text())
    assert (hh["numTraining"], hh["numTest"]) == (2, 1)
    assert "2 listed files are not there: IXI999-HH-0001/T1, IXI999-HH-0001/label" in summary["warnings"]
    assert "hh, training: 145 expected, 2 found" in summary["warnings"]


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    path = source / "metadata_tiny.csv"
    path.write_text(path.read_text().replace('"2","0","test"', '"2","0","later"'))
    assert ixi.prepare(tmp_path / "a", source=source)["dropped"] == {"not in metadata_tiny.csv": 1}
    path.unlink()
    refuses(ixi, source, r"in holds no metadata_tiny\.csv; .*flamby/datasets/fed_ixi/metadata")
    refuses(ixi, tmp_path / "absent", "absent is no folder")
