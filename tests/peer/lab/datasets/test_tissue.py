import gzip
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fakes.datasets import check_full_folder, check_seeds
from peer.errors import DataError
from peer.lab.datasets import tissue
from peer.train.data.datalist import inspect_datalist

SITES = ("axial", "axial-inverted", "coronal", "sagittal")
CORNER_MM = (-98, -134, -72)


def save(folder: Path, kind: str, volume: np.ndarray, affine: np.ndarray | None = None) -> Path:
    grid = np.eye(4)
    grid[:3, 3] = CORNER_MM
    path = folder / f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume, grid if affine is None else affine), path)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SYNTHETIC template: grey (T1 150) around white (T1 250) around a dark core (T1 50)."""
    folder = tmp_path_factory.mktemp("synthetic")
    x, y, z = np.ogrid[-98:99, -120:113, -80:109]
    shells = np.digitize(x**2 + y**2 + z**2, [10**2, 50**2, 70**2, 75**2])
    for kind, values in (
        ("t1", [50, 250, 150, 0, 0]),
        ("gm", [0, 0, 255, 255, 0]),  # 5 mm beyond the brain
        ("wm", [0, 255, 0, 0, 0]),
    ):
        save(folder, kind, np.array(values, dtype=np.uint8)[shells])
    return folder


@pytest.fixture(scope="module")
def template(source: Path) -> tissue.Template:
    return tissue.read_template(source)


def test_the_cube_has_the_brain_in_its_middle_and_knows_where_it_is(template: tissue.Template) -> None:
    assert template.image.shape == template.grey.shape == template.white.shape == (192, 192, 192)
    inside = np.argwhere(template.image)
    np.testing.assert_array_equal(inside.min(axis=0) + inside.max(axis=0), [192, 192, 192])
    np.testing.assert_array_equal(np.array(template.corner_mm) + 96, np.array([98, 120, 80]) + CORNER_MM)
    assert not template.grey[template.image == 0].any()
    assert not template.white[template.image == 0].any()


def test_inversion_swaps_dark_and_bright_and_leaves_the_outside(template: tissue.Template) -> None:
    inverted = template.inverted()
    for before, after in ((0, 0), (50, 250), (150, 150), (250, 50)):
        assert set(np.unique(inverted.image[template.image == before])) == {after}
    assert inverted.image.dtype == np.uint8
    assert inverted.grey is template.grey


def test_a_slice_is_pooled_and_its_labels_fit_it(template: tissue.Template) -> None:
    middle = tissue.cut(template, 2, 96, 64)
    assert middle.position_mm == 8  # 80 voxels above -72 mm
    assert middle.image.shape == (1, 64, 64)
    assert middle.image.dtype == np.float32
    assert (middle.labels.shape, middle.labels.dtype) == ((64, 64), np.uint8)
    radius = np.hypot(*(np.mgrid[:64, :64] * 3 + 1 - 96))
    sure = np.abs(radius - np.array([10, 50, 70])[:, None, None]).min(axis=0) > 3
    expected = np.select([radius < 10, radius < 50, radius < 70], [0, 2, 1])
    np.testing.assert_array_equal(middle.labels[sure], expected[sure])
    grey = np.select([radius < 10, radius < 50, radius < 70], [50, 250, 150]) / 255
    np.testing.assert_allclose(middle.image[0][sure], grey[sure], rtol=1e-6)


def test_pixels_are_means_and_labels_the_largest_share() -> None:
    empty = np.zeros((192, 192, 192), dtype=np.uint8)
    image, grey, white = empty.copy(), empty.copy(), empty.copy()
    image[0:2, 0:2, 5] = [[10, 20], [30, 40]]
    grey[0:2, 0:2, 5] = [[255, 255], [0, 0]]
    white[0:2, 0:2, 5] = [[0, 0], [255, 100]]
    sample = tissue.cut(tissue.Template(image, grey, white, (0, 0, 0)), 2, 5, 96)
    assert sample.image[0, -1, 0] == pytest.approx(25 / 255)  # the back, left: the last row, the first column
    assert sample.labels[-1, 0] == 1  # grey 510 of 1020, white 355, neither 155
    assert np.count_nonzero(sample.image) == np.count_nonzero(sample.labels) == 1


@pytest.mark.parametrize(("axis", "corner"), [(0, (1, 0)), (1, (0, 0)), (2, (0, 0))])
def test_slices_are_upright(axis: int, corner: tuple[int, int]) -> None:
    image = np.zeros((192, 192, 192), dtype=np.uint8)
    # Left, front and top: upper left from the front and from above; from the side the front is to
    # the right.
    at = [slice(0, 3), slice(189, 192), slice(189, 192)]
    image[tuple(at)] = 255
    pixels = tissue.cut(tissue.Template(image, image, image, (0, 0, 0)), axis, (0, 190, 190)[axis], 64).image[0]
    assert pixels[0, 63 * corner[0]] == 1
    assert np.count_nonzero(pixels) == 1


def test_slabs_have_gaps_and_sagittal_ones_lie_on_one_side_of_the_midline(template: tissue.Template) -> None:
    for axis in range(3):
        slabs = tissue.slabs_of(template, axis)
        assert {len(slab) for slab in slabs} == {8}
        assert all(later.start - slab.stop == 6 for slab, later in pairwise(slabs))
        brain = [np.count_nonzero(np.take(template.image, at, axis=axis)) for at in range(192)]
        assert min(brain[at] for slab in slabs for at in slab) >= 0.15 * max(brain)
    midline = -template.corner_mm[0]
    assert tissue.slabs_of(template, 0)[0].start == midline
    assert tissue.slabs_of(template, 1)[0].start < 96 - 50


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 12])
@pytest.mark.parametrize("seed", range(5))
def test_one_slab_of_three_is_tested_on_and_the_axial_sites_share_the_rest(count: int, seed: int) -> None:
    slabs = [range(14 * index, 14 * index + 8) for index in range(count)]
    splits = {site: tissue.split(slabs, tissue.SITES[site], seed=seed) for site in SITES}
    tested = [slabs.index(slab) for slab in splits["axial"]["test"]]
    assert [index // 3 for index in tested] == list(range((count + 2) // 3))
    assert splits["axial"]["test"] == splits["axial-inverted"]["test"]
    training = splits["axial"]["training"] + splits["axial-inverted"]["training"]
    assert sorted(slabs.index(slab) for slab in training) == sorted(set(range(count)) - set(tested))
    assert len(splits["axial"]["training"]) - len(splits["axial-inverted"]["training"]) in (0, 1)
    assert {slabs.index(slab) for part in splits["coronal"].values() for slab in part} == set(range(count))


def test_dice_by_hand() -> None:
    labels = np.array([[0, 1, 1, 2]])
    assert tissue.dice(labels, labels) == 1.0
    assert tissue.dice(np.array([[0, 1, 2, 2]]), labels) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert tissue.dice(np.array([[1, 0, 0, 0]]), labels) == 0.0
    assert tissue.dice(np.zeros(3), np.array([0, 0, 1])) == 0.5  # no white matter in either


def test_the_floor_knows_grey_levels_only() -> None:
    def sample(levels: list[float], labels: list[int]) -> tissue.Slice:
        return tissue.Slice(0, np.array([[levels]], dtype=np.float32), np.array([labels], dtype=np.uint8))

    training = [sample([0.0, 0.5, 0.5, 0.5, 1.0], [0, 1, 1, 2, 2])]
    assert tissue.grey_level_baseline({"training": training, "test": [sample([0, 0.51, 1], [0, 1, 2])]}) == 1.0
    # Grey as it should be; of white the bright pixel is found, the middle one is taken for grey.
    tests = [sample([0.5, 0.5, 1.0], [1, 2, 2])]
    assert tissue.grey_level_baseline({"training": training, "test": tests}) == pytest.approx(2 / 3)


@pytest.mark.e2e
def test_a_seed_gives_the_same_bytes_and_a_folder_that_is_not_empty_stays(source: Path, tmp_path: Path) -> None:
    prepare = partial(tissue.prepare, size=32, source=source)
    check_seeds(prepare, tmp_path)
    check_full_folder(prepare, tmp_path)


def test_prepare_refuses_what_is_not_the_template(source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (path := tmp_path / tissue.FILE.format("wm")).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"icbm152_wm_\S+ cannot be read: .*requirements/data\.txt pins"):
        tissue.read_template(tmp_path)
    for volume, affine in (
        (np.ones((197, 233, 189), dtype=np.int16), None),
        (np.ones((98, 116, 94), dtype=np.uint8), None),
        (np.ones((197, 233, 189), dtype=np.uint8), np.diag([2.0, 2.0, 2.0, 1.0])),
        (np.zeros((197, 233, 189), dtype=np.uint8), None),
    ):
        save(tmp_path, "wm", volume, affine)
        with pytest.raises(DataError, match=r"icbm152_wm_\S+ is not the template: bytes on \(197, 233, 189\) voxels"):
            tissue.read_template(tmp_path)
    path.write_bytes(gzip.compress(b"no header", mtime=0))
    with pytest.raises(DataError, match="cannot be read"):
        tissue.read_template(tmp_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The real template's sites."""
    out = tmp_path_factory.mktemp("tissue") / "out"
    return out, tissue.prepare(out)


