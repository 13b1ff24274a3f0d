"""Learning curves as small charts, a line a site: the data of ``charts.html.j2``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from peer.core.loss_terms import loss_title
from peer.core.metrics import METRICS, SPLITS, metric_title

WIDTH, HEIGHT = 330.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 26.0
COLOURS = 8
"""Classes `line0` and so on in the page's style; more sites repeat them with another dash."""
TICKS = 5
POINTS_MAX = 400
"""A longer curve is thinned out: a chart has no more pixels."""
NO_CURVES = ("_undefined", "_last", "samples", "steps")

HIGHEST: Mapping[str, float] = {
    name: metric.upper_bound for name, metric in METRICS.items() if metric.upper_bound is not None
}
"""The value that no value of a metric is above, so that its axis need not reach further."""

Points = Sequence[tuple[int, float]]


def choose_tags(tags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the tags that everybody looks at, and the others: a measure of each split, then training losses."""
    shown = {tag for tag in tags if not tag.endswith(NO_CURVES)}
    first: list[str] = []
    for split in SPLITS:
        measures = [f"{split}/{name}" for name in METRICS if f"{split}/{name}" in shown]  # the main one first
        first += measures[:1]
    first += sorted(tag for tag in shown if tag.endswith("/total"))
    others = sorted(
        tag for tag in shown if tag not in first and not tag.startswith(("round/", "traffic/", "evaluation/"))
    )
    return first, others


def title(tag: str, samples: Collection[int] = ()) -> str:
    """Return a tag in words.

    Args:
        samples: of each site's split, where they are known.
    """
    group, _, name = tag.rpartition("/")
    words = metric_title(name) if group in SPLITS else loss_title(name)
    if name not in METRICS:
        words = f"{words[:1].upper()}{words[1:]}"
    if group not in SPLITS:
        return f"{words} ({group})"
    counts = " to ".join(str(count) for count in sorted({min(samples), max(samples)})) if samples else ""
    return f"{words} on {SPLITS[group]}" + (f" ({counts} samples)" if counts else "")


def measure_range(tag: str, lines: Mapping[str, Mapping[str, Points]]) -> tuple[float, float]:
    """Return the lowest and the highest value for the axis of a tag.

    Charts of one metric on several splits have a common axis, which has all of the metric's values between chance and
    the upper bound where both are known.

    Args:
        lines: by tag and site.
    """
    group, _, name = tag.rpartition("/")
    tags = [f"{split}/{name}" for split in SPLITS] if group in SPLITS else [tag]
    values = [value for each in tags for points in lines.get(each, {}).values() for _, value in points]
    metric = METRICS.get(name)
    if metric is not None and metric.chance is not None and metric.upper_bound is not None:
        values += [metric.chance, metric.upper_bound]
    return min(values), max(values)


def lay_out_chart(
    tag: str,
    lines: Mapping[str, Mapping[str, Points]],
    styles: Mapping[str, int],
    *,
    rounds: int,
    samples: Collection[int] = (),
) -> dict[str, object]:
    """Lay out a chart for the macro ``chart`` of ``charts.html.j2``, with a line for each site that has the number.

    Args:
        lines: by tag and site; those of other tags decide on the axis, too.
        styles: by site, the number of its colour.
        rounds: the last round on the axis.
        samples: of each site's split, where they are known.
    """
    low, high = measure_range(tag, lines)
    ticks = axis_ticks(low, high, highest=HIGHEST.get(tag.rpartition("/")[2], math.inf))
    low, high = min(ticks[0], low), max(ticks[-1], high)

    def at(round: float, value: float) -> tuple[float, float]:
        across = (round - 1) / max(rounds - 1, 1)
        up = (value - low) / ((high - low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    return {
        "title": title(tag, samples),
        "summary": _summary(lines[tag]),
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "rows": [(at(1, tick)[1], _number(tick, ticks)) for tick in ticks],
        "columns": [(at(tick, low)[0], tick) for tick in _round_ticks(rounds)],
        "lines": [
            _line(site, [at(*point) for point in _thin(points)], styles[site])
            for site, points in lines[tag].items()
            if points
        ],
    }


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


def _line(site: str, points: Sequence[tuple[float, float]], style: int) -> dict[str, object]:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    x, y = points[-1]
    return {"site": site, "path": path, "x": x, "y": y, "colour": style % COLOURS, "dashed": style >= COLOURS}


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
