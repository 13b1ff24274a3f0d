"""Devices: chosen by name, refused by name, fixed so that bits agree."""

import pytest
import torch

from peer.train.device import (
    check_devices,
    choose_device,
    describe_device,
    make_reproducible,
    precision,
    rank_device,
    seed_generators,
    with_channels_last,
)
from peer.train.errors import UnusableConfigurationError

CPU = torch.device("cpu")


def test_auto_takes_what_there_is() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == CPU
    assert describe_device(CPU) == "cpu"


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UnusableConfigurationError, match=r'device = "cuda:64": this machine has \d+ usable GPUs'):
        choose_device("cuda:64")


def test_each_rank_has_a_gpu_of_its_own_or_is_named() -> None:
    cuda = torch.device("cuda", 0)
    assert [rank_device(cuda, rank) for rank in range(2)] == [cuda, torch.device("cuda", 1)]
    assert rank_device(CPU, 3) == CPU
    assert describe_device(CPU, 3) == "3 processes on cpu"
    check_devices(CPU, 64)
    with pytest.raises(
        UnusableConfigurationError, match=r"processes = 64: each process takes a GPU of its own, and this"
    ):
        check_devices(cuda, 64)


def test_threads_and_algorithms_are_fixed() -> None:
    make_reproducible(CPU, threads=1)
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_generators_are_seeded_as_torch_seeds_them(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.rand(8)
    torch.rand(3)
    seed_generators(CPU, seed)
    assert torch.equal(torch.rand(8), expected)


def test_precision_is_that_of_the_forward_pass() -> None:
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with precision("bf16", CPU):
        assert layer(x).dtype == torch.bfloat16
    with precision("fp32", CPU):
        assert layer(x).dtype == torch.float32
    with pytest.raises(UnusableConfigurationError, match=r'precision = "fp8" is none of fp32, bf16'):
        precision("fp8", CPU)


@pytest.mark.parametrize("size", [(16,), (16, 16), (8, 8, 8)])
def test_channels_come_last_even_where_there_is_one(size: tuple[int, ...]) -> None:
    images = torch.randn(2, 1, *size)
    arranged = with_channels_last(images)
    assert torch.equal(arranged, images)
    features = torch.nn.functional.pad(arranged, (1, 1)) if len(size) == 1 else convolved(arranged)
    assert (features.stride(1) == 1) == (len(size) > 1)


def convolved(images: torch.Tensor) -> torch.Tensor:
    layer = {4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[images.ndim](1, 4, 3)
    features: torch.Tensor = layer(images)
    return features
