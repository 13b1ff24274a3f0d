"""The C library's allocator: how much freed memory the daemon keeps."""

from __future__ import annotations

import contextlib
import ctypes

ALLOCATOR = {-8: 1, -3: 8 << 20, -1: 8 << 20}
"""M_ARENA_MAX of glibc's malloc.h, and M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes."""


def keep_memory_small() -> None:
    """Have glibc, where it is the C library, return the memory of freed chunks to the system.

    By default each of gRPC's threads has an arena that keeps them: a daemon that transfers 250 MB
    grows to 170 MB.
    """
    with contextlib.suppress(OSError, AttributeError):
        allocator = ctypes.CDLL(None)
        for setting, value in ALLOCATOR.items():
            allocator.mallopt(setting, value)


def release_memory() -> None:
    """Have glibc return free pages between chunks in use, which it otherwise keeps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
