"""The aggregate of several states, and the bounds on what each site contributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from peer.core.roster import SiteName
from peer.train.aggregation import (
    Aggregation,
    aggregate,
    aggregate_prototypes,
    aggregate_sums,
    cap_change,
    find_leap,
    find_outliers,
)
from peer.train.tensors import VALUES_AT_ONCE_MAX

State = dict[str, Tensor]
SITES = tuple(map(SiteName, ("africa", "america", "asia", "europe")))
NO_SAMPLES: dict[SiteName, int | None] = dict.fromkeys(SITES)
ASIA = SITES[2]


def trained(site: int, *, drift: float = 0.02) -> State:
    """A network that all sites began with alike, and that one of them trained for a while."""
    common, own = torch.Generator().manual_seed(7), torch.Generator().manual_seed(100 + site)
    state = {"conv.weight": torch.randn(16, 8, 3, generator=common) / 5, "bn.weight": torch.ones(16)}
    state |= {"fc.weight": torch.randn(10, 16, generator=common) / 4, "fc.bias": torch.zeros(10)}
    state = {name: value + drift * torch.randn(value.shape, generator=own) for name, value in state.items()}
    statistics = {"bn.running_mean": torch.randn(16, generator=own) / 10, "bn.running_var": torch.rand(16) + 0.5}
    return state | statistics | {"bn.num_batches_tracked": torch.tensor(30)}


def states(*, sites: int = 4, drifts: dict[SiteName, float] | None = None) -> dict[SiteName, State]:
    return {site: trained(k, drift=(drifts or {}).get(site, 0.02)) for k, site in enumerate(SITES[:sites])}


def weights(state: State, change: object) -> State:
    """The state with every weight changed, and its batch statistics as they are."""
    return {name: change(value) if "running" not in name and value.ndim else value for name, value in state.items()}  # type: ignore[operator]


def test_of_equal_contributions_one_counts_unless_all_are_equal() -> None:
    copied = states()
    copied[ASIA] = {name: tensor.clone() for name, tensor in copied[SITES[0]].items()}
    aggregation = aggregate(copied, NO_SAMPLES)
    assert aggregation.contributors == [site for site in SITES if site != ASIA]
    assert aggregation.cut == {ASIA: "is equal to that of africa", SITES[0]: "is equal to that of asia"}
    assert aggregate(copied, NO_SAMPLES, bounds=False).cut == {}
    untrained = {site: trained(0) for site in SITES}
    assert aggregate(untrained, NO_SAMPLES).contributors == list(SITES)


def test_sums_are_added_up_a_copy_counts_once_and_a_site_of_too_many_samples_not_at_all() -> None:
    counts = dict(zip(SITES, (40, 30, 20, 10), strict=True))
    tables = {
        site: {"t.gram": torch.tensor([(1 << 52) + k, k]), "t.count": torch.tensor(counts[site])}
        for k, site in enumerate(SITES)
    }
    aggregation = aggregate_sums(tables, NO_SAMPLES, rule="median", weighted=True)
    assert {name: value.tolist() for name, value in aggregation.state.items()} == {
        "t.gram": [(4 << 52) + 6, 6],
        "t.count": 100,
    }
    assert (aggregation.contributors, aggregation.cut) == (list(SITES), {})
    tables[ASIA] = dict(tables[SITES[0]])
    tables[SITES[3]] = {"t.gram": torch.zeros(2, dtype=torch.int64), "t.count": torch.tensor(4001)}
    aggregation = aggregate_sums(tables, NO_SAMPLES)
    assert aggregation.contributors == [*SITES[:2]]
    assert int(aggregation.state["t.count"]) == 70
    assert aggregation.cut == {
        ASIA: "is equal to that of africa",
        SITES[0]: "is equal to that of asia",
        SITES[3]: "is of 4001 samples, more than 4000: 100 medians",
    }
    assert aggregate_sums(tables, NO_SAMPLES, bounds=False).contributors == list(SITES)


ACTS = {
    "signs": lambda state: weights(state, lambda value: -value),
    "random": lambda state: weights(state, lambda value: value.std() * torch.randn(value.shape)),
    "scale": lambda state: weights(state, lambda value: value * 1000),
    "zero": lambda state: weights(state, torch.zeros_like),
    "replacement": lambda state: weights(state, lambda value: 4 * value.std() * torch.randn(value.shape) - 3 * value),
    "one layer": lambda state: {**state, "fc.weight": -state["fc.weight"]},
    "negative variance": lambda state: {**state, "bn.running_var": -state["bn.running_var"]},
    "exploded variance": lambda state: {**state, "bn.running_var": state["bn.running_var"] * 1e4},
}


@pytest.mark.parametrize("sites", [3, 4])
@pytest.mark.parametrize("act", ACTS)
def test_what_no_training_gives_is_left_out_with_a_name_and_the_tensor(act: str, sites: int) -> None:
    honest = states(sites=sites)
    result = aggregate({**honest, ASIA: ACTS[act](honest[ASIA])}, NO_SAMPLES)
    assert list(result.cut) == [ASIA]
    assert any(name in result.cut[ASIA] for name in honest[ASIA])
    del honest[ASIA]
    assert result.contributors == sorted(honest)
    alone = aggregate(honest, NO_SAMPLES)
    assert all(torch.equal(value, alone.state[name]) for name, value in result.state.items())


@pytest.mark.parametrize("drift", [1e-5, 0.02, 0.08])
def test_a_site_that_trains_more_or_less_than_the_others_stays(drift: float) -> None:
    assert find_outliers(states(drifts={ASIA: drift})) == {}
    assert find_outliers(states(drifts=dict.fromkeys(SITES, 1e-4) | {ASIA: drift})) == {}


def test_sites_with_other_scanners_stay() -> None:
    honest = states()
    for name in ("bn.running_mean", "bn.running_var"):
        honest[ASIA][name] = honest[ASIA][name] * 50
    assert find_outliers(honest) == {}


def test_of_two_only_one_that_is_much_larger_is_left_out() -> None:
    honest = states(sites=2)
    america = SITES[1]
    assert find_outliers({**honest, america: ACTS["signs"](honest[america])}) == {}
    assert list(find_outliers({**honest, america: ACTS["scale"](honest[america])})) == [america]
    assert list(find_outliers({**honest, SITES[0]: ACTS["scale"](honest[SITES[0]])})) == [SITES[0]]


def test_the_order_of_arrival_changes_nothing() -> None:
    contributions = states() | {ASIA: ACTS["random"](trained(2))}
    backwards = dict(reversed(contributions.items()))
    one, other = (aggregate(each, NO_SAMPLES) for each in (contributions, backwards))
    assert (one.contributors, one.cut) == (other.contributors, other.cut)
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)


def test_without_bounds_nothing_is_left_out() -> None:
    contributions = states() | {ASIA: ACTS["scale"](trained(2))}
    result = aggregate(contributions, NO_SAMPLES, bounds=False)
    assert (result.contributors, result.cut) == (list(SITES), {})
    assert result.state["fc.weight"].abs().max() > 10


# --- claimed numbers of samples ---------------------------------------------------------------------------------------
def weighted(claims: list[int | None], *, bounds: bool = True) -> Aggregation:
    flat = {site: {"weight": torch.full((1,), float(k))} for k, site in enumerate(SITES)}
    return aggregate(flat, dict(zip(SITES, claims, strict=True)), weighted=True, bounds=bounds)


def test_a_claim_of_samples_counts_as_ten_medians_at_most() -> None:
    honest, lie = weighted([100, 100, 1000, 100]), weighted([100, 100, 1 << 53, 100])
    assert honest.cut == {}
    assert lie.contributors == list(SITES)
    assert lie.cut == {ASIA: "claims 9007199254740992 samples, and counts as 1000: 10 medians"}
    assert torch.equal(lie.state["weight"], honest.state["weight"])
    assert weighted([100, 100, 1 << 53, 100], bounds=False).state["weight"] == 2.0


def test_samples_count_only_where_all_tell_them() -> None:
    assert weighted([100, 100, 1000, None]).state["weight"] == 1.5


@pytest.mark.parametrize(("claims", "expected"), [([1, 1, 1, 1], 1.5), ([3, 1, 1, 1], 7 / 6)])
def test_a_capped_mean_brings_every_state_as_near_to_the_median_as_the_median_state(
    claims: list[int], expected: float
) -> None:
    values = [
        0.0,
        1.0,
        2.0,
        30.0,
    ]  # the median is 1.5, and the distances 1.5, 0.5, 0.5 and 28.5: half of them is 1 at most
    flat = {
        site: {"weight": torch.full((1,), value), "bn.running_mean": torch.full((1,), value)}
        for site, value in zip(SITES, values, strict=True)
    }
    result = aggregate(flat, dict(zip(SITES, claims, strict=True)), rule="capped", weighted=True, bounds=False)
    assert result.state["weight"].item() == pytest.approx(expected)
    assert result.state["bn.running_mean"].item() == pytest.approx(np.average(values, weights=claims))


def test_a_capped_mean_of_two_or_of_equal_states_is_their_mean() -> None:
    two = {site: {"weight": torch.full((1,), float(k))} for k, site in enumerate(SITES[:2])}
    assert aggregate(two, NO_SAMPLES, rule="capped").state["weight"] == 0.5
    equal = {site: {"weight": torch.ones(1)} for site in SITES}
    assert aggregate(equal, NO_SAMPLES, rule="capped").state["weight"] == 1.0


def test_a_returned_copy_moves_as_far_as_the_model_that_stayed() -> None:
    sent, own = (
        {"weight": torch.zeros(2), "n": torch.tensor(1)},
        {"weight": torch.tensor([3.0, 0.0]), "n": torch.tensor(5)},
    )
    far, near = ({"weight": torch.tensor([0.0, y]), "n": torch.tensor(9)} for y in (6.0, 2.0))
    assert cap_change(sent, own, far)["weight"].tolist() == [0.0, 3.0]
    assert cap_change(sent, own, far)["n"] == 9
    assert cap_change(sent, own, near) is near


# --- other rules ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["trimmed_mean", "median"])
@pytest.mark.parametrize("sites", [1, 2, 3, 4])
def test_the_rules_are_those_of_the_paper(rule: str, sites: int) -> None:
    contributions = states(sites=sites)
    result = aggregate(contributions, NO_SAMPLES, rule=rule, bounds=False)  # type: ignore[arg-type]
    for name in ("conv.weight", "bn.running_var"):
        values = np.sort(np.stack([state[name].double().numpy() for state in contributions.values()]), axis=0)
        expected = np.median(values, axis=0) if rule == "median" else values[1:-1].mean(0) if sites > 2 else None
        np.testing.assert_array_equal(
            result.state[name].numpy(),
            (values.mean(0) if expected is None else expected).astype(np.float32),
        )
    assert result.state["bn.num_batches_tracked"] == 30


# --- prototypes -------------------------------------------------------------------------------------------------------
def table(site: int, counts: list[float]) -> State:
    """Prototypes of three classes; a class without samples has zeros."""
    draw = torch.Generator().manual_seed(site)
    common = torch.randn(3, 8, generator=torch.Generator().manual_seed(9))
    present = torch.tensor(counts)
    rows = (common + torch.randn(3, 8, generator=draw) / 10) * (present > 0)[:, None]
    return {"network.prototypes": rows, "network.counts": present}


COUNTS = ([4.0, 1.0, 0.0], [2.0, 0.0, 0.0], [3.0, 5.0, 0.0], [1.0, 0.0, 0.0])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_prototype_is_the_mean_of_the_sites_that_have_the_class(weighted: bool) -> None:
    tables = {site: table(k, counts) for k, (site, counts) in enumerate(zip(SITES, COUNTS, strict=True))}
    result = aggregate_prototypes(tables, NO_SAMPLES, weighted=weighted)
    assert (result.contributors, result.cut) == (list(SITES), {})
    assert result.state["network.counts"].tolist() == [1.0, 1.0, 0.0]
    for number in range(3):
        counts = np.array([each[number] for each in COUNTS])
        shares = counts if weighted else (counts > 0).astype(float)
        rows = np.stack([state["network.prototypes"][number].double().numpy() for state in tables.values()])
        expected = shares @ rows / max(shares.sum(), 1)
        np.testing.assert_allclose(result.state["network.prototypes"][number].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_a_prototype_that_no_training_gives_is_left_out_of_its_class_alone() -> None:
    tables = {site: table(k, [1.0, 1.0, 1.0]) for k, site in enumerate(SITES)}
    tables[ASIA]["network.prototypes"][1] *= -1000
    result = aggregate_prototypes(tables, NO_SAMPLES)
    assert list(result.cut) == [ASIA]
    assert result.cut[ASIA].startswith("class 1: network.prototypes is")
    assert ASIA in result.contributors
    others = {site: state for site, state in tables.items() if site != ASIA}
    alone = aggregate_prototypes(others, NO_SAMPLES)
    rows = result.state["network.prototypes"], alone.state["network.prototypes"]
    assert torch.equal(rows[0][1], rows[1][1])
    assert not torch.equal(rows[0][0], rows[1][0])


def test_of_equal_prototypes_one_counts_and_both_are_named() -> None:
    tables = {site: table(k if site != ASIA else 0, [1.0, 1.0, 1.0]) for k, site in enumerate(SITES)}
    result = aggregate_prototypes(tables, NO_SAMPLES)
    assert result.contributors == [site for site in SITES if site != ASIA]
    assert result.cut == {
        ASIA: "class 0: is equal to that of africa",
        SITES[0]: "class 0: is equal to that of asia",
    }


def test_a_site_with_all_prototypes_out_of_bounds_contributes_nothing() -> None:
    tables = {site: table(k, [1.0, 1.0, 1.0]) for k, site in enumerate(SITES)}
    tables[ASIA]["network.prototypes"] *= -1000
    assert ASIA not in aggregate_prototypes(tables, NO_SAMPLES).contributors


class LargestTensor(TorchDispatchMode):
    """Remembers how many values the largest tensor had that an operation made."""

    values = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, Tensor):
                self.values = max(self.values, made.numel())
        return result


@pytest.mark.parametrize("rule", ["mean", "capped", "median", "trimmed_mean"])
def test_a_large_tensor_of_many_sites_is_never_held_at_once_in_float64(rule: Any) -> None:
    sites, count = 9, 1_000_000
    generator = torch.Generator().manual_seed(3)
    tensors = torch.randn(sites, count, generator=generator)
    tensors[2] *= 40
    states = {SiteName(f"site-{index}"): {"weight": tensor} for index, tensor in enumerate(tensors)}
    with LargestTensor() as largest:
        result = aggregate(states, dict.fromkeys(states, 1), rule=rule)
    assert largest.values <= max(count, VALUES_AT_ONCE_MAX) < sites * count
    assert list(result.cut) == ["site-2"]
    honest = np.delete(tensors.numpy(), 2, axis=0).astype(np.float64)
    moves = honest - np.median(honest, axis=0)
    far = np.linalg.norm(moves, axis=1, keepdims=True)
    capped, kept = honest - moves * (1 - np.minimum(1, np.median(far) / far)), np.sort(honest, axis=0)
    expected = {"mean": kept, "capped": capped, "median": kept[3:5], "trimmed_mean": kept[2:6]}[rule].mean(axis=0)
    np.testing.assert_allclose(result.state["weight"].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_a_copy_that_came_home_may_move_some_times_as_far_as_the_model_that_stayed() -> None:
    sent, own, copy = trained(0, drift=0.0), trained(1), trained(2, drift=0.1)
    assert find_leap(sent, own, own) is None
    assert find_leap(sent, own, copy) is None
    assert find_leap(sent, sent, own) is None, "the own model did not move at all"
    random = {"fc.weight": torch.randn(10, 16)}
    assert "fc.weight is" in (find_leap(sent, own, {**copy, **random}) or "")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("conv.weight", lambda value: value * 10, "conv.weight is 8"),
        ("conv.weight", lambda value: -value, "conv.weight is 1.8"),
        ("bn.running_var", lambda value: -value, "bn.running_var has a negative variance"),
        ("bn.running_mean", lambda value: value + 1e4, "bn.running_mean is 1e+04 times as large"),
    ],
)
def test_one_tensor_of_a_return_beyond_its_bound_is_enough(name: str, change: object, reason: str) -> None:
    sent, own, copy = trained(0, drift=0.0), trained(1), trained(2)
    told = find_leap(sent, own, {**copy, name: change(copy[name])})  # type: ignore[operator]
    assert told is not None
    assert told.startswith(reason)
