"""``mhfl-peer predict``: run a site's model, or an exported file, on new data."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import chosen_round, output, round_option
from peer.cli.site_command import SiteCall, site_command
from peer.core.tasks import VECTORS, names_or_numbers
from peer.documents.commands import PredictionsWritten
from peer.errors import DataError, UsageError
from peer.extras import require_extra
from peer.site.config import site_folder

if TYPE_CHECKING:
    from peer.site.config.site_folder import SiteFolder

PATH = click.Path(path_type=Path)
TABLE = "predictions.csv"
"""The CSV file's name if ``--out`` names a folder."""
SHOWN_MAX = 20
"""Maximum number of rows in a table on the screen; the files and ``--json`` contain all."""


@site_command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option("--model", type=PATH, help="An exported .onnx or .pt2 file, or a bundle, instead of a site's model.")
@click.option(
    "--sha256", metavar="DIGEST", default="", help="The digest of --model, as `export` printed it; a .pt2 needs it."
)
@click.option(
    "--out", required=True, type=PATH, help="A new or empty folder; for class predictions also a new FILE.csv."
)
@round_option
def predict(
    call: SiteCall, inputs: tuple[Path, ...], model: Path | None, sha256: str, out: Path, which: str | None
) -> None:
    """Use the local model, as its last or best finished round left it, on new images, volumes or
    signals.

    INPUT is a file, a folder of files, or a datalist: of a datalist, the command reads the images
    in `test`, or in `training` where `test` is empty. It writes classes to one CSV, and label maps
    and enlarged images to one file an input. It leaves out files that it cannot read, and lists
    them. The site may be training meanwhile. Labels, numbers and survival are rows of the CSV, too.

    --model needs no site: an exported file itself says how images are prepared. Opening a .pt2 can
    run code that somebody put into it, so its digest must be given; a bundle's configuration is
    never run.

    \b
    mhfl-peer predict --site europe scans/ --out masks
    mhfl-peer predict --site europe new.json --out classes.csv
    mhfl-peer predict --site europe --round best scans/ --out masks
    mhfl-peer predict --model europe.onnx scans/ --out masks
    """
    if not any(path.exists() for path in inputs):
        raise UsageError(f"{inputs[0]} is not there", "name an image, a folder of images or a datalist")
    if model is not None and which is not None:
        raise UsageError("--round chooses among a site's rounds, and --model is a file", "leave one of them out")
    if model is None and sha256:
        raise UsageError("--sha256 is the digest of a file, and there is no --model")
    if model is not None and call.site_name is not None:
        raise UsageError("--site and --model name two models", "give one of them")
    if model is None:
        folder = call.folder
        document = _predict_with_site(folder, inputs, out, which)
    else:
        document = _predict_with_file(model, sha256, inputs, out)
    call.emit(document, _render)
    if not document["predictions"]:
        first = document["skipped"][0]
        raise DataError(f"nothing could be predicted: {first['file']}: {first['reason']}", "see the files left out")


def _predict_with_site(folder: SiteFolder, inputs: Sequence[Path], out: Path, which: str | None) -> PredictionsWritten:
    from peer.train.inference import model_state

    with model_state.exit_on_sigterm(), model_state.open_trained(folder, chosen_round(which)) as (federation, state):
        task = federation.task
        as_table = task.objective in VECTORS
        if out.suffix == ".csv" and not as_table:
            raise UsageError(f"--out {out}: {task.kind} writes one file an input", "name a folder")
        _make_room(out, table=as_table)
        result = _table(out) if as_table else out
        answer = _run_prediction(state.document(), inputs, out)
    if as_table and answer["predictions"]:
        columns = task.to_target().columns or names_or_numbers(task.class_names, task.classes)
        site_folder.write_atomically(result, _format_csv(answer["predictions"], columns))
    return {
        "site": folder.site,
        "generation": state.generation,
        "round": state.committed,
        "choice": state.choice,
        "task": task.kind,
        "out": str(result),
        "predictions": answer["predictions"],
        "skipped": answer["skipped"],
    }


