"""Cross-site evaluation: the Global Test before averaging (MH-pFLID, table 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.measurements import mean_across
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.table import Column, Table, Unit, lay_out, number_cells


def figure_and_table(comparison: Comparison, *, name: str) -> Iterator[ReportFigure | Table | None]:
    """Show each model on each site's test data, averaged over folds or seeds; nothing for one site."""
    sites, unit = comparison.results.sites(comparison.setting), comparison.unit
    if len(sites) < 2:
        return
    by_repeat = comparison.scores.matrix.stack(future_stack=True).unstack("repeat")
    means = mean_across(by_repeat).unstack("split").reindex(columns=sites)
    matrices = {label: means.xs(label).reindex(sites).to_numpy() for label in comparison.labels}
    yield _figure(matrices, sites, unit=unit, name=name)
    labels = [f"{label}: {model}" for label in comparison.labels for model in sites]
    means.index = [f"{label}: {model}" for label, model in means.index]
    columns = [(Column(site, "test data of", unit.digits), number_cells(means[site] * unit.factor)) for site in sites]
    notes = ("The Global Test before it is averaged; mean over runs. MH-pFLID's table 7.",)
    yield lay_out(name, f"Cross-site, {unit.axis}", columns, labels, notes=notes, head="model of")


def _figure(
    matrices: Mapping[str, NDArray[np.float64]], sites: Sequence[str], *, unit: Unit, name: str
) -> ReportFigure | None:
    """Plot every site's model on every site's test data, in one panel a method; None without values.

    Args:
        matrices: by label, the metric ``(model's site, test data's site)``, NaN where undefined.
    """
    if not matrices or all(np.isnan(values).all() for values in matrices.values()):
        return None
    scaled = {label: values * unit.factor for label, values in matrices.items()}
    limits = (min(float(np.nanmin(v)) for v in scaled.values()), max(float(np.nanmax(v)) for v in scaled.values()))
    columns = min(4, len(scaled))
    rows = -(-len(scaled) // columns)
    side = 0.46 * len(sites)
    figure, grid = plotting.new_figure(
        1.7 + (side + 0.25) * columns, 1.0 + (side + 0.35) * rows, rows=rows, columns=columns, sharex=True, sharey=True
    )
    all_axes = [axes for line in grid for axes in line]
    image: Any = None
    for axes, (label, values) in zip(all_axes, scaled.items(), strict=False):
        image = plotting.draw_matrix(axes, values, digits=min(unit.digits, 2 if unit.factor == 1 else 1), limits=limits)
        axes.set_title(label)
        plotting.set_name_ticks(axes.xaxis, sites, rotated=True)
    for axes in all_axes[len(scaled) :]:
        axes.set_visible(False)
    for index in range(max(0, len(scaled) - columns), len(scaled)):
        all_axes[index].tick_params(labelbottom=True)
    plotting.set_name_ticks(grid[0][0].yaxis, sites)
    figure.supxlabel("test data of", fontsize=9)
    figure.supylabel("model of", fontsize=9)
    figure.colorbar(image, ax=all_axes, shrink=0.8).set_label(unit.axis)
    return plotting.render(
        figure,
        name=name,
        title="Every model on every site's test data",
        caption=f"{unit.axis}, mean over runs; the diagonal is Local Test.",
    )
