"""``mhfl-peer predict``: the local model on new data."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer import home
from peer.cli import Settings, output, pass_settings, shared_options, site_option
from peer.errors import DataError, StateError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.afterwards import Standing
    from peer.config import Task
    from peer.home import SiteFolder

PATH = click.Path(path_type=Path)
TABLE = "predictions.csv"
"""The file in the folder ``--out`` where no other is named."""
SHOWN_MAX = 20
"""Lines of each kind on a screen; the files have all."""


@click.command(short_help="Use the local model on new images, volumes or signals.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@site_option
@click.option("--out", required=True, type=PATH, help="A new or empty folder; for classes also a new FILE.csv.")
@output.json_option
@shared_options
@pass_settings
def predict(settings: Settings, inputs: tuple[Path, ...], site_name: str | None, out: Path, as_json: bool) -> None:
    """Use the local model, as its last finished round left it, on new images, volumes or signals; also during training.

    INPUT is a file, a folder of files, or a datalist, of which the images in `test` are taken (else in `training`).
    Classes are written to one CSV, label maps and larger images to a file an input. What cannot be read is left out.

    \b
    mhfl-peer predict --site europe scans/ --out masks
    mhfl-peer predict --site europe new.json --out classes.csv
    """
    from peer import afterwards
    from peer.datasets.folder import make_empty

    if not any(path.exists() for path in inputs):
        raise DataError(f"{inputs[0]} is not there", "name an image, a folder of images or a datalist")
    task, standing = _trained(home.find_site(home.home_folder(settings.home), site_name))
    classes = task.kind in ("classification", "time_series")
    result = out / TABLE if classes and out.suffix != ".csv" else out
    if classes:
        home.must_be_new(result)
        home.make_private(result.parent)
    elif out.suffix == ".csv":
        raise UsageError(f"--out {out}: {task.kind} gives a file an input", "name a folder")
    else:
        make_empty(out)
    request = {**standing.document(), "inputs": list(map(str, inputs)), "out": str(out)}
    answer = afterwards.ask("peer.training.predict", request, what="the prediction")
    if classes and answer["predictions"]:
        home.write_atomically(result, _csv(answer["predictions"], task.classes))
    where = {"site": standing.setting.site_name, "generation": standing.generation, "round": standing.committed}
    output.emit({**where, "task": task.kind, "out": str(result), **answer}, as_json=as_json, render=_picture)
    if not answer["predictions"]:
        first = answer["skipped"][0]
        raise DataError(f"nothing could be predicted: {first['file']}: {first['reason']}", "see what was left out")


def _trained(folder: SiteFolder) -> tuple[Task, Standing]:
    """The task and a state of the site that has been trained, by the configuration that it was trained with.

    No certificate is needed: nothing is sent.
    """
    from peer import afterwards, lifecycle
    from peer.config import Federation, Site, check_site

    federation, site = Federation.load(folder.federation_toml), Site.load(folder.site_toml)
    check_site(federation, site, folder.site)
    problem = lifecycle.changed(folder, federation, site)
    if problem is not None:
        raise problem
    standing = afterwards.standing(folder, federation, site)
    if not standing.committed:
        raise StateError(f"the model of {folder.site} is untrained: no round is finished", "see `mhfl-peer status`")
    return federation.task, standing


def _csv(predictions: Sequence[Mapping[str, Any]], classes: int) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", *(f"class_{index}" for index in range(classes)), "predicted"])
    for row in predictions:
        writer.writerow([row["file"], *row["probabilities"], row["class"]])
    return text.getvalue().encode(errors="surrogateescape")


def _picture(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    predictions, skipped = document["predictions"], document["skipped"]
    parts: list[RenderableType] = []
    if predictions and "class" in predictions[0]:
        rows = [(row["file"], str(row["class"]), f"{max(row['probabilities']):.3f}") for row in predictions]
        parts.append(_first(("file", "class", "probability"), rows))
    elif predictions:
        parts.append(_first(("file", "result"), [(row["file"], row["output"]) for row in predictions]))
    if skipped:
        parts.append(_first(("left out", "why"), [(row["file"], row["reason"]) for row in skipped]))
    counts = f"{len(predictions)} predicted, {len(skipped)} left out"
    where = f"; see {document['out']}" if predictions else ""
    parts.append(Text(f"{document['site']}'s model after round {document['round']}: {counts}{where}"))
    return Group(*parts)


def _first(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> RenderableType:
    more = len(rows) - SHOWN_MAX
    rest = [(f"and {more} more", *[""] * (len(columns) - 1))] if more > 0 else []
    return output.table(columns, [*rows[:SHOWN_MAX], *rest])
