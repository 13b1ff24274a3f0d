"""``mhfl-peer simulate``: run an experiment on one machine, with the code that the daemons run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from peer.cli import GIVEN_FILE, output, rendering, shared_options
from peer.documents.laboratory import RowWithoutRuns, SimulationResult
from peer.errors import UsageError, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from peer.lab.experiments.experiment import Experiment
    from peer.lab.experiments.runs import Run
    from peer.lab.experiments.sweep import SweepProgress


def _shard(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int]:
    if value is None:
        return 1, 1
    number, _, shards = value.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise click.BadParameter(f"{value!r} is no part such as 3/10", context, parameter)
    return int(number), int(shards)


@click.command()
@click.argument("experiment", type=GIVEN_FILE)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder of the results."
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at once  [default: as many as processors and memory allow].")
@click.option(
    "--data", "source", type=click.Path(path_type=Path), help="The folder that a public data set was unpacked into."
)
@click.option("--dry-run", is_flag=True, help="Check everything and write the runs' folders, but train nothing.")
@click.option(
    "--only", metavar="METHOD", multiple=True, help="Only the runs of this row of the results; may be repeated."
)
@click.option("--shard", metavar="K/N", callback=_shard, help="Only the Kth of N parts of the runs, for a job array.")
@click.option(
    "--engine",
    type=click.Choice(["joblib", "ray"]),
    default="joblib",
    show_default=True,
    help="What carries out the runs: processes of this machine, or a Ray cluster.",
)
@click.option("--address", help="The Ray cluster's address, such as auto  [default: one of this machine alone].")
@click.option(
    "--run-cpus",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Processors that a run asks of Ray.",
)
@click.option(
    "--run-gpus",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="GPUs that a run asks of Ray; four runs of 0.25 share one.",
)
@click.option(
    "--run-memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="Memory that a run asks of Ray  [default: as finished runs took].",
)
@click.option("--keep", is_flag=True, help="Keep every site's journal, checkpoints and artifacts in its run's folder.")
@output.json_option
@shared_options
def simulate(
    experiment: Path,
    out: Path,
    jobs: int | None,
    source: Path | None,
    dry_run: bool,
    only: tuple[str, ...],
    shard: tuple[int, int],
    engine: str,
    address: str | None,
    run_cpus: float,
    run_gpus: float,
    run_memory: float | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Run every combination of EXPERIMENT's methods, networks, partitions, links, folds and seeds.

    Finished runs are kept: if the command was stopped, call it again to run the rest.
    `mhfl-peer report` makes the tables.

    \b
    mhfl-peer simulate deploy/examples/experiments/digits.toml --out digits
    mhfl-peer simulate experiment.toml --out runs --dry-run
    mhfl-peer simulate experiment.toml --out runs --only local --only fedskd
    mhfl-peer simulate experiment.toml --out /shared/runs --engine ray --address auto
    mhfl-peer simulate experiment.toml --out /shared/runs --shard 3/10
    """
    from peer.lab.experiments.experiment import Experiment
    from peer.lab.experiments.ray_cluster import RayCluster
    from peer.lab.experiments.sweep import check_networks, estimate_seconds, prepare, shard_of

    cluster = None
    if engine == "ray":
        cluster = RayCluster(address, run_cpus, run_gpus, int(run_memory * 2**30) if run_memory else None)
    elif address:
        raise UsageError("--address is of a Ray cluster", "add --engine ray")
    loaded = Experiment.load(experiment)
    rows = _chosen_rows(loaded, only)
    every_run = prepare(loaded, out, source=source)
    runs = shard_of([run for run in every_run if loaded.row_of(run.document["method"]) in rows], *shard)
    if dry_run:
        check_networks(runs)
    is_quiet = as_json or not sys.stdout.isatty()
    failed = {} if dry_run else _carry_out(runs, is_quiet=is_quiet, jobs=jobs, keep=keep, cluster=cluster)
    keys = ("partition", "models", "method", "reason")
    document: SimulationResult = {
        "out": str(out),
        "runs": [{"id": run.id, "finished": run.is_finished(), "failed": failed.get(run.id)} for run in runs],
        "without_runs": [
            cast(RowWithoutRuns, dict(zip(keys, row, strict=True)))
            for row in loaded.rows_without_runs()
            if loaded.row_of(row[2]) in rows
        ],
        "seconds": estimate_seconds(runs, jobs=jobs),
    }
    output.emit(document, as_json=as_json, render=lambda document: _as_text(document, dry_run=dry_run))
    if failed:
        name, reason = next(iter(failed.items()))
        raise WorkerFailed(
            f"{len(failed)} of {len(runs)} runs failed; {name}: {reason}",
            f"correct that in {experiment} or in the data, and run the command again; finished runs are kept",
        )


def _chosen_rows(experiment: Experiment, only: tuple[str, ...]) -> Sequence[str]:
    """Return the rows that are named, or all without a name. Raise ``UsageError`` for a name that is none."""
    for name in only:
        if name not in experiment.rows:
            raise UsageError(f"--only {name}: no such row in {experiment.path}", f"it has {', '.join(experiment.rows)}")
    return only or experiment.rows


def _carry_out(runs: Sequence[Run], *, is_quiet: bool, **options: Any) -> dict[str, str]:
    """Carry out the runs and show their progress; return the reason of each failed one by its id."""
    from peer.lab.experiments.sweep import sweep

    if is_quiet:
        return sweep(runs, watch=_StderrProgress(), **options)
    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False, transient=True) as live:
        return sweep(runs, watch=lambda progress: live.update(_render_progress(progress), refresh=True), **options)


class _StderrProgress:
    """Prints a line to standard error for each run that ends, if no terminal shows progress bars."""

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
        rendering.progress_line(name.split(".", 3)[-1], committed, rounds, f"{committed}/{rounds} rounds of all sites")
        for name, (committed, rounds) in sorted(progress.underway.items())
    ]
    return Group(*lines)


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _as_text(document: Mapping[str, Any], *, dry_run: bool) -> output.RenderableType:
    from rich.text import Text

    return Text(_render_plan(document) if dry_run else _render(document))


def _render_plan(document: Mapping[str, Any]) -> str:
    """Render the result of a dry run."""
    lines = [f"All is well: {len(document['runs'])} runs can be carried out."]
    left_out = (
        f"Left out: {row['method']} in models {row['models']}: {row['reason']}." for row in document["without_runs"]
    )
    lines += dict.fromkeys(left_out)  # once for all partitions
    seconds = document["seconds"]
    if seconds is None:
        lines.append("The time is not known before a run has finished: `--shard 1/N` carries out some of them.")
    else:
        lines.append(f"The unfinished ones take about {_format_duration(seconds)}, as the finished ones did.")
    return "\n".join([*lines, _render(document)])


def _render(document: Mapping[str, Any]) -> str:
    finished = sum(run["finished"] for run in document["runs"])
    text = f"{finished} of {len(document['runs'])} runs are finished, in {document['out']}."
    return text + (f"\nTables and pictures: mhfl-peer report {document['out']}" if finished else "")
