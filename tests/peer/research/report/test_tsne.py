"""Neighbours in feature space, and t-SNE."""

from __future__ import annotations

import numpy as np
import pytest

from peer.research.report.tsne import embedded, neighbours


def test_neighbours_of_two_clusters() -> None:
    values = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    assert neighbours(values, np.array([0, 0, 0, 1, 1, 1]), 2) == 1.0
    assert neighbours(values, np.array([0, 0, 1, 1, 1, 0]), 2) == pytest.approx(4 / 12)


def test_the_map_is_always_the_same() -> None:
    pytest.importorskip("sklearn", reason="t-SNE needs the extra `research`")
    values = np.random.default_rng(0).normal(size=(40, 6))
    places = embedded(values)
    assert places.shape == (40, 2)
    assert np.array_equal(places, embedded(values))
    assert embedded(values[:, :1] * 0 + 1.0).shape == (40, 2), "features that are all the same"
