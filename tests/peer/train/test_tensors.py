"""States as bytes and as averages."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from peer.core.artifacts import DTYPES, TensorSpec
from peer.train.errors import UnusableConfigurationError
from peer.train.tensors import DTYPE_NAMES, describe, mean, non_finite, pack, state_of, trimmed_mean, unpack

STATES = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "state.json").read_text("utf-8"))


def random_state(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(50, 40, generator=draw),
        "half": torch.randn(30, generator=draw).to(torch.bfloat16),
        "count": torch.tensor(seed),
        "flag": torch.tensor([seed % 2 == 0, False]),
    }


def test_a_state_is_a_sorted_copy_that_shares_no_memory() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    network = nn.Sequential(first, second, nn.BatchNorm1d(2))
    state = state_of(network)
    assert list(state) == sorted(network.state_dict())
    pack(state)  # tied weights are two copies
    state["0.weight"].zero_()
    assert first.weight.abs().sum() > 0


@pytest.mark.parametrize("vector", STATES, ids=["table", "types"])
def test_a_packed_state_is_the_file_that_the_specification_describes(vector: dict[str, Any]) -> None:
    """Its digest is the one of a mean that heartbeats state: another program must write the same bytes."""
    types = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    state = {
        tensor["name"]: torch.frombuffer(bytearray.fromhex(tensor["data"]), dtype=types[tensor["dtype"]]).reshape(
            tensor["shape"]
        )
        for tensor in reversed(vector["tensors"])
    }
    content = pack(state)
    assert content.hex() == vector["file"]
    assert hashlib.sha256(content).hexdigest() == vector["sha256"]


def test_the_same_tensors_are_the_same_bytes() -> None:
    state = random_state(1)
    again = {name: state[name].clone() for name in reversed(list(state))}
    content = pack(state)
    assert pack(again) == content
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert set(header) == set(state)  # no metadata
    assert all(torch.equal(tensor, state[name]) for name, tensor in unpack(content).items())


def test_types_are_those_that_may_travel() -> None:
    assert set(DTYPE_NAMES.values()) == set(DTYPES)
    assert all(torch.empty(0, dtype=kind).element_size() == DTYPES[name] for kind, name in DTYPE_NAMES.items())
    assert describe({"b": torch.zeros(2, 3), "a": torch.tensor(1)}) == (
        TensorSpec("a", "I64", ()),
        TensorSpec("b", "F32", (2, 3)),
    )
    with pytest.raises(UnusableConfigurationError, match=r"tensor 'z' of the model is torch.complex64"):
        describe({"z": torch.zeros(1, dtype=torch.complex64)})


def test_non_finite_names_the_first_tensor() -> None:
    assert non_finite({"a": torch.ones(2), "n": torch.tensor(3)}) is None
    assert non_finite({"b": torch.tensor([1.0, float("inf")]), "a": torch.tensor(float("nan"))}) == "a"


def test_a_mean_is_that_of_float64_rounded_once() -> None:
    states = [random_state(seed) for seed in range(5)]
    averaged = mean(states)
    expected = sum(state["weight"].numpy().astype(np.float64) for state in states) / 5
    assert np.array_equal(averaged["weight"].numpy(), expected.astype(np.float32))
    assert averaged["half"].dtype == torch.bfloat16
    assert averaged["count"] == 4
    assert averaged["flag"].tolist() == [True, False]


def test_a_mean_does_not_depend_on_the_order_of_arrival() -> None:
    states = [random_state(seed) for seed in range(5)]
    means = {pack(mean(order)) for order in itertools.permutations(states)}
    assert len(means) == 1


def test_a_mean_of_weights_one_and_three() -> None:
    averaged = mean([{"x": torch.tensor([0.0, 4.0])}, {"x": torch.tensor([4.0, 0.0])}], [1, 3])
    assert averaged["x"].tolist() == [3.0, 1.0]


def test_a_mean_of_one_is_itself() -> None:
    state = random_state(3)
    assert pack(mean([state])) == pack(state)


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([], None, "at least one"),
        ([{"x": torch.ones(1)}], [0.0], "one positive number"),
        ([{"x": torch.ones(1)}], [1.0, 1.0], "one positive number"),
        ([{"x": torch.ones(1)}], [float("nan")], "one positive number"),
        ([{"x": torch.ones(1)}, {"x": torch.ones(2)}], None, "state 1 differs from state 0 in 'x'"),
        ([{"x": torch.ones(1)}, {"x": torch.ones(1), "y": torch.ones(1)}], None, "state 1 differs from state 0 in 'y'"),
        ([{"x": torch.ones(1)}, {"x": torch.ones(1).double()}], None, "differs from state 0 in 'x'"),
    ],
)
def test_a_mean_that_does_not_exist_is_refused(states: list, weights: list | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean(states, weights)


def test_a_trimmed_mean_needs_a_value_that_is_left() -> None:
    with pytest.raises(ValueError, match="of 2 states, 1 cannot be trimmed at either end"):
        trimmed_mean([random_state(1), random_state(2)], 1)
