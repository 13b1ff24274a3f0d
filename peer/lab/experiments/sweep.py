"""All runs of an experiment, on one machine or many: in parallel as memory allows, each one once.

joblib starts the processes, or Ray on a cluster. Each process carries out one run at a time and
writes its result to disk. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import gc
import importlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import __version__
from peer.allocator import keep_memory_between_steps
from peer.errors import ConfigError, PeerError, StateError, WorkerFailed
from peer.extras import require_extra
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.pool import gather
from peer.lab.experiments.ray_cluster import RayCluster
from peer.lab.experiments.result_files import FORMAT
from peer.lab.experiments.runs import Run, build_runs
from peer.site.config.site_folder import write_atomically

EXPERIMENT = "experiment.json"
HEADROOM = 1.25
"""Assumed upper bound of a run's memory, as a multiple of the largest finished run's peak."""
POLL_S = 0.5


@dataclass
class SweepProgress:
    """The state of a sweep, as `simulate` shows it.

    Attributes:
        finished: number of runs with a result.
        underway: of each running run, the committed rounds of all sites and their total.
        seconds_left: an estimate; None until there is progress.
    """

    total: int
    finished: int = 0
    underway: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds_left: float | None = None
    failed: dict[str, str] = field(default_factory=dict)


Watch = Callable[[SweepProgress], None]


def prepare(experiment: Experiment, folder: Path, *, source: Path | None = None) -> list[Run]:
    """Gather the data, divide it, check every run, and write the runs' folders; start no run.

    Raise ``PeerError`` if the experiment or its data is wrong.
    """
    require_extra("research", "`simulate`")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tasks of a job array begin at once, and one prepares for all
        return _prepare(experiment, folder, source)


def _prepare(experiment: Experiment, folder: Path, source: Path | None) -> list[Run]:
    for key, package in experiment.missing_modules():
        raise ConfigError(
            f"{experiment.path}: {key} needs the Python package {package}, not installed here",
            f"install {package} into this environment, or set PYTHONPATH to the folder that has it",
        )
    document = _experiment_document(experiment)
    path = folder / EXPERIMENT
    if path.exists():
        try:
            stored = json.loads(path.read_text())
        except ValueError as error:
            raise StateError(f"{path} is damaged: {error}", "delete it; the runs beside it are kept") from error
        for key in ("format", "version", "name"):
            if stored.get(key) != document[key]:
                raise StateError(
                    f"{folder} holds results of {key} {stored.get(key)!r}; this is {document[key]!r}",
                    "name another folder with --out, or delete this one",
                )
    pool = gather(experiment, folder / "data", source=source)
    runs = build_runs(experiment, pool, folder / "runs")
    write_atomically(folder / "experiment.toml", experiment.text().encode(), 0o644)
    write_atomically(path, json.dumps(document, indent=1).encode(), 0o644)
    for run in runs:
        run.write()
    return runs


def estimate_seconds(runs: Sequence[Run], *, jobs: int | None) -> float | None:
    """Estimate the time of the unfinished runs from the finished ones of their rows or of all rows.

    None if no run has finished: only a run shows the time of a step.
    """
    seconds: dict[str, list[float]] = {}
    for run in runs:
        with contextlib.suppress(OSError, ValueError, KeyError):
            taken_s = float(json.loads((run.folder / "manifest.json").read_text())["seconds"])
            seconds.setdefault(run.document["method"], []).append(taken_s)
    every = [taken_s for row in seconds.values() for taken_s in row]
    if not every:
        return None
    expected = [seconds.get(run.document["method"], every) for run in runs if not run.is_finished()]
    total_s = sum(sum(row) / len(row) for row in expected)
    return total_s / max(1, min(jobs or _processors(), count_fitting_runs(runs), len(expected)))


def check_networks(runs: Sequence[Run]) -> None:
    """Build the networks of one run of each method and set of models, and train nothing.

    Raises:
        ModelError: a method cannot use a site's network; the message names run and site.
    """
    collect = importlib.import_module("peer.lab.experiments.collect")
    for run in {(run.document["method"], run.document["models"]): run for run in reversed(runs)}.values():
        collect.simulation_of(run.folder).check_networks()


def shard_of(runs: Sequence[Run], number: int, shards: int) -> list[Run]:
    """Return shard ``number`` (from 1) of ``shards``: each run is in one, and a method's runs are spread."""
    return list(runs[number - 1 :: shards])


