"""Trackers: they write a site's scalars to TensorBoard and MLflow, into files of this machine, each
scalar once.

Trackers use no network: metrics do not leave the site through them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from peer.errors import DiskError, StateError, UsageError
from peer.extras import require_extra
from peer.site.records.journal import storage
from peer.view.tracking.scalars import GenerationScalars, Scalar, TagAndStep

SQLITE = "sqlite:///"
METRICS_PER_CALL = 1000
PARAMETERS_PER_CALL = 100
PARAMETER_LENGTH_MAX = 500
"""Limits of MLflow's store."""


class Tracker(Protocol):
    def add(self, run: GenerationScalars) -> int:
        """Write the scalars of the run that the tracker does not have yet, durably.

        Returns their number.
        """

    def close(self) -> None:
        """Close all files."""


class TensorBoard:
    """A folder of TensorBoard's, with a run ``<federation>-<digest>/<site>/gen-0001`` for each
    generation; ``ConfigError`` where the package is not installed.
    """

    def __init__(self, folder: Path) -> None:
        require_extra("scalars", "--tensorboard", ("tensorboard",))
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer import event_file_writer

        self._event, self._summary, self._writer = event_pb2.Event, summary_pb2.Summary, event_file_writer
        self._folder = folder
        self._written: dict[Path, set[TagAndStep]] = {}
        self._open: dict[Path, Any] = {}

    def add(self, run: GenerationScalars) -> int:
        """Append to the run's folder. Raises ``DiskError`` if it cannot be written."""
        folder = self._folder / f"{run.federation}-{run.digest[:8]}" / run.site / run.name
        if folder not in self._written:
            self._written[folder] = set(self._read(folder))
        written_scalars = self._written[folder]
        new = [scalar for scalar in run.scalars if (scalar.tag, scalar.step) not in written_scalars]
        if new:
            try:
                self._append(folder, new)
            except OSError as error:
                raise DiskError(f"{folder} cannot be written: {error.strerror}") from error
            written_scalars |= {(scalar.tag, scalar.step) for scalar in new}
        return len(new)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()

    def _append(self, folder: Path, scalars: Sequence[Scalar]) -> None:
        if folder not in self._open:
            folder.mkdir(parents=True, exist_ok=True)
            self._open[folder] = self._writer.EventFileWriter(str(folder))
        writer = self._open[folder]
        for scalar in scalars:
            summary = self._summary(value=[self._summary.Value(tag=scalar.tag, simple_value=scalar.value)])
            writer.add_event(self._event(wall_time=scalar.time_s, step=scalar.step, summary=summary))
        writer.flush()

    def _read(self, folder: Path) -> Iterator[TagAndStep]:
        """Tag and step of each scalar in the folder's files.

        A record that was cut off does not count.
        """
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        for path in sorted(folder.glob("*tfevents*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    yield value.tag, event.step


class MLflow:
    """A SQLite file of MLflow's: an experiment for each federation, a run for each generation of a
    site.

    Raises:
        ConfigError: the package is not installed.
        StateError: MLflow cannot use the file.
    """

    def __init__(self, database: Path) -> None:
        require_extra("scalars", "--mlflow", ("mlflow", "alembic", "sqlalchemy"))
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = (
            "true"  # read at the import: MLflow would report each use to its makers
        )
        with _quiet():
            from mlflow import MlflowClient, entities
            from mlflow.exceptions import MlflowException
            from sqlalchemy.exc import SQLAlchemyError
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._path, self._entities, self._problems = database, entities, (MlflowException, SQLAlchemyError)
        self._written: dict[str, set[TagAndStep]] = {}
        with self._wrap_errors(), _quiet():
            self._client = MlflowClient(tracking_uri=f"{SQLITE}{database}")

    def add(self, run: GenerationScalars) -> int:
        """Log to the run of the generation; MLflow's run is created if it does not exist."""
        with self._wrap_errors():
            identity = self._run_id(run)
            written_scalars = self._read(identity, run)
            new = [scalar for scalar in run.scalars if (scalar.tag, scalar.step) not in written_scalars]
            metrics = [
                self._entities.Metric(scalar.tag, scalar.value, round(scalar.time_s * 1000), scalar.step)
                for scalar in new
            ]
            for start in range(0, len(metrics), METRICS_PER_CALL):
                self._client.log_batch(identity, metrics=metrics[start : start + METRICS_PER_CALL])
            written_scalars |= {(scalar.tag, scalar.step) for scalar in new}
            if run.ended_s is not None and self._client.get_run(identity).info.status != "FINISHED":
                self._client.set_terminated(identity, "FINISHED", end_time=round(run.ended_s * 1000))
        return len(new)

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _run_id(self, run: GenerationScalars) -> str:
        """Return the id of MLflow's run with the generation's tags; a missing run is created."""
        tags = {"mhfl.federation": run.digest, "mhfl.site": run.site, "mhfl.generation": str(run.generation)}
        experiment = self._client.get_experiment_by_name(run.federation)
        if experiment is None:
            artifacts = (self._path.parent / "mlflow-artifacts").as_uri()  # only a name: models stay at the site
            number = self._client.create_experiment(run.federation, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        tag_filter = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        runs = self._client.search_runs([number], filter_string=tag_filter, max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        created = self._client.create_run(
            number, start_time=round(run.began_s * 1000), tags=tags, run_name=f"{run.site} {run.name}"
        )
        facts = [self._entities.Param(name, value[:PARAMETER_LENGTH_MAX]) for name, value in run.facts.items()]
        for start in range(0, len(facts), PARAMETERS_PER_CALL):
            self._client.log_batch(created.info.run_id, params=facts[start : start + PARAMETERS_PER_CALL])
        return str(created.info.run_id)

    def _read(self, identity: str, run: GenerationScalars) -> set[TagAndStep]:
        """Tag and step of each scalar that MLflow has of the run."""
        if identity not in self._written:
            logged = self._client.get_run(identity).data.metrics
            tags = {scalar.tag for scalar in run.scalars} & logged.keys()
            histories = {tag: self._client.get_metric_history(identity, tag) for tag in tags}
            self._written[identity] = {(tag, point.step) for tag, points in histories.items() for point in points}
        return self._written[identity]

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except self._problems as error:
            reason = str(error).splitlines()[0]
            raise StateError(f"{self._path}: MLflow cannot use it: {reason}", "name another file") from error


def database_file(uri: str) -> Path:
    """Return the file of an MLflow store, which is made if it does not exist.

    Raises:
        UsageError: the store is no SQLite file of this machine.
        DiskError: the file cannot be written.
        StateError: the file is no database.
    """
    name = uri.removeprefix(SQLITE)
    if not uri.startswith(SQLITE) or not name or "?" in name:
        kind = uri.partition(":")[0]  # the rest may hold a password
        raise UsageError(
            f"--mlflow: a store of the kind {kind!r} is no file of this machine, and metrics stay at the site",
            "name sqlite:///FILE; `mlflow ui --backend-store-uri sqlite:///FILE` shows it",
        )
    path = Path(name).absolute()
    if not path.parent.is_dir():
        raise DiskError(f"{path.parent} does not exist", "make the folder first")
    with storage(path), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # MLflow would retry for minutes on a file that cannot be written
    return path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide MLflow's warnings about the libraries that it uses: they do not concern the operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
