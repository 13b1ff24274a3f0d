"""Choose the device and its precision, and make results reproducible."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager

import torch

from peer.training.errors import UnusableConfigurationError

PRECISIONS = ("fp32", "bf16")
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it; it reads it at its start


def choose_device(name: str) -> torch.device:
    """The device (``auto``: a GPU if any); ``UnusableConfigurationError`` where it is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise UnusableConfigurationError(
                f'[training] device = "{name}": this machine has {count} usable GPUs; take "auto"'
            )
        device = torch.device("cuda", device.index or 0)
    return device


def describe_device(device: torch.device) -> str:
    """The device in words, for operators."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def make_reproducible(device: torch.device, *, threads: int) -> None:
    """Fix everything that changes bits in this process: threads, algorithms, reduced precision."""
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    torch.set_num_threads(threads)
    # On a GPU some layers have no deterministic backward pass, and torch warns instead.
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid that costs a pass over each tensor
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the default generators that a computation on the device can draw from.

    ``torch.manual_seed`` gives the same numbers, and seeds the generators of every backend: where
    CUDA is absent, it formats a traceback in each call, half as long as a step of a small network.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def precision(name: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass: ``bf16`` uses autocast."""
    if name not in PRECISIONS:
        raise UnusableConfigurationError(f'[training] precision = "{name}" is none of {", ".join(PRECISIONS)}')
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=name == "bf16")


def release_memory(device: torch.device) -> None:
    """Free the memory of dropped networks and optimisers, which may be in reference cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
