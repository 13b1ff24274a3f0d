"""The results of `mhfl-peer simulate` in a folder: the experiment, its finished and its missing runs.

Arrays are read on demand and never unpickled.
"""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.core.metrics import METRICS_OF
from peer.core.tasks import objective_of
from peer.errors import StateError, UsageError
from peer.lab.experiments.result_files import CENTRALISED, FORMAT, UNDISTURBED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class OwnPredictions:
    """A site's own model on its own test data.

    Attributes:
        probabilities: ``(n, classes)``.
        labels: ``(n,)``.
        samples: the datalist's entries; empty if their number differs.
    """

    site: str
    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    samples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunResult:
    """One finished federation: ``result.json``, and the arrays beside it."""

    folder: Path
    document: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def method(self) -> str:
        return str(self.document["method"])

    @property
    def links(self) -> str:
        return str(self.document["links"])

    @property
    def setting(self) -> tuple[str, str]:
        """Partition and set of networks; a table shows one setting."""
        return str(self.document["partition"]), str(self.document["models"])

    @property
    def fold(self) -> int:
        return int(self.document["fold"])

    @property
    def seed(self) -> int:
        return int(self.document["seed"])

    @property
    def sites(self) -> Mapping[str, Mapping[str, Any]]:
        sites: Mapping[str, Mapping[str, Any]] = self.document["sites"]
        return sites

    @property
    def matrix(self) -> Mapping[str, Mapping[str, Mapping[str, float | None]]]:
        """Metrics by the model's site, then by the test data's site."""
        matrix: Mapping[str, Mapping[str, Mapping[str, float | None]]] = self.document["matrix"]
        return matrix

    @property
    def single_model(self) -> bool:
        """Whether all sites end with the same network."""
        return bool(self.document.get("single_model", False))

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Versions, digests and time; empty if the file is missing."""
        manifest: Mapping[str, Any] = self._json("manifest.json")
        return manifest

    @cached_property
    def samples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The datalist's test entries by site, in the order of the arrays."""
        samples: Mapping[str, Any] = self._json("samples.json")
        return samples

    @cached_property
    def scores(self) -> Mapping[str, Sequence[Mapping[str, float]]]:
        """Dense tasks only: each test sample's metrics with the model of its own site."""
        scores: Mapping[str, Any] = self._json("scores.json")
        return scores

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Read the arrays of ``<name>.npz``, if any. Raise ``StateError`` if the file is damaged."""
        import numpy as np

        path = self.folder / f"{name}.npz"
        if not path.exists():
            return {}
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise StateError(
                f"{path} cannot be read: {error}", "delete this run's folder and simulate again"
            ) from error

    def predictions(self, model: str, data: str) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
        """Return a model's probabilities ``(n, classes)`` and the labels ``(n,)`` on a site's test data, or None."""
        arrays = self._predictions
        if f"p/{model}/{data}" not in arrays or f"y/{data}" not in arrays:
            return None
        return arrays[f"p/{model}/{data}"].astype("float64"), arrays[f"y/{data}"].astype("int64")

    def own_predictions(self) -> Iterator[OwnPredictions]:
        """Yield the predictions of each site's own model by site; skip sites without stored ones."""
        for site in sorted(self.sites):
            pair = self.predictions(site, site)
            if pair is not None:
                samples = self.samples.get(site, ())
                yield OwnPredictions(site, *pair, samples if len(samples) == len(pair[1]) else ())

    @cached_property
    def _predictions(self) -> dict[str, NDArray[Any]]:
        return self.arrays("predictions")

    def _json(self, name: str) -> Any:
        path = self.folder / name
        return read_document(path) if path.exists() else {}


@dataclass(frozen=True)
class CandidateScore:
    """One candidate for a row's parameters, in one fold and seed.

    Attributes:
        value: the main metric on validation samples, the mean over the sites that have one.
        loss: on validation samples, the mean over the sites.
    """

    row: str
    candidate: str
    run: RunResult = field(repr=False)
    value: float | None
    loss: float
    is_chosen: bool = False


