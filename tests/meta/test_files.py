"""The places of files, and texts that no file of this repository may contain."""

import re
import subprocess
from pathlib import Path

import pytest

# Each pattern is written so that it does not match itself.
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b")
FORBIDDEN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.$}-])/(?:[w]ork|[r]oot|[h]ome/[a-z]\w*|[U]sers/\w+)/"),
    "a package registry's host": re.compile(r"py[p]i\.org|python[h]osted\.org|npm[j]s\.|deb\.[d]ebian\.org"),
    "how the text was made": re.compile(r"\bsub[-]?agents?\b", re.IGNORECASE),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE [K]EY-----"),
}
SUITE_FOLDERS = {
    "bench",
    "e2e",
    "adversary",
    "chaos",
    "fakes",
    "fuzz",
    "gpu",
    "meta",
    "mutants",
    "privacy",
    "scenarios",
    "simulation",
}
"""Folders of tests/ that mirror no package."""


def texts(root: Path, files: list[Path]) -> dict[Path, str]:
    """Path -> content of the files that are text."""
    contents = {}
    for path in files:
        try:
            contents[path] = (root / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue
    return contents


def matches(pattern: re.Pattern[str], root: Path, files: list[Path]) -> list[str]:
    """Path, line and text of every match."""
    return [
        f"{path}:{number}: {match.group()}"
        for path, text in texts(root, files).items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
    ]


def test_nothing_is_left_for_later(root: Path, files: list[Path]) -> None:
    assert not matches(UNFINISHED, root, files)


@pytest.mark.parametrize("content", FORBIDDEN)
def test_no_file_tells(content: str, root: Path, files: list[Path]) -> None:
    assert not matches(FORBIDDEN[content], root, files)


def test_no_file_is_a_link(root: Path) -> None:
    """Its target would be a path of somebody's machine, and checking it out replaces what is there."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=root, capture_output=True, text=True, check=False
    ).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")]


def test_neither_tests_nor_proto_are_a_package(files: list[Path]) -> None:
    """An importable ``proto`` would shadow proto-plus."""
    assert not [path for path in files if path.parts[0] in ("tests", "proto") and path.name == "__init__.py"]


def test_every_test_file_mirrors_a_module_or_its_package(root: Path, files: list[Path]) -> None:
    orphans = []
    for path in files:
        if path.parts[0] != "tests" or not path.match("test_*.py") or path.parts[1] in SUITE_FOLDERS:
            continue
        folder, name = root.joinpath(*path.parts[1:-1]), path.stem.removeprefix("test_")
        modules = [folder.name, *(item.stem for item in folder.glob("*") if item.suffix == ".py" or item.is_dir())]
        if not any(name == module or name.startswith(f"{module}_") for module in modules):  # or one subject of a module
            orphans.append(str(path))
    assert not orphans, f"no module has these tests' names: {orphans}"
