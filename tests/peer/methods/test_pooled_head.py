"""The pooled head: sums have the same bits however sites divide the samples, and heads are ridge regressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor

import models
from models import Output
from peer.methods.method import DAM, Batch
from peer.methods.pooled_head.ridge import (
    COUNT_MAX,
    UNIT,
    SumTable,
    encode_targets,
    find_impossible,
    scale_features,
    solve_ridge,
)
from peer.methods.pooled_head.stages import OWN, POOLED_HEAD, SUMS, digest_body
from peer.methods.registry import PLANS

FEATURES, CLASSES = 5, 3
DRAW = torch.Generator().manual_seed(3)
X, LABELS = torch.randn(40, FEATURES - 1, generator=DRAW), torch.randint(CLASSES, (40,), generator=DRAW)
Z, Y = scale_features(X, 2.0), encode_targets("tabular", LABELS, CLASSES)
STEP = Batch(X, LABELS)


def table_of(z: Tensor, y: Tensor) -> SumTable:
    table = SumTable(classes=CLASSES, features=FEATURES, encoder="e")
    table.add(z, y)
    return table


def linear(**sizes: Any) -> models.Network:
    torch.manual_seed(1)
    chosen = {"spatial_dims": 1, "in_channels": FEATURES - 1, "classes": CLASSES, **sizes}
    return models.create_model(chosen.pop("name", "linear"), **chosen)


def samples(x: Tensor, targets: Tensor) -> Callable[[], Any]:
    return lambda: zip(x[:, :, None].split(1), targets.split(1), strict=True)


def test_features_get_a_constant_and_no_sample_is_longer_than_1() -> None:
    scaled = scale_features(torch.tensor([[1.0, -1.0], [30.0, 40.0]]), 2.0)
    assert scaled[0].tolist() == [0.5, -0.5, 0.5]
    assert float(scaled[1].norm()) == pytest.approx(1.0, rel=1e-15)
    assert float(scaled[1, 0] / scaled[1, 2]) == pytest.approx(30.0)


def test_targets_are_centred_and_an_unknown_label_counts_for_neither() -> None:
    assert encode_targets("tabular", torch.tensor([1]), 2).tolist() == [[-0.5, 0.5]]
    assert encode_targets("labels", torch.tensor([[1.0, 0.0, torch.nan]]), 3).tolist() == [[0.5, -0.5, 0.0]]
    assert encode_targets("number", torch.tensor([[0.25], [-3.0]]), 1).tolist() == [[0.25], [-1.0]]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=len(Z), max_size=len(Z)), st.randoms())
def test_every_division_of_the_samples_has_the_sums_of_all_bit_by_bit(owner: list[int], random: Any) -> None:
    order = random.sample(range(len(Z)), len(Z))
    parts = [[index for index in order if owner[index] == site] for site in range(4)]
    tables = [table_of(Z[part], Y[part]) for part in parts]
    whole = table_of(Z, Y)
    for name, expected in whole.state_dict().items():
        assert torch.equal(torch.stack([table.state_dict()[name] for table in tables]).sum(0), expected), name


def test_the_sums_are_those_of_numpy_within_half_a_unit_for_each_sample() -> None:
    gram, moments = table_of(Z, Y).sums()
    z, y = Z.numpy(), Y.numpy()
    np.testing.assert_allclose(gram.numpy(), z.T @ z, atol=len(z) / 2 / UNIT, rtol=0)
    np.testing.assert_allclose(moments.numpy(), z.T @ y, atol=len(z) / 2 / UNIT, rtol=0)


@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_the_weights_are_those_of_ridge_regression(ridge: float) -> None:
    weights = solve_ridge(*table_of(Z, Y).sums(), ridge)
    expected = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(Z.numpy(), Y.numpy()).coef_.T
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(("task", "classes", "factor"), [("tabular", 3, 3.0), ("labels", 3, 4.0), ("number", 1, 1.0)])
def test_the_local_model_predicts_by_the_sums_of_all_sites(
    make_site: Any, task: str, classes: int, factor: float
) -> None:
    targets = {"labels": (X[:, :3] > 0).float(), "number": X[:, :1].clamp(-1, 1)}.get(task, LABELS)
    site = make_site(
        "pooled_head", linear(classes=classes), X[:, :, None], task=task, sharpness=2.0, ridge=0.5, bound=4
    )
    object.__setattr__(site.context, "samples", samples(X[:15], targets[:15]))
    site.step(SUMS, STEP)
    z, y = scale_features(X, 4.0), encode_targets(task, targets, classes)
    own, total = (site.networks[name].network for name in (OWN, SUMS))
    assert int(total.count) == int(own.count) == 15
    total.clear()
    total.add(z, y)
    site.step("solve", STEP)
    expected = Ridge(alpha=0.5, fit_intercept=False, solver="cholesky").fit(z.numpy(), y.numpy()).predict(z.numpy())
    factor *= 1.0 if task == "number" else 2.0
    with torch.no_grad():
        prediction = site.networks[DAM](X[:, :, None]).prediction  # no sample is longer than the bound
    np.testing.assert_allclose(prediction.numpy(), factor * expected.reshape(prediction.shape), atol=2e-5)
    assert int(own.count) == 15


def test_a_second_step_and_a_later_round_change_no_bit(make_site: Any) -> None:
    site = make_site("pooled_head", linear(), X[:, :, None])
    object.__setattr__(site.context, "samples", samples(X, LABELS))
    site.step(SUMS, STEP, steps=3)
    once = {name: value.clone() for name, value in site.networks[SUMS].state_dict().items()}
    assert int(once["network.count"]) == len(X)
    site.networks[SUMS].network.add(Z, Y)  # as after an aggregate
    site.step(SUMS, STEP)
    assert all(torch.equal(value, once[name]) for name, value in site.networks[SUMS].state_dict().items())


@pytest.mark.parametrize("held_out", [True, False])
def test_a_personal_site_takes_the_kappa_that_fits_its_validation_samples(make_site: Any, held_out: bool) -> None:
    """The other sites have the opposite labels, so that the site's own sums must count as much as they can."""
    labels = (X[:, 0] > 0).long()
    site = make_site("pooled_head", linear(classes=2), X[:, :, None], personal=True, kappa=(0, 1, 30))
    object.__setattr__(site.context, "samples", samples(X[:20], labels[:20]))
    object.__setattr__(site.context, "validation_samples", samples(X[20:], labels[20:]) if held_out else tuple)
    site.step(SUMS, STEP)
    for _ in range(5):
        site.networks[SUMS].network.add(
            scale_features(X[:20], FEATURES**0.5), encode_targets("tabular", 1 - labels[:20], 2)
        )
    loop = site.step("solve", STEP)
    assert loop.means()["kappa"] == (30.0 if held_out else 0.0)
    with torch.no_grad():
        right = (site.networks[DAM](X[:, :, None]).prediction.argmax(1) == labels).float().mean()
    assert right > 0.9 if held_out else right < 0.1


