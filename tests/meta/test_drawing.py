"""The drawing of the packages in peer/README.md has the arrows that the imports have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FLOWCHART = re.compile(r"^flowchart TD\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = ("losses", "models", "peer")
EVERYBODY_S = frozenset({"__init__", "__version__", "classification", "documents", "errors", "extras", "files"})
"""Modules of ``peer`` itself that every package may import: they are not drawn."""


def package(name: str) -> str:
    """What a module is drawn as: a package of ``peer``, a module beside those, or a library of ours."""
    parts = name.split(".")
    return parts[0] if parts[0] != "peer" else (parts[1] if len(parts) > 1 else "__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports; ``from a import b`` is ``a.b``, a module or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(modules: list[Any]) -> dict[str, set[str]]:
    """From each package to those that it imports."""
    found: dict[str, set[str]] = {}
    for module in modules:
        own = package(module.name)
        ours = (name for name in imported(module.tree) if name.split(".")[0] in OURS)
        found.setdefault(own, set()).update(set(map(package, ours)) - {own, *EVERYBODY_S})
    return {name: targets for name, targets in found.items() if name not in EVERYBODY_S}


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without which something could not be reached."""

    def reachable(name: str) -> set[str]:
        return {far for near in graph.get(name, ()) for far in (near, *reachable(near))}

    return {
        name: {one for one in targets if not any(one in reachable(other) for other in targets - {one})}
        for name, targets in graph.items()
    }


def test_the_drawing_has_the_arrows_of_the_imports(root: Path, modules: list[Any]) -> None:
    if (root / "peer" / "daemon.py").exists():
        pytest.skip("the drawing shows the packages into which these modules are about to move")
    found = FLOWCHART.search((root / "peer" / "README.md").read_text())
    assert found, "peer/README.md has no flowchart of the packages"
    graph = reduced(arrows(modules))
    expected = [f"    {name} --> {' & '.join(sorted(targets))}" for name, targets in sorted(graph.items()) if targets]
    assert found.group(1).splitlines() == expected, "it should have\n" + "\n".join(expected)


def test_an_arrow_that_another_way_replaces_is_left_out() -> None:
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
