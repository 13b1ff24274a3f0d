"""Images of every kind of file, at the requested size and scale."""

from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from peer.train.data.datalist import Sample
from peer.train.data.image_files import FORMATS, open_image
from peer.train.errors import UnusableConfigurationError, UnusableDataError
from peer.train.images import Preparation, load_image, load_regions
from peer.train.inference.output_files import label_map
from peer.train.settings import IntensitySettings
from peer.train.targets import ImageAndLabel, LabelMap
from tests.fakes import phantoms
from tests.fakes.image_files import FRAMES, PIXELS, nifti, picture, volume

VOLUME = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)


def test_nifti_volumes_with_and_without_channels(tmp_path: Path) -> None:
    plain = load_image(nifti(tmp_path / "a.nii.gz", VOLUME), spatial_dims=3)
    assert torch.equal(plain, torch.from_numpy(VOLUME)[None])
    stacked = np.stack([VOLUME, -VOLUME], axis=3)
    assert torch.equal(load_image(nifti(tmp_path / "b.nii", stacked), spatial_dims=3), torch.cat([plain, -plain]))


def test_png_in_grey_and_in_colour(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(pixels).save(tmp_path / "colour.PNG")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "grey.png")
    colour = load_image(tmp_path / "colour.PNG", spatial_dims=2)
    assert torch.equal(colour, torch.from_numpy(pixels).permute(2, 0, 1).float())
    assert torch.equal(load_image(tmp_path / "grey.png", spatial_dims=2), colour[:1])


# --- axes -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", [".png", ".bmp", ".npy", ".nii.gz", ".dcm"])
def test_a_picture_has_rows_and_columns_in_every_format(tmp_path: Path, ending: str) -> None:
    path = picture(tmp_path / f"a{ending}", PIXELS)
    image = load_image(path, spatial_dims=2)
    assert image.tolist() == [PIXELS.tolist()]
    assert image.is_contiguous()
    assert Preparation(1, (3, 5))([path]).tolist() == [PIXELS.tolist()]
    assert LabelMap(Preparation(1, (3, 5)), 256)(Sample("a", (path,), path))[1].tolist() == PIXELS.tolist()
    labels = load_regions(path, Preparation(1, (3, 5)))
    assert [mask.nonzero().tolist() for mask in labels] == [[[2, 0]], [[0, 4]]]
    assert open_image(path).space == image.shape[1:]


@pytest.mark.parametrize("name", ["volume.nii.gz", "volume.npy", "frames.dcm", "series"])
def test_a_volume_has_columns_rows_and_slices_in_every_format(tmp_path: Path, name: str) -> None:
    path = volume(tmp_path / name, FRAMES)
    image = load_image(path, spatial_dims=3)
    assert image.shape == (1, 5, 3, 4)
    assert (image[0, 4, 0, 0], image[0, 0, 2, 0], image[0, 0, 0, 3]) == (200, 100, 50)
    assert open_image(path).space == image.shape[1:]


# --- arrays ---------------------------------------------------------------------------------------


def test_arrays_by_key_or_the_first(tmp_path: Path) -> None:
    wave = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "keyed.npz", other=wave * 0, image=wave)
    np.savez(tmp_path / "first.npz", wave=wave)
    np.save(tmp_path / "bare.npy", wave[0])
    assert load_image(tmp_path / "keyed.npz", spatial_dims=1).tolist() == wave.tolist()
    assert load_image(tmp_path / "first.npz", spatial_dims=1).tolist() == wave.tolist()
    assert load_image(tmp_path / "bare.npy", spatial_dims=1).tolist() == [wave[0].tolist()]


def test_an_array_by_its_key_or_the_only_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", image=np.zeros(2), label=np.ones(2))
    np.savez(tmp_path / "one.npz", signal=np.full(2, 7.0))
    assert load_image(tmp_path / "both.npz", spatial_dims=1, key="label").tolist() == [[1, 1]]
    assert load_image(tmp_path / "one.npz", spatial_dims=1).tolist() == [[7, 7]]


