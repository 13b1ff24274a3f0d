"""The room between training alone and the pooled bound, and every method's share of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.lab.report.comparison import Comparison
from peer.lab.report.confidence import p_cell
from peer.lab.report.published import TESTS
from peer.lab.report.table import EMPTY, Cell, Column, Table, lay_out
from peer.lab.statistics.room import RoomShare
from peer.lab.statistics.significance import PairedT


def table(comparison: Comparison, *, name: str) -> Table | None:
    """Tabulate gains over training alone with tests, and shares of the room; None without both bounds, or a pair."""
    if not comparison.has_bounds or comparison.share(comparison.pooled or "", "local").room.difference is None:
        return None
    pooled = str(comparison.pooled)
    labels = [pooled, *(label for label in comparison.labels if label not in (comparison.local, pooled))]
    columns = [column for test in TESTS for column in _columns(comparison, labels, test)]
    title = f"Room and share of the room, {comparison.unit.name}"
    headings = {pooled: f"room ({pooled})"}
    return lay_out(name, title, columns, labels, headings=headings, notes=_notes(comparison))


def _columns(comparison: Comparison, labels: list[str], test: str) -> Iterator[tuple[Column, dict[str, Cell]]]:
    factor, point, digits = comparison.unit.point
    group, shares = f"{test.title()} Test", {label: comparison.share(label, test) for label in labels}
    gains = {label: share.gain for label, share in shares.items()}
    yield (
        Column(f"gain, {point}", group, digits),
        {label: Cell(gain.difference * factor) for label, gain in gains.items() if gain.difference is not None},
    )
    spans = {label: _span(gain.low, gain.high, factor, digits) for label, gain in gains.items()}
    yield Column("95 % interval", group), spans
    yield Column("p", group, 4), {label: p_cell(gain.p) for label, gain in gains.items()}
    yield Column("share, %", group, 0), comparison.share_cells(test)
    ratios = {
        label: share.share
        for label, share in shares.items()
        if share.has_room(comparison.unit.room_min) and label != comparison.pooled
    }
    no_span = dict.fromkeys(labels, Cell(text=EMPTY))
    spans = {label: _span(ratio.low, ratio.high, 100.0, 0) for label, ratio in ratios.items()}
    yield Column("95 % interval of share", group), no_span | spans


def _span(low: float | None, high: float | None, factor: float, digits: int) -> Cell:
    if low is None or high is None:
        return Cell(text=EMPTY)
    return Cell(text=f"{low * factor:+.{digits}f} to {high * factor:+.{digits}f}")


def _notes(comparison: Comparison) -> Iterator[str]:
    units_name = "folds" if comparison.results.experiment["folds"] else "seeds"
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
    """Return by test the room, and each method's gain and share, in the metric's own unit, for scripts."""
    tests = {}
    for test in TESTS:
        shares = {
            label: comparison.share(label, test)
            for label in comparison.labels
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
