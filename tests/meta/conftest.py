"""The repository as its own subject: the files that belong to it, and the parsed modules that are shipped."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("losses", "models", "peer")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")


@dataclass(frozen=True)
class Module:
    """One hand-written module of the three packages."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def where(self) -> str:
        """The path from the root, for messages."""
        return self.path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """The files of the repository, from the root: what git tracks, or would once it is added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, so nothing says which files belong to it")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = sorted({Path(name) for name in listed.split("\0") if name})
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Every module of ``losses``, ``models`` and ``peer`` but the generated ones."""
    return [
        Module(dotted(path.relative_to(ROOT)), path, ast.parse(path.read_text("utf-8")))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not GENERATED.search(path.name)
    ]


def dotted(path: Path) -> str:
    """The import name of a module's path from the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
