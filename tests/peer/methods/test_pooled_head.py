"""The pooled head: sums have the same bits however sites divide the samples, and heads are ridge regressions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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
from peer.methods.pooled_head.plan import SENSITIVITY
from peer.methods.pooled_head.ridge import (
    COUNT_MAX,
    UNIT,
    SumTable,
    encode_targets,
    find_impossible,
    scale_features,
    solve_ridge,
    target_norm,
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


class Draws:
    """Noise of a generator, in place of a site's secret."""

    bound = SENSITIVITY

    def __init__(self, multiplier: float, seed: int = 0) -> None:
        self.multiplier, self.generator = multiplier, np.random.default_rng(seed)

    def draw(self, sums: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
        assert [each.shape for each in sums] == [each.shape for each in scales]
        return [
            torch.from_numpy(np.rint(self.generator.normal(size=each.shape) * each.numpy()).astype(np.int64))
            for each in scales
        ]


UNIT_TARGET = torch.full((1, CLASSES), CLASSES**-0.5)


def vector_of(table: SumTable) -> Tensor:
    """Return the sums as one vector of norms and angles of the matrices: off the diagonal, an entry stands for two."""
    rows, columns = torch.triu_indices(FEATURES, FEATURES)
    gram = table.gram.double() * torch.where(rows == columns, 1.0, 2**0.5)
    return torch.cat([gram, table.moments.double().flatten()]) / UNIT


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 1e6]))
def test_no_person_changes_the_sums_by_more_than_the_plan_says(count: int, seed: int, size: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES - 1, generator=draw) * size
    y = torch.randn(count, CLASSES, generator=draw, dtype=torch.float64)
    y /= y.norm(dim=1, keepdim=True)
    table = SumTable(classes=CLASSES, features=FEATURES, encoder="e")
    table.add_person(scale_features(x, 1.0), y)
    rounding = math.sqrt(FEATURES * (FEATURES + CLASSES)) / 2 / UNIT
    assert float(vector_of(table).norm()) <= SENSITIVITY + rounding
    assert int(table.count) == 1


@pytest.mark.parametrize(
    ("task", "classes"), [("tabular", 2), ("tabular", 7), ("labels", 3), ("labels", 9), ("number", 1)]
)
def test_the_longest_target_has_the_claimed_length(task: str, classes: int) -> None:
    targets = {"labels": torch.ones(1, classes), "number": torch.ones(1, classes)}.get(task, torch.tensor([1]))
    assert float(encode_targets(task, targets, classes).norm()) == pytest.approx(target_norm(task, classes))


def test_a_person_counts_once_however_many_samples_there_are() -> None:
    once, often = (SumTable(classes=CLASSES, features=FEATURES, encoder="e") for _ in range(2))
    once.add_person(Z[:1], Y[:1])
    often.add_person(Z[:1].repeat(7, 1), Y[:1].repeat(7, 1))
    assert torch.allclose(vector_of(once), vector_of(often), atol=2 / UNIT)
    mean = SumTable(classes=CLASSES, features=FEATURES, encoder="e")
    mean.add_person(Z[:4], Y[:4])
    expected = Z[:4].numpy().T @ Z[:4].numpy() / 4
    np.testing.assert_allclose(mean.sums()[0].numpy(), expected, atol=1 / UNIT)


def test_a_sample_that_is_not_finite_counts_as_zero_and_shows_nowhere() -> None:
    bare, spoilt = (SumTable(classes=CLASSES, features=FEATURES, encoder="e") for _ in range(2))
    bare.add_person(torch.zeros(1, FEATURES), torch.zeros(1, CLASSES))
    spoilt.add_person(torch.full((1, FEATURES), torch.inf), Y[:1])
    assert torch.equal(vector_of(bare), vector_of(spoilt))
    spoilt.add_person(torch.cat([Z[:1], torch.full((1, FEATURES), torch.nan)]), Y[:2])
    assert float(vector_of(spoilt).norm()) == pytest.approx(float(vector_of(table_of(Z[:1], Y[:1])).norm()) / 2)
    assert int(spoilt.count) == 2


