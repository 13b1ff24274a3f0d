"""The SHA-256 by which an export is known: of a file its own, of a bundle's folder that of the list of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK_BYTES = 1 << 20


def digest(path: Path) -> tuple[str, int]:
    """SHA-256 in hex and size in bytes; ``OSError`` where something cannot be read.

    Of a folder: of the text that ``sha256sum`` writes of its files in the order of their names, a line
    ``<digest>  <name>`` each, names relative to the folder; the size is that of all files. One that holds a link, or a
    name with a line's end, has none (``ValueError``): that text would not say what is in it.
    """
    if not path.is_dir():
        return _of_file(path)
    lines, total = [], 0
    names = []
    for entry in path.rglob("*"):
        name = entry.relative_to(path).as_posix()
        if entry.is_symlink() or len(name.splitlines()) != 1:
            raise ValueError(f"it holds {name!r}, a link or a name of several lines, and has no digest")
        if entry.is_file():
            names.append(name)
    for name in sorted(names):
        found, size = _of_file(path / name)
        lines.append(f"{found}  {name}\n")
        total += size
    return hashlib.sha256("".join(lines).encode()).hexdigest(), total


def _of_file(path: Path) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            hashed.update(block)
            size += len(block)
    return hashed.hexdigest(), size
