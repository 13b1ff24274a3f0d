"""Figures of matrices: similarities of DAM and KTM, expert weights, cross-site tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.results import RunResult
from peer.lab.report.table import Unit

SIMILARITIES = {"batch": "batch B", "position": "position P", "region": "region R"}
SIDE_MAX = 256
"""Rows of a drawn similarity matrix; of a larger one every n-th row and column is drawn."""

Values = NDArray[np.float64]


def similarities(run: RunResult, *, name: str) -> ReportFigure | None:
    """Every site's similarity matrices of DAM and KTM, and their difference; None without."""
    matrices = {
        tuple(key.split("/")[1:]): value
        for key, value in run.arrays("diagnosis").items()
        if key.startswith("similarity/") and len(value) > 1
    }
    sites = sorted({site for site, _, _ in matrices})
    kinds = [kind for kind in SIMILARITIES if any((site, kind, "dam") in matrices for site in sites)]
    if not kinds:
        return None
    columns = 3 * len(kinds)
    figure = plotting.blank_figure(0.7 + 0.98 * columns, 1.3 + 1.0 * len(sites))
    grid = figure.add_gridspec(len(sites) + 1, columns, height_ratios=[1.0] * len(sites) + [0.5])
    is_thinned, images = False, {}
    for row, site in enumerate(sites):
        for kind_index, kind in enumerate(kinds):
            dam, ktm = (matrices.get((site, kind, role)) for role in ("dam", "ktm"))
            if dam is None or ktm is None or dam.shape != ktm.shape:
                continue
            step = -(-len(dam) // SIDE_MAX)
            is_thinned |= step > 1
            pair = [np.asarray(matrix[::step, ::step], dtype=np.float64) for matrix in (dam, ktm)]
            panels = zip((*pair, pair[0] - pair[1]), ("DAM", "KTM", "DAM − KTM"), strict=True)
            for column, (matrix, panel) in enumerate(panels, start=3 * kind_index):
                axes = figure.add_subplot(grid[row, column])
                colours = plotting.DIVERGING if panel == "DAM − KTM" else plotting.HEAT
                images[panel] = axes.imshow(matrix, cmap=colours, vmin=-1.0, vmax=1.0, interpolation="none")
                plotting.hide_axes(axes)
                if row == 0:
                    axes.set_title(f"{SIMILARITIES[kind]}\n{panel}" if panel == "KTM" else f"\n{panel}", fontsize=8)
                if column == 0:
                    axes.set_ylabel(site, fontsize=8.5, fontweight="bold")
    for panel, label, first in (("KTM", "similarity", 0), ("DAM − KTM", "difference", columns // 2)):
        scale_axes = figure.add_subplot(grid[-1, first : first + columns // 2])
        scale_axes.set_axis_off()
        colour_bar = scale_axes.inset_axes((0.08, 0.7, 0.84, 0.2))
        colour_bar.set_in_layout(False)
        figure.colorbar(images[panel], cax=colour_bar, orientation="horizontal", ticks=[-1, 0, 1]).set_label(
            label, fontsize=8
        )
    return plotting.render(
        figure,
        name=name,
        title=f"Similarity of DAM and KTM: {run.method}",
        caption="Deepest compared tap, after the last round; KTM: the final model of the site's last source; rows "
        "of length one. A tap of one position has nothing to compare there. "
        f"Fold {run.fold}, seed {run.seed}."
        + (f" Every n-th row and column, at most {SIDE_MAX}." if is_thinned else ""),
    )


def experts(run: RunResult, *, name: str) -> ReportFigure | None:
    """The mean weight of each head in each site's mixture; None where the run has no experts."""
    arrays = run.arrays("diagnosis")
    weights = {
        key.split("/")[1]: dict(zip(arrays[f"{key}/names"].tolist(), value.tolist(), strict=True))
        for key, value in arrays.items()
        if key.startswith("experts/") and not key.endswith("/names")
    }
    if not weights:
        return None
    sites = sorted(weights)
    heads = sorted({head for site_weights in weights.values() for head in site_weights})
    values = np.array([[weights[site].get(head, np.nan) for head in heads] for site in sites])
    figure, ((axes,),) = plotting.new_figure(2.2 + 0.62 * len(heads), 1.3 + 0.42 * len(sites))
    image = plotting.draw_matrix(axes, values, digits=2, limits=(0.0, float(np.nanmax(values))))
    plotting.set_name_ticks(axes.xaxis, heads, rotated=True)
    plotting.set_name_ticks(axes.yaxis, sites)
    axes.set_xlabel("expert: the head of")
    axes.set_ylabel("at site")
    figure.colorbar(image, ax=axes).set_label("mean weight")
    return plotting.render(
        figure,
        name=name,
        title=f"Expert weights: {run.method}",
        caption=f"Mean over test samples of the site; its weights sum to one. Fold {run.fold}, seed {run.seed}.",
    )


def cross_site(matrices: Mapping[str, Values], sites: Sequence[str], *, unit: Unit, name: str) -> ReportFigure | None:
    """Every site's model on every site's test data, in one panel a method.

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
