"""Pictures of matrices: similarities of DAM and KTM, expert weights, every model on every site's test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.research.report import plotting
from peer.research.report.plotting import ReportFigure
from peer.research.report.results import RunResult
from peer.research.report.table import Unit

SIMILARITIES = {"batch": "batch B", "position": "position P", "region": "region R"}
SIDE_MAX = 256
"""Places of a drawn similarity matrix; of a larger one every n-th row and column is drawn."""

Values = NDArray[np.float64]


def similarities(run: RunResult, *, name: str) -> ReportFigure | None:
    """Of every site the similarity matrices of DAM and KTM, and their difference; nothing where the run has none."""
    found = {
        tuple(key.split("/")[1:]): value
        for key, value in run.arrays("diagnosis").items()
        if key.startswith("similarity/") and len(value) > 1
    }
    sites = sorted({site for site, _, _ in found})
    kinds = [kind for kind in SIMILARITIES if any((site, kind, "dam") in found for site in sites)]
    if not kinds:
        return None
    columns = 3 * len(kinds)
    figure = plotting.sheet(0.7 + 0.98 * columns, 1.3 + 1.0 * len(sites))
    grid = figure.add_gridspec(len(sites) + 1, columns, height_ratios=[1.0] * len(sites) + [0.5])
    shrunk, shades = False, {}
    for row, site in enumerate(sites):
        for place, kind in enumerate(kinds):
            dam, ktm = (found.get((site, kind, whose)) for whose in ("dam", "ktm"))
            if dam is None or ktm is None or dam.shape != ktm.shape:
                continue
            step = -(-len(dam) // SIDE_MAX)
            shrunk |= step > 1
            pair = [np.asarray(matrix[::step, ::step], dtype=np.float64) for matrix in (dam, ktm)]
            drawn = zip((*pair, pair[0] - pair[1]), ("DAM", "KTM", "DAM − KTM"), strict=True)
            for column, (matrix, what) in enumerate(drawn, start=3 * place):
                field = figure.add_subplot(grid[row, column])
                colours = plotting.DIVERGING if what == "DAM − KTM" else plotting.HEAT
                shades[what] = field.imshow(matrix, cmap=colours, vmin=-1.0, vmax=1.0, interpolation="none")
                plotting.blank(field)
                if row == 0:
                    field.set_title(f"{SIMILARITIES[kind]}\n{what}" if what == "KTM" else f"\n{what}", fontsize=8)
                if column == 0:
                    field.set_ylabel(site, fontsize=8.5, fontweight="bold")
    for what, label, first in (("KTM", "similarity", 0), ("DAM − KTM", "difference", columns // 2)):
        room = figure.add_subplot(grid[-1, first : first + columns // 2])
        room.set_axis_off()
        scale = room.inset_axes((0.08, 0.7, 0.84, 0.2))
        scale.set_in_layout(False)
        figure.colorbar(shades[what], cax=scale, orientation="horizontal", ticks=[-1, 0, 1]).set_label(
            label, fontsize=8
        )
    return plotting.finished(
        figure,
        name=name,
        title=f"Similarity of DAM and KTM: {run.method}",
        caption="Deepest compared tap, after the last round; KTM: the final model of the site's last source; rows "
        "of length one. A tap of one position has nothing to compare there. "
        f"Fold {run.fold}, seed {run.seed}." + (f" Every n-th row and column, at most {SIDE_MAX}." if shrunk else ""),
    )


def experts(run: RunResult, *, name: str) -> ReportFigure | None:
    """How much each site listens to whose head, the mean over test samples; nothing where the run has no experts."""
    found = run.arrays("diagnosis")
    weights = {
        key.split("/")[1]: dict(zip(found[f"{key}/names"].tolist(), value.tolist(), strict=True))
        for key, value in found.items()
        if key.startswith("experts/") and not key.endswith("/names")
    }
    if not weights:
        return None
    sites = sorted(weights)
    heads = sorted({head for of_site in weights.values() for head in of_site})
    values = np.array([[weights[site].get(head, np.nan) for head in heads] for site in sites])
    figure, ((axes,),) = plotting.figure(2.2 + 0.62 * len(heads), 1.3 + 0.42 * len(sites))
    image = plotting.shade(axes, values, digits=2, limits=(0.0, float(np.nanmax(values))))
    plotting.names(axes.xaxis, heads, turned=True)
    plotting.names(axes.yaxis, sites)
    axes.set_xlabel("expert: the head of")
    axes.set_ylabel("at site")
    figure.colorbar(image, ax=axes).set_label("mean weight")
    return plotting.finished(
        figure,
        name=name,
        title=f"Expert weights: {run.method}",
        caption=f"Mean over test samples of the site; its weights sum to one. Fold {run.fold}, seed {run.seed}.",
    )


def cross_site(matrices: Mapping[str, Values], sites: Sequence[str], *, shown: Unit, name: str) -> ReportFigure | None:
    """Every site's model on every site's test data, one field a method.

    Args:
        matrices: of each label the metric ``(model's site, test data's site)``, NaN where undefined.
        sites: of rows and columns.
        shown: how the metric is shown.
        name: of the picture.
    """
    if not matrices or all(np.isnan(values).all() for values in matrices.values()):
        return None
    scaled = {label: values * shown.factor for label, values in matrices.items()}
    limits = (min(float(np.nanmin(v)) for v in scaled.values()), max(float(np.nanmax(v)) for v in scaled.values()))
    columns = min(4, len(scaled))
    rows = -(-len(scaled) // columns)
    side = 0.46 * len(sites)
    figure, grid = plotting.figure(
        1.7 + (side + 0.25) * columns, 1.0 + (side + 0.35) * rows, rows=rows, columns=columns, sharex=True, sharey=True
    )
    every = [axes for line in grid for axes in line]
    image: Any = None
    for axes, (label, values) in zip(every, scaled.items(), strict=False):
        image = plotting.shade(axes, values, digits=min(shown.digits, 2 if shown.factor == 1 else 1), limits=limits)
        axes.set_title(label)
        plotting.names(axes.xaxis, sites, turned=True)
    for axes in every[len(scaled) :]:
        axes.set_visible(False)
    for index in range(max(0, len(scaled) - columns), len(scaled)):
        every[index].tick_params(labelbottom=True)
    plotting.names(grid[0][0].yaxis, sites)
    figure.supxlabel("test data of", fontsize=9)
    figure.supylabel("model of", fontsize=9)
    figure.colorbar(image, ax=every, shrink=0.8).set_label(shown.axis)
    return plotting.finished(
        figure,
        name=name,
        title="Every model on every site's test data",
        caption=f"{shown.axis}, mean over runs; the diagonal is Local Test.",
    )
