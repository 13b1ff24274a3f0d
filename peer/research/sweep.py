"""All runs of an experiment on one machine: several at once where memory allows, none twice.

The processes are joblib's; each run is a process' own matter, and what it finishes is on disk. Nothing here imports
torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import __version__
from peer.config.site_folder import write_atomically
from peer.errors import PeerError, StateError, WorkerFailed
from peer.extras import require_extra
from peer.research.experiment import Experiment
from peer.research.pool import gather
from peer.research.result_files import FORMAT
from peer.research.runs import Run, runs

EXPERIMENT = "experiment.json"
MARGIN = 1.25
"""A run may need so many times the memory of the largest one so far."""
POLL_S = 0.5


@dataclass
class SweepProgress:
    """What a watcher may show.

    Attributes:
        doing: in words.
        total: runs of the experiment.
        finished: of them.
        underway: committed rounds of all sites, and how many there are, by run.
        seconds_left: an estimate, once a run is finished.
        failed: reasons by run.
    """

    doing: str
    total: int = 0
    finished: int = 0
    underway: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds_left: float | None = None
    failed: dict[str, str] = field(default_factory=dict)


Watch = Callable[[SweepProgress], None]


def prepare(experiment: Experiment, folder: Path, *, source: Path | None = None) -> list[Run]:
    """Gather the data, divide it, check every run and write what the runs need.

    Raises:
        PeerError: something is wrong; nothing was trained.
    """
    require_extra("research", "`simulate`")
    folder.mkdir(parents=True, exist_ok=True)
    document = _document(experiment)
    path = folder / EXPERIMENT
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except ValueError as error:
            raise StateError(f"{path} is damaged: {error}", "delete it; the runs beside it are kept") from error
        for key in ("format", "version", "name"):
            if before.get(key) != document[key]:
                raise StateError(
                    f"{folder} holds results of {key} {before.get(key)!r}; this is {document[key]!r}",
                    "name another folder with --out, or delete this one",
                )
    pool = gather(experiment, folder / "data", source=source)
    all_runs = runs(experiment, pool, folder / "runs")
    write_atomically(folder / "experiment.toml", experiment.text().encode(), 0o644)
    write_atomically(path, json.dumps(document, indent=1).encode(), 0o644)
    for run in all_runs:
        run.write()
    return all_runs


def sweep(all_runs: Sequence[Run], *, jobs: int | None, keep: bool, watch: Watch) -> dict[str, str]:
    """Carry out the runs that have no result yet.

    The first goes alone: it tells how much memory one needs, and so how many fit.

    Args:
        all_runs: of :func:`prepare`.
        jobs: at most so many at once; None: as many as there are processors.
        keep: leave journals, checkpoints and artifacts in the runs' folders.
        watch: called about twice a second.

    Returns:
        Reasons by run of what failed; the others were finished.
    """
    progress = SweepProgress("training", len(all_runs), sum(run.finished() for run in all_runs))
    waiting = [run for run in all_runs if not run.finished()]
    wanted = jobs or _processors()
    with _watched(progress, all_runs, watch):
        if wanted > 1 and waiting and not progress.finished:
            _carry_out(waiting[:1], 1, keep, progress)
            waiting = [run for run in waiting[1:] if not run.finished()]
        if waiting:
            _carry_out(waiting, min(wanted, fitting(all_runs)), keep, progress)
    return progress.failed


def _carry_out(waiting: Sequence[Run], jobs: int, keep: bool, progress: SweepProgress) -> None:
    joblib = importlib.import_module("joblib")
    killed = importlib.import_module("joblib.externals.loky.process_executor").TerminatedWorkerError
    results = joblib.Parallel(n_jobs=jobs, backend="loky", batch_size=1, return_as="generator_unordered")(
        joblib.delayed(carry_out)(run.folder, keep) for run in waiting
    )
    try:
        for name, reason in results:
            if reason:
                progress.failed[name] = reason
    except killed as error:
        raise WorkerFailed(
            "a process was killed; the machine may be out of memory",
            "give a smaller --jobs and run it again: what is finished is kept",
        ) from error


def carry_out(folder: Path, keep: bool) -> tuple[str, str]:
    """One run, in a process that has torch: its name, and why it failed or nothing."""
    importlib.import_module("peer.training.monai").load()
    execution = importlib.import_module("peer.research.collect")
    trace = folder / "error.txt"
    trace.unlink(missing_ok=True)
    try:
        execution.execute(folder, keep=keep)
    except PeerError as error:
        return folder.name, error.message
    except Exception as error:
        trace.write_text("".join(traceback.format_exception(error)))
        return folder.name, f"{type(error).__name__}: {error} (see {trace})"
    return folder.name, ""


@contextlib.contextmanager
def _watched(progress: SweepProgress, all_runs: Sequence[Run], watch: Watch) -> Iterator[None]:
    """Look at the runs' folders now and then while the block runs."""
    began_s, already = time.monotonic(), progress.finished
    over = threading.Event()

    def look() -> None:
        ended = False
        while not ended:
            ended = over.is_set()  # asked first, so that the last look comes after the end
            progress.finished = sum(run.finished() for run in all_runs)
            progress.underway = dict(_underway(all_runs))
            done = progress.finished - already + sum(part / max(1, whole) for part, whole in progress.underway.values())
            left = progress.total - already - done
            progress.seconds_left = (time.monotonic() - began_s) / done * left if done else None
            watch(progress)
            over.wait(POLL_S)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _underway(all_runs: Sequence[Run]) -> Iterator[tuple[str, tuple[int, int]]]:
    for run in all_runs:
        with contextlib.suppress(OSError, ValueError):
            committed, rounds = (run.folder / "progress").read_text().split()
            yield run.id, (int(committed), int(rounds))


def fitting(all_runs: Sequence[Run]) -> int:
    """How many runs fit into the memory that is free, judged by those that were finished; at least one."""
    peaks = []
    for run in all_runs:
        with contextlib.suppress(OSError, ValueError, KeyError):
            peaks.append(int(json.loads((run.folder / "manifest.json").read_text())["peak_bytes"]))
    free = free_bytes()
    return max(1, int(free / (max(peaks) * MARGIN))) if peaks and free else _processors()


def free_bytes() -> int | None:
    """Memory that could be had without swapping, as Linux says; None elsewhere."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _processors() -> int:
    joblib = importlib.import_module("joblib")
    return int(joblib.cpu_count())


def _document(experiment: Experiment) -> dict[str, Any]:
    """What the report must know of the experiment."""
    methods: Mapping[str, Any] = {
        label: {
            "method": row.method or label,
            "parameters": dict(row.__pydantic_extra__),
            "kept_home": experiment.plan(label).evaluation_denied or "",
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
        "task": experiment.task.model_dump(),
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
            {"name": name, "loss": links.loss, "removed": list(links.removed)}
            for name, links in experiment.every_link.items()
        ],
    }
