"""Further metrics of label maps, sample by sample."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.lab.experiments.collect import measure_further
from peer.train.samples import DataSplit


def segmenter() -> Any:
    """A trainer whose model takes bright places for class 1, two samples at a time."""
    settings = SimpleNamespace(training=SimpleNamespace(batch_size=2), task=SimpleNamespace(kind="segmentation"))
    return SimpleNamespace(settings=settings, predict=lambda images: torch.cat([0.5 - images, images - 0.5], dim=1))


def test_a_mean_is_over_the_samples_that_have_a_value_and_the_others_are_counted() -> None:
    truth = torch.zeros(12, dtype=torch.int64)
    truth[2:4] = 1
    images = torch.zeros(3, 1, 12)
    images[0, :, 5:7] = 1.0  # surfaces two and three places away: the 95th percentile is 2.95
    images[1, :, 3:5] = 1.0  # none and one: 0.95
    split = DataSplit([None] * 3, lambda k: (images[k], truth), True, {0: 2, 1: 1})
    measured = measure_further(segmenter(), split, ["hd95"])
    assert measured == {"hd95": pytest.approx(1.95), "hd95_undefined": 1.0}
    assert measure_further(segmenter(), split, []) == {}