def test_only_bytes_of_pictures_are_brought_to_the_unit_range(tmp_path: Path) -> None:
    pixels = np.array([[0, 255]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "bytes.bmp")
    Image.fromarray(pixels.astype(np.uint16) * 100).save(tmp_path / "words.png")
    np.save(tmp_path / "bytes.npy", pixels)
    brightest = {path.name: load_image(path, spatial_dims=2, unit=True).max().item() for path in tmp_path.iterdir()}
    assert brightest == {"bytes.bmp": 1, "words.png": 25500, "bytes.npy": 255}
    assert load_image(tmp_path / "bytes.bmp", spatial_dims=2).max() == 255


def test_objects_in_an_array_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickled Python objects"):
        load_image(tmp_path / "evil.npy", spatial_dims=1)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = nifti(tmp_path / "a.nii.gz", VOLUME)
    with pytest.raises(ValueError, match=r"has the shape \(1, 4, 5, 6\), not \(channels, 2 spatial dimensions\)"):
        load_image(path, spatial_dims=2)
    with pytest.raises(ValueError, match=r"has the ending '.txt', none of .npz, .npy, .nii"):
        load_image(tmp_path / "a.txt", spatial_dims=2)
    with pytest.raises(ValueError, match=r"has 1 channel, \[task\] in_channels is 4"):
        Preparation(4, (4, 5, 6))([path])
    with pytest.raises(ValueError, match="NaN"):
        Preparation(1, (4, 5, 6))([nifti(tmp_path / "n.nii", np.full((4, 5, 6), np.nan, dtype=np.float32))])


def test_preparation_stacks_files_resizes_and_leaves_values(tmp_path: Path) -> None:
    paths = [nifti(tmp_path / "a.nii", VOLUME), nifti(tmp_path / "b.nii", VOLUME * 2)]
    same = Preparation(2, (4, 5, 6))(paths)
    assert torch.equal(same, torch.from_numpy(np.stack([VOLUME, VOLUME * 2])))
    assert type(same) is torch.Tensor
    constant = Preparation(1, (2, 3, 9)).fit(torch.full((1, 4, 5, 6), 3.0), None)
    assert constant.shape == (1, 2, 3, 9)
    assert torch.allclose(constant, torch.tensor(3.0))


def test_shrinking_averages_instead_of_picking() -> None:
    stripes = np.tile(np.array([0.0, 1.0], dtype=np.float32), 32)
    small = Preparation(1, (8,)).fit(torch.from_numpy(stripes[None]), None)
    assert small.shape == (1, 8)
    assert small.tolist() == [[0.5] * 8]


def test_growing_interpolates(tmp_path: Path) -> None:
    np.save(tmp_path / "ramp.npy", np.array([0.0, 1.0], dtype=np.float32))
    assert Preparation(1, (4,))([tmp_path / "ramp.npy"]).tolist() == [[0.0, 0.25, 0.75, 1.0]]


def test_normalising_is_by_channel(tmp_path: Path) -> None:
    wave = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 60.0]])
    np.save(tmp_path / "w.npy", wave)
    scored = Preparation(2, (3,), "zscore")([tmp_path / "w.npy"])
    assert torch.allclose(scored.mean(1), torch.zeros(2), atol=1e-6)
    assert torch.allclose(scored.std(1, correction=0), torch.ones(2), atol=1e-6)
    unit = Preparation(2, (3,), "unit")([tmp_path / "w.npy"])
    assert unit[1].tolist() == pytest.approx([0, 0.2, 1])


def test_regions_of_a_label_map(tmp_path: Path) -> None:
    labels = np.zeros((4, 4), dtype=np.int16)
    labels[:2, :2], labels[2:, 2:] = 3, 7
    masks = load_regions(nifti(tmp_path / "atlas.nii.gz", labels), Preparation(1, (4, 4)))
    assert masks.shape == (2, 4, 4)
    assert torch.equal(masks[0], torch.from_numpy(labels == 3).float())
    soft = load_regions(tmp_path / "atlas.nii.gz", Preparation(1, (3, 3)))
    assert torch.allclose(soft[0, 1, 1], torch.tensor(0.25))