@dataclass(frozen=True)
class Results:
    """An experiment and its finished runs.

    Attributes:
        unfinished: ids of the runs of the experiment that have no result.
        ddof: of standard deviations: 0, as the papers' figures are, or 1 for those of a sample.
        scores: of every candidate, if rows have some and ``choice.choose`` has chosen.
    """

    folder: Path
    experiment: Mapping[str, Any]
    runs: Sequence[RunResult]
    unfinished: Sequence[str]
    ddof: int = 0
    scores: Sequence[CandidateScore] = ()

    @property
    def kind(self) -> str:
        task = self.experiment["task"]
        return objective_of(str(task["kind"]), str(task.get("target", "class")))

    @property
    def metric(self) -> str:
        return str(self.experiment["metric"])

    @property
    def metrics(self) -> list[str]:
        """The task's metrics, the main one first, and those that the experiment names beside them."""
        further = self.experiment.get("further_metrics", ())
        return list(dict.fromkeys((self.metric, *METRICS_OF.get(self.kind, ()), *further)))

    @cached_property
    def methods(self) -> list[str]:
        return list(self.experiment["methods"])

    def is_meant_for(self, setting: tuple[str, str], label: str) -> bool:
        """Return whether the experiment has this row for the setting's set of networks."""
        return setting[1] in (self.experiment["methods"].get(label, {}).get("models") or setting[1:])

    def reason_without_runs(self, setting: tuple[str, str], label: str) -> str:
        """Return why a method has no run in a setting: it is not for that set of networks; else empty."""
        facts = self.experiment["methods"].get(label, {})
        if not self.is_meant_for(setting, label):
            return f"only for {', '.join(facts['models'])}"
        specs = [spec for run in self.runs if run.setting == setting for spec in map(_network, run.sites.values())]
        if facts.get("one_network") and any(spec != specs[0] for spec in specs):
            return "needs one network for all sites"
        return ""

    def method_of(self, label: str) -> str:
        return str(self.experiment["methods"].get(label, {}).get("method", label))

    @cached_property
    def settings(self) -> list[tuple[str, str]]:
        """Partitions and sets of networks that have a run, in the experiment's order."""
        settings_with_runs = {run.setting for run in self.runs}
        order = itertools.product(self.experiment["partitions"], self.experiment["models"])
        return [setting for setting in order if setting in settings_with_runs]

    @cached_property
    def links(self) -> dict[str, Mapping[str, Any]]:
        """The settings of the links by name, the undisturbed federation first."""
        return {str(links["name"]): links for links in self.experiment["links"]}

    def select(self, setting: tuple[str, str], label: str, links: str = UNDISTURBED) -> list[RunResult]:
        """Return the runs of one cell, by fold and seed."""
        selected = (run for run in self.runs if (run.setting, run.method, run.links) == (setting, label, links))
        return sorted(selected, key=lambda run: (run.fold, run.seed))

    def labels(self, setting: tuple[str, str], links: str = UNDISTURBED) -> list[str]:
        """Return the labels of the methods that have a run in this setting."""
        return [label for label in self.methods if self.select(setting, label, links)]

    def sites(self, setting: tuple[str, str]) -> list[str]:
        """Return the sites of the setting, sorted by name."""
        return sorted({site for run in self.runs if run.setting == setting for site in run.sites})

    def representative_run(self, partition: str) -> RunResult | None:
        """Choose a run with the data of all sites: not pooled, first fold and seed, most sites."""
        runs = [run for run in self.runs if run.setting[0] == partition and self.method_of(run.method) != CENTRALISED]
        return min(runs, key=lambda run: (-len(run.sites), run.fold, run.seed), default=None)

    def title(self, setting: tuple[str, str]) -> str:
        """Return the parts of the setting's name that differ between settings; empty for one setting."""
        parts = [
            f"{kind} {name}"
            for kind, key, name in zip(("partition", "models"), ("partitions", "models"), setting, strict=True)
            if len(self.experiment[key]) > 1
        ]
        return ", ".join(parts)

    @property
    def without_model(self) -> list[str]:
        """The rows with a run whose method trains no model, such as statistics."""
        facts = self.experiment["methods"]
        return [label for label in facts if not facts[label].get("predicts", True) and self._has_run(label)]

    def _has_run(self, label: str) -> bool:
        return any(run.method == label for run in self.runs)

    def with_models(self) -> Results:
        """Keep the rows that have a model's metrics; the result may be empty."""
        left_out = self.without_model
        methods = {label: facts for label, facts in self.experiment["methods"].items() if label not in left_out}
        runs = [run for run in self.runs if run.method not in left_out]
        return replace(self, experiment={**self.experiment, "methods": methods}, runs=runs)

    def with_rows(self, names: Mapping[str, str]) -> Results:
        """Keep these rows, in this order, each under its name here; all of them if none is given.

        Raises:
            UsageError: the experiment has no such row.
            StateError: none of the rows has a finished run.
        """
        if not names:
            return self
        rows = self.experiment["methods"]
        for row in names:
            if row not in rows:
                raise UsageError(f"no row {row!r} in {self.folder}", f"it has {', '.join(rows)}")
        if len(set(names.values())) < len(names):
            raise UsageError("two rows would have one name", "give each another")
        if not any(run.method in names for run in self.runs):
            raise StateError(
                f"{self.folder}: none of these rows has a finished run", "let `simulate` finish at least one"
            )
        candidates = {score.candidate: score.row for score in self.scores}
        kept_labels = [*names, *(label for label, row in candidates.items() if row in names)]
        return replace(
            self,
            experiment={**self.experiment, "methods": {name: rows[row] for row, name in names.items()}},
            runs=[
                replace(run, document={**run.document, "method": names[run.method]})
                for run in self.runs
                if run.method in names
            ],
            unfinished=[
                run
                for run in self.unfinished
                if run.rpartition(".fold-")[0].endswith(tuple(f".{label}" for label in kept_labels))
            ],
            scores=[replace(score, row=names[score.row]) for score in self.scores if score.row in names],
        )

    @property
    def repeats(self) -> str:
        """The units of means and deviations, in words."""
        folds, seeds = int(self.experiment["folds"]), len(self.experiment["seeds"])
        if folds:
            return f"{folds} folds" + (f", each the mean of {seeds} seeds" if seeds > 1 else "")
        return f"{seeds} seeds" if seeds > 1 else "one run"


