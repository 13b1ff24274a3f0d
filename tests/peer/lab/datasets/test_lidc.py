import json
from functools import partial
from itertools import combinations
from pathlib import Path

import nibabel
import numpy as np
import pytest
from monai.data import NibabelReader

from fakes.datasets import AnnotationBase, check_full_folder, check_seeds
from peer.lab.datasets import lidc
from peer.lab.datasets.nodule import READERS_MAX, SIDE, Nodule, NoduleReading, Scan
from peer.site.config.schema import FederationConfig
from peer.train.data.datalist import inspect_datalist

SHARES = {"africa": 0.15, "america": 0.35, "asia": 0.60, "europe": 0.85}


def nodule(patient: str, id: int, malignancy: int, *, thickness: float = 1.25, readings: int = 1) -> Nodule:
    scan = Scan(id=id, patient=patient, slice_thickness_mm=thickness, pixel_mm=1.0, slices_mm=np.array([0.0, 1.0]))
    voxel = np.ones((1, 1, 1), dtype=bool)
    return Nodule(scan, tuple(NoduleReading(10 * id + k, malignancy, np.zeros(3, int), voxel) for k in range(readings)))


@pytest.mark.parametrize(
    ("thickness", "site"),
    [(0.6, "africa"), (1.0, "africa"), (1.25, "asia"), (1.5, "asia"), (2.0, "europe"), (2.5, "europe"),
     (3.0, "america"), (5.0, "america")],
)  # fmt: skip
def test_slice_thickness_decides_the_site(thickness: float, site: str) -> None:
    assert lidc.site_of(thickness) == site


def test_what_is_dropped_and_why() -> None:
    assert lidc.reason_to_drop(nodule("p", 1, 3)) == "indeterminate"
    assert lidc.reason_to_drop(nodule("p", 1, 5, readings=READERS_MAX + 1)) == "joined"
    assert lidc.reason_to_drop(nodule("p", 1, 5, readings=READERS_MAX)) is None
    assert lidc.reason_to_drop(nodule("p", 1, 2)) is None


