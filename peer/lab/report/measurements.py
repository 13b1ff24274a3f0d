"""All measured values of an experiment in one tidy frame, and the pivots of it that tables show.

A row of the frame is one value: one metric of one site's model on one site's test split in one run.
Means leave out undefined values. They are exactly rounded, so that the order of rows does not
matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from peer.core.tasks import CLASSIFYING
from peer.lab.experiments.result_files import ATTACK_SUCCESS, UNDISTURBED
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell
from peer.lab.statistics.further_metrics import find_further_metric
from peer.lab.statistics.means import defined, deviation, mean

Measure = Callable[[RunResult, str, str], Mapping[str, float | None]]
"""The metrics of a run, by its model's site and the test split's site; None where undefined."""
Setting = tuple[str, str]
"""Partition and set of networks."""
KEYS = ["partition", "models", "links", "label", "repeat", "seed"]
"""The columns that name a run; ``repeat`` is the fold, or the seed where there are no folds."""
VALUE_COLUMNS = ["model", "split", "metric", "value", "tried"]
COSTS = ["steps", "sent_bytes", "received_bytes", "training_s"]
UNDEFINED_CLASSES = "auc_undefined"
"""Metric: the number of classes that have no AUC on a split."""


def matrix_value(run: RunResult, model: str, split: str) -> Mapping[str, float | None]:
    """Return the metrics that ``simulate`` measured; empty if the model was not evaluated there."""
    return run.matrix.get(model, {}).get(split, {})


def measured_or_predicted(results: Results) -> Measure:
    """Return the measure of all metrics; the experiment's further ones of classes come from the predictions."""
    further = {name: find_further_metric(name) for name in results.experiment.get("further_metrics", ())}
    if not further or results.kind not in CLASSIFYING:
        return matrix_value

    def measure(run: RunResult, model: str, split: str) -> Mapping[str, float | None]:
        predictions = run.predictions(model, split)
        if predictions is None:
            return matrix_value(run, model, split)
        values = {name: metric.value(*predictions) for name, metric in further.items()}
        return {**matrix_value(run, model, split), **values}

    return measure


class Measurements:
    """The values of all runs of an experiment.

    Attributes:
        frame: one row per value, with the columns ``KEYS``, ``model`` and ``split`` (sites),
            ``metric``, ``value`` (NaN if undefined), and ``tried`` (False if the model was not
            evaluated on the split at all).
        facts: one row per run and site, with the columns ``KEYS``, ``site`` and ``COSTS``.
    """

    def __init__(self, results: Results, metrics: Iterable[str] = (), measure: Measure | None = None) -> None:
        """Read the experiment's own metrics, or those that ``measure`` computes from its runs."""
        self.results = results
        names = tuple(metrics) or (*results.metrics, UNDEFINED_CLASSES, ATTACK_SUCCESS)
        measure = measure or measured_or_predicted(results)
        self.frame = pd.DataFrame(_lines(results, dict.fromkeys(names), measure), columns=[*KEYS, *VALUE_COLUMNS])
        self._by_metric = dict(iter(self.frame.groupby(["partition", "models", "links", "metric"])))

    @cached_property
    def facts(self) -> pd.DataFrame:
        lines = [
            (*_key(self.results, run), site, *(facts.get(column) or 0 for column in COSTS))
            for run in self.results.runs
            for site, facts in run.sites.items()
        ]
        return pd.DataFrame(lines, columns=[*KEYS, "site", *COSTS])

    def facts_of(self, setting: Setting, links: str = UNDISTURBED) -> pd.DataFrame:
        """Select the facts of a setting's runs under the same links."""
        facts = self.facts
        return facts[(facts["partition"] == setting[0]) & (facts["models"] == setting[1]) & (facts["links"] == links)]

    def values(self, setting: Setting, metric: str, links: str = UNDISTURBED) -> pd.DataFrame:
        """Select the rows of one metric in a setting under the same links."""
        return self._by_metric.get((*setting, links, metric), self.frame.iloc[:0])

    def scores(
        self, setting: Setting, metric: str, links: str = UNDISTURBED, *, without: Collection[str] = ()
    ) -> Scores:
        """Select one metric of all methods that have runs under these links, at the sites that took part.

        Args:
            without: sites that are left out as models and as test data.
        """
        lines = self.values(setting, metric, links)
        sites = set(lines["model"]) - set(without)
        return Scores(lines[lines["model"].isin(sites) & lines["split"].isin(sites)])


