"""What the sums of the pooled head tell of their members, measured on the patients of one hospital."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from peer.lab.datasets import heart_disease
from peer.methods.pooled_head.ridge import SumTable, default_bound, encode_targets, scale_features, solve_ridge
from peer.train.column_channels import encode_row

DRAWS = 20
FLOOR = 1e-6  # of the eigenvalues of G, below which rounding is all there is


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, torch.Tensor]:
    """The scaled features and the targets of the complete patients of Cleveland."""
    folder = tmp_path_factory.mktemp("heart")
    heart_disease.prepare(folder, complete=True)
    columns = [column for own, column in heart_disease.COLUMNS.items() if own not in heart_disease.RARE]
    entries = json.loads((folder / "pool.json").read_text())["training"]
    entries = [entry for entry in entries if entry["site"] == "cleveland"]
    rows = [[column.parse(entry["row"].get(column.name)) for column in columns] for entry in entries]
    features = torch.stack([encode_row(columns, row)[:, 0] for row in rows])
    labels = torch.tensor([entry["label"] for entry in entries])
    return scale_features(features, default_bound(features.shape[1] + 1)), encode_targets("tabular", labels, 2)


def attack(z: torch.Tensor, y: torch.Tensor, people: int, seed: int) -> tuple[float, float]:
    """The AUC of telling members from others by leverage, and by the regression's error."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(z))[: 2 * people])
    z, y = z[order], y[order]
    table = SumTable(classes=2, features=z.shape[1], encoder="")
    table.add(z[:people], y[:people])
    gram, moments = table.sums()
    leverage = (z @ torch.linalg.inv(gram + FLOOR * torch.eye(len(gram))) * z).sum(1)
    residual = (y - z @ solve_ridge(gram, moments, 1e-3)).square().sum(1)
    is_member = [1] * people + [0] * people
    return roc_auc_score(is_member, -leverage), roc_auc_score(is_member, -residual)


@pytest.mark.data
def test_sums_of_few_people_tell_who_is_among_them(patients: tuple[torch.Tensor, torch.Tensor]) -> None:
    means = {}
    for people in (10, 20, 75, 150):
        aucs = np.array([attack(*patients, people, seed) for seed in range(DRAWS)])
        means[people] = aucs.mean(0)
        print(people, *(f"{a.mean():.2f}, {a.min():.2f} to {a.max():.2f}" for a in aucs.T), sep="; ")
    assert means[10][0] > 0.99
    assert means[20] == pytest.approx([0.91, 0.73], abs=0.02)
    assert means[75][0] == pytest.approx(0.60, abs=0.02)
    assert 0.52 < means[150][0] < 0.58, "of many people, a single one is hard to tell"
