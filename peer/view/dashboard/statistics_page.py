"""The page of a federation's statistics: every variable of this site beside all members, as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peer.web_page import Bar, PageTable, render_page

UNLIKE = 0.1
"""Standardised mean difference from which two groups count as unlike (Austin 2009)."""
SIDES = ("own", "all")
STYLES = ("dashboard.css",)
SAME = "\N{NO-BREAK SPACE}"
"""A cell of which the row above has the value."""


def write_page(document: Mapping[str, Any], *, version: str) -> str:
    """Return the page of a document of ``mhfl-peer statistics``."""
    survival = {side: rows for side, rows in document["survival"].items() if rows}
    return render_page(
        "statistics.html.j2",
        title=f"Statistics of {document['federation']} – mhfl-peer",
        styles=STYLES,
        document=document,
        unlike=UNLIKE,
        numbers=PageTable(
            ("variable", "group", "known", "missing", "mean", "standard deviation", "range", "difference"),
            list(_numbers(document)),
            numbers=["known", "missing", "mean", "standard deviation", "difference"],
        ),
        variables=[(variable, _cells(variable)) for variable in document["variables"]],
        survival={
            side: PageTable(
                ("interval", "at risk", "events", "censored", "survival"),
                [
                    (row["interval"], row["at_risk"], row["events"], row["censored"], _share(row["survival"]))
                    for row in rows
                ],
                numbers=["at risk", "events", "censored"],
            )
            for side, rows in survival.items()
        },
        version=version,
    )


def describe_missing(figures: Mapping[str, Any], samples: int) -> str | None:
    """Return the missing values with their share, marked where some were left out; ``None`` of times."""
    if figures["missing"] is None or not samples:
        return None
    mark = " (some left out)" if figures["withheld"] else ""
    return f"{figures['missing']}, {100 * figures['missing'] / samples:.0f} %{mark}"


def describe_count(figures: Mapping[str, Any], cell: int) -> str:
    """Return a cell's count, and how many sites withheld theirs."""
    count, small, total = figures["counts"][cell], figures["small"][cell], figures["known"]
    share = f", {100 * count / total:.0f} %" if total else ""
    return f"{count}{share}; withheld by {small}" if small and count else "withheld" if small else f"{count}{share}"


def _numbers(document: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for variable in document["variables"]:
        for side in SIDES:
            figures, own = variable[side], side == "own"
            between = " to ".join(f"{end:g}" for end in variable["range"] or ())
            yield (
                " ".join(filter(None, (variable["name"], variable["unit"]))) if own else SAME,
                side,
                figures["known"],
                describe_missing(figures, document[side]["samples"]),
                _rounded(figures["mean"]),
                _rounded(figures["deviation"]),
                between if own else SAME,
                _difference(variable["difference"]) if own else SAME,
            )


def _cells(variable: Mapping[str, Any]) -> PageTable:
    rows = []
    for index, cell in enumerate(variable["cells"]):
        row: list[object] = [cell]
        for side in SIDES:
            count, known = variable[side]["counts"][index], variable[side]["known"]
            row += [describe_count(variable[side], index), _share(count / known if known else None)]
        rows.append(row)
    return PageTable(("value", "own", "share of own", "all", "share of all"), rows)


def _difference(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}{' unlike' if value >= UNLIKE else ''}"


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _share(value: float | None) -> Bar | None:
    return None if value is None else Bar(value)
