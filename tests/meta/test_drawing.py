"""The drawing of the packages in peer/README.md has the same arrows as the imports."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLOWCHART = re.compile(r"^flowchart TD\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = ("losses", "models", "peer")
GROUND = frozenset({"allocator", "classification", "documents", "errors", "extras", "files", "landlock"})
GROUND |= {"cohorts", "quantities", "regression", "stop_signals", "survival", "web_page"}
GROUND |= {"__init__", "__main__", "__version__"}
"""Modules of ``peer`` itself that every package may import, and the command: the drawing leaves them out."""


def package(name: str) -> str:
    """What a module is drawn as: its package in ``peer``, itself, ``losses`` or ``models``."""
    parts = name.split(".")
    return parts[0] if parts[0] != "peer" else (parts[1] if len(parts) > 1 else "__init__")


def arrows(edges: list[tuple[Any, str, int]]) -> dict[str, set[str]]:
    """Package -> the packages that it imports."""
    targets_of: dict[str, set[str]] = {}
    for module, target, _ in edges:
        own = package(module.name)
        targets_of.setdefault(own, set()).update(
            {package(target)} - {own, *GROUND} if target.split(".")[0] in OURS else ()
        )
    return {name: targets for name, targets in targets_of.items() if name not in GROUND}


def reduce(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that a longer way replaces (its transitive reduction)."""

    def reachable(name: str) -> set[str]:
        return {far for near in graph.get(name, ()) for far in (near, *reachable(near))}

    return {
        name: {target for target in targets if not any(target in reachable(other) for other in targets - {target})}
        for name, targets in graph.items()
    }


def test_the_drawing_has_the_arrows_of_the_imports(root: Path, edges: list[tuple[Any, str, int]]) -> None:
    flowchart = FLOWCHART.search((root / "peer" / "README.md").read_text())
    assert flowchart, "peer/README.md has no flowchart of the packages"
    graph = reduce(arrows(edges))
    expected = [f"    {name} --> {' & '.join(sorted(targets))}" for name, targets in sorted(graph.items()) if targets]
    assert flowchart.group(1).splitlines() == expected, "it should have\n" + "\n".join(expected)


def test_an_arrow_that_another_way_replaces_is_left_out() -> None:
    assert reduce({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
