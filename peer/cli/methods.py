"""``mhfl-peer methods``: the artifact, stages and parameters of each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from peer.cli import output, shared_options
from peer.core.plan import Plan
from peer.documents.commands import MethodDescription, ParameterDescription
from peer.errors import UsageError
from peer.methods.registry import PLANS, find_plan, installed_methods
from peer.site.config.toml import suggestion

STEPS = {
    "all_to_all": "to all",
    "permutation": "to one",
    "circulate": "passed on",
    "visit": "there and back",
    "none": "nothing",
}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output.json_option
@shared_options
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List the methods; with a NAME, show its stages and parameters as federation.toml takes them.

    \b
    mhfl-peer methods
    mhfl-peer methods dflmoe
    """
    packages: dict[str, str | None] = {**dict.fromkeys(PLANS), **dict(installed_methods())}
    for name in names:
        if name not in packages:
            raise UsageError(f"no method {name!r}{suggestion(name, packages)}", "`mhfl-peer methods` lists them")
    document = [_describe(name, packages[name]) for name in names or packages]
    output.emit(document, as_json=as_json, render=_render_details if names else _render_list)


def _describe(name: str, package: str | None) -> MethodDescription:
    plan = find_plan(name, package)
    description: MethodDescription = {
        "name": name,
        "source": plan.source,
        "pattern": plan.pattern,
        "artifact": plan.artifact,
        "state": plan.state,
        "never_leaves": list(plan.never_leaves),
        "noised": _describe_noise(plan),
        "phases": list(plan.phases),
        "last_round": list(plan.last_round),
        "shared_model": plan.shared,
        "stages": {
            stage: {
                "unit": work.unit,
                "count": work.count,
                "learning_rate": work.learning_rate,
                "weight_decay": work.weight_decay,
                "final_rate": plan.final_rates.get(stage, 1.0),
            }
            for stage, work in plan.stages.items()
        },
        "parameters": {
            key: cast(ParameterDescription, dataclasses.asdict(parameter)) for key, parameter in plan.parameters.items()
        },
    }
    if package is not None:
        description["package"] = package
    return description


def _describe_noise(plan: Plan) -> str:
    """Say what trains with noise in a private federation, with the method's parameters at their defaults."""
    if (problem := plan.noise_problem(plan.defaults())) is not None:
        return f"no: {problem}"
    return f"also private parts: {', '.join(plan.noised_at_home)}" if plan.noised_at_home else "only what is sent"


def _render_list(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    rows = [
        (
            method["name"],
            f"{method['artifact']}, {STEPS[method['pattern']]}" if method["artifact"] else "nothing",
            " → ".join(method["phases"]) + "".join(f", at last {phase}" for phase in method["last_round"]),
            method["noised"],
            method["source"],
        )
        for method in document
    ]
    return output.table(("method", "sends", "a round", "trains with noise", "source"), rows)


def _render_details(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    from rich.console import Group

    parts: list[output.RenderableType] = []
    for method in document:
        facts = [(key, ", ".join(value) if isinstance(value, list) else value) for key, value in method.items()]
        parts.append(output.fields([fact for fact in facts if not isinstance(fact[1], dict)]))
        stages = [(stage, *work.values()) for stage, work in method["stages"].items()]
        heads = ("stage", "unit", "count", "learning rate", "weight decay", "left of the rate at the end")
        parts.append(output.table(heads, stages))
        rows = [
            (key, _format_value(parameter["default"]), _format_bounds(parameter), parameter["meaning"])
            for key, parameter in method["parameters"].items()
        ]
        if rows:
            parts.append(output.table(("parameter", "default", "values", "meaning"), rows))
    return Group(*parts)


def _format_value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _format_bounds(parameter: Mapping[str, Any]) -> str:
    if isinstance(parameter["default"], bool):
        return "true or false"
    if parameter["choices"] is not None:
        return ", ".join(map(str, parameter["choices"]))
    least, most = parameter["minimum"], parameter["maximum"]
    return f"{least:g} to {most:g}" if most is not None else f"from {least:g}" if least is not None else ""