def test_regions_of_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "soft.npz", masks=np.array([[0.5, 0.5, 0.0, 1.0]]))
    assert load_regions(tmp_path / "soft.npz", Preparation(1, (2,))).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"other": np.ones((1, 4))}, "cannot be read"),
        ({"masks": np.ones(4)}, r"gives \(4,\), not \(regions, 1 dimensions\)"),
        ({"masks": -np.ones((1, 4))}, "negative or non-finite"),
    ],
)
def test_regions_that_are_none(tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(UnusableDataError, match=reason):
        load_regions(tmp_path / "r.npz", Preparation(1, (4,)))


def test_regions_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableDataError, match=r"regions .*gone.nii.gz cannot be read"):
        load_regions(tmp_path / "gone.nii.gz", Preparation(1, (4,)))


def test_a_reader_that_is_not_installed_is_no_fault_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise ImportError("required package `PIL` is not installed") from ModuleNotFoundError("No PIL", name="PIL")

    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.setitem(FORMATS, ".png", missing)
    for use in (partial(load_image, spatial_dims=2), partial(load_regions, preparation=Preparation(1, (4, 4)))):
        with pytest.raises(
            UnusableConfigurationError, match=r"reading \.png files needs .* PIL: No PIL; run `pip install pillow`"
        ):
            use(tmp_path / "a.png")


# --- orientation, distances and intensity ---------------------------------------------------------
def test_a_millimetre_is_as_long_in_every_image(tmp_path: Path) -> None:
    prepare = Preparation(1, (4, 4, 4), spacing=(2.0, 2.0, 2.0))
    fine = np.zeros((16, 16, 16), dtype=np.float32)
    fine[4:12] = 1  # 8 mm of 16 mm
    coarse = np.zeros((4, 4, 4), dtype=np.float32)
    coarse[1:3] = 1  # 8 mm of 16 mm, in voxels of 4 mm
    nibabel.save(nibabel.Nifti1Image(fine, np.eye(4)), tmp_path / "fine.nii")
    nibabel.save(nibabel.Nifti1Image(coarse, np.diag([4.0, 4, 4, 1])), tmp_path / "coarse.nii")
    inner = prepare.load([tmp_path / "fine.nii"])
    assert prepare.fit(inner.values, inner.spacing).tolist() == torch.ones(1, 4, 4, 4).tolist()  # the inner 8 mm
    assert prepare([tmp_path / "coarse.nii"])[0, 1:3].tolist() == torch.ones(2, 4, 4).tolist()
    small = fine[1:7, :2, :2] + 3
    nibabel.save(nibabel.Nifti1Image(small, np.eye(4)), tmp_path / "small.nii")
    assert prepare([tmp_path / "small.nii"])[0, :, 2, 2].tolist() == [3, 3, 3, 3]  # padded with its lowest value


def test_a_prediction_returns_to_its_images_grid(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "a.nii", "PIR")
    prepare = Preparation(1, (4, 9, 8), orientation="RAS", spacing=(2.0, 1.0, 2.0))
    image = prepare.load([tmp_path / "a.nii"])
    bright = (prepare.finish(image) > 60).float()
    labels = label_map(prepare.restore(torch.cat([1 - bright, bright]), image), image.space)
    expected = phantoms.PHANTOM > 60
    expected[0] = False  # beyond input_size, where the network saw nothing
    assert expected.any()
    assert np.array_equal(labels, expected.transpose(1, 2, 0)[::-1, ::-1])


