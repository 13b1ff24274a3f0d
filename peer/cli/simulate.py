"""``mhfl-peer simulate``: an experiment's runs on one machine, with the code that the daemons run."""

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

    from rich.console import RenderableType

    from peer.research.sweep import SweepProgress


@click.command(short_help="Many federations on one machine, with the code that the daemons run.")
@click.argument("experiment", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder of results.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at once  [default: as many as processors and memory allow].")
@click.option("--data", "source", type=click.Path(path_type=Path), help="Where a public data set was unpacked.")
@click.option("--dry-run", is_flag=True, help="Check everything, write the runs' folders, train nothing.")
@click.option("--keep", is_flag=True, help="Leave every site's journal, checkpoints and artifacts in its run's folder.")
@output.json_option
@shared_options
def simulate(
    experiment: Path, out: Path, jobs: int | None, source: Path | None, dry_run: bool, keep: bool, as_json: bool
) -> None:
    """Carry out every run of EXPERIMENT: methods x networks x partitions x links x folds x seeds.

    What is finished stays: the same command goes on where it was ended. `mhfl-peer report` makes the tables.

    \b
    mhfl-peer simulate deploy/examples/experiments/digits.toml --out digits
    mhfl-peer simulate experiment.toml --out runs --dry-run
    """
    from peer.research.experiment import Experiment
    from peer.research.sweep import prepare, sweep

    found = prepare(Experiment.load(experiment), out, source=source)
    failed: dict[str, str] = {}
    if not dry_run:
        if as_json or not sys.stdout.isatty():
            failed = sweep(found, jobs=jobs, keep=keep, watch=_Told())
        else:
            from rich.live import Live

            with Live(console=output.console(), auto_refresh=False, transient=True) as live:
                failed = sweep(
                    found,
                    jobs=jobs,
                    keep=keep,
                    watch=lambda progress: live.update(_progress(progress), refresh=True),
                )
    if dry_run and not as_json:
        output.console().print(f"All is well: {len(found)} runs can be carried out.")
    document: SimulationResult = {
        "out": str(out),
        "runs": [{"id": run.id, "finished": run.is_finished(), "failed": failed.get(run.id)} for run in found],
    }
    output.emit(document, as_json=as_json, render=_summary)
    if failed:
        name, reason = next(iter(failed.items()))
        raise WorkerFailed(
            f"{len(failed)} of {len(found)} runs failed; {name}: {reason}",
            f"correct that in {experiment} or in the data and run it again; what is finished is kept",
        )


class _Told:
    """A line on standard error for each run that ends, where no terminal shows bars."""

    def __init__(self) -> None:
        self._finished = -1

    def __call__(self, progress: SweepProgress) -> None:
        if progress.finished > self._finished:
            self._finished = progress.finished
            left = "" if progress.seconds_left is None else f", about {_duration(progress.seconds_left)} left"
            click.echo(f"{progress.finished} of {progress.total} runs are finished{left}", err=True)


def _progress(progress: SweepProgress) -> RenderableType:
    from rich.console import Group

    left = "" if progress.seconds_left is None else f"about {_duration(progress.seconds_left)} left"
    failed = f", {len(progress.failed)} failed" if progress.failed else ""
    lines = [
        rendering.line(f"{progress.finished}/{progress.total} runs{failed}", progress.finished, progress.total, left)
    ]
    lines += [
        rendering.line(name.split(".", 3)[-1], committed, rounds, f"{committed}/{rounds} rounds")
        for name, (committed, rounds) in sorted(progress.underway.items())
    ]
    return Group(*lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _summary(document: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    finished = sum(run["finished"] for run in document["runs"])
    text = f"{finished} of {len(document['runs'])} runs are finished, in {document['out']}."
    return Text(text + (f"\nTables and pictures: mhfl-peer report {document['out']}" if finished else ""))
