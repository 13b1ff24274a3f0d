"""``mhfl-peer demo``: federations of daemons on this machine that train on real data."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, rendering, shared_options
from peer.errors import UsageError
from peer.lab.demo.presets import DEFAULT_STUDY, STUDIES, defaults_of, method_of, problem
from peer.lab.experiments.result_files import CENTRALISED
from peer.methods.registry import PLANS
from peer.site.config.toml import suggestion

if TYPE_CHECKING:
    from rich.table import Table

    from peer.lab.demo.run import DemoProgress

SITE_COLUMNS = ("site", "training", "test", "model", "sent")
METHODS = tuple(name for name in PLANS if name != "local")
NAMES = {CENTRALISED: "pooled bound"}


@click.command(short_help="Run four daemons on this machine with real data, and show what joining gives each site.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make  [default: mhfl-demo-TIME].")
@click.option(
    "--study",
    type=click.Choice(list(STUDIES)),
    default=DEFAULT_STUDY,
    show_default=True,
    help="Data set and networks.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(METHODS),
    help="A method to compare with `local`; may be repeated  [default: the study's].",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a method's parameter; may be repeated."
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds of a federation  [default: the study's].")
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps a round  [default: the study's].")
@click.option("--seed", type=click.IntRange(0), help="Of data split and training  [default: 0].")
@click.option(
    "--learning-rate",
    type=float,
    help="Learning rate of all methods; FedVisit has six times it  [default: the study's].",
)
@click.option(
    "--splits",
    type=click.IntRange(1),
    help="Splits into training and test samples over which the simulator repeats all methods  [default: the study's].",
)
@output.json_option
@shared_options
def demo(
    out: Path | None,
    study: str,
    methods: tuple[str, ...],
    settings: tuple[str, ...],
    rounds: int | None,
    steps: int | None,
    seed: int | None,
    learning_rate: float | None,
    splits: int | None,
    as_json: bool,
) -> None:
    """Run four daemons on this machine with real data, and show what joining gives each site.

    One federation after the other trains on the same data, with the same seeds and steps: first
    `local`, in which no site sends anything, then each method. The pooled bound comes last: each
    site's network, trained on the data of all sites, as no federation can. The simulator repeats all
    of it on further splits into training and test samples, for means with intervals. Tables, a page
    with learning curves and visits, and all files stay in one folder.

    \b
    mhfl-peer demo
    mhfl-peer demo --method fedskd --set gamma=10
    mhfl-peer demo --study blinks
    mhfl-peer demo --study eeg-blink --method dflmoe --method mh_pflid
    """
    from peer.lab.demo import run as demonstration

    defaults = defaults_of(study)
    methods = methods or defaults.methods
    for method in methods:
        if (reason := problem(study, method)) is not None:
            raise UsageError(f"--study {study} --method {method}: {reason}")
    parameters = _parse_settings(settings, methods)
    folder = out or Path(f"mhfl-demo-{time.strftime('%Y%m%d-%H%M%S')}")
    given: dict[str, Any] = {"rounds": rounds, "steps": steps, "seed": seed, "learning_rate": learning_rate}
    size = dataclasses.replace(defaults.size, **{key: value for key, value in given.items() if value is not None})
    split_count = splits or defaults.splits
    if split_count > 1 and STUDIES[study]["test_share"] is None:
        raise UsageError(f"--splits {split_count}: {study} has one split, that of its data", "leave --splits out")
    compared = ("local", *dict.fromkeys(methods))
    if as_json:
        document = demonstration.run(
            folder, study, compared, size, parameters, lambda progress: None, split_count=split_count
        )
    else:
        from rich.live import Live

        with Live(console=output.console(), auto_refresh=False, transient=True) as live:
            document = demonstration.run(
                folder,
                study,
                compared,
                size,
                parameters,
                lambda progress: live.update(_render_progress(progress), refresh=True),
                split_count=split_count,
            )
    output.emit(document, as_json=as_json, render=_render)


def _parse_settings(settings: Iterable[str], methods: Iterable[str]) -> dict[str, Any]:
    """Parse the parameters of ``--set``; raise ``UsageError`` for one that none of these methods has.

    A value that is not JSON is a string, as in ``header=frozen``.
    """
    known = {key for method in methods for key in PLANS[method_of(method)].parameters}
    listed, parameters = ", ".join(methods), {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if key not in known or not equals:
            raise UsageError(f"--set {setting}: no parameter {key!r} of {listed}{suggestion(key, known)}")
        try:
            parameters[key] = json.loads(text)
        except ValueError:
            parameters[key] = text
    return parameters


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
    home = next(method for label, method in methods.items() if label not in ("local", CENTRALISED))
    sites = list(home["sites"])
    site_rows = [_site_row(name, data, home["sites"][name]) for name in sites]
    tables = [output.table(SITE_COLUMNS, site_rows, title="Sites")]
    for test in ("local", "global"):
        rows = [
            (NAMES.get(name, name), _format_share(document["gains"][test].get(name)), _values(method, test, sites))
            for name, method in methods.items()
        ]
        if test == "local":
            floors = data.get("floors", {})
            rows += [(f"floor: {name}", "", [floor.get(site) for site in sites]) for name, floor in floors.items()]
        cells = [(name, _format(_mean(values)), share, *map(_format, values)) for name, share, values in rows]
        title = f"{metric}, {test.title()} Test"
        tables.append(output.table(("", "mean", "room taken", *sites), cells, title=title))
    if document["splits"] is not None:
        tables += _split_tables(document["splits"])
    bound = (
        " Pooled bound: each site's network, trained as long on the data of all sites; no federation. Room taken: a "
        "method's gain over `local` in shares of the pooled bound's."
        if CENTRALISED in methods
        else ""
    )
    note = (
        f"{document['title']} Local Test: a site's model on its own test data. Global Test: the same model on every "
        f"site's, unweighted mean. All methods: same seeds, {size['rounds']} rounds of {size['steps']} steps.{bound} "
        f"Constructed: {data['constructed']}. Differs from the papers: {document['differs']}."
    )
    commands = "\n".join(
        f"  mhfl-peer --home {home['home']} {command} --site {sites[-1]}"
        for command in ("rounds", "egress", "plan", "events")
    )
    where = (
        f"Curves and visits: {document['picture']}\n"
        f"Everything is in {document['folder']} ({document['seconds']:.0f} s). Look around:\n{commands}"
    )
    return Group(*tables, Text(note, style="dim"), Text(document["conclusion"], style="bold"), Text(where))


def _split_tables(over_splits: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of the main metric's tests, and of a further metric's Local Test, with their intervals."""
    from peer.lab.report.table import unit_of

    main = next(iter(over_splits["metrics"]))
    for (metric, tests), test in itertools.product(over_splits["metrics"].items(), ("local", "global")):
        if test == "global" and metric != main:
            continue
        unit, rows = unit_of(metric), list[tuple[str, ...]]()
        for label, sites in tests[test].items():
            rows.append(
                (NAMES.get(label, label), *(_format_interval(each, "mean", "low", "high") for each in sites.values()))
            )
            if label != "local":
                gains = (_format_interval(each, "gain", "gain_low", "gain_high", "+") for each in sites.values())
                rows.append(("  minus local", *gains))
        splits = len(over_splits["seeds"])
        title = f"{unit.name}, {test.title()} Test: mean of {splits} splits (95 % interval)"
        yield output.table(("", *tests[test]["local"]), rows, title=title)


def _format_interval(interval: Mapping[str, Any], middle: str, low: str, high: str, sign: str = "") -> str:
    mean, ends = interval[middle], (interval[low], interval[high])
    if mean is None:
        return "-"
    if None in ends:
        return f"{mean:{sign}.3f}"
    return f"{mean:{sign}.3f} ({ends[0]:{sign}.3f} to {ends[1]:{sign}.3f})"


def _site_row(name: str, data: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [_describe_split(data["sites"][name][split]) for split in ("training", "test")]
    return (name, *counts, site["model"], rendering.size(site["sent_bytes"]))


def _describe_split(split: Mapping[str, int]) -> str:
    """Describe the number of samples, and of subjects if the data set names them."""
    return f"{split['samples']}" + (f" of {split['subjects']} subjects" if "subjects" in split else "")


def _values(method: Mapping[str, Any], test: str, names: Iterable[str]) -> list[float | None]:
    return [method["sites"][name][f"{test}_test"] for name in names]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _format_share(gain: Mapping[str, Any] | None) -> str:
    share = None if gain is None else gain.get("share")
    return "" if share is None else f"{share:.0%}"
