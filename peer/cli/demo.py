"""``mhfl-peer demo``: federations of daemons on this machine, which train on real data."""

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
    from peer.demo.run import DemoProgress

SITE_COLUMNS = ("site", "training", "test", "model", "sent")
SAMPLE_KEYS = ("nodules", "cases", "slices", "patches")
"""The keys under which the data sets' summaries count samples."""
METHODS = tuple(name for name in PLANS if name != "local")


@click.command(short_help="Run four daemons on this machine with real data, and compare methods in a table.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make  [default: mhfl-demo-<time>].")
@click.option(
    "--study",
    type=click.Choice(list(STUDIES)),
    help="Data set and networks  [default: nodules; with another method than fedskd, nodules-families].",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("fedskd",),
    show_default=True,
    type=click.Choice(METHODS),
    help="A method to compare with `local`; may be repeated.",
)
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Rounds of each federation.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1), help="Optimiser steps a round.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of data split and training.")
@click.option(
    "--gamma", default=100.0, show_default=True, type=click.FloatRange(0), help="Weight of FedSKD's distillation."
)
@click.option("--learning-rate", default=1e-3, show_default=True, type=float, help="Learning rate of all methods.")
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
    """Run four daemons on this machine with real data, and compare methods in a table.

    One federation after the other trains on the same data, with the same seeds and steps: first
    `local`, in which no site sends anything, then each method. All their files stay in one folder.

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
    compared = ("local", *dict.fromkeys(methods))
    if as_json:
        document = demonstration.run(folder, study, compared, size, lambda progress: None)
    else:
        from rich.live import Live

        with Live(console=output.console(), auto_refresh=False, transient=True) as live:
            document = demonstration.run(
                folder, study, compared, size, lambda progress: live.update(_render_progress(progress), refresh=True)
            )
    output.emit(document, as_json=as_json, render=_render)


def _render_progress(progress: DemoProgress) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[output.RenderableType] = [Text(progress.activity, style="bold")]
    for name, status in sorted(progress.statuses.items()):
        loss = status["training"].get("loss", {}).get("total") if status["training"] else None
        waits = ", ".join(wait["site"] for wait in status["waiting_for"])
        note = f"waiting for {waits}" if waits else status["phase"]
        note += "" if loss is None else f"  loss {loss:.3f}"
        lines.append(
            rendering.progress_line(
                f"{name}  {status['committed']}/{status['rounds']}", status["committed"], status["rounds"], note
            )
        )
    return Group(*lines)


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    data, methods, metric, size = document["data"], document["methods"], document["metric"].upper(), document["size"]
    last = list(methods.values())[-1]
    sites = list(last["sites"])
    tables = [output.table(SITE_COLUMNS, [_site_row(name, data, last["sites"][name]) for name in sites], title="Sites")]
    for test in ("local", "global"):
        rows = [(name, _values(method["sites"], f"{test}_test", sites)) for name, method in methods.items()]
        if test == "local":
            floors = data.get("floors", {})
            rows += [(f"floor: {name}", [floor.get(site) for site in sites]) for name, floor in floors.items()]
        cells = [(name, _format(_mean(values)), *map(_format, values)) for name, values in rows]
        tables.append(output.table(("", "mean", *sites), cells, title=f"{metric}, {test.title()} Test"))
    note = (
        f"{document['title']} Local Test: a site's model on its own test data. Global Test: the same model on every "
        f"site's, unweighted mean. All methods: same seeds, {size['rounds']} rounds of {size['steps']} steps. "
        f"Constructed: {data.get('constructed', 'the sites')}. Differs from the papers: {document['differs']}."
    )
    commands = "\n".join(
        f"  mhfl-peer --home {last['home']} {command} --site {sites[-1]}"
        for command in ("rounds", "egress", "plan", "events")
    )
    where = f"Everything is in {document['folder']} ({document['seconds']:.0f} s). Look around:\n{commands}"
    return Group(*tables, Text(note, style="dim"), Text(where))


def _site_row(name: str, data: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [_describe_split(data["sites"][name][split]) for split in ("training", "test")]
    return (name, *counts, site["model"], rendering.size(site["sent_bytes"]))


def _describe_split(split: Mapping[str, Any]) -> str:
    """The number of samples; where the set counts them, of patients, and the malignant share."""
    text = next(f"{split[key]} {key}" for key in SAMPLE_KEYS if key in split)
    text += f" of {split['patients']} patients" if "patients" in split else ""
    return text + (f", {split['malignant_share']:.0%} malignant" if "malignant_share" in split else "")


def _values(sites: Mapping[str, Any], key: str, names: Iterable[str]) -> list[float | None]:
    return [sites[name][key] for name in names]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
