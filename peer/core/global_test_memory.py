"""What a site remembers of remote evaluation: its models that others measure, theirs that it measures, and the figures.

A model is *lent* at the end of a round; at another site it is a *guest*. Guests are fetched, measured by a process of
their own and deleted; what goes back are sums over the test split, never a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.core import rows
from peer.core.commands import Source
from peer.core.messages import Artifact, EvaluationResult, Unmeasured
from peer.core.roster import Sha256, SiteName

GuestKey = tuple[SiteName, int, int]
"""Whose model, of which generation of that site, at the end of which round."""

FAILURES_MAX = 2
"""A guest whose measurement failed is fetched once more: its file or the process may have been lost by accident."""
OTHER_SPLIT = "validation_"
COUNTS = frozenset({"samples", "auc_undefined", "psnr_undefined", "empty"})
"""Metrics that count, and of which a mean says nothing."""
REASONS: Mapping[Unmeasured, str] = {
    "withheld": "withheld: too few test samples to say",
    "not_received": "could not fetch the model",
    "refused": "refused the model",
    "failed": "could not run the model",
}
NO_ANSWER = "no answer yet"
NO_GLOBAL_TEST = "federation.toml has no global_test"


@dataclass(slots=True)
class Lent:
    """The local model at the end of a round, and who said how it did; no artifact once the file is gone."""

    artifact: Artifact | None
    reports: dict[SiteName, EvaluationResult] = field(default_factory=dict)


@dataclass(slots=True)
class Guest:
    """Another site's model: with a ``source`` it waits to be measured, with a ``report`` that has to be told.

    ``sha256`` is that of the first file that came, ``settled`` means that nothing is left to do.
    """

    sha256: Sha256 | None = None
    source: Source | None = None
    failures: int = 0
    report: EvaluationResult | None = None
    settled: bool = False


@dataclass(slots=True)
class Evaluation:
    """The part of a site's memory that remote evaluation needs; it changes by rows of the journal only."""

    lent: dict[int, Lent] = field(default_factory=dict)
    guests: dict[GuestKey, Guest] = field(default_factory=dict)

    def names(self) -> set[Sha256]:
        """Digests of the files that are still needed."""
        lent = {one.artifact.sha256 for one in self.lent.values() if one.artifact is not None}
        return lent | {guest.source.artifact.sha256 for guest in self.guests.values() if guest.source is not None}

    def keep(self, present: set[Sha256]) -> None:
        """Forget what cannot be used without files that are gone."""
        for one in self.lent.values():
            if one.artifact is not None and one.artifact.sha256 not in present:
                one.artifact = None
        for guest in self.guests.values():
            if guest.source is not None and guest.source.artifact.sha256 not in present:
                guest.source = None

    def apply(self, row: rows.JournalRow) -> None:
        """Remember one row of the kinds in ``ROWS``; other kinds change nothing."""
        match row:
            case rows.ReportRow(round, site=site, report=report):
                if round in self.lent:
                    self.lent[round].reports[site] = report
            case rows.LapsedRow(round, retired=True):
                self.lent.pop(round, None)
            case rows.GuestRowBase(round, origin=origin, origin_generation=generation):
                self._apply_to_guest(row, self.guests.setdefault((origin, generation, round), Guest()))

    def _apply_to_guest(self, row: rows.GuestRowBase, guest: Guest) -> None:
        match row:
            case rows.GuestRow():
                guest.source = row.source
                guest.sha256 = guest.sha256 or row.source.artifact.sha256
            case rows.MislaidRow():
                guest.source, guest.failures = None, guest.failures + 1
            case rows.MeasuredRow():
                guest.source, guest.report = None, row.report
            case rows.SettledRow():
                guest.source, guest.settled = None, True


@dataclass(frozen=True, slots=True)
class GuestTask:
    """An order about a guest that is under way since a monotonic time, in seconds."""

    key: GuestKey
    attempt: int
    since_s: float