def _lines(results: Results, metrics: Iterable[str], measure: Measure) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the frame: each model of a run on each test split of its setting."""
    sites = {setting: results.sites(setting) for setting in results.settings}
    for run in results.runs:
        key = _key(results, run)
        for model, split in itertools.product(run.sites, sites[run.setting]):
            values, is_tried = measure(run, model, split), bool(matrix_value(run, model, split))
            for metric in metrics:
                value = values.get(metric)
                yield (*key, model, split, metric, value if defined(value) else math.nan, is_tried)


def _key(results: Results, run: RunResult) -> tuple[Any, ...]:
    repeat = run.fold if results.experiment["folds"] else run.seed
    return (*run.setting, run.links, run.method, repeat, run.seed)


def mean_across(frame: pd.DataFrame) -> pd.Series:
    """Average each row over the columns."""
    return pd.Series([mean(line) for line in frame.to_numpy().tolist()], frame.index, dtype=float)


def mean_cells(values: pd.Series, *, factor: float, ddof: int) -> dict[str, Cell]:
    """Average over folds or seeds by label, with the standard deviation if there are several.

    Args:
        values: by ``label`` and ``repeat``.
        factor: from the measured to the shown value.
    """
    cells = {}
    for label, group in values.groupby(level="label"):
        repeats = group.tolist()
        average = mean(repeats)
        spread = deviation(repeats, ddof=ddof) if len(repeats) > 1 else None
        if average is not None:
            cells[str(label)] = Cell(average * factor, None if spread is None else spread * factor)
    return cells


@dataclass(frozen=True)
class Scores:
    """One metric of all methods of a setting, under the same links, at some sites.

    Attributes:
        tidy: the selected rows of the frame.
    """

    tidy: pd.DataFrame

    @cached_property
    def matrix(self) -> pd.DataFrame:
        """Each model on each split, averaged over seeds: ``(label, repeat, model)`` x ``split``."""
        return _mean_over_seeds(self.tidy)

    @cached_property
    def by_test(self) -> dict[str, pd.DataFrame]:
        """Local and Global Test of every site: ``(label, repeat)`` x ``site``.

        The Local Test is the diagonal of the matrix. The Global Test of a site is the mean of its
        row; it is undefined for models that some site's test data do not fit.
        """
        own = self.tidy[self.tidy["model"] == self.tidy["split"]]
        diagonal = own.set_index(["label", "repeat", "model", "seed"])["value"].unstack("seed")
        return {
            "local": mean_across(diagonal).unstack("model"),
            "global": mean_across(self._complete).unstack("model"),
        }

    @cached_property
    def means(self) -> dict[str, pd.Series]:
        """The column "Mean" of both tests, over the sites, by ``label`` and ``repeat``."""
        return {test: mean_across(values) for test, values in self.by_test.items()}

    def by_site(self, test: str, label: str) -> dict[int, dict[str, float | None]]:
        """Return a method's values by fold or seed, then by site; empty if it has no run."""
        return self._by_site[test].get(label, {})

    def undefined(self, test: str) -> dict[str, int]:
        """Count the undefined values that the means leave out, by label."""
        frame = self.by_test["local"] if test == "local" else self._complete
        counts: dict[str, int] = frame.isna().sum(axis=1).groupby(level="label").sum().to_dict()
        return counts

    @cached_property
    def _by_site(self) -> dict[str, dict[str, dict[int, dict[str, float | None]]]]:
        """By test, label, fold or seed, and site."""
        nested: dict[str, dict[str, dict[int, dict[str, float | None]]]] = {test: {} for test in self.by_test}
        for test, values in self.by_test.items():
            for (label, repeat), line in zip(values.index, values.to_numpy().tolist(), strict=True):
                nested[test].setdefault(label, {})[repeat] = dict(zip(values.columns, line, strict=True))
        return nested

    @cached_property
    def _complete(self) -> pd.DataFrame:
        """The matrix without models that some run did not evaluate on every split."""
        is_complete = self.tidy.groupby(["label", "model"])["tried"].transform("all")
        return _mean_over_seeds(self.tidy.assign(value=self.tidy["value"].where(is_complete)))


def _mean_over_seeds(tidy: pd.DataFrame) -> pd.DataFrame:
    """Pivot to ``(label, repeat, model)`` x ``split``."""
    by_seed = tidy.set_index(["label", "repeat", "model", "split", "seed"])["value"].unstack("seed")
    return mean_across(by_seed).unstack("split")
