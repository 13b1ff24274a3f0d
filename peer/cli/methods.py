"""``mhfl-peer methods``: what each method exchanges, in which stages it trains, and its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, shared_options
from peer.config.toml import suggestion
from peer.documents import MethodDescription
from peer.errors import UsageError
from peer.methods.registry import PLANS, find_plan, installed_methods

if TYPE_CHECKING:
    from rich.console import RenderableType

STEPS = {"all_to_all": "to all", "permutation": "to one", "circulate": "passed on", "none": "nothing"}


@click.command(short_help="The methods, their stages and parameters.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output.json_option
@shared_options
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """The methods, their stages and parameters, as `[method]` and `[stages]` of federation.toml take them.

    \b
    mhfl-peer methods
    mhfl-peer methods dflmoe
    """
    packages: dict[str, str | None] = {**dict.fromkeys(PLANS), **dict(installed_methods())}
    for name in names:
        if name not in packages:
            raise UsageError(f"no method {name!r}{suggestion(name, packages)}", "`mhfl-peer methods` lists them")
    document = [_described(name, packages[name]) for name in names or packages]
    output.emit(document, as_json=as_json, render=_one_by_one if names else _list)


def _described(name: str, package: str | None) -> MethodDescription:
    plan = find_plan(name, package)
    described: MethodDescription = {
        "name": name,
        "source": plan.source,
        "pattern": plan.pattern,
        "artifact": plan.artifact,
        "state": plan.state,
        "never_leaves": list(plan.never_leaves),
        "phases": list(plan.phases),
        "shared_model": plan.shared,
        "stages": {
            stage: {
                "unit": work.unit,
                "count": work.count,
                "learning_rate": work.learning_rate,
                "weight_decay": work.weight_decay,
            }
            for stage, work in plan.stages.items()
        },
        "parameters": {
            key: {
                "default": parameter.default,
                "meaning": parameter.meaning,
                "minimum": parameter.minimum,
                "maximum": parameter.maximum,
                "choices": parameter.choices,
            }
            for key, parameter in plan.parameters.items()
        },
    }
    if package is not None:
        described["package"] = package
    return described


def _list(document: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            method["name"],
            f"{method['artifact']}, {STEPS[method['pattern']]}" if method["artifact"] else "nothing",
            " → ".join(method["phases"]),
            method["source"],
        )
        for method in document
    ]
    return output.table(("method", "sends", "a round", "source"), rows)


def _one_by_one(document: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for method in document:
        facts = [(key, ", ".join(value) if isinstance(value, list) else value) for key, value in method.items()]
        parts.append(output.fields([fact for fact in facts if not isinstance(fact[1], dict)]))
        stages = [(stage, *work.values()) for stage, work in method["stages"].items()]
        parts.append(output.table(("stage", "unit", "count", "learning rate", "weight decay"), stages))
        rows = [(key, _value(known["default"]), _bounds(known), known["meaning"]) for key, known in _parameters(method)]
        if rows:
            parts.append(output.table(("parameter", "default", "values", "meaning"), rows))
    return Group(*parts)


def _parameters(method: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return list(method["parameters"].items())


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _bounds(known: Mapping[str, Any]) -> str:
    if isinstance(known["default"], bool):
        return "true or false"
    if known["choices"] is not None:
        return ", ".join(map(str, known["choices"]))
    least, most = known["minimum"], known["maximum"]
    return f"{least:g} to {most:g}" if most is not None else f"from {least:g}" if least is not None else ""
