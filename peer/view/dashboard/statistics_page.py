"""The page of a federation's statistics: every variable of this site beside all members, as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peer.web_page import Bar, PageTable, render_page

UNLIKE = 0.1
"""Standardised mean difference from which two groups count as unlike (Austin 2009)."""
SIDES = ("own", "all")
AT_RISK = ("at_risk", "events", "censored")
"""The counts of a survival table's row."""
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
        variables=[(variable, _cells(document, variable)) for variable in document["variables"]],
        sizes={side: describe_size(document, side) for side in SIDES},
        noise=describe_noise(document),
        survival={
            side: PageTable(
                ("interval", "at risk", "events", "censored", "survival"),
                [
                    (
                        row["interval"],
                        *(
                            with_error(row[key], count_error(document, side))
                            for key in ("at_risk", "events", "censored")
                        ),
                        _share(row["survival"]),
                    )
                    for row in rows
                ],
                numbers=["at risk", "events", "censored"],
            )
            for side, rows in survival.items()
        },
        version=version,
    )


def describe_size(document: Mapping[str, Any], side: str) -> str:
    """Return how many samples and people a group has; with noise people alone."""
    samples, people = document[side]["samples"], with_error(document[side]["people"], count_error(document, side))
    return f"{people} people" if samples is None else f"{samples} samples of {people} people"


def describe_noise(document: Mapping[str, Any]) -> str | None:
    """Say what noise the figures of all have; ``None`` if they have none."""
    if "noise" not in document:
        return None
    noise = document["noise"]
    return (
        f"The figures of all have noise (ε {noise['epsilon']:g}, δ {noise['delta']:g}): a number in brackets is the "
        "standard error that noise alone gives to the figure before it; a count below 0 is noise, and a figure that is "
        "missing is lost in it. A person with several samples counts as the mean of them. The figures of "
        f"{document['site']} have none: they did not leave it, and nothing of them is withheld."
    )


def count_error(document: Mapping[str, Any], side: str) -> float | None:
    """Return the standard error of a count of this group; ``None`` where it is exact."""
    error: float | None = document.get("noise", {}).get("count_error") if side == "all" else None
    return error


def with_error(figure: object, error: float | None) -> str | None:
    """Return a figure, followed by its error in brackets if it has one."""
    if figure is None or error is None:
        return None if figure is None else str(figure)
    return f"{figure} ({error:.0f})" if error >= 10 else f"{figure} ({error:.2g})"


def describe_missing(document: Mapping[str, Any], variable: Mapping[str, Any], side: str) -> str | None:
    """Return the missing values with their share, marked where some were left out; ``None`` of times."""
    figures, group = variable[side], document[side]
    total = group["people"] if group["samples"] is None else group["samples"]
    if figures["missing"] is None or total <= 0:
        return None
    mark = " (some left out)" if figures["withheld"] else ""
    missing = with_error(figures["missing"], count_error(document, side))
    return f"{missing}, {100 * max(0, figures['missing']) / total:.0f} %{mark}"


def describe_count(document: Mapping[str, Any], variable: Mapping[str, Any], side: str, cell: int) -> str:
    """Return a cell's count, and how many sites withheld theirs."""
    figures = variable[side]
    count, small, total = figures["counts"][cell], figures["small"][cell], figures["known"]
    share = f", {100 * max(0, count) / total:.0f} %" if total > 0 else ""
    shown = f"{with_error(count, count_error(document, side))}{share}"
    return f"{shown}; withheld by {small}" if small and count else "withheld" if small else shown


def is_unlike(variable: Mapping[str, Any]) -> bool:
    """Return whether the site differs from the others, by more than two standard errors of the noise."""
    error = variable.get("difference_error") or 0.0
    return variable["difference"] is not None and variable["difference"] >= max(UNLIKE, 2 * error)


def _numbers(document: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for variable in document["variables"]:
        for side in SIDES:
            figures, own = variable[side], side == "own"
            between = " to ".join(f"{end:g}" for end in variable["range"] or ())
            yield (
                " ".join(filter(None, (variable["name"], variable["unit"]))) if own else SAME,
                side,
                with_error(figures["known"], figures.get("known_error")),
                describe_missing(document, variable, side),
                with_error(_rounded(figures["mean"]), figures.get("mean_error")),
                with_error(_rounded(figures["deviation"]), figures.get("deviation_error")),
                between if own else SAME,
                _difference(variable) if own else SAME,
            )


def _cells(document: Mapping[str, Any], variable: Mapping[str, Any]) -> PageTable:
    rows = []
    for index, cell in enumerate(variable["cells"]):
        row: list[object] = [cell]
        for side in SIDES:
            count, known = variable[side]["counts"][index], variable[side]["known"]
            row += [describe_count(document, variable, side, index), _share(count / known if known > 0 else None)]
        rows.append(row)
    return PageTable(("value", "own", "share of own", "all", "share of all"), rows)


def _difference(variable: Mapping[str, Any]) -> str | None:
    if variable["difference"] is None:
        return None
    shown = with_error(f"{variable['difference']:.2f}", variable.get("difference_error"))
    return f"{shown}{' unlike' if is_unlike(variable) else ''}"


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _share(value: float | None) -> Bar | None:
    return None if value is None else Bar(min(1.0, max(0.0, value)))
