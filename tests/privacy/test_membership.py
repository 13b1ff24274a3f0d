"""The attack of ``membership.py`` sees what was planted, and attacks what leaves in each kind of exchange."""

from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from privacy.membership import FITTED, QUICK, Figure, measure, membership_auc, noised, table_rows
from torch import nn

from peer.core.privacy import auc_max, mu_of
from peer.train.samples import DataSplit


def split_of(images: torch.Tensor, labels: torch.Tensor) -> DataSplit:
    return DataSplit([None] * len(images), list(zip(images, labels, strict=True)).__getitem__, True, {})


def test_an_overfitted_network_gives_its_training_samples_away() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(200, 64), torch.randint(10, (200,))  # labels at random: only memory gets them right
    members, others = split_of(images[:100], labels[:100]), split_of(images[100:], labels[100:])
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    assert membership_auc(network, members, others) == pytest.approx(0.5, abs=0.12)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(50):
        optimiser.zero_grad()
        F.cross_entropy(network(images[:100]), labels[:100]).backward()
        optimiser.step()
    assert membership_auc(network, members, others) > 0.95
    assert membership_auc(network, others, members) < 0.05


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedcross", "dflmoe", "mh_pflid", "fedproto", "fedmd", "scaffold"])
def test_every_artifact_is_attacked_once_by_each_receiver_for_which_it_differs(method: str) -> None:
    rounds = 3 if method == "fedcross" else 2  # the last model of fedcross goes to its owner alone
    figures = measure(method, augmented=False, scale=QUICK | {"rounds": rounds, "steps": 1, "minor_steps": 1})
    assert {figure.rounds for figure in figures} == {1, 2}
    of_the_sender = [figure for figure in figures if figure.victim == "the sender"]
    through_receivers = method in ("dflmoe", "mh_pflid", "fedproto")
    assert method == "fedcross" or len(of_the_sender) == 2 * 4 * (3 if through_receivers else 1)
    assert (len(of_the_sender) < len(figures)) == (method == "fedcross")


def test_a_row_has_the_mean_of_three_rounds_and_the_range_of_all() -> None:
    pairs = ((1, 0.5), (1, 0.6), (2, 0.7), (3, 0.9))
    figures = [Figure("model", "fedavg", "the sender", *pair, accuracy=pair[0] / 4) for pair in pairs]
    (row,) = table_rows(figures)
    assert [cell.strip() for cell in row.split("|")[-6:-1]] == ["0.55", "0.70", "0.90", "0.50 to 0.90", "0.75"]


@pytest.mark.nightly
def test_noise_hides_who_was_trained_on_from_a_network_that_knows_them_by_heart() -> None:
    scale = FITTED | {"rounds": 2, "steps": 40}
    bare, private = (measure("fedavg", augmented=False, scale=scale | noised(epsilon)) for epsilon in (None, 1.0))
    last = [[figure.auc for figure in figures if figure.rounds == 2] for figures in (bare, private)]
    assert min(last[0]) > 0.55
    assert max(last[1]) < auc_max(mu_of(1.0, 1e-4)) + 3 * 0.05  # of 67 and 382 people, 0.05 is more than the error
    assert fmean(last[1]) == pytest.approx(0.5, abs=0.06)


@pytest.mark.nightly
def test_the_owner_of_a_visiting_model_attacks_its_hosts_by_what_came_home_and_by_the_pair() -> None:
    figures = measure("fedvisit", augmented=False, scale=QUICK | {"rounds": 2, "steps": 2})
    by_victim = {victim: [each for each in figures if each.victim == victim] for victim in ("the sender", "the host")}
    assert {(figure.kind, figure.rounds) for figure in by_victim["the sender"]} == {("model", 1)}
    assert {(figure.kind, figure.rounds) for figure in by_victim["the host"]} == {("return", 1), ("return", 2)}
    pairs = [figure for figure in figures if figure.victim == "the host, by the pair"]
    assert len(pairs) == len(by_victim["the host"]) == 2 * 4 * 2
