"""Figures of dense tasks: input, prediction of each method and truth of the same test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.results import RunResult

SAMPLES_MAX = 1
"""Rows of the figure for each site."""
VOLUME_NDIM = 5
"""Number of dimensions of a batch of volumes."""
PANEL_INCHES = 1.18
"""Side of one panel, inches."""

Image = NDArray[Any]


def panels(runs: Sequence[RunResult], *, kind: str, name: str) -> ReportFigure | None:
    """Plot a row a test sample: its input, the prediction of each method, and its truth.

    Args:
        runs: one a method, of the same data.

    Returns:
        The figure; None if no run has panels.
    """
    panels_by_method = {run.method: arrays for run in runs if (arrays := run.arrays("panels"))}
    if not panels_by_method:
        return None
    first = next(iter(panels_by_method.values()))
    sites = sorted({key.partition("/")[0] for key in first})
    rows = [(site, index) for site in sites for index in range(min(SAMPLES_MAX, len(first[f"{site}/input"])))]
    titles = ["input", *panels_by_method, "truth"]
    height = 0.5 + (PANEL_INCHES + 0.16) * len(rows)
    figure, grid = plotting.new_figure(0.4 + PANEL_INCHES * len(titles), height, rows=len(rows), columns=len(titles))
    for line, (site, index) in zip(grid, rows, strict=True):
        source, truth = first[f"{site}/input"][index], first[f"{site}/truth"][index]
        _draw(line[0], slice_image(source, truth, kind=kind), kind="image")
        _draw(line[-1], slice_image(truth, truth, kind=kind), kind=kind, classes=int(truth.max()))
        for axes, arrays in zip(line[1:-1], panels_by_method.values(), strict=True):
            if f"{site}/prediction" not in arrays:
                axes.set_visible(False)
                continue
            prediction = arrays[f"{site}/prediction"][index]
            _draw(axes, slice_image(prediction, truth, kind=kind), kind=kind, classes=int(truth.max()))
            axes.set_xlabel(score(prediction, truth, kind=kind), fontsize=7.5, labelpad=2)
        line[0].set_ylabel(site, fontweight="bold")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=8.5)
    slices = "The slice with most foreground. " if first[f"{sites[0]}/input"].ndim == VOLUME_NDIM else ""
    score_name = "Dice of the sample, mean over its classes" if kind == "segmentation" else "PSNR of the sample"
    return plotting.render(
        figure,
        name=name,
        title="Segmentation" if kind == "segmentation" else "Super-resolution",
        caption=f"Each site's own model on its own test data; below: {score_name}. "
        f"{slices}Fold {runs[0].fold}, seed {runs[0].seed}.",
    )


def slice_image(image: Image, truth: Image, *, kind: str) -> Image:
    """Return a 2-D image, or the slice of a volume with most foreground.

    Args:
        image: label map ``(*space)`` or ``(1, *space)``, or image ``(c, *space)`` with channels
            first.
        truth: of the same sample; its foreground decides the slice.

    Returns:
        ``(height, width)``, or ``(height, width, 3)`` of colour images.
    """
    labels = truth[0] if kind == "segmentation" and truth.ndim == image.ndim and len(truth) == 1 else truth
    if kind == "segmentation" and image.ndim == labels.ndim:
        return _slice_volume(image, labels)
    channels = image[0] if image.shape[0] != 3 else None
    if channels is not None:
        return _slice_volume(channels, labels if labels.ndim == channels.ndim else labels[0])
    return np.stack(
        [_slice_volume(channel, labels if kind == "segmentation" else labels[0]) for channel in image], axis=-1
    )


def _slice_volume(volume: Image, reference: Image) -> Image:
    """Return a 2-D image unchanged; of a volume the slice with most foreground in the reference."""
    if volume.ndim == 2:
        return volume
    amounts = (reference > 0).sum(axis=(0, 1))
    slice_index = int(amounts.argmax()) * volume.shape[2] // reference.shape[2]
    return np.rot90(volume[:, :, slice_index])


def score(prediction: Image, truth: Image, *, kind: str) -> str:
    """Compute the score of one sample by its task's metric, as text."""
    if kind == "segmentation":
        values = []
        for label in range(1, int(truth.max()) + 1):
            predicted, true = prediction.reshape(truth.shape) == label, truth == label
            total = int(predicted.sum() + true.sum())
            values.append(2 * float((predicted & true).sum()) / total if total else 1.0)
        return f"{np.mean(values):.2f}" if values else "–"
    error = float(np.mean((prediction.astype(np.float64) - truth.astype(np.float64)) ** 2))
    return f"{-10 * np.log10(error):.1f} dB" if error > 0 else "exact"


def _draw(axes: Any, image: Image, *, kind: str, classes: int = 1) -> None:
    options: Mapping[str, Any]
    if kind == "segmentation":
        options = {"cmap": "cividis", "vmin": 0, "vmax": max(1, classes)}
    elif image.ndim == 3:
        options, image = {}, np.clip(_stretch(image), 0, 1)
    elif kind == "image":
        options = {"cmap": "gray"}
    else:
        options = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
    axes.imshow(image, interpolation="none", **options)
    plotting.hide_axes(axes)


def _stretch(image: Image) -> Image:
    """Return values in [0, 1] unchanged; rescale others, of normalised inputs, to [0, 1]."""
    low, high = float(image.min()), float(image.max())
    return image if low >= 0 and high <= 1.001 else (image - low) / max(high - low, 1e-9)
