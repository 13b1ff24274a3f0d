"""``mhfl-peer scalars``: write every round's metrics to TensorBoard and MLflow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output
from peer.cli.site_command import SiteCall, site_command
from peer.documents.commands import ScalarRun, ScalarsWritten
from peer.errors import UsageError
from peer.site.config.site_folder import SiteFolder

if TYPE_CHECKING:
    from peer.view.tracking.scalars import GenerationScalars
    from peer.view.tracking.trackers import Tracker

POLL_S = 2.0
"""Interval at which `--follow` checks whether the journal has grown; a round takes longer."""


@site_command()
@click.option("--tensorboard", metavar="DIR", type=click.Path(path_type=Path), help="Write to this TensorBoard folder.")
@click.option("--mlflow", metavar="URI", help="Write to this MLflow store on this machine: sqlite:///FILE.")
@click.option("--follow", is_flag=True, help="Keep writing until the site's last round is over, or Ctrl-C.")
def scalars(call: SiteCall, tensorboard: Path | None, mlflow: str | None, follow: bool) -> None:
    """Write the journal's figures of every round as scalars: losses, metrics, durations,
    contributors, bytes.

    A generation is a run, and a round is a step. The command never writes a scalar twice, so it may
    run as often as you like. It reads the journal only, whether or not the daemon runs. It needs
    `pip install '.[scalars]'`.

    \b
    mhfl-peer scalars --site europe --tensorboard runs --follow
    mhfl-peer scalars --site europe --mlflow sqlite:///mlflow.db
    """
    folder = call.folder
    with contextlib.ExitStack() as stack:
        trackers = {}
        for name, tracker in _trackers(tensorboard, mlflow):
            trackers[name] = tracker
            stack.callback(tracker.close)
        destinations = {"tensorboard": str(tensorboard) if tensorboard else None, "mlflow": mlflow}
        if not follow:
            call.emit(_write_scalars(folder, trackers) | destinations, _render)
            return
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how a user ends it
            for document in _follow(folder, trackers):
                if call.as_json:
                    output.emit_line(document | destinations)
                else:
                    output.console().print(_sentence(document))


def _trackers(tensorboard: Path | None, mlflow: str | None) -> Iterator[tuple[str, Tracker]]:
    from peer.view.tracking.trackers import MLflow, TensorBoard, database_file

    if tensorboard is None and mlflow is None:
        raise UsageError("nowhere to write to", "give --tensorboard DIR or --mlflow sqlite:///FILE")
    file = None if mlflow is None else database_file(mlflow)
    if tensorboard is not None:
        yield "tensorboard", TensorBoard(tensorboard)
    if file is not None:
        yield "mlflow", MLflow(file)


def _write_scalars(folder: SiteFolder, trackers: Mapping[str, Tracker]) -> ScalarsWritten:
    from peer.view.tracking import scalars

    runs = scalars.read_runs(folder)
    added = {name: sum(tracker.add(run) for run in runs) for name, tracker in trackers.items()}
    return {"site": folder.site, "added": added, "runs": [_describe_run(run) for run in runs]}


def _follow(folder: SiteFolder, trackers: Mapping[str, Tracker]) -> Iterator[ScalarsWritten]:
    """Yield a document now and after every addition, until the newest generation is over."""
    from peer.view.tracking.scalars import stamp

    last_stamp: object = None
    while True:
        if (new_stamp := stamp(folder)) != last_stamp:
            document = _write_scalars(folder, trackers)
            if last_stamp is None or any(document["added"].values()):
                yield document
            if document["runs"] and document["runs"][-1]["finished"]:
                return
            last_stamp = new_stamp
        time.sleep(POLL_S)


def _describe_run(run: GenerationScalars) -> ScalarRun:
    return {
        "generation": run.generation,
        "rounds": run.rounds,
        "scalars": len(run.scalars),
        "finished": run.ended_s is not None,
    }


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    columns = ("generation", "rounds", "scalars", "finished")
    rows = [tuple(str(run[name]) for name in columns) for run in document["runs"]]
    return Group(output.table(columns, rows), _sentence(document))


def _sentence(document: Mapping[str, Any]) -> str:
    added = ", ".join(f"{count} to {name}" for name, count in document["added"].items())
    rounds = sum(run["rounds"] for run in document["runs"])
    return f"{document['site']}: finished rounds: {rounds}; scalars added: {added}"