def _predict_with_file(model: Path, sha256: str, inputs: Sequence[Path], out: Path) -> PredictionsWritten:
    """Predict like `_predict_with_site`, except that only the process with torch can read the task from the file."""
    if not model.exists():
        raise UsageError(f"--model {model} is not there", "name a file or folder that `mhfl-peer export` wrote")
    if model.suffix == ".pt2" and not sha256:
        raise UsageError(
            f"--model {model}: opening a .pt2 can run code that is in it",
            "give --sha256 as the exporting site printed it, or use ONNX or a bundle",
        )
    if model.suffix == ".onnx":
        require_extra("export", f"--model {model}", ("onnxruntime",))
    _make_room(out, table=out.suffix == ".csv")
    answer = _run_prediction({"model": str(model), "sha256": sha256}, inputs, out)
    columns = answer.pop("columns")
    result = _table(out) if columns else out
    if columns and answer["predictions"]:
        site_folder.write_atomically(result, _format_csv(answer["predictions"], columns))
    return {
        "site": answer["site"],
        "generation": answer["generation"],
        "round": answer["round"],
        "task": answer["task"],
        "model": str(model),
        "out": str(result),
        "predictions": answer["predictions"],
        "skipped": answer["skipped"],
    }


def _make_room(out: Path, *, table: bool) -> None:
    """Create the output's folder; raise ``StateError`` if the output already exists."""
    from peer.train.data.prepared_folder import make_empty

    if table:
        site_folder.must_be_new(_table(out))
        site_folder.make_private(_table(out).parent)
    else:
        make_empty(out)


def _table(out: Path) -> Path:
    return out if out.suffix == ".csv" else out / TABLE


def _run_prediction(document: Mapping[str, Any], inputs: Sequence[Path], out: Path) -> dict[str, Any]:
    from peer.train.inference import model_state

    request = {**document, "inputs": list(map(str, inputs)), "out": str(out)}
    answer: dict[str, Any] = model_state.run_module("peer.train.inference.predict", request, name="the prediction")
    return answer


def _format_csv(predictions: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Write a column for each class, label, number or time, and of classes the number and name of the likeliest."""
    named, likeliest = "class_name" in predictions[0], "class" in predictions[0]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    of_shares = named or ("probabilities" in predictions[0] and not likeliest)
    headings = [f"p({name})" for name in columns] if of_shares else list(columns)
    further = [name for name, shown in (("predicted", likeliest), ("predicted_name", named)) if shown]
    writer.writerow(["file", *headings, *further])
    for row in predictions:
        further = [row[key] for key in ("class", "class_name") if key in row]
        writer.writerow([row["file"], *_values(row), *further])
    return text.getvalue().encode(errors="surrogateescape")


def _values(row: Mapping[str, Any]) -> list[object]:
    """Return what a prediction says, but for the likeliest class."""
    if "survival" in row:
        return [*row["survival"], "" if row["median"] is None else row["median"]]
    return [row["value"]] if "value" in row else list(row["probabilities"])


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    predictions, skipped = document["predictions"], document["skipped"]
    parts: list[output.RenderableType] = []
    if predictions and "class" in predictions[0]:
        rows = [
            (row["file"], f"{row['class']} {row.get('class_name', '')}".strip(), f"{max(row['probabilities']):.3f}")
            for row in predictions
        ]
        parts.append(_render_first_rows(("file", "class", "probability"), rows))
    elif predictions and "output" not in predictions[0]:
        numbers = ("  ".join(f"{value:.3g}" for value in _values(row) if value != "") for row in predictions)
        answers = list(zip((row["file"] for row in predictions), numbers, strict=True))
        parts.append(_render_first_rows(("file", "prediction"), answers))
    elif predictions:
        parts.append(_render_first_rows(("file", "result"), [(row["file"], row["output"]) for row in predictions]))
    if skipped:
        parts.append(_render_first_rows(("left out", "why"), [(row["file"], row["reason"]) for row in skipped]))
    counts = f"{len(predictions)} predicted, {len(skipped)} left out"
    where = f"; see {document['out']}" if predictions else ""
    choice = f" ({document['choice']})" if document.get("choice") else ""
    parts.append(Text(f"{document['site']}'s model after round {document['round']}{choice}: {counts}{where}"))
    return Group(*parts)


def _render_first_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> output.RenderableType:
    more = len(rows) - SHOWN_MAX
    rest = [(f"and {more} more", *[""] * (len(columns) - 1))] if more > 0 else []
    return output.table(columns, [*rows[:SHOWN_MAX], *rest])