def sweep(
    runs: Sequence[Run], *, jobs: int | None, keep: bool, watch: Watch, cluster: RayCluster | None = None
) -> dict[str, str]:
    """Carry out the runs that have no result yet.

    The first run is carried out alone: its peak memory determines how many runs fit at once.

    Args:
        jobs: upper bound of parallel runs; None: as many as there are processors, or as the cluster takes.
        watch: called about twice a second.
        cluster: carries out the runs; None: processes of this machine.

    Returns:
        The reason of each failed run, by its id; all others are finished.
    """
    progress = SweepProgress(len(runs), sum(run.is_finished() for run in runs))
    unfinished = [run for run in runs if not run.is_finished()]
    jobs_max = jobs or _processors()
    with _reporting(progress, runs, watch):
        if cluster is not None:
            folders = [run.folder for run in unfinished]
            peak = _peak_bytes(runs)
            ended = cluster.run(
                execute_run, folders, keep, jobs=jobs, peak_bytes=int(peak * HEADROOM) if peak else None
            )
            progress.failed |= {name: reason for name, reason in ended if reason}
            return progress.failed
        if jobs_max > 1 and unfinished and not progress.finished:
            _run_jobs(unfinished[:1], 1, keep, progress)
            unfinished = [run for run in unfinished[1:] if not run.is_finished()]
        if unfinished:
            _run_jobs(unfinished, min(jobs_max, count_fitting_runs(runs)), keep, progress)
    return progress.failed


def _run_jobs(unfinished: Sequence[Run], jobs: int, keep: bool, progress: SweepProgress) -> None:
    joblib = importlib.import_module("joblib")
    killed_error = importlib.import_module("joblib.externals.loky.process_executor").TerminatedWorkerError
    results = joblib.Parallel(n_jobs=jobs, backend="loky", batch_size=1, return_as="generator_unordered")(
        joblib.delayed(execute_run)(run.folder, keep, os.getpid()) for run in unfinished
    )
    try:
        for name, reason in results:
            if reason:
                progress.failed[name] = reason
    except killed_error as error:
        raise WorkerFailed(
            "a process was killed; the machine may be out of memory",
            "give a smaller --jobs and run it again: what is finished is kept",
        ) from error


def execute_run(folder: Path, keep: bool, starter: int | None = None) -> tuple[str, str]:
    """Carry out one run, in a separate process that imports torch.

    Args:
        starter: the process that waits for the result; a child of it ends soon after it.

    Returns:
        The run's id, and the reason why it failed; empty if it did not.
    """
    collect = importlib.import_module("peer.lab.experiments.collect")
    if starter is not None and starter != os.getpid():
        end_with(starter)
    keep_memory_between_steps()
    gc.freeze()  # the trainer's garbage collection after each stage need not scan imported modules
    trace = folder / "error.txt"
    trace.unlink(missing_ok=True)
    try:
        collect.execute(folder, keep=keep)
    except PeerError as error:
        return folder.name, error.message
    except Exception as error:
        trace.write_text("".join(traceback.format_exception(error)))
        return folder.name, f"{type(error).__name__}: {error} (see {trace})"
    return folder.name, ""


