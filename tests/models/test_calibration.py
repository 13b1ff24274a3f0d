"""LC-Fed's calibrations equal an independent computation in numpy and scipy, in one, two and three dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import torch
from torch import Tensor

from models.calibration import ChannelSelection, HeadCalibration, disagreement_peaks, soft_map

SPACES = [(11,), (9, 12), (6, 5, 7)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probabilities(space: tuple[int, ...], seed: int) -> Tensor:
    return draw(2, 2, *space, seed=seed).sigmoid()


@pytest.mark.parametrize("space", SPACES)
def test_channels_are_selected_by_both_pools_and_the_sites_embedding(space: tuple[int, ...]) -> None:
    selection, x = ChannelSelection(sites=3, channels=32).double(), draw(2, 32, *space)
    weights = [parameter.detach().numpy() for parameter in selection.parameters()]
    first, second, narrow, wide = weights
    assert narrow.shape == (2, 64)
    for site in range(3):
        embedding = second @ np.maximum(first[:, site], 0)
        logits = 0
        for pooled in (x.flatten(2).mean(2).numpy(), x.flatten(2).max(2).values.numpy()):
            joined = np.concatenate([pooled, np.tile(embedding, (2, 1))], axis=1)
            logits = logits + np.maximum(joined @ narrow.T, 0) @ wide.T
        np.testing.assert_allclose(selection(x, site).detach().numpy(), 1 / (1 + np.exp(-logits)), rtol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_peaks_are_the_largest_disagreements_of_their_windows(space: tuple[int, ...]) -> None:
    own, others = probabilities(space, 1), [probabilities(space, seed) for seed in (2, 3)]
    found = disagreement_peaks(own, others, window=3).numpy()
    assert 2 < found.sum() < found.size / 2
    for image in range(2):
        for label in range(2):
            gaps = [(other[image, label].numpy() - own[image, label].numpy()) ** 2 for other in others]
            root = np.sqrt(sum(gaps) / 2)
            largest = scipy.ndimage.maximum_filter(root, size=3, mode="constant", cval=-1)
            np.testing.assert_array_equal(found[image, label], (root == largest) & (root > 0.2 * root.max()))


def test_no_head_equal_heads_and_broken_heads_are_no_error() -> None:
    own = probabilities((9, 12), 1)
    assert not disagreement_peaks(own, [], window=3).any()
    assert not disagreement_peaks(own, [own.clone()], window=3).any()
    assert torch.isfinite(disagreement_peaks(own, [torch.full_like(own, torch.nan)], window=3)).all()
    for call in (lambda: disagreement_peaks(own, [], window=4), lambda: soft_map(own, window=4)):
        with pytest.raises(ValueError, match="the window must be odd, not 4"):
            call()


@pytest.mark.parametrize("space", SPACES)
def test_the_calibrated_head_sees_the_feature_once_for_each_map(space: tuple[int, ...]) -> None:
    feature, peaks = draw(2, 4, *space), (probabilities(space, 5) > 0.8).double()
    prediction, window = probabilities(space, 6) / 9, 5
    head = HeadCalibration(features=4, classes=3, spatial_dims=len(space), window=window).double()
    axes = np.meshgrid(*[np.arange(window) - 2] * len(space))
    kernel = np.exp(-sum(axis**2 for axis in axes) / (2 * (window * 6 / 31) ** 2))
    weight, bias = (parameter.detach().numpy() for parameter in head.head.parameters())
    expected = np.zeros((2, 3, *space)) + bias.reshape(-1, *[1] * len(space))
    for image in range(2):
        for index, mask in enumerate([*peaks[image].numpy(), *prediction[image].numpy()]):
            soft = np.minimum(scipy.ndimage.convolve(mask, kernel, mode="constant"), 1)
            for channel in range(4):
                amplified = feature[image, channel].numpy() * (1 + soft)
                for label in range(3):
                    kernel_of = weight[label, 4 * index + channel]
                    expected[image, label] += scipy.ndimage.correlate(amplified, kernel_of, mode="constant")
    np.testing.assert_allclose(head(feature, peaks, prediction).detach().numpy(), expected, rtol=1e-9, atol=1e-12)
