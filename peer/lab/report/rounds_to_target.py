"""How many rounds, and how many bytes, a method needs until its Local Test reaches a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.costs import MIB
from peer.lab.report.curves import POINTS_MIN, Curve, by_site, mean_over_sites, set_integer_ticks
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell, Column, Table, TableRow


def table(
    results: Results, setting: tuple[str, str], comparison: Comparison, *, targets: Sequence[float], name: str
) -> Table | None:
    """A table of rounds and bytes to each target; None without learning curves or a target.

    Args:
        targets: of the mean Local Test over sites, in the metric's own unit; default: what training
            alone ends with, and half of the room above it.
    """
    headings = dict(_targets(comparison, targets))
    curves = _curves(results, setting, comparison)
    labels = list(curves)
    if not headings or not any(len(curve) >= POINTS_MIN for runs in curves.values() for _, curve in runs):
        return None
    columns, rows = [], []
    for heading in headings.values():
        columns += [Column("rounds", heading, 1, "lower"), Column("MiB", heading, 2), Column("runs", heading)]
    for label in labels:
        cells: list[Cell] = []
        for target in headings:
            reached = [
                (run, round) for run, curve in curves[label] if (round := _first_round(curve, target)) is not None
            ]
            sizes = [_sent_until(run, round) for run, round in reached]
            known_sizes = [size for size in sizes if size is not None]
            cells += (
                Cell(fmean(round for _, round in reached) if reached else None),
                Cell(fmean(known_sizes) / MIB if known_sizes else None),
                Cell(text=f"{len(reached)} of {len(curves[label])}"),
            )
        rows.append(TableRow(label, tuple(cells), ranked=False))
    return Table(
        name, "Rounds and bytes to a target", "method", tuple(columns), tuple(rows), tuple(_notes(labels, curves))
    )


def figure(
    results: Results,
    setting: tuple[str, str],
    comparison: Comparison,
    styles: Mapping[str, Style],
    *,
    targets: Sequence[float],
    name: str,
) -> ReportFigure | None:
    """The mean Local Test over rounds, and over what a site has sent until then, with the targets;
    None where :func:`table` is.

    Methods that send nothing have no curve over bytes.
    """
    curves = _curves(results, setting, comparison)
    headings = dict(_targets(comparison, targets))
    if not headings or not any(len(curve) >= POINTS_MIN for runs in curves.values() for _, curve in runs):
        return None
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


def _curves(
    results: Results, setting: tuple[str, str], comparison: Comparison
) -> dict[str, list[tuple[RunResult, Curve]]]:
    """By label, each run with its mean Local Test by round; the pooled bound has no rounds."""
    return {
        label: [(run, mean_over_sites(by_site([run], results.metric))) for run in results.select(setting, label)]
        for label in comparison.labels
        if results.method_of(label) != CENTRALISED
    }


def _mean_over_runs(curves: Iterable[Mapping[int, float | None]]) -> Curve:
    """The mean of the known values of each round."""
    values: dict[int, list[float]] = {}
    for curve in curves:
        for round, value in curve.items():
            if value is not None:
                values.setdefault(round, []).append(value)
    return {round: fmean(known) for round, known in sorted(values.items())}


def _targets(comparison: Comparison, targets: Sequence[float]) -> Iterator[tuple[float, str]]:
    """Each target with its heading, in the table's unit."""
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
    """The bytes that a site sent up to a round, mean over the sites."""
    sent = [site.get("sent_bytes_by_round") for site in run.sites.values()]
    known = [by_round for by_round in sent if by_round is not None]
    if not known:
        return None
    return fmean(sum(size for number, size in by_round.items() if int(number) <= round) for by_round in known)


def _notes(labels: Sequence[str], curves: Mapping[str, Sequence[tuple[RunResult, Curve]]]) -> Iterator[str]:
    rounds = sorted({round for runs in curves.values() for _, curve in runs for round in curve})
    yield (
        "The first evaluated round in which the mean over sites reaches the target, and what a site sent until then; "
        "means over the runs that reach it, whose number stands beside. Evaluated: rounds "
        f"{', '.join(map(str, rounds))}."
    )
    late = [label for label in labels if all(len(curve) < POINTS_MIN for _, curve in curves[label])]
    if late:
        yield f"Evaluated after the last round only, so that it counts: {', '.join(late)}."
