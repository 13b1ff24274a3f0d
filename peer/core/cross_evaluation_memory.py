"""A site's memory of remote evaluation: its models that peers measure, theirs that it measures, and
the metrics.

A site *lends* its model at the end of a round; each peer *borrows* it: the peer fetches the model,
measures it in a process of its own, and deletes it. The report back holds sums over the test split,
never a prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.core import rows
from peer.core.artifacts import Artifact, EvaluationResult, Source, Unmeasured
from peer.core.metrics import NOT_AVERAGED
from peer.core.roster import Sha256, SiteName

BorrowedKey = tuple[SiteName, int, int]
"""The site whose model it is, the generation of that site, and the round that the model ended."""

FAILURES_MAX = 2
"""A model whose measurement failed is fetched once more: file or process may be lost by accident."""
OTHER_SPLIT = "validation_"
COUNTS = frozenset({"samples", "auc_undefined", "psnr_undefined", "empty", "events"})
"""Metrics that are counts; a mean of them says nothing."""
REASONS: Mapping[Unmeasured, str] = {
    "withheld": "withheld: too few test samples to say",
    "not_received": "could not fetch the model",
    "refused": "refused the model",
    "failed": "could not run the model",
}
NO_ANSWER = "no answer yet"
NO_GLOBAL_TEST = "federation.toml has no global_test"


@dataclass(slots=True)
class LentModel:
    """The local model at the end of a round, and peers' reports; no artifact once the file is gone."""

    artifact: Artifact | None
    reports: dict[SiteName, EvaluationResult] = field(default_factory=dict)


@dataclass(slots=True)
class BorrowedModel:
    """Another site's model: with a ``source`` it has yet to be measured, with a ``report`` to be
    reported on.

    ``sha256`` is the digest of the first file that arrived; ``settled`` means that nothing is left
    to do.
    """

    sha256: Sha256 | None = None
    source: Source | None = None
    failures: int = 0
    report: EvaluationResult | None = None
    settled: bool = False


@dataclass(slots=True)
class Evaluation:
    """The part of a site's memory that remote evaluation needs; it changes by rows of the journal only.

    ``borrowed`` has every model of a run, while an event is about the models of one peer. So ``open``
    has, by origin, the keys of those that have yet to be measured or reported on, ``generations`` counts
    the keys of an origin's round, and ``changed`` has the origins of models that rows were about lately.
    """

    lent: dict[int, LentModel] = field(default_factory=dict)
    borrowed: dict[BorrowedKey, BorrowedModel] = field(default_factory=dict)
    open: dict[SiteName, set[BorrowedKey]] = field(default_factory=dict)
    generations: Counter[tuple[SiteName, int]] = field(default_factory=Counter)
    changed: set[SiteName] = field(default_factory=set, compare=False)

    def needed_digests(self) -> set[Sha256]:
        """Digests of the files that are still needed."""
        lent = {model.artifact.sha256 for model in self.lent.values() if model.artifact is not None}
        borrowed = (self.borrowed[key].source for keys in self.open.values() for key in keys)
        return lent | {source.artifact.sha256 for source in borrowed if source is not None}

    def forget_missing_files(self, present: set[Sha256]) -> None:
        """Forget the artifacts whose files are gone."""
        for lent in self.lent.values():
            if lent.artifact is not None and lent.artifact.sha256 not in present:
                lent.artifact = None
        for key, borrowed in self.borrowed.items():
            if borrowed.source is not None and borrowed.source.artifact.sha256 not in present:
                borrowed.source = None
                self._index(key, borrowed)

    def apply(self, row: rows.JournalRow) -> None:
        """Apply one row of the kinds in ``ROWS``; other kinds change nothing."""
        match row:
            case rows.ReportRow(round, site=site, report=report):
                if round in self.lent:
                    self.lent[round].reports[site] = report
            case rows.LapsedRow(round, retired=True):
                self.lent.pop(round, None)
            case rows.GuestRowBase(round, origin=origin, origin_generation=generation):
                key = (origin, generation, round)
                if key not in self.borrowed:
                    self.borrowed[key] = BorrowedModel()
                    self.generations[origin, round] += 1
                self._apply_to_borrowed(row, self.borrowed[key])
                self._index(key, self.borrowed[key])

    def _index(self, key: BorrowedKey, model: BorrowedModel) -> None:
        self.changed.add(key[0])
        if not model.settled and (model.source is not None or model.report is not None):
            self.open.setdefault(key[0], set()).add(key)
        elif keys := self.open.get(key[0]):
            keys.discard(key)
            if not keys:
                del self.open[key[0]]

    def _apply_to_borrowed(self, row: rows.GuestRowBase, model: BorrowedModel) -> None:
        match row:
            case rows.GuestRow():
                model.source = row.source
                model.sha256 = model.sha256 or row.source.artifact.sha256
            case rows.MislaidRow():
                model.source, model.failures = None, model.failures + 1
            case rows.MeasuredRow():
                model.source, model.report = None, row.report
            case rows.SettledRow():
                model.source, model.settled = None, True