@pytest.mark.parametrize(
    ("intensity", "expected"),
    [
        (("window", 40, 40), [0, 0, 0.5, 1]),
        (("range", 0, 200), [0, 0.1, 0.2, 1]),
        (("percentiles", 0, 100), [0, 0.1, 0.2, 1]),
    ],
)
def test_intensity_maps_a_range_to_the_unit(
    tmp_path: Path, intensity: tuple[str, float, float], expected: list[float]
) -> None:
    np.save(tmp_path / "a.npy", np.array([0.0, 20, 40, 200]))
    prepare = Preparation(1, (4,), intensity=IntensitySettings.of(*intensity))
    assert prepare([tmp_path / "a.npy"])[0].tolist() == pytest.approx(expected)


def test_an_intensity_beyond_all_values_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([0.0, 1.0]))
    with pytest.raises(
        ValueError, match=r"values from 0 to 1, all beyond the range -1000 to -100 of \[data\] intensity"
    ):
        Preparation(1, (2,), intensity=IntensitySettings(-1000, -100))([tmp_path / "a.npy"])


def test_a_distance_that_nobody_says_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(ValueError, match=r"says no distance of its voxels, which \[data\] spacing needs"):
        Preparation(1, (2, 2), spacing=(1.0, 1.0))([tmp_path / "a.npy"])


def test_channels_that_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    image = phantoms.nifti(tmp_path / "a.nii")
    nibabel.save(
        nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine @ np.diag([1.0, 1, 2, 1])), tmp_path / "b.nii"
    )
    with pytest.raises(ValueError, match=r"a.nii and b.nii lie on different grids, up to 12 mm apart"):
        Preparation(2, (4, 4, 4), orientation="RAS").load([tmp_path / "a.nii", tmp_path / "b.nii"])
    np.save(tmp_path / "c.npy", phantoms.turned("LPS")[0])
    phantoms.nifti(tmp_path / "d.nii", "LPS")
    with pytest.raises(ValueError, match=r"d.nii and c.npy cannot be turned alike"):
        Preparation(2, (4, 4, 4), orientation="RAS").load([tmp_path / "d.nii", tmp_path / "c.npy"])


def test_a_label_map_is_turned_by_its_own_affine(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "image.nii", "LPS")
    label, affine = phantoms.turned("PIR")
    nibabel.save(nibabel.Nifti1Image((label > 60).astype(np.uint8), affine), tmp_path / "label.nii")
    read = LabelMap(Preparation(1, phantoms.PHANTOM.shape, orientation="RAS"), 2)
    image, labels = read(Sample("a", (tmp_path / "image.nii",), tmp_path / "label.nii"))
    assert np.array_equal(image[0].numpy(), phantoms.PHANTOM)
    assert np.array_equal(labels.numpy(), phantoms.PHANTOM > 60)


@pytest.mark.parametrize("orientation", [None, "stored"])
def test_what_is_read_as_stored_lies_at_one_place_and_runs_alike(tmp_path: Path, orientation: str | None) -> None:
    image = phantoms.nifti(tmp_path / "image.nii")
    labels = (phantoms.PHANTOM > 60).astype(np.uint8)
    phantoms.nifti(tmp_path / "turned.nii", "LAS", values=labels[::-1])
    elsewhere = image.affine.copy()
    elsewhere[0, 3] += 40
    nibabel.save(nibabel.Nifti1Image(labels, elsewhere), tmp_path / "elsewhere.nii")
    read = LabelMap(Preparation(1, phantoms.PHANTOM.shape, orientation=orientation), 2)
    with pytest.raises(ValueError, match=r"their axes run to RAS and to LAS; set \[data\] orientation"):
        read(Sample("a", (tmp_path / "image.nii",), tmp_path / "turned.nii"))
    with pytest.raises(ValueError, match="lie on different grids, up to 40 mm apart"):
        read(Sample("a", (tmp_path / "image.nii",), tmp_path / "elsewhere.nii"))


def test_an_atlas_is_turned_like_the_images(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "atlas.nii", "PIR")
    masks = load_regions(tmp_path / "atlas.nii", Preparation(1, phantoms.PHANTOM.shape, orientation="RAS"))
    assert [mask.nonzero().tolist() for mask in masks[1:]] == [[[0, 0, 3]], [[0, 2, 0]], [[4, 0, 0]]]


