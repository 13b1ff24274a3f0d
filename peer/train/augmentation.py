"""Random flips, rotations, translations and scalings, as an affine map from each sample's seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.train.settings import AugmentationSettings

ANGLES = 3  # drawn whatever the number of dimensions


def affine_maps(augmentation: AugmentationSettings, seeds: Sequence[int], size: Sequence[int]) -> Tensor:
    """Draw one affine map per seed, float32 ``(b, d, d + 1)``, from places in the result to places in the image.

    Coordinates are normalised as in ``torch.nn.functional.affine_grid``: the image's last axis comes first, and -1 and
    1 are the image's edges. Rotations are rigid in voxels, whatever the image's aspect ratio.
    """
    dims, count = len(size), len(seeds)
    is_moved = np.zeros(count, dtype=bool)
    uniform, flips = np.zeros((count, ANGLES + 2 * dims)), np.empty((count, dims))
    for row, seed in enumerate(seeds):
        # One call draws the same numbers as one call per purpose: a generator's numbers come in sequence.
        drawn = np.random.default_rng(seed).random(1 + ANGLES + 3 * dims)
        is_moved[row] = drawn[0] < augmentation.probability
        if is_moved[row]:
            uniform[row], flips[row] = drawn[1:-dims] * 2 - 1, drawn[-dims:]
        else:
            flips[row] = drawn[1 : 1 + dims]
    angles = uniform[:, :ANGLES] * math.radians(augmentation.rotate_degrees)
    scales = 1 + uniform[:, ANGLES : ANGLES + dims] * augmentation.scale_share
    shifts = uniform[:, ANGLES + dims :] * augmentation.translate_share * 2
    matrices = np.tile(np.eye(dims), (count, 1, 1))
    for row in range(count):
        if is_moved[row]:
            matrices[row] = _rotation(angles[row], dims)
    matrices = matrices / scales[:, None, :]
    matrices = matrices * np.where(flips < augmentation.flip, -1.0, 1.0)[:, None, :]
    extent = np.array(size[::-1], dtype=np.float64)
    matrices = matrices * extent[None, :] / extent[:, None]
    return torch.from_numpy(np.concatenate([matrices, shifts[:, :, None]], axis=2).astype(np.float32))


def _rotation(angles: np.ndarray, dims: int) -> np.ndarray:
    """Build a rotation about each axis in turn; in a plane, by the first angle; on a line, none."""
    if dims == 2:
        cosine, sine = math.cos(angles[0]), math.sin(angles[0])
        return np.array([[cosine, -sine], [sine, cosine]]) + 0.0  # no -0.0, like the product below
    matrix = np.eye(dims)
    for angle, (first, second) in zip(angles, [(0, 1), (0, 2), (1, 2)][: dims * (dims - 1) // 2], strict=False):
        turn = np.eye(dims)
        turn[first, first] = turn[second, second] = math.cos(angle)
        turn[first, second], turn[second, first] = -math.sin(angle), math.sin(angle)
        matrix = matrix @ turn
    return matrix


def warp(images: Tensor, maps: Tensor, *, mode: str = "bilinear") -> Tensor:
    """Apply the maps to images ``(b, c, *space)``; beyond an edge, the edge's value continues.

    ``mode`` is ``bilinear`` (linear along every axis) or ``nearest``, under which a mere flip is exact.
    """
    size, maps = images.shape[2:], maps.to(images.device)
    if len(size) == 1:  # grid_sample takes planes and volumes: make the line a plane of one row
        plane = torch.zeros(len(maps), 2, 3, device=maps.device)
        plane[:, 0, 0], plane[:, 0, 2], plane[:, 1, 1] = maps[:, 0, 0], maps[:, 0, 1], 1.0
        return warp(images[:, :, None], plane, mode=mode)[:, :, 0]
    return F.grid_sample(images, _grid(maps, size), mode=mode, padding_mode="border", align_corners=False)


def warp_targets(targets: Tensor, maps: Tensor) -> Tensor:
    """Apply the maps of their images to targets; each place takes the value nearest to its source.

    Classes ``(b,)`` and numbers ``(b, n)`` are unchanged; integer label maps ``(b, *space)`` and images
    ``(b, c, *space)``, on any grid, are mapped.
    """
    if targets.ndim == 1 or (targets.ndim == 2 and targets.is_floating_point()):
        return targets
    if targets.is_floating_point():
        return warp(targets, maps, mode="nearest")
    return warp(targets[:, None].float(), maps, mode="nearest")[:, 0].to(targets.dtype)


def _grid(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Compute ``affine_grid`` as a sum over axes, because torch's matrix product takes as long as the sampling."""
    dims = len(size)
    grid = maps[:, :, -1].reshape(len(maps), *[1] * dims, dims)
    for axis, length in enumerate(size):
        centres = (torch.arange(length, device=maps.device, dtype=maps.dtype) * 2 + 1) / length - 1
        shape = [1] * (dims + 2)
        shape[axis + 1] = length
        column = maps[:, :, dims - 1 - axis].reshape(len(maps), *[1] * dims, dims)
        grid = grid + centres.reshape(shape) * column
    return grid