@functools.cache
def end_with(starter: int) -> None:
    """End this process soon after its parent ``starter``: a second `simulate` would write into the same folders."""

    def watch() -> None:
        while os.getppid() == starter:
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _reporting(progress: SweepProgress, runs: Sequence[Run], watch: Watch) -> Iterator[None]:
    """Read the runs' folders every ``POLL_S`` while the block runs, and call ``watch``."""
    began_s, finished_before = time.monotonic(), progress.finished
    ended = threading.Event()

    def report() -> None:
        is_last = False
        while not is_last:
            is_last = ended.is_set()  # read first, so that the last report comes after the end
            progress.finished = sum(run.is_finished() for run in runs)
            progress.underway = dict(_read_progress(runs))
            shares = (committed / max(1, rounds) for committed, rounds in progress.underway.values())
            runs_done = progress.finished - finished_before + sum(shares)
            left = max(0.0, progress.total - finished_before - runs_done)  # a run may have ended between both reads
            progress.seconds_left = (time.monotonic() - began_s) / runs_done * left if runs_done else None
            watch(progress)
            ended.wait(POLL_S)

    watcher = threading.Thread(target=report, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _read_progress(runs: Sequence[Run]) -> Iterator[tuple[str, tuple[int, int]]]:
    for run in runs:
        with contextlib.suppress(OSError, ValueError):
            committed, rounds = (run.folder / "progress").read_text().split()
            yield run.id, (int(committed), int(rounds))


def count_fitting_runs(runs: Sequence[Run]) -> int:
    """Return the number of runs that fit into the available memory, by the largest peak so far; at least one."""
    peak, free = _peak_bytes(runs), available_memory_bytes()
    return max(1, int(free / (peak * HEADROOM))) if peak and free else _processors()


def _peak_bytes(runs: Sequence[Run]) -> int:
    """Return the largest peak memory of the finished runs; 0 without one."""
    peaks = [0]
    for run in runs:
        with contextlib.suppress(OSError, ValueError, KeyError):
            peaks.append(int(json.loads((run.folder / "manifest.json").read_text())["peak_bytes"]))
    return max(peaks)


def available_memory_bytes() -> int | None:
    """Return the memory that can be allocated without swapping, as Linux reports it; None on other systems."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _processors() -> int:
    joblib = importlib.import_module("joblib")
    return int(joblib.cpu_count())


def _experiment_document(experiment: Experiment) -> dict[str, Any]:
    """Build ``experiment.json``: the facts about the experiment that the report needs."""
    methods: Mapping[str, Any] = {
        label: {
            "method": row.method or label,
            "parameters": dict(row.__pydantic_extra__),
            "kept_home": experiment.plan(label).evaluation_denied or "",
            "batch_size": experiment.batch_size(label),
            "models": list(row.models),
            "one_network": experiment.plan(label).shared == "itself",
            **({} if experiment.plan(label).predicts else {"predicts": False, "rounds": 1}),
            **({"candidate_of": row.candidate_of} if row.candidate_of else {}),
            **({"rounds": row.rounds} if row.rounds else {}),
            "stages": {
                stage: {**dataclasses.asdict(work), **experiment.stages(label).get(stage, {})}
                for stage, work in experiment.plan(label).stages.items()
            },
        }
        for label, row in experiment.methods.items()
    }
    return {
        "format": FORMAT,
        "version": __version__,
        "name": experiment.name,
        "title": experiment.title,
        "description": experiment.description,
        "differs": experiment.differs,
        "reference": None if experiment.reference is None else experiment.reference.model_dump(),
        "not_run": [row.model_dump() for row in experiment.not_run],
        "metric": experiment.metric,
        "further_metrics": list(experiment.metrics),
        "task": experiment.task.document(),
        "seeds": list(experiment.seeds),
        "folds": experiment.folds,
        "rounds": experiment.rounds,
        "budget": experiment.budget.model_dump(),
        "methods": methods,
        "models": {
            name: {site: model.model_dump() for site, model in models.items()}
            for name, models in experiment.models.items()
        },
        "partitions": {name: rule.model_dump() for name, rule in experiment.partitions.items()},
        "links": [
            {
                "name": name,
                "loss": links.loss,
                "removed": list(links.removed),
                "insider": links.insider,
                "act": links.act,
                **({"epochs": [change.model_dump(mode="json") for change in links.epochs]} if links.epochs else {}),
                "left_out": experiment.left_out_by_links.get(name),
            }
            for name, links in experiment.links_by_name.items()
        ],
    }
