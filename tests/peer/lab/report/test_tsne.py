"""Neighbours in feature space, and t-SNE."""

import numpy as np
import pytest

from peer.lab.report.tsne import embed, same_class_share


def test_neighbours_of_two_clusters() -> None:
    values = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    assert same_class_share(values, np.array([0, 0, 0, 1, 1, 1]), 2) == 1.0
    assert same_class_share(values, np.array([0, 0, 1, 1, 1, 0]), 2) == pytest.approx(4 / 12)


def test_the_map_is_always_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(40, 6))
    positions = embed(values)
    assert positions.shape == (40, 2)
    assert np.array_equal(positions, embed(values))
    assert embed(values[:, :1] * 0 + 1.0).shape == (40, 2), "features that are all the same"
