"""Each method's gain over training alone by partition, networks or links."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from peer.lab.experiments.result_files import UNDISTURBED
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison, share_cell
from peer.lab.report.disturbed import insider_of
from peer.lab.report.measurements import Scores, Setting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.published import TESTS
from peer.lab.report.table import Cell, Column, Table, Unit, lay_out
from peer.lab.statistics.room import RoomShare, share_of_room

POINTS_MIN = 2
"""Least number of partitions, sets of networks or kinds of links to compare."""
TICK_CHARACTERS_MAX = 42
"""Total length of names above which they are rotated, as they would overlap below a panel."""


@dataclass(frozen=True)
class MethodGain:
    """A method's gain over training alone in one setting.

    Attributes:
        by_unit: of each fold or seed, the mean over the sites, in the metric's own unit.
    """

    share: RoomShare
    by_unit: Sequence[float]


@dataclass(frozen=True)
class Variation:
    """Settings that differ in one property only.

    Attributes:
        kind: the differing property: ``partition``, ``networks`` or ``links``.
        where: their common property if the experiment has other settings; else empty.
        points: by the name of the differing property, in the experiment's order, the gain of every
            method and of the pooled bound, by test and label.
    """

    kind: str
    where: str
    unit: Unit
    pooled: str
    points: Mapping[str, Mapping[tuple[str, str], MethodGain]]

    @property
    def labels(self) -> list[str]:
        """The methods, the pooled bound first."""
        labels = dict.fromkeys(label for gains in self.points.values() for _, label in gains)
        return sorted(labels, key=lambda label: label != self.pooled)


def variations(comparisons: Mapping[Setting, Comparison]) -> Iterator[Variation]:
    """Yield the settings that the experiment varies, if it has the bounds of the room."""
    bounded = {setting: compared for setting, compared in comparisons.items() if compared.has_bounds}
    for kind, own, other in (("partition", 0, 1), ("networks", 1, 0)):
        for common in dict.fromkeys(setting[other] for setting in bounded):
            points = {
                setting[own]: _gains(compared, compared.scores, compared.scores, compared.labels)
                for setting, compared in bounded.items()
                if setting[other] == common
            }
            where = common if len({setting[other] for setting in bounded}) > 1 else ""
            yield from _variation(kind, where, next(iter(bounded.values())), points)
    for compared in bounded.values():
        points = {name: _gains_with_links(compared, name) for name in compared.results.links}
        yield from _variation("links", compared.results.title(compared.setting), compared, points)


def _variation(
    kind: str, where: str, compared: Comparison, points: Mapping[str, Mapping[tuple[str, str], MethodGain]]
) -> Iterator[Variation]:
    points = {name: gains for name, gains in points.items() if gains}
    if len(points) >= POINTS_MIN:
        yield Variation(kind, where, compared.unit, str(compared.pooled), points)


def _gains(
    compared: Comparison, scores: Scores, bounds: Scores, labels: Sequence[str]
) -> dict[tuple[str, str], MethodGain]:
    """Compute the gains over training alone, by test and label.

    Args:
        bounds: the scores of training alone and of the pooled bound, at the same sites.
    """
    local, pooled = str(compared.local), str(compared.pooled)
    gains = {}
    for test, label in itertools.product(TESTS, labels):
        own = bounds if label == pooled else scores
        share = share_of_room(own.by_site(test, label), bounds.by_site(test, local), bounds.by_site(test, pooled))
        if label != local and share.gain.difference is not None:
            by_unit = (own.means[test].xs(label) - bounds.means[test].xs(local)).dropna()
            gains[test, label] = MethodGain(share, by_unit.tolist())
    return gains


def _gains_with_links(compared: Comparison, links: str) -> dict[tuple[str, str], MethodGain]:
    """Compute the gains of the methods that have runs with these links, at the honest sites that take part.

    The bounds are those of the undisturbed federation.
    """
    settings = compared.results.links[links]
    if settings.get("left_out"):
        return {}
    without = {*settings["removed"], insider_of(settings)}
    scores, bounds = (compared.scores_with(each, without=without) for each in (links, UNDISTURBED))
    present = set(scores.tidy["label"]) - {compared.local, compared.pooled}
    labels = [label for label in compared.labels if label in present or label == compared.pooled]
    return _gains(compared, scores, bounds, labels) if present & set(labels) else {}


def table(varied: Variation, *, name: str) -> Table:
    """Tabulate the gains and shares that :func:`figure` draws."""
    factor, unit_name, digits = varied.unit.point
    columns = []
    for test in TESTS:
        gains = {point: _of_test(values, test) for point, values in varied.points.items()}
        for point, by_label in gains.items():
            cells = {label: Cell(factor * (gain.share.gain.difference or 0.0)) for label, gain in by_label.items()}
            columns.append((Column(point, f"{test.title()} Test, gain, {unit_name}", digits), cells))
        for point, by_label in gains.items():
            cells = {
                label: share_cell(gain.share, varied.unit) for label, gain in by_label.items() if label != varied.pooled
            }
            columns.append((Column(point, f"{test.title()} Test, share, %", 0), cells))
    notes = (f"{_explanation(varied)} No room: as in the tables of the room.",)
    headings = {label: _heading(varied, label) for label in varied.labels}
    return lay_out(name, _title(varied), columns, varied.labels, headings=headings, notes=notes)


def _of_test(gains: Mapping[tuple[str, str], MethodGain], test: str) -> dict[str, MethodGain]:
    return {label: gain for (each, label), gain in gains.items() if each == test}


def figure(varied: Variation, styles: Mapping[str, Style], *, name: str) -> ReportFigure:
    """Plot gains above, shares of the room below; Local Test to the left, Global Test to the right."""
    factor, points, _ = varied.unit.point
    names = list(varied.points)
    figure, grid = plotting.new_figure(7.6, 5.2, rows=2, columns=len(TESTS), sharex=True, sharey="row")
    for column, test in enumerate(TESTS):
        above, below = grid[0][column], grid[1][column]
        for label in varied.labels:
            gains = {
                position: gain
                for position, point in enumerate(varied.points.values())
                if (gain := point.get((test, label))) is not None
            }
            line = {"color": styles[label].colour, "marker": styles[label].marker, "markersize": 5, "linewidth": 1.6}
            means = [factor * (gain.share.gain.difference or 0.0) for gain in gains.values()]
            dashes = "--" if label == varied.pooled else "-"
            above.plot(list(gains), means, dashes, label=_heading(varied, label), **line)
            for position, gain in gains.items():
                values = [factor * value for value in gain.by_unit]
                above.plot([position] * len(values), values, "_", color=styles[label].colour, markersize=7)
            shares = drawn_shares(varied, test, label)
            below.plot(list(shares), [share for share, _ in shares.values()], **line, markerfacecolor="none")
            certain = {position: share for position, (share, is_certain) in shares.items() if is_certain}
            below.plot(list(certain), list(certain.values()), **{**line, "linewidth": 0})
        above.set_title(f"{test.title()} Test")
        above.axhline(0, color=plotting.INK, linewidth=0.8)
        for share in (0, 100):
            below.axhline(share, color=plotting.INK, linewidth=0.8)
        plotting.set_name_ticks(below.xaxis, names, rotated=sum(map(len, names)) > TICK_CHARACTERS_MAX)
        below.set_xlim(-0.4, len(names) - 0.6)
    grid[0][0].set_ylabel(f"gain over training alone, {points}")
    grid[1][0].set_ylabel("share of the room, %")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption = (
        f"{_explanation(varied)} Strokes: single folds or seeds. A share is drawn where the mean room is at least "
        f"{varied.unit.room_words}; hollow: the 95 % interval of the room is not above zero."
    )
    return plotting.render(figure, name=name, title=_title(varied), caption=caption)


def drawn_shares(varied: Variation, test: str, label: str) -> dict[int, tuple[float, bool]]:
    """Return by a setting's position a method's share in per cent, and whether there certainly is a room.

    Settings whose mean room is too small to divide by are left out.
    """
    gains = {position: gains.get((test, label)) for position, gains in enumerate(varied.points.values())}
    return {
        position: (100 * share.share.value, share.has_room(varied.unit.room_min))
        for position, gain in gains.items()
        if gain is not None and label != varied.pooled and (share := gain.share).share.value is not None
        if (share.room.difference or 0.0) >= varied.unit.room_min
    }


def _heading(varied: Variation, label: str) -> str:
    return f"room ({label})" if label == varied.pooled else label


def _title(varied: Variation) -> str:
    where = f", {varied.where}" if varied.where else ""
    return f"Gain and share of the room by {varied.kind}{where}: {varied.unit.name}"


def _explanation(varied: Variation) -> str:
    """Explain the figure and the table in their common words."""
    sites = " Sites that are gone and insiders are left out on both sides." if varied.kind == "links" else ""
    return (
        "Gain: a method's mean minus that of training alone, at the same sites, on the same test samples; room: the "
        f"pooled bound's gain; share: the mean gain divided by the mean room.{sites}"
    )
