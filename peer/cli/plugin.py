"""``mhfl-peer plugin``: begin a package of methods and networks, and check an installed one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from models.spec import INTERFACE
from peer.cli import output, shared_options
from peer.cli.help import deploy_path
from peer.documents.laboratory import PluginChecked, PluginCreated
from peer.errors import ConfigError, DiskError, StateError, UsageError
from peer.extras import require_extra

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@click.group(short_help="Begin a package of own methods and networks, or check one.")
@shared_options
def plugin() -> None:
    """Add methods, networks, data sets and metrics in a package of your own; `mhfl-peer help plugins`."""


@plugin.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Its folder  [default: ./NAME].")
@output.json_option
@shared_options
def new(name: str, out: Path | None, as_json: bool) -> None:
    """Write a package NAME with a method, a network, a data set, an experiment and a test.

    It works as it is: the method is FedPer, and the network has two convolutions. Replace them.

    \b
    mhfl-peer plugin new my-method
    pip install -e my-method
    mhfl-peer plugin check my-method
    mhfl-peer simulate my-method/experiment.toml --out runs
    """
    if NAME.fullmatch(name) is None or len(name) < 3:
        raise UsageError(f"{name!r} is no name of a package", "take lower-case letters, digits and single hyphens")
    folder = out or Path(name)
    if folder.exists() and any(folder.iterdir()):
        raise StateError(f"{folder} is not empty", "remove it, or name another folder with --out")
    example = deploy_path("examples/plugin")
    sources = sorted(path for path in example.rglob("*") if path.suffix in (".py", ".toml"))
    files = []
    try:
        for source in sources:
            path = Path(_renamed(str(source.relative_to(example)), name))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(_renamed(source.read_text("utf-8"), name), "utf-8")
            files.append(str(path))
    except OSError as error:
        raise DiskError(f"{folder} cannot be written: {error.strerror or error}") from error
    document: PluginCreated = {"folder": str(folder), "files": files}
    output.emit(document, as_json=as_json, render=_render_created)


def _renamed(text: str, name: str) -> str:
    """Replace the example's own names by those of the package."""
    module = name.replace("-", "_")
    for before, after in {
        "mhfl-example": name,
        "mhfl_example": module,
        "test_example": f"test_{module}",
        "two_convolutions": f"{module}_network",
        "FEDPER": module.upper(),
        "fedper": module,
        '\nshapes = "': f'\n{module}_shapes = "',
        'dataset = "shapes"': f'dataset = "{module}_shapes"',
        'name = "shapes"': f'name = "{name[:32].rstrip("-")}"',
    }.items():
        text = text.replace(before, after)
    return text


def _render_created(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.text import Text

    folder = document["folder"]
    steps = (f"pip install -e {folder}", f"mhfl-peer plugin check {Path(folder).name}")
    return Text("\n".join([f"{folder}: {', '.join(document['files'])}", "Next:", *(f"  {step}" for step in steps)]))


@plugin.command()
@click.argument("package")
@output.json_option
@shared_options
def check(package: str, as_json: bool) -> None:
    """Check the installed PACKAGE, by its name or that of its module, part by part.

    Every method and network is trained for two rounds at two simulated sites, and every metric
    computes a value, on random numbers.

    \b
    mhfl-peer plugin check my-method
    """
    require_extra("research", "`plugin check`")
    from peer.lab.experiments.plugin_check import check_package, find_distribution

    distribution = find_distribution(package)
    with tempfile.TemporaryDirectory(prefix="mhfl-plugin-") as folder:
        parts = list(check_package(distribution, Path(folder)))
    document: PluginChecked = {
        "package": f"{distribution.name}=={distribution.version}",
        "interface": INTERFACE,
        "parts": [
            {"kind": part.kind, "name": part.name, "trial": part.trial, "problem": part.problem} for part in parts
        ],
    }
    output.emit(document, as_json=as_json, render=_render_checked)
    wrong = [part for part in parts if part.problem is not None]
    if wrong:
        raise ConfigError(
            f"{len(wrong)} of {len(parts)} parts of {package} are wrong; {wrong[0].kind} {wrong[0].name}: "
            f"{wrong[0].problem}",
            "correct them and check again; `mhfl-peer help plugins` has the rules",
        )


def _render_checked(document: Mapping[str, Any]) -> output.RenderableType:
    rows = [(part["kind"], part["name"], part["trial"], part["problem"] or "right") for part in document["parts"]]
    return output.table(("part", "name", "tried", "result"), rows, title=document["package"])
