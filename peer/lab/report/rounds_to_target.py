"""The rounds and bytes that a method needs until its Local Test reaches a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.costs import MIB
from peer.lab.report.curves import POINTS_MIN, Curve, by_site, mean_over_sites, set_integer_ticks
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import RunResult
from peer.lab.report.table import Cell, Column, Table, lay_out

Curves = Mapping[str, Sequence[tuple[RunResult, Curve]]]
"""By label, each run with its mean Local Test by round."""


def figure_and_table(
    comparison: Comparison, styles: Mapping[str, Style], *, targets: Sequence[float], name: str
) -> Iterator[ReportFigure | Table]:
    """Show the mean Local Test over rounds and over bytes, and when it reaches each target.

    Yields nothing without learning curves or a target.

    Args:
        targets: of the mean Local Test over sites, in the metric's own unit; default: the last value
            of training alone, and half of the room above it.
    """
    headings = dict(_targets(comparison, targets))
    curves = _curves(comparison)
    if headings and any(len(curve) >= POINTS_MIN for runs in curves.values() for _, curve in runs):
        yield _figure(comparison, curves, headings, styles, name=name)
        yield _table(curves, headings, name=name)


def _curves(comparison: Comparison) -> Curves:
    """Return by label each run with its mean Local Test by round; the pooled bound has no rounds."""
    metric = comparison.results.metric
    return {
        label: [
            (run, mean_over_sites(by_site([run], metric)))
            for run in comparison.results.select(comparison.setting, label)
        ]
        for label in comparison.ranked
    }


def _table(curves: Curves, headings: Mapping[float, str], *, name: str) -> Table:
    columns: list[tuple[Column, dict[str, Cell]]] = []
    for target, heading in headings.items():
        rounds, sizes, counts = {}, {}, {}
        for label, runs in curves.items():
            reached = [(run, round) for run, curve in runs if (round := _first_round(curve, target)) is not None]
            known_sizes = [size for run, round in reached if (size := _sent_until(run, round)) is not None]
            counts[label] = Cell(text=f"{len(reached)} of {len(runs)}")
            if reached:
                rounds[label] = Cell(fmean(round for _, round in reached))
            if known_sizes:
                sizes[label] = Cell(fmean(known_sizes) / MIB)
        columns += [
            (Column("rounds", heading, 1, "lower"), rounds),
            (Column("MiB", heading, 2), sizes),
            (Column("runs", heading), counts),
        ]
    return lay_out(name, "Rounds and bytes to a target", columns, curves.keys(), notes=_notes(curves))


def _figure(
    comparison: Comparison,
    curves: Curves,
    headings: Mapping[float, str],
    styles: Mapping[str, Style],
    *,
    name: str,
) -> ReportFigure:
    """Plot the mean Local Test over rounds, and over the bytes that a site has sent until then, with the targets.

    Methods that send nothing have no curve over bytes.
    """
    factor = comparison.unit.factor
    values = {label: _mean_over_runs(curve for _, curve in runs) for label, runs in curves.items()}
    sent = {
        label: _mean_over_runs({round: _sent_until(run, round) for round in curve} for run, curve in runs)
        for label, runs in curves.items()
    }
    sizes = [size / MIB for by_round in sent.values() for size in by_round.values() if size]
    panels = 2 if sizes else 1
    figure, ((over_rounds, *over_bytes),) = plotting.new_figure(3.8 * panels, 3.2, columns=panels, sharey=True)
    for label, by_round in values.items():
        line = {"color": styles[label].colour, "marker": styles[label].marker, "markersize": 4, "linewidth": 1.6}
        over_rounds.plot(list(by_round), [factor * value for value in by_round.values()], label=label, **line)
        for axes in over_bytes:
            known = {round: size / MIB for round in by_round if (size := sent[label].get(round))}
            axes.plot(list(known.values()), [factor * by_round[round] for round in known], **line)
    for target, heading in headings.items():
        for axes in (over_rounds, *over_bytes):
            axes.axhline(factor * target, color=plotting.INK, linewidth=0.8, linestyle=":")
        over_rounds.annotate(
            heading, (0, factor * target), (3, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
            fontsize=7,
        )  # fmt: skip
    set_integer_ticks(over_rounds)
    over_rounds.set_xlabel("round")
    over_rounds.set_ylabel(f"Local Test {comparison.unit.axis}")
    for axes in over_bytes:
        axes.set_xlabel("sent by a site until then, MiB (logarithmic)")
        plotting.set_log_axis(axes, sizes)
    figure.legend(*over_rounds.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption = (
        "Mean over sites and runs. Dotted: the targets. A single marker: evaluated after the last round only. A method "
        "that sends nothing has no curve over bytes."
    )
    return plotting.render(figure, name=name, title="Rounds and bytes to a target", caption=caption)


def _mean_over_runs(curves: Iterable[Mapping[int, float | None]]) -> Curve:
    """Average the known values of each round."""
    values: dict[int, list[float]] = {}
    for curve in curves:
        for round, value in curve.items():
            if value is not None:
                values.setdefault(round, []).append(value)
    return {round: fmean(known) for round, known in sorted(values.items())}


def _targets(comparison: Comparison, targets: Sequence[float]) -> Iterator[tuple[float, str]]:
    """Yield each target with its heading, in the table's unit."""
    unit, local = comparison.unit, comparison.local
    if targets:
        for target in targets:
            yield target, f"Local Test {unit.name} {target * unit.factor:.{unit.digits}f}"
        return
    alone = None if local is None else comparison.final_mean(local, "local")
    if local is None or alone is None:
        return
    yield alone, f"{local}'s last: {alone * unit.factor:.{unit.digits}f}"
    if comparison.pooled is not None:
        share = comparison.share(comparison.pooled, "local")
        if share.has_room(unit.room_min) and share.room.difference is not None:
            half = alone + share.room.difference / 2
            yield half, f"half of the room: {half * unit.factor:.{unit.digits}f}"


def _first_round(curve: dict[int, float], target: float) -> int | None:
    return next((round for round, value in curve.items() if value >= target), None)


def _sent_until(run: RunResult, round: int) -> float | None:
    """Compute the bytes that a site sent up to a round, mean over the sites; None if not known."""
    sent = [site.get("sent_bytes_by_round") for site in run.sites.values()]
    known = [by_round for by_round in sent if by_round is not None]
    if not known:
        return None
    return fmean(sum(size for number, size in by_round.items() if int(number) <= round) for by_round in known)


def _notes(curves: Curves) -> Iterator[str]:
    rounds = sorted({round for runs in curves.values() for _, curve in runs for round in curve})
    yield (
        "The first evaluated round in which the mean over sites reaches the target, and what a site sent until then; "
        "means over the runs that reach it, whose number stands beside. Evaluated: rounds "
        f"{', '.join(map(str, rounds))}."
    )
    late = [label for label, runs in curves.items() if all(len(curve) < POINTS_MIN for _, curve in runs)]
    if late:
        yield f"Evaluated after the last round only, so that it counts: {', '.join(late)}."
