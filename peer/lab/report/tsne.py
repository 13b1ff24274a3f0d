"""t-SNE of a network's body features, coloured by class and by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.results import RunResult

SAMPLES_MAX = 1000
"""Upper bound of samples: more take minutes and make the figure no clearer."""
SAMPLES_MIN = 12
PANELS_MAX = 8
"""Upper bound of methods in a figure: more are not told apart, and each takes seconds."""
PERPLEXITY_MAX = 30.0
NEIGHBOURS = 10
VECTOR_POINTS_MAX = 1500
"""Upper bound of points drawn as vectors; more are drawn as an image."""


def features(runs: Sequence[RunResult], site: str, *, name: str) -> ReportFigure | None:
    """Plot a panel a run with the features that a site's network computes for every site's test samples.

    Args:
        runs: one a method, of the same data.

    Returns:
        The figure; None if no run has features of this site.
    """
    features_by_method = {}
    for run in runs:
        arrays = run.arrays("features")
        if f"{site}/features" in arrays and len(arrays[f"{site}/labels"]) >= SAMPLES_MIN:
            parts = (arrays[f"{site}/{label}"] for label in ("features", "labels", "origins"))
            features_by_method[run.method] = _subsample(*parts)
    if not features_by_method:
        return None
    labels_shown = list(features_by_method)[:PANELS_MAX]
    columns = len(labels_shown)
    figure, (above, below) = plotting.new_figure(max(4.4, 1.2 + 1.75 * columns), 4.1, rows=2, columns=columns)
    sites = sorted(runs[0].sites)
    for column, label in enumerate(labels_shown):
        values, labels, origins = features_by_method[label]
        positions = embed(values)
        share = same_class_share(values, labels)
        above[column].set_title(f"{label}\n{share:.0%} same class", fontsize=8.5)
        _scatter(above[column], positions, labels, {k: f"class {k}" for k in np.unique(labels).tolist()})
        _scatter(below[column], positions, origins, dict(enumerate(sites)))
    for axes, label in ((above[0], "by class"), (below[0], "by site")):
        axes.set_ylabel(label, fontweight="bold")
    left_out = (
        f"The first {columns} of {len(features_by_method)} methods. " if columns < len(features_by_method) else ""
    )
    for line in (above, below):
        line[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), markerscale=1.8, handletextpad=0.2)
    return plotting.render(
        figure,
        name=name,
        title=f"t-SNE of body features: {site}",
        caption=f"What {site}'s network gives its head, for every site's test samples. Above each field: how many of "
        f"the {NEIGHBOURS} nearest samples, in the features themselves, are of the same class; distances in the map "
        f"mean little. Fold {runs[0].fold}, seed {runs[0].seed}. {left_out}As figure 5 of MH-pFLID.",
    )


def embed(values: NDArray[Any]) -> NDArray[np.float64]:
    """Embed features ``(n, d)`` by t-SNE as ``(n, 2)``, with a fixed seed; zeros if all equal."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    spread = values.std(axis=0)
    if not spread.any():
        return np.zeros((len(values), 2))
    scaled = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    components = min(50, *scaled.shape)
    reduced = PCA(components, random_state=0, svd_solver="full").fit_transform(scaled)
    perplexity = min(PERPLEXITY_MAX, (len(values) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca" if components > 1 else "random", max_iter=500, random_state=0)
    positions: NDArray[np.float64] = tsne.fit_transform(reduced).astype(np.float64)
    return positions


def same_class_share(values: NDArray[Any], labels: NDArray[np.int64], count: int = NEIGHBOURS) -> float:
    """Compute the share of the samples' nearest neighbours, by Euclidean distance of features, with the same label.

    Args:
        count: neighbours of a sample.
    """
    wide = values.astype(np.float64)
    norms = (wide**2).sum(axis=1)
    distances = norms[:, None] + norms[None] - 2 * wide @ wide.T
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : min(count, len(values) - 1)]
    return float(np.mean(labels[nearest] == labels[:, None]))


def _subsample(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Draw the same ``SAMPLES_MAX`` samples of each array, with a fixed seed."""
    count = len(arrays[0])
    if count <= SAMPLES_MAX:
        return arrays
    indices = np.sort(np.random.default_rng(0).choice(count, SAMPLES_MAX, replace=False))
    return tuple(array[indices] for array in arrays)


def _scatter(axes: Any, positions: NDArray[np.float64], values: NDArray[Any], labels: Mapping[int, str]) -> None:
    for index, (value, label) in enumerate(labels.items()):
        mask = values == value
        axes.scatter(
            *positions[mask].T,
            s=9,
            linewidth=0,
            alpha=0.85,
            color=plotting.CLASS_COLOURS[index % len(plotting.CLASS_COLOURS)],
            marker=plotting.MARKERS[(index // len(plotting.CLASS_COLOURS)) % len(plotting.MARKERS)],
            label=label,
            rasterized=len(positions) > VECTOR_POINTS_MAX,
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_box_aspect(1)
