"""Choose the device and its precision, and make results reproducible."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from peer import allocator
from peer.train.errors import UnusableConfigurationError
from peer.train.lean_torch import leave_compiler_unloaded

PRECISIONS = ("fp32", "bf16")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Dimensions of a batch -> memory format; signals have none."""
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic, which reads it when it starts


def choose_device(name: str) -> torch.device:
    """Return the device (``auto``: a GPU if any); raise ``UnusableConfigurationError`` if it is missing."""
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


def rank_device(device: torch.device, rank: int) -> torch.device:
    """Return the device of a rank: a GPU of its own if the site uses GPUs."""
    return torch.device("cuda", rank) if device.type == "cuda" else device


def check_devices(device: torch.device, processes: int) -> None:
    """Raise ``UnusableConfigurationError`` if there are fewer GPUs than processes."""
    if device.type == "cuda" and (count := torch.cuda.device_count()) < processes:
        raise UnusableConfigurationError(
            f"[training] processes = {processes}: each process takes a GPU of its own, and this machine has {count} "
            f"usable; set processes = {count}, or name more in the environment variable CUDA_VISIBLE_DEVICES"
        )


def describe_device(device: torch.device, processes: int = 1) -> str:
    """Describe the device for operators; with several processes, that of each."""
    if device.type != "cuda":
        return str(device) if processes == 1 else f"{processes} processes on {device}"
    devices = [device] if processes == 1 else [rank_device(device, rank) for rank in range(processes)]
    return ", ".join(f"{each} {torch.cuda.get_device_name(each)}" for each in devices)


def device_id(device: torch.device) -> str:
    """Return an identifier of the device that is the same in every process of this machine."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else device.type


def make_reproducible(device: torch.device, *, threads: int) -> None:
    """Fix everything that changes bits in this process: threads, algorithms, reduced precision."""
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    leave_compiler_unloaded()
    torch.set_num_threads(threads)
    # On a GPU some layers have no deterministic backward pass, and torch only warns.
    # torch.use_deterministic_algorithms sets the same, and loads the compiler.
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid that costs a pass over each tensor
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the default generators that a computation on the device can draw from.

    ``torch.manual_seed`` gives the same numbers, but seeds the generators of every backend: without CUDA, it formats a
    traceback in each call, which takes half as long as a step of a small network.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def precision(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: ``bf16`` uses autocast."""
    if name not in PRECISIONS:
        raise UnusableConfigurationError(f'[training] precision = "{name}" is none of {", ".join(PRECISIONS)}')
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=name == "bf16")


def with_channels_last(images: Tensor) -> Tensor:
    """Store images ``(b, c, *space)`` of two or three dimensions with a pixel's channels side by side.

    Layers without an implementation for this format convert them back.
    """
    if images.ndim not in CHANNELS_LAST:
        return images
    # With one channel both orders are the same; only a new tensor is marked as having this format.
    return torch.empty_like(images, memory_format=CHANNELS_LAST[images.ndim]).copy_(images)


def release_memory(device: torch.device) -> None:
    """Free the memory of dropped networks and optimisers, which may be in reference cycles."""
    gc.collect()
    allocator.release_memory()
    if device.type == "cuda":
        torch.cuda.empty_cache()
