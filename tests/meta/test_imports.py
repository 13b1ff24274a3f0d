"""Imports point one way, without a cycle, to declared packages; and the command line does without torch."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

# What a package may import of this repository beside itself. The longest name that fits a module counts; "peer" are
# the modules beside the sub-packages (config, identity, journal, …), "peer.daemon" the switchboard and its parts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "losses": (),
    "models": (),
    "peer.core": (),
    "peer.pb": (),
    "peer": ("peer.core", "models.spec"),
    "peer.transport": ("peer.core", "peer.pb", "peer.errors", "peer.identity", "models.spec"),
    "peer.daemon": ("peer", "peer.core", "peer.transport", "models.spec"),
    "peer.datasets": ("peer", "peer.core"),
    "peer.cli": ("peer", "peer.core", "peer.pb", "peer.transport", "peer.daemon", "peer.datasets", "peer.evaluation"),
    "peer.methods": ("peer.core.plan", "models", "losses"),
    "peer.training": ("peer.methods", "peer.core", "peer.datalist", "models", "losses"),
    "peer.evaluation": ("peer", "peer.core", "peer.datasets", "peer.methods", "peer.training", "models", "losses"),
}
CORE_STDLIB = frozenset(
    "__future__ abc bisect collections dataclasses enum functools hashlib heapq hmac itertools json math operator re "
    "statistics string struct types typing".split()
)
TENSORS = frozenset({"monai", "numpy", "torch"})
OUTSIDE: dict[str, frozenset[str]] = {
    "losses": TENSORS,
    "models": TENSORS,
    "peer.core": frozenset(),
    "peer.methods": TENSORS,
}
"""The packages of others that a package may import; one that is not here may import what pyproject.toml declares."""

NEVER: dict[str, frozenset[str]] = {
    "peer": frozenset({"torch", "monai", "grpc"}),
    "peer.transport": frozenset({"torch", "monai"}),
    "peer.daemon": frozenset({"torch", "monai"}),
    "peer.cli": frozenset({"torch", "monai"}),
    "peer.methods": frozenset({"grpc", "asyncio"}),
    "peer.training": frozenset({"grpc", "asyncio"}),
    "peer.evaluation": frozenset({"grpc"}),
}
TORCH_FREE = ("peer", "peer.core", "peer.pb", "peer.transport", "peer.daemon", "peer.cli", "peer.datasets")
EVERYWHERE = frozenset({"losses", "models", "peer"})


def layer(name: str) -> str:
    """The package of the table that a module belongs to."""
    return max((key for key in MAY_IMPORT if name == key or name.startswith(f"{key}.")), key=len)


def imported(tree: ast.Module, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each module that the source imports anywhere, also inside functions, with its line; ``from a import b`` is
    ``a.b`` where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides where it points"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if name in known else str(node.module)), node.lineno


@pytest.fixture(scope="module")
def edges(modules: list[Any]) -> list[tuple[Any, str, int]]:
    """(module, what it imports, line)."""
    names = {module.name for module in modules} | {"peer.pb.peer_pb2", "peer.pb.peer_pb2_grpc"}
    return [(module, target, line) for module in modules for target, line in imported(module.tree, names)]


def test_the_table_names_every_package(modules: list[Any]) -> None:
    packages = {module.name for module in modules if module.path.name == "__init__.py"}
    assert packages <= MAY_IMPORT.keys(), "say in MAY_IMPORT what the new package may import"


def test_packages_import_only_what_lies_below_them(edges: list[tuple[Any, str, int]]) -> None:
    def allowed(importer: str, target: str) -> bool:
        own = layer(importer)
        return layer(target) == own or any(
            target == name or layer(target) == name or (name not in MAY_IMPORT and target.startswith(f"{name}."))
            for name in MAY_IMPORT[own]
        )

    wrong = [
        f"{module.where}:{line}: {layer(module.name)} must not import {target}"
        for module, target, line in edges
        if target.partition(".")[0] in EVERYWHERE and not allowed(module.name, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_import_only_their_libraries(edges: list[tuple[Any, str, int]]) -> None:
    wrong = []
    for module, target, line in edges:
        own, top = layer(module.name), target.partition(".")[0]
        if top in EVERYWHERE:
            continue
        if own == "peer.core" and top in sys.stdlib_module_names:
            wrong += [] if top in CORE_STDLIB else [f"{module.where}:{line}: core must not import {target}"]
        elif own in OUTSIDE and top not in sys.stdlib_module_names and top not in OUTSIDE[own]:
            wrong.append(f"{module.where}:{line}: {own} must not import {target}")
        if top in NEVER.get(own, ()):
            wrong.append(f"{module.where}:{line}: {own} must never import {target}")
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle(modules: list[Any], edges: list[tuple[Any, str, int]]) -> None:
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module, target, _ in edges:
        if target in names and target != module.name:
            graph[module.name].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


def test_every_library_is_declared(root: Path, edges: list[tuple[Any, str, int]]) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["data"]
    declared = {requirement.partition(">")[0].lower().replace("_", "-") for requirement in requirements}
    providers = importlib.metadata.packages_distributions()
    undeclared = set()
    for module, target, _ in edges:
        top = target.partition(".")[0]
        owners = {owner.lower().replace("_", "-") for owner in providers.get(top, [top])}
        if top not in sys.stdlib_module_names | EVERYWHERE and not owners & declared:
            undeclared.add(f"{module.where} imports {top}, which pyproject.toml does not declare")
    assert not undeclared, "\n".join(sorted(undeclared))


def test_the_command_line_and_the_daemon_load_no_torch(root: Path, modules: list[Any]) -> None:
    names = [module.name for module in modules if layer(module.name) in TORCH_FREE]
    assert {"peer.cli", "peer.daemon"} <= set(names)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    loaded = {'torch', 'monai'} & sys.modules.keys()\n"
        "    sys.exit(f'{name} loads {loaded}') if loaded else None\n"
    )
    finished = subprocess.run([sys.executable, "-c", program, *names], cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
