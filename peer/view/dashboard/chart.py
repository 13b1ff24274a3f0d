"""Learning curves as small SVG charts, a line a site."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from peer.core.metrics import METRICS, metric_title
from peer.site.records.snapshot import Curve
from peer.web_page import escape

WIDTH, HEIGHT = 330.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 26.0
COLOURS = 8
"""Classes `line0` and so on in the page's style; more sites repeat them with another dash."""
TICKS = 4
POINTS_MAX = 400
"""A longer curve is thinned out: a chart has no more pixels."""
SPLITS: Mapping[str, str] = {
    "validation": "own validation data",
    "test": "own test data",
    "global_test": "every site's test data",
}
LOSSES: Mapping[str, str] = {"loss": "Loss", "total": "Training loss"}
NO_CURVES = ("_undefined", "_last", "samples", "steps")

HIGHEST: Mapping[str, float] = {
    name: metric.upper_bound for name, metric in METRICS.items() if metric.upper_bound is not None
}
"""The value that no value of a metric is above, so that its axis need not reach further."""

Points = Sequence[tuple[int, float]]


def choose_tags(curves: Sequence[Curve]) -> tuple[list[str], list[str]]:
    """The tags that everybody looks at, and the others: a measure of each split, then training losses."""
    tags = {curve["tag"] for curve in curves if not curve["tag"].endswith(NO_CURVES)}
    first: list[str] = []
    for split in SPLITS:
        measures = [f"{split}/{name}" for name in METRICS if f"{split}/{name}" in tags]  # the main one first
        first += measures[:1]
    first += sorted(tag for tag in tags if tag.endswith("/total"))
    others = sorted(
        tag for tag in tags if tag not in first and not tag.startswith(("round/", "traffic/", "evaluation/"))
    )
    return first, others


def title(tag: str) -> str:
    """A tag in words."""
    group, _, name = tag.rpartition("/")
    words = LOSSES.get(name) or metric_title(name)
    if group in SPLITS:
        return f"{words} on {SPLITS[group]}"
    return f"{words} ({group})"


def draw_chart(tag: str, lines: Mapping[str, Points], styles: Mapping[str, int], *, rounds: int) -> str:
    """One chart: its title, and a line for each site that has the number.

    Args:
        styles: by site, the number of its colour.
        rounds: the last round on the axis.
    """
    values = [value for points in lines.values() for _, value in points]
    ticks = axis_ticks(min(values), max(values), highest=HIGHEST.get(tag.rpartition("/")[2], math.inf))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)

    def at(round: float, value: float) -> tuple[float, float]:
        across = (round - 1) / max(rounds - 1, 1)
        up = (value - low) / ((high - low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<figure class="chart"><figcaption>{escape(title(tag))}</figcaption>',
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img"><title>{escape(_summary(lines))}</title>',
    ]
    for tick in ticks:
        _, y = at(1, tick)
        parts.append(f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{WIDTH - RIGHT:.0f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6:.0f}" y="{y + 4:.1f}">{_number(tick, ticks)}</text>')
    for tick in _round_ticks(rounds):
        x, _ = at(tick, low)
        parts.append(f'<text class="middle" x="{x:.1f}" y="{HEIGHT - 8:.0f}">{tick}</text>')
    parts += [
        _line(site, [at(*point) for point in _thin(points)], styles[site]) for site, points in lines.items() if points
    ]
    return "\n".join([*parts, "</svg></figure>"])


def axis_ticks(low: float, high: float, *, highest: float = math.inf) -> list[float]:
    """Round numbers that cover the values.

    Args:
        highest: no tick is above this, but for values that are.
    """
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        spread = abs(high) * 0.1 or 1.0
        low, high = low - spread, max(high, min(high + spread, highest))
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    return [tick for tick in ticks if tick <= max(high, highest) + 1e-9]


def _round_ticks(rounds: int) -> Iterator[int]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if rounds <= 7 * step)
    yield 1
    yield from range(step if step > 1 else 2, rounds + 1, step)


def _thin(points: Points) -> Points:
    every = math.ceil(len(points) / POINTS_MAX)
    return [*points[:-1:every], points[-1]] if every > 1 else points


def _line(site: str, points: Sequence[tuple[float, float]], style: int) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    x, y = points[-1]
    dash = " dashed" if style >= COLOURS else ""
    return (
        f'<g class="line{style % COLOURS}{dash}"><title>{escape(site)}</title><path class="curve" d="M{path}"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/></g>'
    )


def _number(value: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    if max(abs(ticks[0]), abs(ticks[-1])) >= 1e5 or step < 1e-4:
        return f"{value:.1e}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    digits += round(step * 10**digits, 6) != round(step * 10**digits)
    return f"{value:.{digits}f}"


def _summary(lines: Mapping[str, Points]) -> str:
    newest = [f"{site} {points[-1][1]:.4g} in round {points[-1][0]}" for site, points in lines.items() if points]
    return "; ".join(newest)
