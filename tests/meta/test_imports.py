"""Imports point one way, are of declared packages, and load no torch in the command line."""

import graphlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

WINGS = {
    "lab": "advice datasets demo partition report statistics",
    "net": "relay transport",
    "site": "config identity membership records sums",
    "train": "data inference",
    "view": "dashboard preflight tracking",
}
"""Wing of ``peer`` -> its packages, each a layer of its own."""
# Module or package -> its layer; the longest name that fits counts. "peer" are the modules beside
# the packages.
LAYER = {
    **{f"peer.{name}": name for name in ("audit", "cli", "core", "daemon", "documents", "methods", "pb")},
    **{f"peer.{wing}": "ground" for wing in WINGS},
    **{f"peer.{wing}.{name}": name for wing, names in WINGS.items() for name in names.split()},
    "losses": "losses",
    "models": "models",
    "models.spec": "spec",
    "peer": "ground",
    "peer.__main__": "cli",
    "peer.api": "notebook",
    "peer.lab.experiments": "experiments",
    "peer.lab.experiments.cross_site": "simulation",
    "peer.lab.experiments.collect": "simulation",
    "peer.lab.experiments.diagnosis": "simulation",
    "peer.lab.experiments.simulated_network": "simulation",
    "peer.lab.experiments.insider": "simulation",
    "peer.lab.experiments.simulation": "simulation",
    "peer.methods.parameters": "plans",
    "peer.privacy_budget": "budget",
    "peer.methods.registry": "plans",
    "peer.train": "training",
    "peer.train.data.importers": "data",
    "peer.train.inference.export": "inference",
    "peer.train.inference.model_state": "model-files",
    "peer.train.inference.release": "model-files",
}
SITE = "ground core documents config identity membership records sums transport"
OPERATION = f"{SITE} plans relay audit daemon data model-files"
"""The rooms below those that operators start from."""
# Layer -> the layers that it may import beside itself; a module's name allows this module alone.
MAY_IMPORT = {
    "losses": "",
    "spec": "",
    "models": "spec",
    "ground": "",
    "core": "",
    "documents": "ground core",
    "pb": "",
    "plans": "ground peer.core.plan spec",
    "budget": "ground core",
    "config": "ground budget core spec plans peer.site.identity.noise_key",
    "identity": "ground core config",
    "membership": "ground documents core config identity",
    "records": "ground documents core config identity membership",
    "sums": "ground core",
    "data": "ground documents core",
    "datasets": "ground core data",
    "transport": "ground core pb identity",
    "audit": SITE,
    "relay": "ground core config identity membership transport",
    "daemon": f"{SITE} budget relay audit",
    "model-files": "ground documents plans core config membership records spec transport",
    "preflight": f"{OPERATION} spec",
    "tracking": "ground core config records",
    "dashboard": f"{SITE} audit tracking",
    "methods": "peer.core.columns peer.core.plan peer.core.targets peer.core.tasks models losses",
    "training": "ground budget core config plans methods models spec losses "
    "peer.train.data.consistency peer.train.data.datalist peer.train.data.file_names peer.train.data.image_files "
    "peer.train.data.label_maps",
    "inference": "ground documents plans core config methods models spec training model-files data",
    "partition": "ground core config peer.train.data.copies peer.train.data.datalist peer.train.data.file_names",
    "statistics": "ground core",
    "report": "ground documents core statistics peer.lab.experiments.result_files",
    "advice": "ground documents core plans config report peer.lab.experiments.result_files",
    "experiments": "ground plans core config sums data datasets partition spec statistics",
    "simulation": "ground plans core config data methods models partition records experiments spec statistics training",
    "demo": f"{SITE} plans datasets experiments statistics report daemon data model-files",
    "notebook": "ground core config records transport model-files inference training",
    "cli": f"{OPERATION} dashboard preflight tracking advice datasets partition statistics report experiments demo "
    "spec models.footprint models.layers",
}
CORE_STDLIB = frozenset(
    "__future__ bisect collections dataclasses enum functools hashlib heapq hmac itertools json math operator re "  # noqa: SIM905
    "statistics string struct types typing unicodedata".split()
)
"""The modules that ``core`` may import: none reads a clock, draws a number, opens a file or waits.
"""

TENSORS = frozenset({"monai", "numpy", "torch"})
LIBRARIES: dict[str, frozenset[str]] = {
    "losses": TENSORS,
    "models": TENSORS,
    "spec": frozenset(),
    "core": frozenset(),
    "plans": frozenset(),
    "methods": TENSORS,
    "partition": frozenset({"numpy", "pydantic"}),
    "statistics": frozenset({"numpy", "scipy"}),
}
"""Layer -> the libraries that it may import; a layer that is not here may import all that
pyproject.toml declares.
"""

NEVER = {
    **dict.fromkeys(("ground", "config", "identity", "membership", "records"), frozenset({"grpc"})),
    **dict.fromkeys(("methods", "training", "inference", "simulation"), frozenset({"asyncio", "grpc"})),
}
WITH_TORCH = {"losses", "models", "methods", "training", "inference", "simulation", "notebook"}
TORCH_FREE = {*LAYER.values()} - WITH_TORCH
LOADS_TORCH_LATE = frozenset({"peer.api"})
"""Modules that load torch only when it is used, not when they are imported."""
COMES_WITH = {"ifaddr": "zeroconf", "markupsafe": "jinja2", "pydantic_core": "pydantic"}
OURS = frozenset({"losses", "models", "peer"})


def layer(name: str) -> str:
    """The layer of a module; a method's plan lies beside its stages, but belongs to a lower layer."""
    if name.startswith("peer.methods.") and name.endswith(".plan"):
        return "plans"
    return LAYER[max((key for key in LAYER if name == key or name.startswith(f"{key}.")), key=len)]


def test_the_table_names_every_package(modules: list[Any]) -> None:
    packages = {module.name for module in modules if module.path.name == "__init__.py"}
    packages -= {name for name in packages if name.startswith("peer.methods.")}  # one a method
    assert packages <= LAYER.keys(), "say in LAYER and MAY_IMPORT what the new package may import"


def test_packages_import_only_what_lies_below_them(edges: list[tuple[Any, str, int]]) -> None:
    wrong = [
        f"{module.where}:{line}: {own} must not import {target} ({layer(target)})"
        for module, target, line in edges
        if target.partition(".")[0] in OURS
        and layer(target) != (own := layer(module.name))
        and not {layer(target), target} & {*MAY_IMPORT[own].split()}
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
