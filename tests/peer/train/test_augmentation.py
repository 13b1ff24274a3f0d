"""Augmentation: the maps by hand, the sampling against torch's own grid, the same for the same seed."""

import hashlib
import math

import pytest
import torch
import torch.nn.functional as F

from peer.site.config.site_tables import AugmentationConfig
from peer.train.augmentation import affine_maps, warp, warp_targets
from peer.train.settings import AugmentationSettings

STILL = AugmentationSettings(flip=0, rotate_degrees=0, translate_share=0, scale_share=0, probability=1)
USUAL = AugmentationSettings.of(AugmentationConfig(), 2)


def changed(**parts: float) -> AugmentationSettings:
    return AugmentationSettings(**{**{name: getattr(STILL, name) for name in STILL.__slots__}, **parts})


def test_nothing_to_do_leaves_the_image() -> None:
    images = torch.randn(2, 1, 5, 6, 7)
    maps = affine_maps(STILL, [1, 2], (5, 6, 7))
    assert torch.equal(maps, torch.eye(3, 4).repeat(2, 1, 1))
    assert torch.allclose(warp(images, maps), images, atol=1e-5)
    assert not STILL.active
    assert not changed(rotate_degrees=9, probability=0).active
    assert changed(flip=0.1).active
    assert changed(scale_share=0.1).active


@pytest.mark.parametrize("size", [(8,), (5, 8), (4, 5, 6)])
def test_a_certain_flip_reverses_every_axis(size: tuple[int, ...]) -> None:
    images = torch.randn(2, 3, *size)
    flipped = warp(images, affine_maps(changed(flip=1), [1, 2], size))
    assert torch.allclose(flipped, images.flip(tuple(range(2, images.ndim))), atol=1e-4)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((5,), "e9e88631b93f"),
        ((5, 8), "5114676105cb"),
        ((4, 5, 6), "a5b2750dd9c0"),
    ],
)
def test_the_maps_of_a_seed_stay(size: tuple[int, ...], expected: str) -> None:
    maps = affine_maps(USUAL, range(50), size)
    assert hashlib.sha256((maps * 2**16).round().numpy().tobytes()).hexdigest()[:12] == expected


def test_rotations_and_sizes_stay_within_their_bounds() -> None:
    size = (10, 20)
    seeds = range(300)
    turned = affine_maps(changed(rotate_degrees=15), seeds, size)
    angles = torch.atan2(turned[:, 1, 0] * size[0] / size[1], turned[:, 0, 0]).rad2deg()
    assert angles.abs().max() <= 15.001
    assert angles.max() > 12
    assert angles.min() < -12
    # Rigid in voxels: undone by the aspect, the matrix is orthogonal.
    aspect = torch.tensor([[1.0, size[1] / size[0]], [size[0] / size[1], 1.0]])
    rigid = turned[:, :, :2] / aspect.T
    assert torch.allclose(rigid @ rigid.mT, torch.eye(2), atol=1e-5)
    scaled = affine_maps(changed(scale_share=0.1), seeds, size).diagonal(dim1=1, dim2=2)
    assert 1 / 1.1 - 1e-6 <= float(scaled.min()) < 0.92
    assert 1.09 < float(scaled.max()) <= 1 / 0.9 + 1e-6
    shifted = affine_maps(changed(translate_share=0.05), seeds, size)[:, :, 2]
    assert 0.09 < shifted.abs().max() <= 0.1  # the image is 2 wide


def test_a_quarter_turn_of_a_square() -> None:
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    maps = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    assert torch.allclose(warp(images, maps), images.rot90(1, (2, 3)), atol=1e-5)


@pytest.mark.parametrize("size", [(9, 12), (7, 8, 10)])
def test_sampling_agrees_with_torch(size: tuple[int, ...]) -> None:
    images = torch.randn(3, 2, *size)
    maps = affine_maps(USUAL, [5, 6, 7], size)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    expected = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    assert torch.allclose(warp(images, maps), expected, atol=1e-4)


def test_a_line_is_shifted_by_a_share_of_its_length() -> None:
    images = torch.arange(8.0).reshape(1, 1, 8)
    maps = torch.tensor([[[1.0, 2 * 2 / 8]]])
    assert warp(images, maps).flatten().tolist() == pytest.approx([2, 3, 4, 5, 6, 7, 7, 7], abs=1e-5)


@pytest.mark.parametrize("size", [(8,), (5, 8), (4, 5, 6)])
def test_the_nearest_place_makes_a_flip_exact(size: tuple[int, ...]) -> None:
    images = torch.randn(2, 3, *size)
    maps = affine_maps(changed(flip=1, probability=0), [1, 2], size)
    axes = tuple(range(2, images.ndim))
    assert torch.equal(warp(images, maps, mode="nearest"), images.flip(axes))
    assert torch.equal(warp_targets(images.repeat_interleave(4, 2), maps), images.repeat_interleave(4, 2).flip(axes))
    labels = torch.randint(0, 300, (2, *size))
    assert torch.equal(warp_targets(labels, maps), labels.flip(tuple(range(1, labels.ndim))))


def test_classes_do_not_move() -> None:
    classes = torch.tensor([3, 0])
    assert warp_targets(classes, affine_maps(USUAL, [1, 2], (6, 6))) is classes


def test_a_label_map_under_any_map_holds_labels_alone() -> None:
    labels = torch.randint(0, 2, (4, 30, 20)) * 7
    moved = warp_targets(labels, affine_maps(USUAL, [1, 2, 3, 4], (30, 20)))
    assert moved.dtype == torch.int64
    assert moved.unique().tolist() == [0, 7]
    assert not torch.equal(moved, labels)


def test_label_maps_are_shifted_to_the_place_and_go_on_beyond_the_edge() -> None:
    labels = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert warp_targets(labels, torch.tensor([[[1.0, 2 * 2 / 6]]])).tolist() == [[2, 3, 4, 5, 5, 5]]


def test_a_map_depends_on_its_seed_only() -> None:
    together = affine_maps(USUAL, [3, 4, 5], (6, 6, 6))
    alone = affine_maps(USUAL, [4], (6, 6, 6))
    assert torch.equal(together[1:2], alone)
    assert not torch.equal(together[0], together[1])


def test_probability_is_that_of_moving_at_all() -> None:
    maps = affine_maps(changed(rotate_degrees=math.degrees(0.1), probability=0.25), range(400), (6, 6))
    moved = (maps != torch.eye(2, 3)).flatten(1).any(1).float().mean()
    assert 0.18 < moved < 0.32
