"""Confines this process with Landlock, if the kernel supports it: a worker runs a researcher's network code and reads
files that other sites sent.

Landlock has only allow rules. To hide some files, the process therefore allows every folder beside the paths to them. A
file created later directly inside a folder on such a path cannot be read.

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

# <linux/landlock.h>, and the system call numbers, which are the same on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
WRITE_FILE, READ_FILE, TRUNCATE = 1 << 1, 1 << 2, 1 << 14
CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove, and create every kind of file
REFER = 1 << 13  # rename and link between folders
ABI_REFER, ABI_TRUNCATE = 2, 3
PR_SET_NO_NEW_PRIVS = 38  # <linux/prctl.h>


def abi() -> int:
    """Return the kernel's Landlock ABI version; 0 if it has none or it is disabled."""
    if sys.platform != "linux":
        return 0
    version = ctypes.CDLL(None).syscall(
        ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(CREATE_RULESET_VERSION)
    )
    return max(0, int(version))


def confine(*, hidden: Iterable[Path], writable: Iterable[Path]) -> None:
    """Deny reads of hidden files and changes outside the writable folders, for this thread and all that it starts.

    This cannot be undone. All other reads stay allowed. Missing paths in either list are skipped.

    Raises:
        OSError: the kernel has no Landlock, or a folder on the path to a hidden one cannot be listed.
    """
    version = abi()
    change = WRITE_FILE | CHANGE_FOLDER
    change |= (REFER if version >= ABI_REFER else 0) | (TRUNCATE if version >= ABI_TRUNCATE else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.create_string_buffer(struct.pack("=Q", READ_FILE | change), 8)
    ruleset = _call(libc, CREATE_RULESET, handled, ctypes.c_size_t(8), ctypes.c_uint32(0))
    try:
        paths = {path.resolve() for path in hidden}
        for name in _beside({str(path) for path in paths}, {str(parent) for path in paths for parent in path.parents}):
            _allow(libc, ruleset, name, READ_FILE)
        for path in writable:
            _allow(libc, ruleset, path, change)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")
        _call(libc, RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _beside(hidden: Set[str], above: Set[str], folder: str = "/") -> Iterator[str]:
    """Yield the fewest paths that together cover everything but the hidden ones.

    Skip symbolic links: their targets are covered by themselves. Paths are texts, as a folder may have very many files.

    Args:
        hidden: the hidden paths.
        above: the folders that contain them, at any depth.
        folder: where to begin.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in hidden or entry.is_symlink():
                continue
            if entry.path in above:
                yield from _beside(hidden, above, entry.path)
            else:
                yield entry.path


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path | str, access: int) -> None:
    """Allow the access to a file, or to all files in a folder; skip what is missing or unreachable."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone, or out of reach anyway
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                access &= READ_FILE | WRITE_FILE | TRUNCATE
            rule = ctypes.create_string_buffer(struct.pack("=Qi", access, descriptor), 12)
            _call(libc, ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
        finally:
            os.close(descriptor)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"Landlock system call {number}")
    return result
