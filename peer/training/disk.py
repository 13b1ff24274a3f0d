"""Files and folders that are there whole or not at all, whenever the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

UNFINISHED = ".unfinished-"
"""Prefix of what is still being written; whatever carries it at a start is a crash's leftover."""


def write_file(path: Path, content: bytes) -> None:
    """Write or replace a file in one step, durably."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    _write(unfinished, content)
    unfinished.replace(path)
    sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files durably; it appears in one step, and a folder of that name makes way for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, content in files.items():
        _write(unfinished / name, content)
    sync_folder(unfinished)
    remove_folder(path)
    unfinished.replace(path)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)


def remove_folder(path: Path) -> None:
    """Take a folder away in one step: no reader finds half of it."""
    if path.exists():
        leaving = path.with_name(f"{UNFINISHED}{path.name}.old")
        shutil.rmtree(leaving, ignore_errors=True)
        path.replace(leaving)
        shutil.rmtree(leaving)


def clear_unfinished(folder: Path) -> None:
    """Remove what a crash left half written under the folder."""
    for path in sorted(folder.rglob(f"{UNFINISHED}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