def test_an_image_of_which_preparation_leaves_nothing_is_no_sample(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "a.nii")
    read = ImageAndLabel(Preparation(1, (5, 3, 4), orientation="RAS", spacing=(900.0, 900.0, 900.0)))
    with pytest.raises(ValueError, match=r"is constant once it is brought to \[data\] input_size = \[5, 3, 4\]"):
        read(Sample("a", (tmp_path / "a.nii",), 1))


@pytest.mark.parametrize("at", [0, 19])
def test_a_label_map_that_loses_its_foreground_is_no_sample(tmp_path: Path, at: int) -> None:
    """A lesion of one voxel, between the cells of the smaller grid."""
    image, labels = np.arange(20.0 * 20).reshape(20, 20), np.zeros((20, 20), np.uint8)
    labels[at, at] = 1
    np.save(tmp_path / "a.npy", image)
    np.save(tmp_path / "l.npy", labels)
    sample = Sample("a", (tmp_path / "a.npy",), tmp_path / "l.npy")
    with pytest.raises(ValueError, match=r"l.npy, of which no foreground is left at \[data\] input_size = \[4, 4\]"):
        LabelMap(Preparation(1, (4, 4)), 2)(sample)
    assert LabelMap(Preparation(1, (20, 20)), 2)(sample)[1].sum() == 1


def test_a_nan_is_background_where_the_site_says_so(tmp_path: Path) -> None:
    image = np.array([[[1, np.nan], [3, 4]], [[-5, 6], [np.nan, 8]]])
    np.save(tmp_path / "a.npy", image)
    filled = Preparation(2, (2, 2), nan="background")
    assert filled.load([tmp_path / "a.npy"]).values.tolist() == [[[1, 1], [3, 4]], [[-5, 6], [-5, 8]]]
    assert torch.isfinite(filled([tmp_path / "a.npy"])).all()
    with pytest.raises(ValueError, match="holds a NaN or an infinity"):
        Preparation(2, (2, 2)).load([tmp_path / "a.npy"])
    for value, reason in ((np.nan, "holds a channel of NaN alone"), (np.inf, "holds an infinity")):
        image[1] = value
        np.save(tmp_path / "a.npy", image)
        with pytest.raises(ValueError, match=reason):
            filled.load([tmp_path / "a.npy"])


def test_one_empty_scan_of_several_is_no_sample(tmp_path: Path) -> None:
    for name, image in (("a", np.arange(6.0).reshape(2, 3)), ("b", np.zeros((2, 3)))):
        np.save(tmp_path / f"{name}.npy", image)
    both = Preparation(2, (2, 3))
    with pytest.raises(ValueError, match=r"b\.npy: is constant: every value is 0"):
        both([tmp_path / "a.npy", tmp_path / "b.npy"])
    np.save(tmp_path / "c.npy", np.stack([np.arange(6.0).reshape(2, 3), np.zeros((2, 3))]))
    assert both([tmp_path / "c.npy"]).shape == (2, 2, 3)  # of one file's channels, one may be empty


def test_one_scan_of_several_of_which_preparation_leaves_nothing_is_no_sample(tmp_path: Path) -> None:
    for name, image in (("a", np.arange(64.0).reshape(8, 8)), ("b", np.pad(np.ones((1, 1)), ((0, 7), (0, 7))))):
        nifti(tmp_path / f"{name}.nii", image)
    both = Preparation(2, (4, 4), spacing=(1.0, 1.0))  # crops the corner away
    with pytest.raises(ValueError, match=r"^b\.nii: is constant once it is brought to \[data\] input_size = \[4, 4\]"):
        both([tmp_path / "a.nii", tmp_path / "b.nii"])


def test_an_image_without_contrast_is_no_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 3), 7.0))
    with pytest.raises(ValueError, match="is constant: every value is 7"):
        ImageAndLabel(Preparation(1, (2, 3)))(Sample("a", (tmp_path / "a.npy",), 1))
