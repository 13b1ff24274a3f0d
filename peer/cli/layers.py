"""``mhfl-peer models --layers``: the layers of one network, and the lines to paste into site.toml."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from models.spec import HYPER, installed_model
from peer.cli import output
from peer.documents.models import ModelLayers
from peer.errors import UsageError
from peer.extras import missing_package
from peer.site.config.monai_bundle import BundleNetwork

SIDE = 64
"""Default side of the input: five halvings leave two cells."""
LAYERS_SHOWN_MAX = 200
"""Maximum number of layers in a terminal; ``--json`` prints all."""


def describe_layers(
    name: str,
    input_size: Sequence[int],
    *,
    in_channels: int,
    classes: int,
    hyper: Mapping[str, Any],
    bundle: BundleNetwork | None,
) -> ModelLayers:
    """Return a network's layers with shapes, and proposed names; raise ``UsageError`` if the network cannot run.

    Args:
        bundle: the network of the MONAI bundle, if ``name`` is a bundle's folder.
    """
    from models.layers import MissingArgumentsError, list_layers

    weights, sha256 = None, None
    if bundle is not None:
        weights, sha256 = (name, bundle.weights_sha256) if bundle.weights_sha256 else (None, None)
        name, hyper = bundle.name, {**bundle.hyper, **hyper}
    try:
        report = list_layers(name, input_size, in_channels=in_channels, classes=classes, hyper=hyper)
    except MissingArgumentsError as error:
        examples = " ".join(f"--set {key}={_example(kind)}" for key, kind in error.arguments.items())
        problem = str(error).removesuffix(", in [model.parameters]")
        remedy = f"give them as in `{examples}`, with values of your own; [model.parameters] of site.toml has them too"
        raise UsageError(problem, remedy) from error
    except ImportError as error:
        raise missing_package(error, name) from error
    except ValueError as error:
        raise UsageError(str(error).removeprefix(f"model spec {name!r}: ")) from error
    own = name in HYPER or bool(installed_model(name))
    return {
        "name": name,
        "hyper": dict(hyper),
        "input_size": list(input_size),
        "own_taps": own,
        "features": list(report.features),
        "head": report.head,
        "problem": report.problem,
        "weights": weights,
        "weights_sha256": sha256,
        "layers": [
            {
                "name": layer.name,
                "type": layer.kind,
                "parameters": layer.parameters,
                "runs": layer.runs,
                "shape": list(layer.shape),
                "tap": layer.tap,
            }
            for layer in report.layers
        ],
    }


def _example(kind: str) -> str:
    """Return an example value of this type, as ``--set`` accepts it."""
    return "[2,4]" if re.search("sequence|list|tuple", kind, re.IGNORECASE) else "TEXT" if "str" in kind else "16"


def render_layers(document: Mapping[str, Any]) -> output.RenderableType:
    """Render a table of the layers, then the lines for site.toml."""
    from rich.console import Group
    from rich.text import Text

    proposed = dict.fromkeys(document["features"], "features") | {document["head"]: "head"}
    limit = LAYERS_SHOWN_MAX if sys.stdout.isatty() else len(document["layers"])
    shown = [row for row in document["layers"] if row["runs"]]
    rows = [
        (
            row["name"],
            row["type"],
            f"{row['parameters']:,}",
            "x".join(map(str, row["shape"])) or "-",
            proposed.get(row["name"], "" if row["tap"] else "not for features"),
        )
        for row in shown[:limit]
    ]
    parts: list[Any] = [output.table(("layer", "type", "parameters", "output", ""), rows)]
    if len(shown) > limit:
        parts.append(Text(f"{len(shown) - limit} more layers: --json lists all"))
    parts.append(Text(_advice(document)))
    return Group(*parts)


def _advice(document: Mapping[str, Any]) -> str:
    if document["own_taps"]:
        return f"{document['name']} has its own taps and head: site.toml needs neither features nor head"
    if document["head"] is None:
        return f"No head can be proposed: {document['problem']}"
    lines = ["Paste into site.toml:", "", *model_lines(document)]
    if not document["features"]:
        lines += ["", "No layer gives features on a grid; methods that compare features cannot use this network."]
    return "\n".join(lines)


def model_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of ``[model]`` for the described network."""
    lines = ["[model]", f"name = {json.dumps(document['name'])}"]
    if document["features"]:
        lines.append(f"features = {json.dumps(document['features'])}")
    if document["head"]:
        lines.append(f"head = {json.dumps(document['head'])}")
    if document["weights"]:
        lines.append(f"weights = {json.dumps(document['weights'])}")
        lines.append(f"weights_sha256 = {json.dumps(document['weights_sha256'])}")
    if document["hyper"]:
        lines += ["", "[model.parameters]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in document["hyper"].items()]
    return lines