@dataclass(frozen=True, slots=True)
class BorrowedTask:
    """An order about a borrowed model, under way since a monotonic time in seconds."""

    key: BorrowedKey
    attempt: int
    since_s: float


@dataclass(slots=True)
class EvaluationTasks:
    """The orders about borrowed models that are under way, by origin; a restart forgets them.

    One model is measured at a time. ``process_ordered`` means that the evaluation process may be
    running; ``unanswered_reports`` counts reports without an answer. Attempts are numbered apart
    from those of the rounds, where only the newest order may be answered.
    """

    fetching: dict[SiteName, BorrowedTask] = field(default_factory=dict)
    measuring: BorrowedTask | None = None
    reporting: dict[SiteName, BorrowedTask] = field(default_factory=dict)
    unanswered_reports: dict[BorrowedKey, int] = field(default_factory=dict)
    process_ordered: bool = False
    attempt: int = 0
    looked_under: object = None
    """The rules and waiting times under which all peers were looked at last; ``None`` before, and while inactive."""

    def next_attempt(self) -> int:
        """Return the number of the next order; no earlier order about a borrowed model had it in this run."""
        self.attempt += 1
        return self.attempt


ROWS: tuple[type[rows.JournalRow], ...] = (
    rows.ReportRow,
    rows.LapsedRow,
    rows.GuestRow,
    rows.MislaidRow,
    rows.MeasuredRow,
    rows.SettledRow,
)
"""Rows of remote evaluation: the first two at the site that lends the model, the others at the
borrower.

A model is lent by the row ``evaluated`` that holds its artifact.
"""


def evaluation_records(
    stored: Iterable[tuple[str, int, Mapping[str, Any]]],
    *,
    own: str,
    sites: Callable[[int], Sequence[str]],
    global_test: bool = True,
) -> list[dict[str, Any]]:
    """Return the evaluations of the site's models on every site's test split that the journal has, oldest
    first.

    Args:
        stored: rows of the kinds ``evaluated``, ``report`` and ``lapsed``, oldest first.
        own: the site.
        sites: the members in a round.
        global_test: whether the federation has its models measured at other sites.

    Returns:
        ``round``; ``cells``: by site either ``metrics`` and ``counts``, or a ``reason``; ``mean``:
        of each metric but p-values the unweighted mean over the ``sites`` that gave it; ``global_test``: the
        same, only for metrics that all sites gave, and ``None`` where a cell has no metrics.
    """
    cells: dict[int, dict[str, dict[str, Any]]] = {}
    for kind, round, body in stored:
        if kind == "evaluated":
            reason = {"reason": body.get("kept_home") or (NO_ANSWER if global_test else NO_GLOBAL_TEST)}
            cells[round] = {site: _own_cell(body["metrics"]) if site == own else reason for site in sites(round)}
        elif round in cells:
            row = rows.decode(kind, round, body)
            if isinstance(row, rows.ReportRow) and row.site in cells[round]:
                cells[round][row.site] = _reported(row.report)
            elif isinstance(row, rows.LapsedRow):
                for site, why in row.reasons.items():
                    if "reason" in cells[round].get(site, {}):
                        cells[round][site] = {"reason": why}
    return [record(round, by_site) for round, by_site in sorted(cells.items())]


def record(round: int, cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One record of ``evaluation_records``."""
    values: dict[str, list[float]] = {}
    for _, cell in sorted(cells.items()):
        for name, value in cell.get("metrics", {}).items():
            if name not in NOT_AVERAGED:
                values.setdefault(name, []).append(value)
    mean = {name: {"value": sum(given) / len(given), "sites": len(given)} for name, given in sorted(values.items())}
    everywhere = {name: entry["value"] for name, entry in mean.items() if entry["sites"] == len(cells)}
    complete = all("metrics" in cell for cell in cells.values())
    return {"round": round, "cells": dict(cells), "mean": mean, "global_test": everywhere if complete else None}


def _own_cell(metrics: Mapping[str, float]) -> dict[str, Any]:
    own_metrics = {name: value for name, value in metrics.items() if not name.startswith(OTHER_SPLIT)}
    return _cell(own_metrics) if own_metrics else {"reason": "no test samples"}


def _reported(report: EvaluationResult) -> dict[str, Any]:
    if report.unmeasured:
        return {"reason": REASONS[report.unmeasured]}
    return _cell({**report.metrics, "samples": report.samples})


def _cell(metrics: Mapping[str, float]) -> dict[str, Any]:
    counts = {name: int(value) for name, value in metrics.items() if name in COUNTS}
    return {"metrics": {name: value for name, value in metrics.items() if name not in COUNTS}, "counts": counts}
