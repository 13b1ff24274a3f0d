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

# Which layer a module belongs to: the longest name that fits. "peer" are the modules beside the sub-packages.
LAYER = {
    "losses": "losses",
    "models": "models",
    "models.spec": "spec",
    "peer": "ground",
    "peer.core": "core",
    "peer.pb": "pb",
    "peer.transport": "transport",
    "peer.daemon.dispatch": "daemon",
    "peer.daemon.heartbeat": "daemon",
    "peer.daemon.fetcher": "daemon",
    "peer.daemon.service": "daemon",
    "peer.daemon.worker_process": "daemon",
    "peer.audit.verification": "operation",
    "peer.audit.folder_check": "operation",
    "peer.daemon.operator_service": "operation",
    "peer.demo.run": "operation",
    "peer.audit.evidence_files": "operation",
    "peer.daemon.metrics": "operation",
    "peer.daemon.startup": "operation",
    "peer.demo.local_federation": "operation",
    "peer.daemon.metrics_server": "operation",
    "peer.preflight": "operation",
    "peer.records": "ground",
    "peer.inference.release": "operation",
    "peer.data.adapters": "datasets",
    "peer.cli": "cli",
    "peer.api": "notebook",
    "peer.methods": "methods",
    "peer.training": "training",
    "peer.inference.export": "training",
    "peer.research.statistics": "evaluation",
    "peer.research.statistics.bootstrap": "statistics",
    "peer.research.statistics.fairness": "statistics",
    "peer.research.statistics.scores": "statistics",
    "peer.research.statistics.significance": "statistics",
    "peer.research.statistics.tables": "statistics",
    "peer.research.partition": "partition",
    "peer.research.report": "report",
    "peer.research": "simulation",
    "peer.research.experiment": "experiment",
    "peer.research.pool": "experiment",
    "peer.research.runs": "experiment",
    "peer.research.sweep": "experiment",
}
# What a layer may import of this repository beside itself; single modules where it is not the whole layer.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "losses": frozenset(),
    "spec": frozenset(),
    "models": frozenset({"spec"}),
    "core": frozenset(),
    "pb": frozenset(),
    "ground": frozenset({"core", "spec"}),
    "transport": frozenset({"core", "pb", "spec", "peer.errors", "peer.identity.certificates"}),
    "daemon": frozenset({"core", "spec", "ground", "transport"}),
    "operation": frozenset({"core", "spec", "ground", "transport", "daemon", "datasets"}),
    "datasets": frozenset({"core", "ground"}),
    "cli": frozenset(
        {"core", "ground", "transport", "daemon", "operation", "datasets", "evaluation", "spec", "models.footprint"}
        | {"partition", "statistics", "experiment", "report"}
    ),
    "notebook": frozenset({"core", "ground", "transport", "operation", "training"}),
    "methods": frozenset({"peer.core.plan", "models", "losses"}),
    "training": frozenset({"core", "methods", "models", "spec", "losses", "peer.data.datalist"}),
    "evaluation": frozenset(
        {"core", "ground", "datasets", "training", "methods", "models", "spec", "losses", "partition", "statistics"}
    ),
    "partition": frozenset({"peer.data.datalist", "peer.errors", "peer.config.toml", "peer.core.seeds"}),
    "statistics": frozenset({"peer.core.seeds"}),
    "report": frozenset({"statistics", "peer", "peer.documents", "peer.errors"}),
    "experiment": frozenset({"core", "ground", "datasets", "partition", "spec"}),
    "simulation": frozenset({"core", "ground", "experiment", "training", "methods", "models"}),
}
CORE_STDLIB = frozenset(
    "__future__ bisect collections dataclasses enum functools hashlib heapq hmac itertools json math operator re "  # noqa: SIM905
    "statistics string struct types typing".split()
)
"""Nothing that reads a clock, draws a number, opens a file or waits."""

