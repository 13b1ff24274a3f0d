"""Costs of methods and networks: bytes, steps, time, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import pandas as pd

from peer.lab.report import plotting
from peer.lab.report.measurements import COSTS, Measurements, Setting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import Results
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow, lay_out, number_cells

MIB = 1 << 20


def sent(measured: Measurements, setting: Setting) -> pd.DataFrame:
    """Average the bytes that each site sent in a whole run: ``label`` x ``site``."""
    facts = measured.facts_of(setting)
    by_site = facts.pivot_table(index="label", columns="site", values="sent_bytes", aggfunc="mean")
    return by_site.reindex(measured.results.labels(setting))


def traffic_figure(sent_bytes: pd.DataFrame, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot the bytes that each site sent, by method; None if no method sent any.

    Args:
        sent_bytes: as :func:`sent` returns them.
    """
    is_drawn = sent_bytes.sum(axis=1) > 0
    drawn = sent_bytes[is_drawn] / MIB
    if drawn.empty:
        return None
    figure, ((axes,),) = plotting.new_figure(6.4, 0.9 + 0.36 * len(drawn))
    for row, (label, by_site) in enumerate(drawn.iterrows()):
        values = by_site.dropna().tolist()
        mean, style = fmean(sent_bytes.loc[label].dropna()) / MIB, styles[label]
        axes.plot(values, [row] * len(values), "|", color=plotting.INK, markersize=9)
        axes.plot(mean, row, style.marker, color=style.colour, markersize=8)
        axes.annotate(f"{mean:,.3g} MiB", (mean, row), (0, 7), textcoords="offset points", ha="center", fontsize=7.5)
    plotting.set_log_axis(axes, [value for value in drawn.to_numpy().ravel().tolist() if value > 0])
    axes.set_ylim(len(drawn) - 0.5, -0.7)
    plotting.set_name_ticks(axes.yaxis, list(drawn.index))
    axes.set_xlabel("sent by a site in the whole run, MiB (logarithmic)")
    silent = ", ".join(sent_bytes.index[~is_drawn])
    return plotting.render(
        figure,
        name=name,
        title="Bytes exchanged",
        caption="Marker: mean over sites; strokes: the sites. Model bytes as they are put on the wire."
        + (f" Nothing is sent by {silent}." if silent else ""),
    )


def traffic_table(measured: Measurements, setting: Setting, *, name: str) -> Table:
    results, facts = measured.results, measured.facts_of(setting)
    labels, rounds = results.labels(setting), results.experiment["rounds"]
    own_rounds = pd.Series({label: results.experiment["methods"][label].get("rounds", rounds) for label in labels})
    means = facts.groupby("label")[COSTS].agg(fmean)
    sent_bytes, received_bytes = means["sent_bytes"], means["received_bytes"]
    sites = pd.Series({label: len(results.select(setting, label)[0].sites) for label in labels})
    columns = [
        (Column("sent", "MiB by a site", 2), sent_bytes / MIB),
        (Column("received", "MiB by a site", 2), received_bytes / MIB),
        (Column("sent in a round", "MiB by a site", 3), sent_bytes / own_rounds / MIB),
        (Column("sent by all", "MiB", 1), sites * sent_bytes / MIB),
        (Column("steps", digits=0), means["steps"]),
        (Column("training, s", digits=1), means["training_s"]),
    ]
    notes = (
        f"Means over sites and runs, of {rounds} rounds; a site has {len(results.sites(setting)) - 1} others. "
        "Steps: optimiser steps that the evaluated model has seen. Training time depends on the machine.",
    )
    cells = [(column, number_cells(values)) for column, values in columns]
    return lay_out(name, "Bytes exchanged, steps and time", cells, labels, notes=notes)


def footprint(results: Results, setting: Setting, *, name: str) -> Table:
    """Tabulate the networks of each site: parameters and multiply-accumulates."""
    networks: dict[tuple[str, str], Mapping[str, Mapping[str, object]]] = {}
    for run in (run for run in results.runs if run.setting == setting):
        for site, facts in run.sites.items():
            networks.setdefault((site, str(facts["model"]["name"])), facts)
    rows = []
    for (site, model), facts in sorted(networks.items()):
        hyper = [f"{key} {value}" for key, value in facts["model"].items() if key != "name" and value is not None]
        counts = (facts.get("parameters"), facts.get("multiply_accumulates"))
        numbers = (Cell(None if count is None else float(str(count)) / 1e6) for count in counts)
        rows.append(TableRow(site, (Cell(text=model), Cell(text=", ".join(hyper) or EMPTY), *numbers)))
    columns = (
        Column("model"),
        Column("made with"),
        Column("parameters, million", digits=3),
        Column("multiply-accumulates, million", digits=2),
    )
    notes = ("Of one forward pass of one sample at the site's input size; one multiply-accumulate is two FLOPs.",)
    return Table(name, "The sites' networks", "site", columns, tuple(rows), notes)