@pytest.mark.data
def test_the_real_sites_list_what_they_hold(prepared: tuple[Path, dict[str, Any]]) -> None:
    out, summary = prepared
    assert summary == json.loads((out / "summary.json").read_text())
    assert {site: [summary["sites"][site][split]["slices"] for split in ("training", "test")] for site in SITES} == {
        "axial": [24, 24], "axial-inverted": [24, 24], "coronal": [64, 32], "sagittal": [24, 16],
    }  # fmt: skip
    for site in SITES:
        listed = inspect_datalist(out / site / "datalist.json", task="segmentation", classes=3)
        assert not listed.problems
        for split, samples in (("training", listed.training), ("test", listed.test)):
            labels = []
            for sample in samples:
                assert isinstance(sample.label, Path)
                image = np.load(sample.images[0])
                assert (image.shape, image.dtype) == ((1, 64, 64), np.float32)
                assert 0 == image.min() < 0.5 < image.max() <= 1
                labels.append(np.load(sample.label))
                assert labels[-1].shape == (64, 64)
            shares = summary["sites"][site][split]["pixel_shares"]
            counted = np.bincount(np.ravel(labels), minlength=3) / np.size(labels)
            np.testing.assert_allclose(list(shares.values()), counted, atol=1e-4)
            assert min(shares.values()) > 0.05
        assert 0.75 < summary["floors"]["grey_level"][site] < 0.96


