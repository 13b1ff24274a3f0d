"""``mhfl-peer demo``: see it work before believing it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, picture, shared_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.demo import Progress

SITE_COLUMNS = ("site", "training nodules", "malignant", "test nodules", "malignant", "model", "sent")
AUC_COLUMNS = (
    "site",
    "local: Local Test",
    "FedSKD: Local Test",
    "local: Global Test",
    "FedSKD: Global Test",
    "size",
    "scaled",
)


@click.command(short_help="Four real daemons on loopback with real data, one table at the end.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make  [default: mhfl-demo-<time>].")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Rounds of each federation.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1), help="Optimiser steps a round.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of data split and training.")
@click.option(
    "--gamma", default=100.0, show_default=True, type=click.FloatRange(0), help="Weight of FedSKD's distillation."
)
@click.option("--learning-rate", default=1e-3, show_default=True, type=float, help="Of both methods.")
@output.json_option
@shared_options
def demo(
    out: Path | None, rounds: int, steps: int, seed: int, gamma: float, learning_rate: float, as_json: bool
) -> None:
    """Four real daemons on loopback with real data, one table at the end.

    Two federations run one after the other on the same data, seeds and steps: `local`, where nobody sends anything, and
    `fedskd`. Everything that is made stays in one folder.
    """
    from peer import demo as demonstration

    folder = out or Path(f"mhfl-demo-{time.strftime('%Y%m%d-%H%M%S')}")
    size = demonstration.Size(rounds, steps, seed, gamma, learning_rate)
    if as_json:
        document = demonstration.run(folder, size, lambda progress: None)
    else:
        from rich.live import Live

        with Live(console=output.console(), auto_refresh=False, transient=True) as live:
            document = demonstration.run(folder, size, lambda progress: live.update(_progress(progress), refresh=True))
    output.emit(document, as_json=as_json, render=_table)


def _progress(progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text(progress.doing, style="bold")]
    for name, status in sorted(progress.statuses.items()):
        loss = status["training"].get("loss", {}).get("total") if status["training"] else None
        waits = ", ".join(wait["site"] for wait in status["waiting_for"])
        note = f"waiting for {waits}" if waits else status["phase"]
        note += "" if loss is None else f"  loss {loss:.3f}"
        lines.append(
            picture.line(
                f"{name}  {status['committed']}/{status['rounds']}", status["committed"], status["rounds"], note
            )
        )
    return Group(*lines)


def _table(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    data, alone, together = document["data"], document["methods"]["local"], document["methods"]["fedskd"]
    sites, rows = [], []
    for name, site in together["sites"].items():
        training, test = data["sites"][name]["training"], data["sites"][name]["test"]
        sent = picture.size(site["sent_bytes"])
        sites.append((name, *_counts(training), *_counts(test), f"ResNet-10, width {site['width']}", sent))
        rows.append((name, *_aucs(name, alone, together), *_floors(name, data)))
    mean = [statistics.fmean(row[column] for row in rows) for column in range(1, len(rows[0]))]
    every = [("mean", *mean), *rows]
    shown = [(row[0], *(f"{value:.3f}" for value in row[1:])) for row in every]
    size = document["size"]
    note = (
        f"AUC of malignant against benign. Local Test: the site's model on its own test patients; Global Test: on "
        f"every site's, unweighted mean. Both methods: same seeds, {size['rounds']} rounds of {size['steps']} steps. "
        "`size` is the AUC of the nodule's volume alone, which scaling every nodule to one volume takes away; `scaled` "
        "is the volume's AUC after it. Site names and training label skew are constructed; test shares are natural."
    )
    home = together["home"]
    commands = "\n".join(
        f"  mhfl-peer --home {home} {command} --site europe" for command in ("rounds", "egress", "plan", "events")
    )
    where = f"Everything is in {document['folder']} ({document['seconds']:.0f} s). Look around:\n{commands}"
    return Group(
        output.table(SITE_COLUMNS, sites, title="Who took part"),
        output.table(AUC_COLUMNS, shown, title="Area under the ROC curve"),
        Text(note, style="dim"),
        Text(where),
    )


def _counts(part: Mapping[str, Any]) -> tuple[str, str]:
    return f"{part['nodules']} of {part['patients']}", f"{part['malignant_share']:.0%}"


def _aucs(name: str, *methods: Mapping[str, Any]) -> list[float]:
    return [method["sites"][name][f"{test}_test_auc"] for test in ("local", "global") for method in methods]


def _floors(name: str, data: Mapping[str, Any]) -> list[float]:
    return [data["floors"][floor][name] for floor in ("volume", "scaled_volume")]
