"""``mhfl-peer models``: the networks that there are, and what each of them would cost at a task."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from models.spec import HYPER, ONE_DIMENSIONAL, suggestion
from peer.cli import output, rendering, shared_options
from peer.core.tasks import CLASSIFYING, METRICS
from peer.documents import ModelDescription, ModelList
from peer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

SERVING = {kind: CLASSIFYING if kind in CLASSIFYING else frozenset({kind}) for kind in METRICS}
"""The families of networks that a task can be learnt with; those of classifying tasks differ in dimensions only."""
WIDTHS = {
    "densenet50": 24,
    "mobilenet_v1": 16,
    "mobilenet_v2": 32,
    "shufflenet_v2": 48,
    "squeezenet": 16,
    "tcn": 32,
    "transformer": 32,
    "rnn": 32,
}
DEFAULTS = {"width": 64, "stem_stride": None, "max_pool": True, "depth": 4, "scale": 4, "projection": None}
"""The constructors' defaults, but for the widths above: reading them there would take torch."""
SIZE = re.compile(r"[1-9][0-9]*([x,][1-9][0-9]*)*")


@click.command(short_help="The networks that there are, and what each would cost.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--task", type=click.Choice(tuple(SERVING)), help="Show what each network of this task would cost.")
@click.option("--spatial-dims", type=click.IntRange(1, 3), help="Dimensions of the input.")
@click.option("--in-channels", type=click.IntRange(1), help="Channels of the input.")
@click.option("--classes", type=click.IntRange(1), help="Classes, or channels of the image for super-resolution.")
@click.option("--input-size", metavar="SIZE", help="Sides of the input, as 224x224: adds operations and shapes.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A hyper-parameter; may be repeated.")
@output.json_option
@shared_options
def models(
    names: tuple[str, ...],
    task: str | None,
    spatial_dims: int | None,
    in_channels: int | None,
    classes: int | None,
    input_size: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """The networks that there are; with --task also parameters, operations, shapes and bytes of each.

    \b
    mhfl-peer models
    mhfl-peer models --task classification --spatial-dims 2 --in-channels 3 --classes 8 --input-size 224x224 resnet10
    """
    for name in names:
        if name not in HYPER:
            raise UsageError(f"unknown model {name!r}{suggestion(name, HYPER)}", "`mhfl-peer models` lists all")
    sizes = {"spatial_dims": spatial_dims, "in_channels": in_channels, "classes": classes}
    if task is None:
        if input_size or settings or any(sizes.values()):
            raise UsageError("what a network costs depends on the task", "add --task")
        rows, wanted, space = [listed(name) for name in names or HYPER], None, None
    else:
        wanted = _checked(task, sizes)
        chosen = names or tuple(name for name in HYPER if family(name) in SERVING[task])
        space = None if input_size is None else _space(input_size, wanted["spatial_dims"])
        hyper = _hyper(settings, chosen)
        rows = [costed(name, wanted, space, hyper) for name in chosen]
    document: ModelList = {"task": wanted, "input_size": space, "models": rows}
    output.emit(document, as_json=as_json, render=_costs if task else _list)


def family(name: str) -> str:
    """The task that a network of ``models.MODELS`` is for."""
    if name.startswith("messenger_"):
        return name.removeprefix("messenger_")
    if name in ONE_DIMENSIONAL:
        return "time_series"
    if "scale" in HYPER[name]:
        return "super_resolution"
    return "classification" if "projection" in HYPER[name] else "segmentation"


def listed(name: str) -> ModelDescription:
    """A network as it comes, without torch: its task, its dimensions, its hyper-parameters."""
    defaults = DEFAULTS | ({"width": WIDTHS[name]} if name in WIDTHS else {})
    return {
        "name": name,
        "family": family(name),
        "spatial_dims": [1] if name in ONE_DIMENSIONAL else [1, 2, 3],
        "hyper": {key: value for key, value in defaults.items() if key in HYPER[name]},
    }


def costed(
    name: str, task: Mapping[str, Any], input_size: Sequence[int] | None, hyper: Mapping[str, Any]
) -> ModelDescription:
    """A network at a task, or why it does not fit there: ``problem``; every figure is then None."""
    from models.footprint import describe

    row: ModelDescription = {
        **listed(name),
        "problem": None,
        "parameters": None,
        "state_values": None,
        "multiply_accumulates": None,
        "prediction": None,
        "taps": None,
        "bottleneck": None,
        "penultimate": None,
        "bytes": None,
    }
    if family(name) not in SERVING[task["kind"]]:
        row["problem"] = f"{name} is for {family(name)}"
        return row
    spec = {key: value for key, value in task.items() if key != "kind"} | {"name": name, "hyper": hyper}
    try:
        described = describe(spec, input_size)
    except ValueError as error:
        row["problem"] = str(error).removeprefix(f"model spec {name!r}: ")
        return row
    row["hyper"] = described["spec"]["hyper"]
    row["parameters"] = described["parameters"]
    row["state_values"] = described["state_values"]
    row["multiply_accumulates"] = described["multiply_accumulates"]
    row["prediction"] = described["prediction"]
    row["taps"] = described["taps"]
    row["bottleneck"] = described["bottleneck"]
    row["penultimate"] = described["penultimate"]
    row["bytes"] = described["bytes"]
    return row


def _checked(task: str, sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """The task with its sizes; ``UsageError`` names one that is missing or that the task cannot have."""
    missing = [f"--{key.replace('_', '-')}" for key, value in sizes.items() if value is None]
    if missing:
        raise UsageError(f"--task {task} lacks {', '.join(missing)}", "say what the networks are to take and give")
    if task == "time_series" and sizes["spatial_dims"] != 1:
        raise UsageError(f"--spatial-dims {sizes['spatial_dims']}: a time series has 1")
    if task != "super_resolution" and sizes["classes"] == 1:
        raise UsageError(f"--classes 1: {task} needs at least 2")
    return {"kind": task, **sizes}


def _space(text: str, dims: int) -> list[int]:
    if not SIZE.fullmatch(text):
        raise UsageError(f"--input-size {text!r} is no size", "write the sides as 224x224 or 224,224")
    space = [int(side) for side in re.split("[x,]", text)]
    if len(space) != dims:
        raise UsageError(f"--input-size {text} has {len(space)} sides for --spatial-dims {dims}")
    return space


def _hyper(settings: Iterable[str], names: Sequence[str]) -> dict[str, Any]:
    """The hyper-parameters that ``--set`` gives; one that none of these networks has is a slip."""
    known = {key for name in names for key in HYPER[name]}
    found = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in known:
            raise UsageError(f"--set {setting}: no hyper-parameter {key!r} here{suggestion(key, known)}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            raise UsageError(
                f"--set {setting}: {text!r} is no value", "write a number, true, false or null, as in width=32"
            ) from None
    return found


def _list(document: Mapping[str, Any]) -> RenderableType:
    rows = [(row["name"], row["family"], _dims(row["spatial_dims"]), _set(row["hyper"])) for row in document["models"]]
    return output.table(("network", "task", "dimensions", "hyper-parameters"), rows)


def _costs(document: Mapping[str, Any]) -> RenderableType:
    """A row a network; operations and shapes only where an input size was given."""
    sized = document["input_size"] is not None
    shapes = ("operations", "bottleneck", "penultimate", "taps, or why it does not fit")
    columns = (
        "network",
        "parameters",
        "state values",
        "whole",
        "head",
        *(shapes if sized else ("why it does not fit",)),
    )
    rows: list[Sequence[object]] = []
    for row in document["models"]:
        if row["problem"] is not None:
            rows.append((row["name"], *[None] * (len(columns) - 2), row["problem"]))
            continue
        numbers = (f"{row[key]:,}" for key in ("parameters", "state_values"))
        sizes = (rendering.size(row["bytes"][kind]) for kind in ("model", "head"))
        rows.append((row["name"], *numbers, *sizes, *(_shapes(row) if sized else ("",))))
    return output.table(columns, rows)


def _shapes(row: Mapping[str, Any]) -> tuple[str, ...]:
    operations = f"{row['multiply_accumulates'] / 1e6:,.1f} M"
    return operations, _shape(row["bottleneck"]), _shape(row["penultimate"]), "  ".join(map(_shape, row["taps"]))


def _dims(dims: Sequence[int]) -> str:
    return ", ".join(f"{dim}-D" for dim in dims)


def _set(hyper: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in hyper.items())


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
