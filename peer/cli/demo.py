"""``mhfl-peer demo``: see it work before believing it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, rendering, shared_options
from peer.demo.presets import STUDIES, PresetSize, default_study, problem
from peer.errors import UsageError
from peer.methods.registry import PLANS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.demo.run import DemoProgress

WHO = ("site", "training", "test", "model", "sent")
SAMPLES = ("nodules", "cases", "slices", "patches")
"""What a data set calls its samples."""
METHODS = tuple(name for name in PLANS if name != "local")


@click.command(short_help="Real daemons on loopback with real data, one table at the end.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make  [default: mhfl-demo-<time>].")
@click.option(
    "--study",
    type=click.Choice(list(STUDIES)),
    help="What is learnt from what  [default: nodules; with another method than fedskd, nodules-families].",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("fedskd",),
    show_default=True,
    type=click.Choice(METHODS),
    help="Compared with `local`; more than one may be given.",
)
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Rounds of each federation.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1), help="Optimiser steps a round.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of data split and training.")
@click.option(
    "--gamma", default=100.0, show_default=True, type=click.FloatRange(0), help="Weight of FedSKD's distillation."
)
@click.option("--learning-rate", default=1e-3, show_default=True, type=float, help="Of all methods.")
@output.json_option
@shared_options
def demo(
    out: Path | None,
    study: str | None,
    methods: tuple[str, ...],
    rounds: int,
    steps: int,
    seed: int,
    gamma: float,
    learning_rate: float,
    as_json: bool,
) -> None:
    """Real daemons on loopback with real data, one table at the end.

    Federations run one after the other on the same data, seeds and steps: `local`, where nobody sends anything, and
    each method. Everything that is made stays in one folder.

    \b
    mhfl-peer demo
    mhfl-peer demo --study eeg-blink --method dflmoe --method mh_pflid
    """
    from peer.demo import run as demonstration

    study = study or default_study(methods)
    for method in methods:
        if (reason := problem(study, method)) is not None:
            raise UsageError(f"--study {study} --method {method}: {reason}")
    folder = out or Path(f"mhfl-demo-{time.strftime('%Y%m%d-%H%M%S')}")
    size = PresetSize(rounds, steps, seed, gamma, learning_rate)
    chosen = ("local", *dict.fromkeys(methods))
    if as_json:
        document = demonstration.run(folder, study, chosen, size, lambda progress: None)
    else:
        from rich.live import Live

        with Live(console=output.console(), auto_refresh=False, transient=True) as live:
            document = demonstration.run(
                folder, study, chosen, size, lambda progress: live.update(_progress(progress), refresh=True)
            )
    output.emit(document, as_json=as_json, render=_table)


def _progress(progress: DemoProgress) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text(progress.activity, style="bold")]
    for name, status in sorted(progress.statuses.items()):
        loss = status["training"].get("loss", {}).get("total") if status["training"] else None
        waits = ", ".join(wait["site"] for wait in status["waiting_for"])
        note = f"waiting for {waits}" if waits else status["phase"]
        note += "" if loss is None else f"  loss {loss:.3f}"
        lines.append(
            rendering.line(
                f"{name}  {status['committed']}/{status['rounds']}", status["committed"], status["rounds"], note
            )
        )
    return Group(*lines)


def _table(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    data, methods, metric, size = document["data"], document["methods"], document["metric"].upper(), document["size"]
    last = list(methods.values())[-1]
    sites = list(last["sites"])
    tables = [output.table(WHO, [_who(name, data, last["sites"][name]) for name in sites], title="Who took part")]
    for test in ("local", "global"):
        rows = [(name, _values(method["sites"], f"{test}_test", sites)) for name, method in methods.items()]
        if test == "local":
            rows += [(f"floor: {name}", [floor.get(site) for site in sites]) for name, floor in _of(data, "floors")]
        shown = [(name, _number(_mean(values)), *map(_number, values)) for name, values in rows]
        tables.append(output.table(("", "mean", *sites), shown, title=f"{metric}, {test.title()} Test"))
    note = (
        f"{document['title']} Local Test: a site's model on its own test data; Global Test: on every site's, "
        f"unweighted mean. Same seeds, {size['rounds']} rounds of {size['steps']} steps for all. Constructed: "
        f"{data.get('constructed', 'the sites')}. Differs from the papers: {document['differs']}."
    )
    commands = "\n".join(
        f"  mhfl-peer --home {last['home']} {command} --site {sites[-1]}"
        for command in ("rounds", "egress", "plan", "events")
    )
    where = f"Everything is in {document['folder']} ({document['seconds']:.0f} s). Look around:\n{commands}"
    return Group(*tables, Text(note, style="dim"), Text(where))


def _who(name: str, data: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [_count(data["sites"][name][split]) for split in ("training", "test")]
    return (name, *counts, site["model"], rendering.size(site["sent_bytes"]))


def _count(split: Mapping[str, Any]) -> str:
    """The samples of a split and, where the set says so, of how many patients and how many of them are malignant."""
    text = next(f"{split[key]} {key}" for key in SAMPLES if key in split)
    text += f" of {split['patients']} patients" if "patients" in split else ""
    return text + (f", {split['malignant_share']:.0%} malignant" if "malignant_share" in split else "")


def _of(document: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, float | None]]]:
    found: Mapping[str, Mapping[str, float | None]] = document.get(key, {})
    return found.items()


def _values(sites: Mapping[str, Any], key: str, names: Iterable[str]) -> list[float | None]:
    return [sites[name][key] for name in names]


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