@pytest.mark.data
def test_no_training_slice_has_a_test_slice_within_the_gap(prepared: tuple[Path, dict[str, Any]]) -> None:
    positions = {
        site: [splits[split]["positions_mm"] for split in ("training", "test")]
        for site, splits in prepared[1]["sites"].items()
    }
    pairs = [(site, site) for site in SITES] + [("axial", "axial-inverted"), ("axial-inverted", "axial")]
    for trained, tested_at in pairs:
        distances = [abs(own - tested) for own in positions[trained][0] for tested in positions[tested_at][1]]
        assert min(distances) >= 7
    assert not set(positions["axial"][0]) & set(positions["axial-inverted"][0])
    assert min(map(min, positions["sagittal"])) == 0  # the right half, from the midline on


@pytest.mark.data
def test_inverted_slices_are_axial_ones_with_the_contrast_inverted(prepared: tuple[Path, dict[str, Any]]) -> None:
    out, summary = prepared
    position = summary["sites"]["axial"]["test"]["positions_mm"][12]
    file = f"z{position:+04d}.npy"
    plain, inverted = (np.load(out / site / "images" / file) for site in ("axial", "axial-inverted"))
    labels = np.load(out / "axial" / "labels" / file)
    np.testing.assert_array_equal(labels, np.load(out / "axial-inverted" / "labels" / file))
    assert plain[0][labels == 2].mean() > plain[0][labels == 1].mean() + 0.1
    assert inverted[0][labels == 2].mean() < inverted[0][labels == 1].mean() - 0.1
    np.testing.assert_allclose((plain + inverted)[0][labels == 2], (28 + 255) / 255, rtol=1e-5)


@pytest.mark.data
def test_the_real_template_is_the_same_left_and_right() -> None:
    template = tissue.read_template(tissue.prepared_folder.package_file(tissue.PACKAGE, tissue.DATA))
    midline = -template.corner_mm[0]
    np.testing.assert_array_equal(template.image[midline + 1 : 192], template.image[midline - 1 : 0 : -1])