def test_split_keeps_each_patient_at_one_site_and_on_one_side() -> None:
    nodules = [nodule(f"p{index // 3}", index, 1 + 4 * (index % 2)) for index in range(90)]
    nodules.append(nodule("p0", 999, 5, thickness=3.0))  # a second scan that would belong to another site
    splits = lidc.split(nodules, seed=0)
    assert not splits["america"].training
    assert not splits["america"].test
    own = splits["asia"]
    sides = [{item.scan.patient for item in side} for side in (own.training, own.test)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 9  # 30 % of 30 patients
    assert sum(item.scan.patient == "p0" for side in (own.training, own.test) for item in side) <= 4
    assert {item.scan.id for item in own.test} == {item.scan.id for item in nodules if item.scan.patient in sides[1]}


@pytest.mark.parametrize("share", SHARES.values())
@pytest.mark.parametrize(("malignant", "benign", "most"), [(200, 200, 100), (30, 200, 100), (200, 30, 100), (3, 1, 9)])
def test_skewed_has_the_share_and_as_many_as_there_are(share: float, malignant: int, benign: int, most: int) -> None:
    nodules = [nodule(f"p{index}", index, 5 if index < malignant else 1) for index in range(malignant + benign)]
    selected = lidc.select(nodules, share=share, seed=0, most=most)
    ones = sum(lidc.is_malignant(item) for item in selected)
    assert len({item.name for item in selected}) == len(selected) <= most
    assert abs(ones - share * len(selected)) <= 0.5
    larger = len(selected) + 2
    assert larger > most or share * larger > malignant or (1 - share) * larger > benign


def test_shells_are_labels_from_the_centre_outwards() -> None:
    labels = lidc.shells()
    assert labels.shape == (SIDE, SIDE, SIDE)
    assert np.unique(labels).tolist() == [1, 2, 3, 4, 5, 6]
    middle = SIDE // 2
    along = labels[middle:, middle, middle]
    assert along[0] == 1
    assert (np.diff(along.astype(int)) >= 0).all()
    assert labels[0, 0, 0] == 6
    np.testing.assert_array_equal(labels, labels[::-1].transpose(2, 0, 1))
    # A third of the way out: 2/6 of the half side is 5.33 voxels, so that labels 1 and 2 make a
    # ball of that radius.
    assert (labels <= 2).sum() == pytest.approx(4 / 3 * np.pi * (SIDE / 6) ** 3, rel=0.05)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A SYNTHETIC data base: 10 patients at every site, boxes that are long when malignant."""
    annotations = AnnotationBase(tmp_path / "annotations.sqlite")
    for thickness in (1.0, 1.25, 2.0, 3.0):
        for index in range(10):
            scan = annotations.scan(f"p{thickness}-{index}", thickness=thickness)
            annotations.reading(scan, 2, side=8)
            annotations.reading(scan, 4, at=(70, 70), side=10, slices=range(5, 8 + index % 3))
            annotations.reading(scan, 5, at=(70, 70), side=10, slices=range(5, 8 + index % 3))
            annotations.reading(scan, 3, at=(120, 20))
    return annotations.close()


def test_a_seed_gives_the_same_bytes_and_a_folder_that_is_not_empty_stays(small: Path, tmp_path: Path) -> None:
    prepare = partial(lidc.prepare, training_max=6, database=small)
    check_seeds(prepare, tmp_path)
    check_full_folder(prepare, tmp_path)


def test_prepare_says_what_became_of_every_nodule(small: Path, tmp_path: Path) -> None:
    summary = lidc.prepare(tmp_path / "out", training_max=6, database=small)
    names = FederationConfig.load(Path("deploy/network/federation.toml")).task.class_names
    for site in summary["sites"]:
        assert tuple(json.loads((tmp_path / "out" / site / "datalist.json").read_text())["labels"].values()) == names
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    used = sum(site[side]["nodules"] for site in summary["sites"].values() for side in ("training", "test"))
    assert summary["nodules"] == 120
    assert summary["dropped"] == {"indeterminate": 40, "joined": 0, "surplus_for_training": 80 - used}
    for site in summary["sites"].values():
        assert site["test"] == {
            "patients": 3, "nodules": 6, "malignant": 3, "malignant_share": 0.5, "clipped": 0,
            "slice_thickness_mm": site["test"]["slice_thickness_mm"],
        }  # fmt: skip


@pytest.mark.data
@pytest.mark.nightly
def test_the_real_task_has_the_promised_sites_and_volumes_that_monai_loads(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = lidc.prepare(out)
    assert summary["nodules"] == 2654
    assert summary["dropped"]["indeterminate"] == 952
    assert summary["dropped"]["joined"] == 14
    subjects = {}
    for site, share in SHARES.items():
        listed = inspect_datalist(out / site / "datalist.json", classes=2)
        assert not listed.problems
        training, test = summary["sites"][site]["training"], summary["sites"][site]["test"]
        assert training["nodules"] == len(listed.training) == 100
        assert training["malignant_share"] == pytest.approx(share, abs=0.005)
        assert test["nodules"] == len(listed.test) >= 59
        assert 0.25 < test["malignant_share"] < 0.45  # 0.32 of all nodules are malignant
        subjects[site] = listed.subjects("training") | listed.subjects("test")
    assert all(not subjects[first] & subjects[second] for first, second in combinations(subjects, 2))
    aucs = summary["floors"]
    assert aucs["volume"]["pooled"] > 0.85
    assert aucs["scaled_volume"]["pooled"] == pytest.approx(0.5, abs=0.06), "scaling takes the size out"
    assert 0.6 < aucs["scaled_surface"]["pooled"] < 0.75
    reader = NibabelReader()
    for site in SHARES:
        document = json.loads((out / site / "datalist.json").read_text())
        for entry in document["training"][:10] + document["test"][:10]:
            voxels, _ = reader.get_data(reader.read(out / site / entry["image"]))
            assert voxels.shape == (SIDE, SIDE, SIDE)
            assert (voxels.min(), voxels.max()) == (0, pytest.approx(1))
            if not entry["clipped"]:
                assert voxels.sum() == pytest.approx(4 / 3 * np.pi * lidc.RADIUS**3, rel=0.015)
            assert entry["label"] == (entry["malignancy"] > 3)
        regions = nibabel.load(out / site / document["regions"])
        np.testing.assert_array_equal(np.asarray(regions.dataobj), lidc.shells())
        assert nibabel.aff2axcodes(regions.affine) == ("L", "P", "S")
