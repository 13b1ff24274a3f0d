"""Compares downloaded wheels with constraints-hashes.txt, before anything of them is installed.

    python3 check_wheels.py FOLDER CONSTRAINTS HASHES

A wheel of a package that CONSTRAINTS pins must have one of the digests in HASHES. torch, and the
packages that only its CUDA builds need, come from torch's own index, which has other files for each
build: they are named, and not compared. ``--write`` makes HASHES from the reports of
``pip install --dry-run --report``, one for each platform.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

BY_INDEX = frozenset({"torch"})
"""Packages whose files are the choice of the index, as constraints.txt says."""


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(constraints: str) -> dict[str, str]:
    """Package -> version, of the lines of a constraints file."""
    lines = [line.split()[0] for line in constraints.splitlines() if line.strip() and not line.startswith("#")]
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines)}


def digests(hashes: str) -> dict[str, frozenset[str]]:
    """Package -> the permitted digests, of the lines ``name==version --hash=sha256:...``."""
    lines = [line for line in hashes.splitlines() if line and not line.startswith("#")]
    return {
        canonical(line.partition("==")[0]): frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        for line in lines
    }


def problems(folder: Path, constraints: str, hashes: str) -> list[str]:
    """Every wheel whose bytes are not those that were seen before."""
    pins, permitted = pinned(constraints), digests(hashes)
    wrong = []
    for wheel in sorted(folder.glob("*.whl")):
        name = canonical(wheel.name.partition("-")[0])
        if name not in pins or name in BY_INDEX:
            print(f"{wheel.name}: not compared")
        elif hashlib.sha256(wheel.read_bytes()).hexdigest() not in permitted.get(name, frozenset()):
            wrong.append(f"{wheel.name}: its digest is not in constraints-hashes.txt")
    return wrong


def hash_lines(reports: list[Path], constraints: str) -> str:
    """The lines of HASHES from pip's reports."""
    pins = pinned(constraints)
    seen: dict[str, set[str]] = {}
    for path in reports:
        for item in json.loads(path.read_text())["install"]:
            name = canonical(item["metadata"]["name"])
            if pins.get(name) == item["metadata"]["version"] and name not in BY_INDEX:
                seen.setdefault(name, set()).add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    return "".join(
        f"{name}=={pins[name]}" + "".join(f" --hash=sha256:{digest}" for digest in sorted(seen[name])) + "\n"
        for name in sorted(seen)
    )


def main(arguments: list[str]) -> int:
    """Check, or write; the exit code."""
    if arguments[0] == "--write":
        constraints, *reports = map(Path, arguments[1:])
        sys.stdout.write(hash_lines(reports, constraints.read_text()))
        return 0
    folder, constraints, hashes = map(Path, arguments)
    wrong = problems(folder, constraints.read_text(), hashes.read_text())
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
