"""Pictures of planes: upright where a volume's directions are known, and with outlines of labels."""

import base64
import io

import numpy as np
import pytest
from nibabel.orientations import apply_orientation, axcodes2ornt, ornt_transform
from PIL import Image

from peer.train.inference.sheet_pictures import CHANNELS_MAX, COLOURS, SIDE_MAX, curves, planes, png

VOLUME = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
"""In RAS: three sagittal, four coronal and five axial planes."""


def pixels(encoded: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def turned(codes: str) -> np.ndarray:
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(codes))
    return np.ascontiguousarray(apply_orientation(VOLUME, turn))


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR", "SLP", "ARI", "IPL"])
def test_planes_stand_upright_however_the_axes_run(codes: str) -> None:
    volume = turned(codes)
    shown = {plane.view["plane"]: plane for plane in planes(volume.shape, codes, None)}
    assert shown.keys() == {"axial", "coronal", "sagittal"}
    for name, top in (("axial", "A"), ("coronal", "S"), ("sagittal", "S")):
        edges = shown[name].view["edges"]
        assert edges["top"] == top
        picture = shown[name].cut(volume[None])[0]
        # Along a column the values fall from the top (towards A or S), along a row they follow the letter at the right.
        step = {"A": 5, "S": 1}[top]
        assert (np.diff(picture, axis=0) == -step).all()
        rising = {"R": 20, "L": -20, "A": 5, "P": -5}[edges["right"]]
        assert (np.diff(picture, axis=1) == rising).all()


def test_without_directions_a_volume_is_shown_as_it_lies() -> None:
    first, second, third = planes(VOLUME.shape, None, None)
    assert (first.view["plane"], first.view["index"], first.view["edges"]) == ("axis 3:", 2, None)
    np.testing.assert_array_equal(first.cut(VOLUME), VOLUME[:, :, 2].T)
    np.testing.assert_array_equal(second.cut(VOLUME), VOLUME[:, 2, :].T)
    np.testing.assert_array_equal(third.cut(VOLUME), VOLUME[1].T)


def test_the_slice_with_most_of_the_labels_is_shown() -> None:
    labels = np.zeros(VOLUME.shape, dtype=np.uint8)
    labels[0, 1:3, 4] = 1
    assert [plane.view["index"] for plane in planes(VOLUME.shape, None, labels)] == [4, 1, 0]


def test_a_picture_has_its_window_and_is_enlarged_by_whole_pixels() -> None:
    image = np.array([[[-1.0, 0.0], [1.0, 3.0]]])
    picture = pixels(png(image, (-1, 1)))
    assert picture.shape == (240, 240, 3)
    np.testing.assert_array_equal(picture[::120, ::120, 0], [[0, 128], [255, 255]])


def test_a_large_picture_is_thinned_and_a_constant_one_has_no_warning() -> None:
    assert pixels(png(np.ones((1, SIDE_MAX + 1, 4)), (1, 1))).shape == (257, 2, 3)


def test_channels_stand_side_by_side_unless_they_are_colours() -> None:
    image = np.stack([np.full((240, 2), value) for value in (0.0, 0.5, 1.0)])
    assert pixels(png(image, (0, 1), colour=True))[0, 0].tolist() == [0, 128, 255]
    assert pixels(png(image, (0, 1)))[0, ::2, 0].tolist() == [0, 128, 255]
    assert pixels(png(np.zeros((9, 240, 2)), (0, 1))).shape == (240, 2 * CHANNELS_MAX, 3)


def test_each_label_has_an_outline_of_its_own_colour() -> None:
    labels = np.zeros((240, 240), dtype=np.uint8)
    labels[10:20, 10:20], labels[100:110, 100:110] = 1, 2
    picture = pixels(png(np.zeros((1, 240, 240)), (0, 1), labels=labels))
    assert picture[10, 15].tolist() == COLOURS[0].tolist()
    assert picture[105, 109].tolist() == COLOURS[1].tolist()
    assert not picture[15, 15].any()
    assert not picture[9, 15].any()


def test_curves_keep_the_ends_of_a_signal_apart() -> None:
    signal = np.stack([np.arange(1000.0), np.zeros(1000)])
    first, second = curves(signal)
    assert len(first) == len(second) == 200
    assert (first[0], first[-1]) == (0, 995)
