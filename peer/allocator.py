"""Settings of the C library's allocator: how much freed memory a process keeps."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping

ALLOCATOR = {-8: 1, -3: 8 << 20, -1: 8 << 20}
"""M_ARENA_MAX of glibc's malloc.h, and M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes."""

TRAINING_ALLOCATOR = {-4: 0, -1: (1 << 31) - 1}
"""M_MMAP_MAX, and M_TRIM_THRESHOLD in bytes: the most that a C int holds."""


def keep_memory_small() -> None:
    """Have glibc, if present, return freed chunks to the system.

    By default each gRPC thread has an arena that keeps them: a daemon that transfers 250 MB grows to 170 MB.
    """
    _set(ALLOCATOR)


def keep_memory_between_steps() -> None:
    """Have glibc, if present, keep freed memory for the next training step.

    By default it returns each large tensor to the system, which must clear every page of the next one: a tenth of a
    step on a CPU. The peak stays the same; ``release_memory`` returns the rest.
    """
    _set(TRAINING_ALLOCATOR)


def _set(settings: Mapping[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        allocator = ctypes.CDLL(None)
        for setting, value in settings.items():
            allocator.mallopt(setting, value)


def release_memory() -> None:
    """Have glibc return free pages that lie between used chunks, which it otherwise keeps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