def read(folder: Path, *, ddof: int = 0) -> Results:
    """Read the folder of an experiment.

    Args:
        ddof: of the standard deviations that are computed from it.

    Raises:
        UsageError: the folder holds no experiment.
        StateError: a file has another format or is damaged, or no run has finished.
    """
    path = folder / "experiment.json"
    if not path.is_file():
        raise UsageError(f"{folder} holds no results: there is no {path.name}", "name what `simulate --out` made")
    experiment = read_document(path)
    _check_format(path, experiment)
    runs, unfinished = [], []
    for run_folder in sorted((folder / "runs").glob("*/")):
        result = run_folder / "result.json"
        if result.is_file():
            run = RunResult(run_folder, read_document(result))
            _check_format(result, run.document)
            if _is_in_experiment(experiment, run):
                runs.append(run)
        else:
            unfinished.append(run_folder.name)
    if not runs:
        raise StateError(f"{folder}: no run has finished yet", "let `simulate` finish at least one")
    return Results(
        folder,
        experiment,
        runs,
        sorted({*unfinished, *_expected_ids(experiment, runs)} - {run.id for run in runs}),
        ddof,
    )


def _network(site: Mapping[str, Any]) -> object:
    return site["model"]


def _is_in_experiment(experiment: Mapping[str, Any], run: RunResult) -> bool:
    """Return whether the experiment's file still names this run; the report ignores others."""
    partition, models = run.setting
    return (
        partition in experiment["partitions"]
        and models in experiment["models"]
        and run.method in experiment["methods"]
        and run.links in {links["name"] for links in experiment["links"]}
        and run.seed in experiment["seeds"]
        and run.fold < max(int(experiment["folds"]), 1)
    )


def read_document(path: Path) -> Any:
    """Read a JSON file. Raise ``StateError`` if it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error}", "delete it and simulate again") from error


def _check_format(path: Path, content: Any) -> None:
    version = content.get("format") if isinstance(content, Mapping) else None
    if version != FORMAT:
        writer_version = content.get("version") if isinstance(content, Mapping) else None
        raise StateError(
            f"{path} is of format {version}; this program reads format {FORMAT}",
            f"report with the version that wrote it{f', mhfl-peer {writer_version}' if writer_version else ''}",
        )


def _expected_ids(experiment: Mapping[str, Any], runs: Iterable[RunResult]) -> set[str]:
    """Return the ids of the experiment's runs: every fold and seed of each federation that has a run."""
    if "runs" in experiment:
        return set(experiment["runs"])
    prefixes = {run.id.rpartition(".fold-")[0] for run in runs}
    folds = range(max(int(experiment["folds"]), 1))
    return {
        f"{prefix}.fold-{fold}.seed-{seed}"
        for prefix, fold, seed in itertools.product(prefixes, folds, experiment["seeds"])
    }
