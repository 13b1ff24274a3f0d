"""Figures of the methods' internals: similarities of DAM and KTM, expert weights, consensus, messenger's basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.curves import POINTS_MIN, Curve, by_site, draw, mean_over_sites, set_integer_ticks
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import RunResult
from peer.lab.report.table import unit_of

SIMILARITIES = {"batch": "batch B", "position": "position P", "region": "region R"}
SIDE_MAX = 256
"""Upper bound of a drawn similarity matrix's rows; of a larger one every n-th row and column is drawn."""


def similarities(run: RunResult, *, name: str) -> ReportFigure | None:
    """Plot every site's similarity matrices of DAM and KTM, and their difference; None without."""
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
    """Plot the mean weight of each head in each site's mixture; None if the run has no experts."""
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


def consensus(comparison: Comparison, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot FedDAL's consensus weight and its test metric with ProxyFL's; None without FedDAL runs."""
    results = comparison.results
    runs = {
        label: results.select(comparison.setting, label)
        for label in comparison.labels
        if results.method_of(label) in ("feddal", "proxyfl")
    }
    weights = {label: curves for label in runs if (curves := _consensus(runs[label]))}
    if not weights:
        return None
    metric = "accuracy" if results.metric == "auc" else results.metric
    tests = {label: mean_over_sites(by_site(runs[label], metric)) for label in runs}
    tests = {label: curve for label, curve in tests.items() if len(curve) >= POINTS_MIN}
    figure, ((left, *right),) = plotting.new_figure(7.6 if tests else 4.4, 2.7, columns=2 if tests else 1)
    for label, curves in weights.items():
        for curve in curves.values():
            draw(left, curve, styles[label], linewidth=0.7, alpha=0.6)
        draw(left, mean_over_sites(curves), styles[label], linewidth=2.2, label=label)
    left.set_ylabel("consensus λ, mean over samples")
    left.set_title("agreement of private model and proxy")
    for axes in right:
        for label, curve in tests.items():
            draw(axes, curve, styles[label], marked=True, linewidth=1.8, label=label)
        axes.set_ylabel(f"Local Test {unit_of(metric).axis}")
        axes.set_title("mean over sites")
        axes.legend(loc="lower right")
    for axes in (left, *right):
        set_integer_ticks(axes)
        axes.set_xlabel("round")
    return plotting.render(
        figure,
        name=name,
        title="Consensus λ, and FedDAL against ProxyFL",
        caption="Thick: mean over sites; thin: the sites. As figure 5 of FedDAL.",
    )


def _consensus(runs: Sequence[RunResult]) -> dict[str, Curve]:
    """Return λ by site and round; the name of the metric begins with the stage that reports it."""
    names = {
        metric
        for run in runs
        for facts in run.sites.values()
        for record in facts["rounds"][:1]
        for metric in record["metrics"]
        if metric.endswith("_consensus")
    }
    return by_site(runs, min(names)) if names else {}


def bases(values: Mapping[str, Mapping[str, float]], styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot the distance of the messenger's input bases from orthogonality, by site; None without values.

    Args:
        values: by label and site, ``||B B^T - I||_F`` of the row-normalised basis; 0 is orthogonal.
    """
    if not values:
        return None
    sites = sorted({site for values_by_site in values.values() for site in values_by_site})
    figure, ((axes,),) = plotting.new_figure(5.4, 1.0 + 0.34 * len(sites))
    for label, values_by_site in values.items():
        rows = [row for row, site in enumerate(sites) if site in values_by_site]
        heights = [values_by_site[sites[row]] for row in rows]
        axes.plot(heights, rows, styles[label].marker, color=styles[label].colour, markersize=7, label=label)
        for row, value in zip(rows, heights, strict=True):
            axes.annotate(f"{value:.2f}", (value, row), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_xlim(0, 1.2 * max(value for values_by_site in values.values() for value in values_by_site.values()))
    axes.set_ylim(len(sites) - 0.5, -0.5)
    plotting.set_name_ticks(axes.yaxis, sites)
    axes.set_xlabel("‖BBᵀ − I‖ (Frobenius), 0 is orthogonal")
    if len(values) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return plotting.render(
        figure,
        name=name,
        title="Orthogonality of the messenger's basis",
        caption="Rows of the first layer of the messenger's head, each of length one, after the last round.",
    )
