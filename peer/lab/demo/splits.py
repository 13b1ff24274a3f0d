"""The demonstration's methods over several splits into training and test samples, in the simulator.

One split of a hundred test samples shows little; the simulator trains as the daemons do, without their time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import errors
from peer.documents.commands import DemoInterval, DemoSplits
from peer.lab.demo import gains
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.sweep import SweepProgress, prepare, sweep
from peer.lab.report import results
from peer.lab.report.measurements import Measurements, Scores
from peer.lab.statistics.significance import paired_t
from peer.site.config import toml

FURTHER = "brier"
"""Beside the main metric: of a site whose test samples have hardly any of one class, an AUC says little."""


def run_splits(
    document: Mapping[str, Any], seeds: Sequence[int], folder: Path, watch: Callable[[SweepProgress], None]
) -> DemoSplits:
    """Train all rows of an experiment on each split, and compute means with intervals.

    Args:
        document: the experiment, of one partition.
        seeds: one for each split.
        folder: of the experiment's results, from which ``mhfl-peer report`` draws more.

    Raises:
        PeerError: a run failed.
    """
    path = folder.with_suffix(".toml")
    path.write_text(toml.text({**document, "seeds": list(seeds), "evaluation_every": 0, "metrics": [FURTHER]}), "utf-8")
    experiment = Experiment.load(path)
    failed = sweep(prepare(experiment, folder), jobs=None, keep=False, watch=watch)
    for run, problem in failed.items():
        raise errors.WorkerFailed(f"the split {run}: {problem}")
    finished = results.read(folder)
    measured = Measurements(finished)
    metrics: dict[str, dict[str, dict[str, dict[str, DemoInterval]]]] = {}
    for metric in (experiment.metric, FURTHER):
        scores = [measured.scores(setting, metric) for setting in finished.settings]
        metrics[metric] = {
            test: _intervals({label: _values(scores, test, label) for label in experiment.methods})
            for test in gains.TESTS
        }
    return {"folder": str(folder), "seeds": list(seeds), "metrics": metrics}


def _values(scores: Sequence[Scores], test: str, label: str) -> Mapping[int, Mapping[str, float | None]]:
    """Return a method's values by seed and site; it has runs with one of the sets of networks."""
    return next(values for each in scores if (values := each.by_site(test, label)))


def _intervals(
    methods: Mapping[str, Mapping[int, Mapping[str, float | None]]],
) -> dict[str, dict[str, DemoInterval]]:
    """Compute by method and site the mean over splits, and its difference from ``local``."""
    return {
        label: {
            site: _interval([at[site] for at in splits.values()], [methods["local"][seed][site] for seed in splits])
            for site in next(iter(splits.values()))
        }
        for label, splits in methods.items()
    }


def _interval(values: Sequence[float | None], alone: Sequence[float | None]) -> DemoInterval:
    own, gain = paired_t(values, [0.0] * len(values)), paired_t(values, alone)
    return {
        "splits": own.pairs,
        "mean": own.difference,
        "low": own.low,
        "high": own.high,
        "gain": gain.difference,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }
