"""``mhfl-peer models``: the networks, and the cost of each at a task."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from models.spec import CHOICES, HYPER, OF_ROWS, ONE_DIMENSIONAL, suggestion
from peer.cli import output, rendering, shared_options
from peer.cli.layers import SIDE, describe_layers, render_layers
from peer.core.tasks import CLASSIFYING, KINDS
from peer.documents.models import ModelDescription, ModelLayers, ModelList
from peer.errors import UsageError
from peer.site.config.monai_bundle import is_bundle, read_bundle

FAMILIES = {
    kind: CLASSIFYING - {"tabular"} if kind in CLASSIFYING - {"tabular"} else frozenset({kind}) for kind in KINDS
}
"""Task kind -> fitting families; those of images and of time series differ only in dimensions."""
WIDTHS = {
    "densenet50": 24,
    "mobilenet_v1": 16,
    "mobilenet_v2": 32,
    "shufflenet_v2": 48,
    "squeezenet": 16,
    "dynunet": 32,
    "tcn": 32,
    "transformer": 32,
    "rnn": 32,
    "mlp": 32,
    "tabular_resnet": 32,
    "ft_transformer": 32,
}
DEFAULTS = {
    "width": 64, "stem_stride": None, "max_pool": True, "depth": 4, "scale": 4, "side": None, "projection": None,
    "norm": "batch",
}  # fmt: skip
"""The other defaults of the constructors, copied because reading them would import torch."""
DIFFERS = {
    "resnext14": "its first 1x1 convolutions are not grouped, as its own paper has them; MH-pFLID groups them. "
    "That paper's table 5 prints 7.930 M values for a client with all its modules; with this network it has 9.275 M",
    "vgg19": "it has one linear layer after the mean. MH-pFLID's client has VGG's classifier, which is 18.9 M of the "
    "40.045 M values in its table 5",
    "fcn8s": "it is without the 119 M parameters of VGG's fully connected layers",
    "srresnet18": "dFLMoE's table 8 prints 0.001 M parameters for the head, which has 0.0156 M here",
}
"""Network -> why its number of parameters differs from the one a paper prints."""
COSTS = (
    "parameters", "state_values", "multiply_accumulates", "prediction", "taps", "bottleneck", "penultimate", "bytes",
)  # fmt: skip
"""Keys of a network's cost; null if the network does not fit the task."""
MODELS_REMEDY = "`mhfl-peer models` lists all; `--layers PACKAGE.MODULE:CLASS` describes one of an installed package"
SIZE = re.compile(r"[1-9][0-9]*([x,][1-9][0-9]*)*")


@click.command(short_help="List the networks, their costs at a task, or the layers of any network.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--task", type=click.Choice(tuple(FAMILIES)), help="Show what each network of this task would cost.")
@click.option("--spatial-dims", type=click.IntRange(1, 3), help="Dimensions of the input.")
@click.option("--in-channels", type=click.IntRange(1), help="Channels of the input.")
@click.option("--classes", type=click.IntRange(1), help="Classes, or channels of the image for super-resolution.")
@click.option("--input-size", metavar="SIZE", help="Sides of the input, as 224x224; adds operations and shapes.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a hyper-parameter; may be repeated.")
@click.option("--layers", metavar="NETWORK", help="Show this network's layers, and propose features and head.")
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
    layers: str | None,
    as_json: bool,
) -> None:
    """List the networks; with --task, show also parameters, operations, shapes and bytes of each;
    with --layers, the layers of one network: one of these, monai.networks.nets.NAME, module:Class
    or the folder of a MONAI bundle.

    \b
    mhfl-peer models
    mhfl-peer models --task classification --spatial-dims 2 --in-channels 3 --classes 8 resnet10
    mhfl-peer models --layers monai.networks.nets.DenseNet121 --input-size 224x224 --in-channels 3
    """
    sizes = {"spatial_dims": spatial_dims, "in_channels": in_channels, "classes": classes}
    if layers is not None:
        if names or task:
            raise UsageError("--layers takes one network alone", "leave out --task and the other names")
        output.emit(_layers(layers, sizes, input_size, settings), as_json=as_json, render=render_layers)
        return
    for name in names:
        if name not in HYPER:
            raise UsageError(f"unknown model {name!r}{suggestion(name, HYPER)}", MODELS_REMEDY)
    if task is None:
        if input_size or settings or any(sizes.values()):
            raise UsageError("what a network costs depends on the task", "add --task")
        rows, sized_task, space = [describe_network(name) for name in names or HYPER], None, None
    else:
        sized_task = _check_task(task, sizes)
        networks = names or tuple(name for name in HYPER if family(name) in FAMILIES[task])
        space = None if input_size is None else _parse_size(input_size, sized_task["spatial_dims"])
        hyper = _parse_settings(settings, networks)
        rows = [compute_cost(name, sized_task, space, hyper) for name in networks]
    document: ModelList = {"task": sized_task, "input_size": space, "models": rows}
    output.emit(document, as_json=as_json, render=_render_costs if task else _render_list)


def _layers(name: str, sizes: Mapping[str, int | None], input_size: str | None, settings: Sequence[str]) -> ModelLayers:
    """Describe the layers of the network of ``--layers``, at the sizes of the options, a bundle or the defaults."""
    bundle = read_bundle(Path(name)) if is_bundle(Path(name)) else None
    if bundle is not None:
        sizes = {key: bundle.sizes.get(key) if size is None else size for key, size in sizes.items()}
    dims = sizes["spatial_dims"]
    if input_size is None:
        if dims is None:
            raise UsageError("--layers lacks --input-size", "give the sides that [data] input_size has, as 224x224")
        space = [SIDE] * dims
    else:
        space = _parse_size(input_size, dims)
    hyper = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        try:
            hyper[key] = json.loads(text)
        except ValueError:
            hyper[key] = text  # MONAI's names of blocks and norms are plain strings
    channels, classes = sizes["in_channels"] or 1, sizes["classes"] or 2
    return describe_layers(name, space, in_channels=channels, classes=classes, hyper=hyper, bundle=bundle)


