import json
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.datasets import check_full_folder, check_seeds
from peer.errors import DataError
from peer.lab.datasets import dermoscopy
from peer.train.data.datalist import inspect_datalist

SCALES = {"scale-2": 2, "scale-4": 4, "scale-8": 8}


def patch(number: int) -> dermoscopy.Patch:
    return dermoscopy.Patch(f"patch-{number:04d}", f"image-{number // 10:03d}", np.zeros((3, 32, 32), dtype=np.float32))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """SYNTHETIC patches of 12 images in the package's layout; "b" patches are unlike theirs."""
    random = np.random.default_rng(0)
    folder = tmp_path / "patches"
    for kind in ("Similar", "nonSimilar"):
        (folder / kind).mkdir(parents=True)
    for image in range(12):
        for number, kind in ((10 * image, "Similar"), (10 * image + 7, "nonSimilar")):
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            pixels[0, 0] = (200, 100, number)
            Image.fromarray(pixels).save(folder / kind / f"patch{number}a.bmp")
            Image.fromarray(pixels[:25]).save(folder / kind / f"patch{number}b.bmp")
    (folder / "Features.csv").touch()
    return folder


def test_read_patches_takes_one_of_each_pair_in_the_order_of_their_numbers(source: Path) -> None:
    patches = dermoscopy.read_patches(source)
    assert len(patches) == 24
    assert [sample.name for sample in patches[:3]] == ["patch-0000", "patch-0007", "patch-0010"]
    assert [sample.subject for sample in patches[:3]] == ["image-000", "image-000", "image-001"]
    assert patches[3].pixels.dtype == np.float32
    np.testing.assert_allclose(patches[3].pixels[:, 0, 0] * 255, [200, 100, 17], rtol=1e-6)


def test_what_is_no_patch_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no patch<number>a\.bmp; install the version"):
        dermoscopy.read_patches(tmp_path / "empty")
    path = source / "Similar" / "patch20a.bmp"
    whole = path.read_bytes()
    Image.fromarray(np.zeros((32, 25, 3), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"patch20a\.bmp has 25 x 32 pixels, not 32 x 32"):
        dermoscopy.read_patches(source)
    for damaged in (b"BM, but no more", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"patch20a\.bmp is not a picture"):
            dermoscopy.read_patches(source)


@pytest.mark.parametrize("count", [3, 13, 199])
def test_an_image_is_at_one_site_and_in_one_split(count: int) -> None:
    patches = [patch(10 * image + offset) for image in range(count) for offset in (0, 3, 9)]
    sites = dermoscopy.split(patches, seed=0)
    assert list(sites) == list(SCALES)
    subjects = [{sample.subject for sample in part} for splits in sites.values() for part in splits.values()]
    assert all(not first & second for first, second in combinations(subjects, 2))
    assert sum(map(len, subjects)) == count
    assert sum(len(part) for splits in sites.values() for part in splits.values()) == len(patches)
    for splits in sites.values():
        own = [len(part) // 3 for part in splits.values()]
        assert sum(own) in (count // 3, count // 3 + 1)
        assert own[1] == round(sum(own) / 4)


def test_reduced_is_the_mean_of_what_a_pixel_covers() -> None:
    pixels = np.arange(48, dtype=np.float32).reshape(3, 4, 4) / 48
    reduced = dermoscopy.reduce(pixels, 2)
    assert (reduced.shape, reduced.dtype) == ((3, 2, 2), np.float32)
    np.testing.assert_allclose(reduced[0] * 48, [[2.5, 4.5], [10.5, 12.5]], rtol=1e-6)
    np.testing.assert_allclose(dermoscopy.reduce(pixels, 4)[:, 0, 0] * 48, [7.5, 23.5, 39.5], rtol=1e-6)


def test_psnr_by_hand() -> None:
    black = np.zeros((3, 4, 4), dtype=np.float32)
    assert dermoscopy.psnr(black, np.full_like(black, 0.1)) == pytest.approx(20)
    assert dermoscopy.psnr(black, np.ones_like(black)) == 0
    assert dermoscopy.psnr(black, black) == 100


def test_the_floor_is_high_for_what_is_smooth_and_low_for_what_is_not() -> None:
    ramp = np.broadcast_to(np.linspace(0.2, 0.8, 32, dtype=np.float32), (3, 32, 32))
    noise = np.random.default_rng(0).random((3, 32, 32), dtype=np.float32)
    smooth, rough = ([dermoscopy.Patch("p", "i", pixels)] for pixels in (ramp, noise))
    assert dermoscopy.bicubic_baseline(smooth, 2) > 45
    # Uniform noise has a variance of 1/12; what enlarges its means leaves some 3/4 of it and more.
    assert dermoscopy.bicubic_baseline(rough, 2) == pytest.approx(-10 * np.log10(3 / 4 / 12), abs=1)
    assert dermoscopy.bicubic_baseline(smooth + rough, 2) == pytest.approx(
        (dermoscopy.bicubic_baseline(smooth, 2) + dermoscopy.bicubic_baseline(rough, 2)) / 2
    )


def test_a_seed_gives_the_same_bytes_and_a_folder_that_is_not_empty_stays(source: Path, tmp_path: Path) -> None:
    prepare = partial(dermoscopy.prepare, source=source)
    check_seeds(prepare, tmp_path)
    check_full_folder(prepare, tmp_path)


@pytest.mark.data
def test_the_real_sites_list_what_they_hold(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = dermoscopy.prepare(out)
    assert summary == json.loads((out / "summary.json").read_text())
    images, patches = 0, 0
    for site, scale in SCALES.items():
        listed = inspect_datalist(out / site / "datalist.json", task="super_resolution")
        assert not listed.problems
        assert summary["sites"][site]["scale"] == scale
        for split, samples in (("training", listed.training), ("test", listed.test)):
            counts = summary["sites"][site][split]
            assert counts == {"images": len(listed.subjects(split)), "patches": len(samples)}
            images, patches = images + counts["images"], patches + counts["patches"]
        for sample in (*listed.training[:5], *listed.test[:5]):
            assert isinstance(sample.label, Path)
            small, large = np.load(sample.images[0]), np.load(sample.label)
            assert (small.shape, small.dtype) == ((3, 32 // scale, 32 // scale), np.float32)
            assert (large.shape, large.dtype) == ((3, 32, 32), np.float32)
            assert 0 <= large.min() < large.max() <= 1
            assert small[2, -1, 0] == pytest.approx(large[2, -scale:, :scale].mean())
    assert (images, patches) == (199, 1990)
    assert "edistribute" in json.loads((out / "scale-2" / "datalist.json").read_text())["licence"]
    labels = {path.read_bytes() for path in out.glob("*/labels/*.npy")}
    assert len(labels) == 1990, "no patch is there twice"
    floors = summary["floors"]["bicubic"]
    assert 35 > floors["scale-2"] > floors["scale-4"] + 1 > floors["scale-8"] + 2 > 30, "a larger scale is harder"