@pytest.mark.parametrize("multiplier", [0.5, 3.0])
def test_the_noise_has_the_claimed_deviation_in_every_entry(multiplier: float) -> None:
    noise, drawn = Draws(multiplier), []
    for _ in range(2000):
        table = SumTable(classes=CLASSES, features=FEATURES, encoder="e")
        table.add_noise(noise)
        assert int(table.count) == 1
        drawn.append(vector_of(table))
    deviations = torch.stack(drawn).std(0) / (multiplier * SENSITIVITY)
    assert torch.allclose(deviations, torch.ones(len(deviations), dtype=torch.float64), atol=4.5 / math.sqrt(2 * 2000))


def test_a_person_who_is_in_the_sums_shows_by_mu_at_most() -> None:
    """The worst person, looked for along the own direction: an attack has the claimed mu, and no attack has more."""
    mu, releases = 1.5, 3000
    person = SumTable(classes=CLASSES, features=FEATURES, encoder="e")
    person.add_person(Z[:1] / Z[:1].norm(), UNIT_TARGET)
    direction = vector_of(person) / vector_of(person).norm()
    scores: dict[bool, list[float]] = {True: [], False: []}
    noise = Draws(1 / mu, seed=4)
    for inside, each in scores.items():
        for _ in range(releases):
            table = table_of(Z[1:], Y[1:])
            table.add_person(Z[:1] / Z[:1].norm() * inside, UNIT_TARGET * inside)
            table.add_noise(noise)
            each.append(float(vector_of(table) @ direction))
    measured = (np.mean(scores[True]) - np.mean(scores[False])) / np.std(scores[False])
    assert measured == pytest.approx(mu, abs=4 * math.sqrt(2 / releases))


@pytest.mark.parametrize("multiplier", [1e-9, 2.0])
def test_with_noise_the_head_is_the_ridge_regression_of_people_with_a_larger_penalty(
    make_site: Any, multiplier: float
) -> None:
    site = make_site("pooled_head", linear(), X[:, :, None], noised=True, ridge=0.5, bound=4)
    groups = [(0, 3), (3, 4), (4, 10)]
    people = lambda: (samples(X[a:b], LABELS[a:b])() for a, b in groups)  # noqa: E731
    noise = Draws(multiplier)
    for name, value in {"people": people, "noise": noise}.items():
        object.__setattr__(site.context, name, value)
    site.step(SUMS, STEP)
    own, table = (site.networks[name].network for name in (OWN, SUMS))
    z = scale_features(X, 4.0)
    expected = sum((z[a:b].T @ z[a:b] / (b - a) for a, b in groups), torch.zeros(FEATURES, FEATURES).double())
    assert int(own.count) == len(groups), "its own sums stay, and are bare"
    assert torch.allclose(own.sums()[0], expected, atol=3 / UNIT)
    assert torch.equal(own.gram, table.gram) == (multiplier < 1)
    total = {name: value.clone() for name, value in table.state_dict().items()}
    total["count"].fill_(9)  # nine sites, of which the sums of two are 0
    table.load_state_dict(total)
    site.step("solve", STEP)
    penalty = max(0.5, 6 * multiplier * 3 * math.sqrt(FEATURES))
    gram, moments = (each.numpy() for each in table.sums())
    weights = np.linalg.solve(gram + penalty * np.eye(FEATURES), moments * math.sqrt(2 / 3)) * CLASSES / 4
    np.testing.assert_allclose(site.networks[DAM].head.weight.detach().numpy(), weights[:-1].T, atol=1e-5)


def test_sums_with_noise_name_their_sites_and_have_bounds(make_site: Any) -> None:
    network = make_site("pooled_head", linear(), X[:, :, None], noised=True).networks[SUMS]
    assert network.spec["hyper"]["noised"] is True
    assert "noised" not in make_site("pooled_head", linear(), X[:, :, None]).networks[SUMS].spec["hyper"]
    state = network.network.state_dict()
    state["gram"][0].fill_(-5 * UNIT)  # as noise may leave it
    state["count"].fill_(1)
    assert find_impossible(state, network) is None
    assert find_impossible(state, network, 2) == "it claims 1 sites, and is of 2"
    state["gram"][1].fill_(-(1 << 63))
    assert find_impossible(state, network) == f"an entry has {1 << 63} units"
