from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.datasets import write_picture
from peer.errors import DataError, DiskError
from peer.lab.datasets import picture_files


def test_what_the_trainer_can_read_stays_where_it_is(tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    for name, mode in (("a.jpg", "RGB"), ("b.png", "L"), ("c.bmp", "RGB")):
        path = write_picture(tmp_path / name, mode)
        assert picture_files.make_readable(path, mode=mode, copy=copy) == path
        assert picture_files.size(path) == (8, 6)
    assert not copy.exists()


@pytest.mark.parametrize(
    ("name", "stored", "mode"), [("a.tif", "RGB", "RGB"), ("a.png", "RGB", "L"), ("a.png", "P", "L")]
)
def test_of_everything_else_a_png_is_made(name: str, stored: str, mode: str, tmp_path: Path) -> None:
    path, copy = write_picture(tmp_path / name, stored), tmp_path / "written" / "copy.png"
    assert picture_files.make_readable(path, mode=mode, copy=copy) == copy
    with Image.open(copy) as converted, Image.open(path) as image:
        assert converted.mode == mode
        np.testing.assert_array_equal(np.asarray(converted), np.asarray(image.convert(mode)))


def test_greys_of_16_bits_are_scaled_by_their_largest(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 1024], [2048, 4095]], dtype=np.uint16)).save(tmp_path / "a.png")
    picture_files.make_readable(tmp_path / "a.png", mode="L", copy=tmp_path / "b.png")
    with Image.open(tmp_path / "b.png") as written:
        np.testing.assert_array_equal(np.asarray(written), [[0, 64], [128, 255]])


@pytest.mark.parametrize(("name", "bright"), [("m.png", 255), ("m.png", 1), ("m.tif", 255), ("m.jpg", 255)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_label_map_holds_0_and_1(name: str, bright: int, mode: str, tmp_path: Path) -> None:
    inside = np.zeros((6, 8), dtype=np.uint8)
    inside[2:5, 1:4] = 1
    mask = write_picture(tmp_path / name, mode, inside * np.uint8(bright))
    target = tmp_path / "written" / "m.png"
    picture_files.write_label_map(mask, picture=write_picture(tmp_path / "p.jpg"), target=target)
    with Image.open(target) as image:
        assert image.mode == "L"
        labels = np.asarray(image)
    assert set(np.unique(labels)) == {0, 1}
    if name != "m.jpg":  # a JPEG moves the edge of so small a square
        np.testing.assert_array_equal(labels, inside)


def test_an_empty_mask_stays_empty_and_a_mask_of_one_bit_is_read(tmp_path: Path) -> None:
    image = write_picture(tmp_path / "p.png")
    for values, mode in ((np.zeros((6, 8)), "L"), (np.full((6, 8), 3), "L"), (np.full((6, 8), 255), "1")):
        mask = write_picture(tmp_path / "m.png", mode, values.astype(np.uint8))
        picture_files.write_label_map(mask, picture=image, target=tmp_path / "map.png")
        with Image.open(tmp_path / "map.png") as written:
            assert np.asarray(written).max() == (values.max() == 255)


def test_faults_are_named(tmp_path: Path) -> None:
    image = write_picture(tmp_path / "p.png")
    mask = write_picture(tmp_path / "m.png", "L", np.zeros((6, 9), dtype=np.uint8))
    with pytest.raises(DataError, match=r"the mask .*m\.png has 9 x 6 pixels, its picture 8 x 6; download"):
        picture_files.write_label_map(mask, picture=image, target=tmp_path / "map.png")
    broken = tmp_path / "broken.png"
    broken.write_bytes(image.read_bytes()[:40])
    for attempt in (
        lambda: picture_files.make_readable(broken, mode="L", copy=tmp_path / "copy.png"),
        lambda: picture_files.write_label_map(broken, picture=image, target=tmp_path / "copy.png"),
        lambda: picture_files.size(broken),
    ):
        with pytest.raises(DataError, match=r"broken\.png is no picture"):
            attempt()
    with pytest.raises(DiskError, match=r"copy\.png cannot be written"):
        picture_files.make_readable(image, mode="L", copy=image / "copy.png")
