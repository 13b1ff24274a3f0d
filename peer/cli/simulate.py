"""``mhfl-peer simulate``: run an experiment on one machine, with the code that the daemons run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, rendering, shared_options
from peer.documents import SimulationResult
from peer.errors import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peer.research.sweep import SweepProgress


@click.command(short_help="Run an experiment on one machine, with the code that the daemons run.")
@click.argument("experiment", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder of the results."
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at once  [default: as many as processors and memory allow].")
@click.option(
    "--data", "source", type=click.Path(path_type=Path), help="The folder that a public data set was unpacked into."
)
@click.option("--dry-run", is_flag=True, help="Check everything and write the runs' folders, but train nothing.")
@click.option("--keep", is_flag=True, help="Keep every site's journal, checkpoints and artifacts in its run's folder.")
@output.json_option
@shared_options
def simulate(
    experiment: Path, out: Path, jobs: int | None, source: Path | None, dry_run: bool, keep: bool, as_json: bool
) -> None:
    """Run every combination of EXPERIMENT's methods, networks, partitions, links, folds and seeds.

    Finished runs are kept: if the command was stopped, call it again to run the rest.
    `mhfl-peer report` makes the tables.

    \b
    mhfl-peer simulate deploy/examples/experiments/digits.toml --out digits
    mhfl-peer simulate experiment.toml --out runs --dry-run
    """
    from peer.research.experiment import Experiment
    from peer.research.sweep import prepare, sweep

    runs = prepare(Experiment.load(experiment), out, source=source)
    failed: dict[str, str] = {}
    if not dry_run:
        if as_json or not sys.stdout.isatty():
            failed = sweep(runs, jobs=jobs, keep=keep, watch=_StderrProgress())
        else:
            from rich.live import Live

            with Live(console=output.console(), auto_refresh=False, transient=True) as live:
                failed = sweep(
                    runs,
                    jobs=jobs,
                    keep=keep,
                    watch=lambda progress: live.update(_render_progress(progress), refresh=True),
                )
    if dry_run and not as_json:
        output.console().print(f"All is well: {len(runs)} runs can be carried out.")
    document: SimulationResult = {
        "out": str(out),
        "runs": [{"id": run.id, "finished": run.is_finished(), "failed": failed.get(run.id)} for run in runs],
    }
    output.emit(document, as_json=as_json, render=_render)
    if failed:
        name, reason = next(iter(failed.items()))
        raise WorkerFailed(
            f"{len(failed)} of {len(runs)} runs failed; {name}: {reason}",
            f"correct that in {experiment} or in the data, and run the command again; finished runs are kept",
        )


class _StderrProgress:
    """Prints a line to standard error for each run that ends, where no terminal shows bars."""

    def __init__(self) -> None:
        self._finished = -1

    def __call__(self, progress: SweepProgress) -> None:
        if progress.finished > self._finished:
            self._finished = progress.finished
            left = "" if progress.seconds_left is None else f", about {_format_duration(progress.seconds_left)} left"
            click.echo(f"{progress.finished} of {progress.total} runs are finished{left}", err=True)


def _render_progress(progress: SweepProgress) -> output.RenderableType:
    from rich.console import Group

    left = "" if progress.seconds_left is None else f"about {_format_duration(progress.seconds_left)} left"
    failed = f", {len(progress.failed)} failed" if progress.failed else ""
    lines = [
        rendering.progress_line(
            f"{progress.finished}/{progress.total} runs{failed}", progress.finished, progress.total, left
        )
    ]
    lines += [
        rendering.progress_line(name.split(".", 3)[-1], committed, rounds, f"{committed}/{rounds} rounds")
        for name, (committed, rounds) in sorted(progress.underway.items())
    ]
    return Group(*lines)


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.text import Text

    finished = sum(run["finished"] for run in document["runs"])
    text = f"{finished} of {len(document['runs'])} runs are finished, in {document['out']}."
    return Text(text + (f"\nTables and pictures: mhfl-peer report {document['out']}" if finished else ""))