def family(name: str) -> str:
    """Return the task that a network of ``models.MODELS`` is for."""
    if name.startswith("messenger_"):
        return name.removeprefix("messenger_")
    if name in ONE_DIMENSIONAL:
        return "tabular" if name in OF_ROWS else "time_series"
    if "scale" in HYPER[name]:
        return "super_resolution"
    return "classification" if "projection" in HYPER[name] else "segmentation"


def describe_network(name: str) -> ModelDescription:
    """Describe a network's task, dimensions and default hyper-parameters without importing torch."""
    defaults = DEFAULTS | ({"width": WIDTHS[name]} if name in WIDTHS else {})
    return {
        "name": name,
        "family": family(name),
        "spatial_dims": [1] if name in ONE_DIMENSIONAL else [1, 2, 3],
        "hyper": {key: value for key, value in defaults.items() if key in HYPER[name]},
        "differs": DIFFERS.get(name, ""),
    }


def compute_cost(
    name: str, task: Mapping[str, Any], input_size: Sequence[int] | None, hyper: Mapping[str, Any]
) -> ModelDescription:
    """Describe a network with its cost at a task; ``problem`` says why a network does not fit."""
    from models.footprint import describe

    row = describe_network(name)
    unknown = dict.fromkeys(COSTS)
    if family(name) not in FAMILIES[task["kind"]]:
        return cast(ModelDescription, {**row, "problem": f"{name} is for {family(name)}", **unknown})
    spec = {key: value for key, value in task.items() if key != "kind"} | {"name": name, "hyper": hyper}
    try:
        footprint = describe(spec, input_size)
    except ValueError as error:
        problem = str(error).removeprefix(f"model spec {name!r}: ")
        return cast(ModelDescription, {**row, "problem": problem, **unknown})
    costs = {key: footprint[key] for key in COSTS}
    return cast(ModelDescription, {**row, "hyper": row["hyper"] | footprint["spec"]["hyper"], "problem": None, **costs})


def _check_task(task: str, sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the task with its sizes; raise ``UsageError`` if a size is missing or not allowed."""
    missing = [f"--{key.replace('_', '-')}" for key, value in sizes.items() if value is None]
    if missing:
        raise UsageError(
            f"--task {task} lacks {', '.join(missing)}", "give the sizes of the networks' input and output"
        )
    if task == "time_series" and sizes["spatial_dims"] != 1:
        raise UsageError(f"--spatial-dims {sizes['spatial_dims']}: a time series has 1")
    if task == "tabular" and sizes["spatial_dims"] != 1:
        raise UsageError(f"--spatial-dims {sizes['spatial_dims']}: the row of a table has 1")
    if task != "super_resolution" and sizes["classes"] == 1:
        raise UsageError(f"--classes 1: {task} needs at least 2")
    return {"kind": task, **sizes}


def _parse_size(text: str, dims: int | None) -> list[int]:
    if not SIZE.fullmatch(text):
        raise UsageError(f"--input-size {text!r} is no size", "write the sides as 224x224 or 224,224")
    space = [int(side) for side in re.split("[x,]", text)]
    if dims is not None and len(space) != dims:
        raise UsageError(f"--input-size {text} has {len(space)} sides for --spatial-dims {dims}")
    return space


def _parse_settings(settings: Iterable[str], names: Sequence[str]) -> dict[str, Any]:
    """Parse the hyper-parameters of ``--set``; raise ``UsageError`` for one that none of these networks has."""
    known = {key for name in names for key in HYPER[name]}
    hyper = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in known:
            raise UsageError(f"--set {setting}: no hyper-parameter {key!r} here{suggestion(key, known)}")
        try:
            hyper[key] = json.loads(text)
        except ValueError:
            if text not in CHOICES.get(key, ()):
                raise UsageError(
                    f"--set {setting}: {text!r} is no value",
                    "write a number, true, false or null, as in width=32; of norm, batch or group",
                ) from None
            hyper[key] = text
    return hyper


def _render_list(document: Mapping[str, Any]) -> output.RenderableType:
    rows = [
        (row["name"], row["family"], _format_dims(row["spatial_dims"]), _format_hyper(row["hyper"]))
        for row in document["models"]
    ]
    return output.table(("network", "task", "dimensions", "hyper-parameters"), rows)


def _render_costs(document: Mapping[str, Any]) -> output.RenderableType:
    """Render one row per network; columns of operations and shapes appear only with ``--input-size``."""
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
        rows.append((row["name"], *numbers, *sizes, *(_format_shapes(row) if sized else ("",))))
    from rich.console import Group

    differs = [(row["name"], row["differs"]) for row in document["models"] if row["differs"]]
    table = output.table(columns, rows)
    return Group(table, output.table(("network", "its parameters, and a paper's"), differs)) if differs else table


def _format_shapes(row: Mapping[str, Any]) -> tuple[str, ...]:
    operations = f"{row['multiply_accumulates'] / 1e6:,.1f} M"
    taps = "  ".join(map(_format_shape, row["taps"]))
    return operations, _format_shape(row["bottleneck"]), _format_shape(row["penultimate"]), taps


def _format_dims(dims: Sequence[int]) -> str:
    return ", ".join(f"{dim}-D" for dim in dims)


def _format_hyper(hyper: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in hyper.items())


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