FORGERIES: dict[str, tuple[str, Callable[[dict[str, Tensor]], object]]] = {
    "negative count": ("it claims -1 samples", lambda state: state["count"].fill_(-1)),
    "absurd count": (f"it claims {COUNT_MAX + 1} samples", lambda state: state["count"].fill_(COUNT_MAX + 1)),
    "negative square": ("sum of squares of feature 0 is negative", lambda state: state["gram"][0].fill_(-1)),
    "large product": (
        "a product in its gram is larger than those of 40",
        lambda state: state["gram"][1].fill_(-(1 << 63)),
    ),
    "too few samples": ("add up to .*, above those of 20 samples", lambda state: state["count"].fill_(20)),
    "large moment": ("a product in its moments", lambda state: state["moments"][0, 0].fill_(41 * UNIT)),
    "no sum of squares": ("eigenvalue -", lambda state: state["gram"][1].fill_(30 * UNIT)),
    "of nobody": ("a product in its gram is larger than those of 0", lambda state: state["count"].zero_()),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_sums_that_no_samples_have_are_refused_by_name(name: str) -> None:
    message, forge = FORGERIES[name]
    z = Z / Z.norm(dim=1, keepdim=True)
    state = table_of(z, Y).state_dict()
    assert find_impossible(state) is None
    forge(state)
    problem = find_impossible(state)
    assert problem is not None
    assert re.search(message, problem), problem


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 2**31))
def test_the_sums_of_any_samples_are_possible(count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, labels = torch.randn(count, 4, generator=draw) * 3, torch.randint(3, (count,), generator=draw)
    assert find_impossible(table_of(scale_features(x, 1.5), encode_targets("tabular", labels, 3)).state_dict()) is None
    assert find_impossible(SumTable(classes=3, features=5, encoder="e").state_dict()) is None


def test_of_several_sites_more_samples_are_possible() -> None:
    table = SumTable(classes=3, features=5, encoder="e").state_dict()
    table["count"].fill_(2 * COUNT_MAX)
    assert find_impossible(table, None, 2) is None
    assert find_impossible(table) == f"it claims {2 * COUNT_MAX} samples; a table has 0 to {COUNT_MAX}"


def test_bodies_with_other_weights_have_other_digests_and_heads_do_not_count() -> None:
    one, other = (linear(name="mlp", width=4) for _ in range(2))
    with torch.no_grad():
        other.head.weight.add_(1)
        assert digest_body(one) == digest_body(other)
        next(other.stages.parameters()).add_(1e-3)
    assert digest_body(one) != digest_body(other)


def test_a_model_without_a_linear_head_on_a_vector_is_refused(make_site: Any) -> None:
    output = Output(torch.zeros(1, 3), (), torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
    problem = POOLED_HEAD.check_local(output, None, PLANS["pooled_head"].defaults(), masks=False)
    assert problem == "the model's head takes features of shape (4, 2); pooled_head takes one vector"
    network = linear()
    network.fc = torch.nn.Linear(FEATURES - 1, CLASSES, bias=False)
    with pytest.raises(ValueError, match="pooled_head computes a linear head with a bias, which linear does not have"):
        make_site("pooled_head", network, X[:, :, None])