TENSORS = frozenset({"monai", "numpy", "torch"})
LIBRARIES: dict[str, frozenset[str]] = {
    "losses": TENSORS,
    "models": TENSORS,
    "spec": frozenset(),
    "core": frozenset(),
    "methods": TENSORS,
    "partition": frozenset({"numpy", "pydantic"}),
    "statistics": frozenset({"numpy"}),
}
"""The libraries that a layer may import; one that is not here may import what pyproject.toml declares."""

NEVER: dict[str, frozenset[str]] = {
    "ground": frozenset({"grpc"}),
    "methods": frozenset({"asyncio", "grpc"}),
    "training": frozenset({"asyncio", "grpc"}),
    "evaluation": frozenset({"grpc"}),
    "simulation": frozenset({"asyncio", "grpc"}),
}
TORCH_FREE = frozenset(
    {
        "spec",
        "core",
        "pb",
        "ground",
        "transport",
        "daemon",
        "operation",
        "datasets",
        "partition",
        "statistics",
        "report",
        "experiment",
    }
    | {"cli"}
)
LOADS_TORCH_LATE = frozenset({"peer.api"})
"""Modules that use torch, but not to be imported."""
COMES_WITH = {"ifaddr": "zeroconf", "pydantic_core": "pydantic"}
OURS = frozenset({"losses", "models", "peer"})


def layer(name: str) -> str:
    """The layer that a module belongs to."""
    return LAYER[max((key for key in LAYER if name == key or name.startswith(f"{key}.")), key=len)]


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
    assert packages <= LAYER.keys(), "say in LAYER and MAY_IMPORT what the new package may import"


def test_packages_import_only_what_lies_below_them(edges: list[tuple[Any, str, int]]) -> None:
    wrong = [
        f"{module.where}:{line}: {own} must not import {target} ({layer(target)})"
        for module, target, line in edges
        if target.partition(".")[0] in OURS
        and layer(target) != (own := layer(module.name))
        and not {layer(target), target} & MAY_IMPORT[own]
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_import_only_their_libraries(edges: list[tuple[Any, str, int]]) -> None:
    wrong = []
    for module, target, line in edges:
        own, top = layer(module.name), target.partition(".")[0]
        if top in OURS:
            continue
        if top in sys.stdlib_module_names:
            refused = own == "core" and top not in CORE_STDLIB
        else:
            refused = own in LIBRARIES and top not in LIBRARIES[own]
        if refused or top in NEVER.get(own, ()) or (own in TORCH_FREE and top in ("torch", "monai")):
            wrong.append(f"{module.where}:{line}: {own} must not import {target}")
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
    requirements = list(project["dependencies"])
    for extra in ("data", "research", "export", "scalars"):
        requirements += project["optional-dependencies"][extra]
    declared = {requirement.partition(">")[0].lower().replace("_", "-") for requirement in requirements}
    providers = importlib.metadata.packages_distributions()
    undeclared = set()
    for module, target, _ in edges:
        top = target.partition(".")[0]
        owners = {owner.lower().replace("_", "-") for owner in providers.get(COMES_WITH.get(top, top), [top])}
        if top not in sys.stdlib_module_names | OURS and not owners & declared:
            undeclared.add(f"{module.where} imports {top}, which pyproject.toml does not declare")
    assert not undeclared, "\n".join(sorted(undeclared))


def test_the_command_line_and_the_daemon_load_no_torch(root: Path, modules: list[Any]) -> None:
    free = [module.name for module in modules if layer(module.name) in TORCH_FREE and module.path.stem != "__main__"]
    names = [*free, *LOADS_TORCH_LATE]
    assert {"peer.cli", "peer.daemon.dispatch"} <= set(names)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    loaded = {'torch', 'monai'} & sys.modules.keys()\n"
        "    sys.exit(f'{name} loads {loaded}') if loaded else None\n"
    )
    finished = subprocess.run([sys.executable, "-c", program, *names], cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
