"""Everything that the runs measured as one tidy frame, and the pivots of it that tables show.

A line of the frame is one value: of a run, of a model's site, of a test split's site, of a metric. All
means leave out undefined values, and are exactly rounded, so that the order of lines does not matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from peer.core.metrics import METRICS_OF
from peer.lab.experiments.result_files import UNDISTURBED
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell
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
"""How many classes have no AUC on a split."""


def matrix_value(run: RunResult, model: str, split: str) -> Mapping[str, float | None]:
    """The metrics that ``simulate`` measured; empty where a model was not tried on a split."""
    return run.matrix.get(model, {}).get(split, {})


class Measurements:
    """The values of all runs of an experiment.

    Attributes:
        frame: a line a value, with the columns ``KEYS``, ``model``, ``split``, ``metric``,
            ``value`` (NaN where undefined) and ``tried`` (False where the model was not tried on
            the split at all).
        facts: a line a run and site, with the columns ``KEYS``, ``site`` and those of its costs.
    """

    def __init__(self, results: Results, metrics: Iterable[str] = (), measure: Measure = matrix_value) -> None:
        """Read the metrics of the experiment, or others that ``measure`` takes from its runs."""
        self.results = results
        names = tuple(metrics) or (results.metric, *METRICS_OF.get(results.kind, ()), UNDEFINED_CLASSES)
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
        """The facts of a setting's runs under the same links."""
        facts = self.facts
        return facts[(facts["partition"] == setting[0]) & (facts["models"] == setting[1]) & (facts["links"] == links)]

    def values(self, setting: Setting, metric: str, links: str = UNDISTURBED) -> pd.DataFrame:
        """The lines of one metric in a setting under the same links."""
        return self._by_metric.get((*setting, links, metric), self.frame.iloc[:0])

    def scores(
        self, setting: Setting, metric: str, links: str = UNDISTURBED, *, without: Collection[str] = ()
    ) -> Scores:
        """One metric of all methods that have runs under these links, at the sites that took part.

        Args:
            without: sites that are left out as models and as test data.
        """
        lines = self.values(setting, metric, links)
        sites = set(lines["model"]) - set(without)
        return Scores(lines[lines["model"].isin(sites) & lines["split"].isin(sites)])


def _lines(results: Results, metrics: Iterable[str], measure: Measure) -> Iterator[tuple[Any, ...]]:
    """The lines of the frame: every model of a run on the test split of every site of its setting."""
    for run in results.runs:
        key = _key(results, run)
        for model, split in itertools.product(run.sites, results.sites(run.setting)):
            values, is_tried = measure(run, model, split), bool(matrix_value(run, model, split))
            for metric in metrics:
                value = values.get(metric)
                yield (*key, model, split, metric, value if defined(value) else math.nan, is_tried)


def _key(results: Results, run: RunResult) -> tuple[Any, ...]:
    repeat = run.fold if results.experiment["folds"] else run.seed
    return (*run.setting, run.links, run.method, repeat, run.seed)


def mean_across(frame: pd.DataFrame) -> pd.Series:
    """The mean of each line over the columns."""
    return pd.Series([mean(line) for line in frame.to_numpy().tolist()], frame.index, dtype=float)


def mean_cells(values: pd.Series, *, factor: float, ddof: int) -> dict[str, Cell]:
    """By label, the mean over folds or seeds, with its deviation where there are several.

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
        tidy: its lines of the frame.
    """

    tidy: pd.DataFrame

    @cached_property
    def matrix(self) -> pd.DataFrame:
        """Every model on every split, the mean over seeds: ``(label, repeat, model)`` x ``split``."""
        return _mean_over_seeds(self.tidy)

    @cached_property
    def by_test(self) -> dict[str, pd.DataFrame]:
        """Local and Global Test of every site: ``(label, repeat)`` x ``site``.

        The Local Test is the diagonal of the matrix. The Global Test of a site is the mean of its
        line; it is undefined for models that some site's test data do not fit.
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
        """A method's values by fold or seed, then by site; empty where it has no run."""
        values = self.by_test[test]
        return values.xs(label).to_dict("index") if label in values.index.get_level_values("label") else {}

    def undefined(self, test: str) -> dict[str, int]:
        """By label, how many values its means leave out."""
        frame = self.by_test["local"] if test == "local" else self._complete
        counts: dict[str, int] = frame.isna().sum(axis=1).groupby(level="label").sum().to_dict()
        return counts

    @cached_property
    def _complete(self) -> pd.DataFrame:
        """The matrix without models that were not tried on every split in every run."""
        is_complete = self.tidy.groupby(["label", "model"])["tried"].transform("all")
        return _mean_over_seeds(self.tidy.assign(value=self.tidy["value"].where(is_complete)))


def _mean_over_seeds(tidy: pd.DataFrame) -> pd.DataFrame:
    """``(label, repeat, model)`` x ``split``."""
    by_seed = tidy.set_index(["label", "repeat", "model", "split", "seed"])["value"].unstack("seed")
    return mean_across(by_seed).unstack("split")
