"""Neighbours in feature space, and t-SNE."""

import numpy as np
import pytest

from peer.lab.report.tsne import embed, features, same_class_share


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


class FakeRun:
    """A run with twelve test samples of one site."""

    fold, seed, sites = 0, 1, ("asia",)

    def __init__(self, method: str) -> None:
        self.method = method

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        values = np.random.default_rng(0).normal(size=(12, 3))
        return {"asia/features": values, "asia/labels": np.arange(12) % 2, "asia/origins": np.zeros(12, dtype=int)}


@pytest.mark.parametrize(("count", "said"), [(8, ""), (9, "The first 8 of 9 methods. ")])
def test_a_figure_has_eight_methods_at_most_and_says_so(count: int, said: str) -> None:
    figure = features([FakeRun(f"m{n}") for n in range(count)], "asia", name="features")  # type: ignore[list-item]
    assert figure is not None
    assert f"seed 1. {said}As figure 5" in figure.caption
