import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from peer.lab.datasets.baselines import auc, baseline_aucs, surface


def test_auc_needs_both_classes() -> None:
    assert auc([1, 2], [1, 1]) is None
    assert auc([], []) is None


@pytest.mark.parametrize("levels", [3, 1000])
def test_auc_equals_scikit_learn_with_and_without_ties(levels: int) -> None:
    random = np.random.default_rng(levels)
    scores, labels = random.integers(levels, size=200), random.integers(2, size=200)
    assert auc(scores.tolist(), labels.tolist()) == pytest.approx(roc_auc_score(labels, scores))


def test_surface_counts_the_faces_of_a_box() -> None:
    volume = np.zeros((8, 8, 8), dtype=np.float32)
    volume[2:4, 2:5, 2:6] = 1
    assert surface(volume) == 2 * (2 * 3 + 3 * 4 + 2 * 4)


def test_floors_gives_each_site_and_the_pool_of_all_samples() -> None:
    scores = {"asia": [1.0, 2.0], "europe": [10.0, 20.0], "africa": [5.0]}
    labels = {"asia": [0, 1], "europe": [1, 0], "africa": [1]}
    # Pooled: the ones are 2, 10, 5 and the zeros 1, 20; 3 of the 6 pairs are in order.
    assert baseline_aucs(scores, labels) == {"asia": 1.0, "europe": 0.0, "africa": None, "pooled": 0.5}