@dataclass(slots=True)
class Hosting:
    """What a site does with guests right now, and forgets at a restart: by origin, but one measurement at a time.

    ``hired`` means that the process which measures may be running; ``tries`` counts reports that were not answered.
    Attempts are numbered apart from those of the rounds, whose newest order alone may be answered.
    """

    fetching: dict[SiteName, GuestTask] = field(default_factory=dict)
    measuring: GuestTask | None = None
    reporting: dict[SiteName, GuestTask] = field(default_factory=dict)
    tries: dict[GuestKey, int] = field(default_factory=dict)
    hired: bool = False
    attempt: int = 0

    def next_attempt(self) -> int:
        """A number that no earlier order about a guest had in this run."""
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
"""Rows of remote evaluation: the first two at the site whose model it is, the others at the one that measures it.

A model is lent by the row ``evaluated`` that holds its artifact.
"""


def evaluation_records(
    stored: Iterable[tuple[str, int, Mapping[str, Any]]], *, own: str, sites: Sequence[str], global_test: bool = True
) -> list[dict[str, Any]]:
    """What the journal knows of the site's models on every site's test split, oldest first.

    Args:
        stored: rows of the kinds ``evaluated``, ``report`` and ``lapsed``, oldest first.
        own: the site.
        sites: the roster.
        global_test: whether the federation has models measured at other sites.

    Returns:
        ``round``; ``cells``, by site either ``metrics`` and ``counts`` or a ``reason``; ``mean``, of each metric the
        unweighted mean over the ``sites`` that gave it; ``global_test``, the same only for metrics that all sites gave,
        or nothing where a cell is missing.
    """
    cells: dict[int, dict[str, dict[str, Any]]] = {}
    for kind, round, body in stored:
        if kind == "evaluated":
            reason = {"reason": body.get("kept_home") or (NO_ANSWER if global_test else NO_GLOBAL_TEST)}
            metrics = rows.member(kind, round, body, "metrics")
            cells[round] = {site: _own_cell(metrics) if site == own else reason for site in sites}
        elif round in cells:
            row = rows.decode(kind, round, body)
            if isinstance(row, rows.ReportRow) and row.site in cells[round]:
                cells[round][row.site] = _reported(row.report)
            elif isinstance(row, rows.LapsedRow):
                for site, why in row.reasons.items():
                    if "reason" in cells[round].get(site, {}):
                        cells[round][site] = {"reason": why}
    return [record(round, found) for round, found in sorted(cells.items())]


def record(round: int, cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One row of the table, with its means; see ``evaluation_records``."""
    values: dict[str, list[float]] = {}
    for _, cell in sorted(cells.items()):
        for name, value in cell.get("metrics", {}).items():
            values.setdefault(name, []).append(value)
    mean = {name: {"value": sum(found) / len(found), "sites": len(found)} for name, found in sorted(values.items())}
    everywhere = {name: one["value"] for name, one in mean.items() if one["sites"] == len(cells)}
    complete = all("metrics" in cell for cell in cells.values())
    return {"round": round, "cells": dict(cells), "mean": mean, "global_test": everywhere if complete else None}


def _own_cell(metrics: Mapping[str, float]) -> dict[str, Any]:
    shown = {name: value for name, value in metrics.items() if not name.startswith(OTHER_SPLIT)}
    return _cell(shown) if shown else {"reason": "no test samples"}


def _reported(report: EvaluationResult) -> dict[str, Any]:
    if report.unmeasured:
        return {"reason": REASONS[report.unmeasured]}
    return _cell({**report.metrics, "samples": report.samples})


def _cell(figures: Mapping[str, float]) -> dict[str, Any]:
    counts = {name: int(value) for name, value in figures.items() if name in COUNTS}
    return {"metrics": {name: value for name, value in figures.items() if name not in COUNTS}, "counts": counts}
