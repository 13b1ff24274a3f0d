from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from fakes.datasets import AnnotationBase, rectangle
from peer.errors import DataError
from peer.lab.datasets.nodule import (
    RADIUS,
    SIDE,
    Nodule,
    NoduleReading,
    Outline,
    Scan,
    draw,
    fill,
    merge,
    read_nodules,
)

TARGET = 4 / 3 * np.pi * RADIUS**3
SCAN = Scan(id=7, patient="p", slice_thickness_mm=2.0, pixel_mm=0.5, slices_mm=np.array([-3.0, -1.0, 1.0, 3.0]))


def reading(id: int, start: Sequence[int], shape: Sequence[int], malignancy: int = 5) -> NoduleReading:
    return NoduleReading(id, malignancy, np.array(start), np.ones(shape, dtype=bool))


def ball(radius_mm: float, spacing_mm: Sequence[float]) -> np.ndarray:
    """A sphere in voxels of this spacing."""
    axes = [np.arange(-(half := int(radius_mm // step) + 1), half + 1) * step for step in spacing_mm]
    return np.asarray(sum(np.square(axis) for axis in np.meshgrid(*axes, indexing="ij")) <= radius_mm**2)


def partial(voxels: np.ndarray) -> int:
    """How many voxels the surface passes through."""
    return int(((voxels > 0.05) & (voxels < 0.95)).sum())


def test_fill_excludes_the_outline_and_keeps_x_before_y() -> None:
    start, mask = fill([Outline(True, 4, np.array(rectangle(10, 20, 4, 3)))])
    assert start.tolist() == [10, 20, 4]
    expected = np.zeros((5, 4, 1), dtype=bool)
    expected[1:4, 1:3] = True
    np.testing.assert_array_equal(mask, expected)


def test_fill_puts_each_outline_into_its_slice() -> None:
    start, mask = fill(
        [Outline(True, 6, np.array(rectangle(0, 0, 4, 4))), Outline(True, 4, np.array(rectangle(1, 1, 2, 2)))]
    )
    assert start.tolist() == [0, 0, 4]
    assert mask.sum(axis=(0, 1)).tolist() == [1, 0, 9]


def test_a_hole_is_what_its_outline_encloses_whichever_is_listed_first() -> None:
    outlines = [Outline(False, 0, np.array(rectangle(2, 2, 3, 3))), Outline(True, 0, np.array(rectangle(0, 0, 8, 8)))]
    _, mask = fill(outlines)
    expected = np.zeros((9, 9), dtype=bool)
    expected[1:8, 1:8] = True
    expected[3:5, 3:5] = False
    np.testing.assert_array_equal(mask[..., 0], expected)


def test_merge_joins_readings_that_share_a_voxel_also_over_a_third() -> None:
    touching = [reading(3, (0, 0, 0), (4, 4, 2)), reading(1, (3, 3, 1), (4, 4, 2)), reading(2, (6, 6, 2), (2, 2, 2))]
    apart = reading(4, (4, 0, 0), (2, 2, 2))  # beside the first, no voxel in common
    groups = merge([*touching, apart])
    assert [[member.id for member in group] for group in groups] == [[1, 2, 3], [4]]


def test_boxes_that_overlap_without_a_common_voxel_are_two_nodules() -> None:
    left, right = np.zeros((4, 4, 1), dtype=bool), np.zeros((4, 4, 1), dtype=bool)
    left[:2], right[2:] = True, True
    assert len(merge([NoduleReading(1, 5, np.zeros(3, int), left), NoduleReading(2, 5, np.zeros(3, int), right)])) == 2


@pytest.mark.parametrize(
    ("shapes", "voxels"),
    [(((4, 1, 1),), 4), (((4, 1, 1), (2, 1, 1)), 4), (((4, 1, 1), (2, 1, 1), (1, 1, 1)), 2)],
    ids=["one reader", "one of two is half", "two of three"],
)
def test_consensus_is_what_half_of_the_readers_drew(shapes: Sequence[Sequence[int]], voxels: int) -> None:
    nodule = Nodule(SCAN, tuple(reading(index, (5, 5, 1), shape) for index, shape in enumerate(shapes)))
    assert nodule.consensus().shape == (4, 1, 1)
    assert nodule.consensus().sum() == voxels


def test_consensus_places_readings_by_their_start() -> None:
    nodule = Nodule(
        SCAN, (reading(1, (5, 5, 1), (2, 1, 1)), reading(2, (6, 5, 1), (2, 1, 1)), reading(3, (6, 5, 0), (1, 1, 2)))
    )
    assert np.argwhere(nodule.consensus()).tolist() == [[1, 0, 1]]


def test_malignancy_is_the_median_and_the_name_the_first_reading() -> None:
    readings = tuple(
        reading(id, (0, 0, 0), (1, 1, 1), malignancy) for id, malignancy in ((9, 1), (8, 4), (12, 5), (10, 5))
    )
    nodule = Nodule(SCAN, readings)
    assert nodule.malignancy == 4.5
    assert nodule.name == "p-s7-n8"


def test_spacing_along_the_body_is_the_distance_of_slices_not_their_thickness() -> None:
    overlapping = Scan(id=1, patient="p", slice_thickness_mm=2.5, pixel_mm=0.7, slices_mm=np.array([0.0, 1.0, 2.0]))
    assert overlapping.spacing_mm.tolist() == [0.7, 0.7, 1.0]


@pytest.mark.parametrize("spacing", [(0.5, 0.5, 0.5), (0.7, 0.7, 2.5)], ids=["isotropic", "thick slices"])
@pytest.mark.parametrize("radius_mm", [3.5, 12.0])
def test_a_ball_of_any_size_becomes_the_same_ball(radius_mm: float, spacing: Sequence[float]) -> None:
    drawing = draw(ball(radius_mm, spacing), np.array(spacing))
    assert drawing.voxels.shape == (SIDE, SIDE, SIDE)
    assert drawing.voxels.sum() == pytest.approx(TARGET, rel=0.01)
    assert drawing.volume_mm3 == pytest.approx(4 / 3 * np.pi * radius_mm**3, rel=0.15)
    assert drawing.voxel_mm == pytest.approx(radius_mm / RADIUS, rel=0.05)
    assert not drawing.clipped
    np.testing.assert_allclose(ndimage.center_of_mass(drawing.voxels), [(SIDE - 1) / 2] * 3, atol=0.1)


def test_the_width_of_the_edge_does_not_tell_the_size() -> None:
    spacing = np.array([0.7, 0.7, 0.7])
    # The ideal: nine tenths of a layer one voxel thick on the sphere.
    ideal = 0.9 * 4 * np.pi * RADIUS**2
    for radius in (2.5, 4.0, 6.0, 9.0, 14.0):
        assert partial(draw(ball(radius, spacing), spacing).voxels) == pytest.approx(ideal, rel=0.35), radius

    interpolated = ndimage.zoom(np.pad(ball(2.5, spacing), 2).astype(float), RADIUS * 0.7 / 2.5, order=1)
    assert partial(interpolated) > 1.7 * ideal  # what the drawing avoids


def test_slices_thicker_than_pixels_do_not_stretch_the_shape() -> None:
    voxels = draw(np.ones((16, 8, 2), dtype=bool), np.array([1.0, 1.0, 4.0])).voxels  # 16 x 8 x 8 mm
    length, width, depth = (np.count_nonzero(voxels.max(axis=axes) > 0.5) for axes in ((1, 2), (0, 2), (0, 1)))
    assert length == pytest.approx(2 * width, abs=2)
    assert depth == pytest.approx(width, abs=2)


def test_what_is_longer_than_the_cube_is_cut_off_and_said() -> None:
    drawing = draw(np.ones((60, 3, 3), dtype=bool), np.ones(3))
    assert drawing.clipped
    assert drawing.voxels.sum() < 0.95 * TARGET
    assert drawing.voxels[0].max() == pytest.approx(1)


def test_read_nodules_reads_positions_readers_and_ratings(tmp_path: Path) -> None:
    annotations = AnnotationBase(tmp_path / "annotations.sqlite")
    scan = annotations.scan("LIDC-IDRI-0001", thickness=2.5, pixel=0.5)
    annotations.reading(scan, 4)
    annotations.reading(scan, 5, at=(51, 60))
    annotations.reading(scan, 1, at=(80, 60))
    first, second = read_nodules(annotations.close())
    assert (first.scan.patient, first.scan.slice_thickness_mm) == ("LIDC-IDRI-0001", 2.5)
    assert first.scan.spacing_mm.tolist() == [0.5, 0.5, 2.5]
    assert [member.id for member in first.readings] == [1, 2]
    assert (first.malignancy, second.malignancy) == (4.5, 1)
    assert first.readings[1].start.tolist() == [51, 60, 10]
    assert first.readings[0].mask.sum() == 7 * 7 * 5
    assert first.consensus().sum() == 8 * 7 * 5  # of two readers one is half: the union


def test_read_nodules_names_a_file_that_is_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"no data base at all" * 100)
    with pytest.raises(DataError, match=r"other\.sqlite is no LIDC-IDRI annotation data base"):
        list(read_nodules(other))
    with pytest.raises(DataError, match=r"absent\.sqlite"):
        list(read_nodules(tmp_path / "absent.sqlite"))
