"""The room between training alone and the pooled bound, and every method's share of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.lab.report.comparison import Comparison, share_cell
from peer.lab.report.confidence import p_cell
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow
from peer.lab.statistics.room import RoomShare
from peer.lab.statistics.significance import PairedT


def table(results: Results, comparison: Comparison, *, name: str) -> Table | None:
    """Gains over training alone with their tests, and shares of the room; None without both
    bounds, or without a pair.
    """
    if not comparison.has_bounds or comparison.share(comparison.pooled or "", "local").room.difference is None:
        return None
    _, point, digits = comparison.unit.point
    columns = [
        column
        for test in TESTS
        for column in (
            Column(f"gain, {point}", f"{test.title()} Test", digits),
            Column("95 % interval", f"{test.title()} Test"),
            Column("p", f"{test.title()} Test", 4),
            Column("share, %", f"{test.title()} Test", 0),
            Column("95 % interval of share", f"{test.title()} Test"),
        )
    ]
    bounds = (comparison.local, comparison.pooled)
    names = {comparison.pooled: f"room ({comparison.pooled})"} | {
        label: label for label in comparison.methods if label not in bounds
    }
    rows = [
        TableRow(heading, tuple(cell for test in TESTS for cell in _cells(comparison, str(label), test)), ranked=False)
        for label, heading in names.items()
    ]
    title = f"Room and share of the room, {comparison.unit.name}"
    return Table(name, title, "method", tuple(columns), tuple(rows), tuple(_notes(results, comparison)))


def _cells(comparison: Comparison, label: str, test: str) -> Iterator[Cell]:
    share = comparison.share(label, test)
    factor, _, digits = comparison.unit.point
    gain = share.gain
    yield Cell(None if gain.difference is None else gain.difference * factor)
    yield Cell(text=EMPTY if gain.low is None or gain.high is None else _span(gain.low, gain.high, factor, digits))
    yield p_cell(gain.p)
    yield share_cell(comparison, label, test)
    ratio, is_shown = share.share, share.has_room(comparison.unit.room_min) and label != comparison.pooled
    has_ends = is_shown and ratio.low is not None and ratio.high is not None
    yield Cell(text=_span(ratio.low or 0.0, ratio.high or 0.0, 100.0, 0) if has_ends else EMPTY)


def _span(low: float, high: float, factor: float, digits: int) -> str:
    return f"{low * factor:+.{digits}f} to {high * factor:+.{digits}f}"


def _notes(results: Results, comparison: Comparison) -> Iterator[str]:
    units_name = "folds" if results.experiment["folds"] else "seeds"
    over_sites = comparison.share(comparison.pooled or "", "local").over_sites
    over = "the sites of the one run, which are not independent" if over_sites else units_name
    yield (
        f"Gain: a method minus {comparison.local}; the row room: {comparison.pooled} minus {comparison.local}. Each "
        "site's model is compared with the same site's, on the same test samples; Student's paired t-test, two-sided, "
        f"over {over}, not corrected for the number of comparisons. Share: mean gain divided by mean room, with "
        f"Fieller's interval. No room: it is less than {comparison.unit.room_words}, or its 95 % interval is not above "
        "zero."
    )


def document(comparison: Comparison) -> dict[str, Any]:
    """By test, the room, and each method's gain and share, in the metric's own unit, for scripts."""
    tests = {}
    for test in TESTS:
        shares = {
            label: comparison.share(label, test)
            for label in comparison.methods
            if label not in (comparison.local, comparison.pooled)
        }
        bound = comparison.share(comparison.pooled or "", test)
        tests[test] = {
            "room": _test_document(bound.room),
            "has_room": bound.has_room(comparison.unit.room_min),
            "methods": {label: _share_document(share, comparison.unit.room_min) for label, share in shares.items()},
        }
    return tests


def _test_document(test: PairedT) -> dict[str, float | None]:
    return {"mean": test.difference, "low": test.low, "high": test.high, "p": test.p, "pairs": test.pairs}


def _share_document(share: RoomShare, room_min: float) -> dict[str, Any]:
    ratio = share.share
    known = share.has_room(room_min)
    return {
        "gain": _test_document(share.gain),
        "share": {key: getattr(ratio, key) for key in ("value", "low", "high")} if known else None,
    }
