"""What dense tasks look like: input, each method, truth, for the same test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.research.report import plotting
from peer.research.report.plotting import ReportFigure
from peer.research.report.results import RunResult

SAMPLES_MAX = 1
"""Rows of a site."""
VOLUMES = 5
"""Axes of a batch of volumes."""
CELL = 1.18
"""Side of a picture, inches."""

Image = NDArray[Any]


def panels(runs: Sequence[RunResult], *, kind: str, name: str) -> ReportFigure | None:
    """Input, each method and truth, a row a test sample.

    Args:
        runs: one a method, of the same data.
        kind: segmentation or super_resolution.
        name: of the picture.

    Returns:
        Nothing where no run has panels.
    """
    found = {run.method: arrays for run in runs if (arrays := run.arrays("panels"))}
    if not found:
        return None
    first = next(iter(found.values()))
    sites = sorted({key.partition("/")[0] for key in first})
    rows = [(site, index) for site in sites for index in range(min(SAMPLES_MAX, len(first[f"{site}/input"])))]
    titles = ["input", *found, "truth"]
    height = 0.5 + (CELL + 0.16) * len(rows)
    figure, grid = plotting.figure(0.4 + CELL * len(titles), height, rows=len(rows), columns=len(titles))
    for line, (site, index) in zip(grid, rows, strict=True):
        source, truth = first[f"{site}/input"][index], first[f"{site}/truth"][index]
        _show(line[0], flat(source, truth, kind=kind), kind="image")
        _show(line[-1], flat(truth, truth, kind=kind), kind=kind, classes=int(truth.max()))
        for axes, arrays in zip(line[1:-1], found.values(), strict=True):
            if f"{site}/prediction" not in arrays:
                axes.set_visible(False)
                continue
            prediction = arrays[f"{site}/prediction"][index]
            _show(axes, flat(prediction, truth, kind=kind), kind=kind, classes=int(truth.max()))
            axes.set_xlabel(score(prediction, truth, kind=kind), fontsize=7.5, labelpad=2)
        line[0].set_ylabel(site, fontweight="bold")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=8.5)
    slices = "The slice with most foreground. " if first[f"{sites[0]}/input"].ndim == VOLUMES else ""
    what = "Dice of the sample, mean over its classes" if kind == "segmentation" else "PSNR of the sample"
    return plotting.finished(
        figure,
        name=name,
        title="Segmentation" if kind == "segmentation" else "Super-resolution",
        caption=f"Each site's own model on its own test data; below: {what}. "
        f"{slices}Fold {runs[0].fold}, seed {runs[0].seed}.",
    )


def flat(image: Image, truth: Image, *, kind: str) -> Image:
    """One slice of what is drawn.

    Args:
        image: label map ``(*space)`` or ``(1, *space)``, or image ``(c, *space)`` with channels first.
        truth: of the same sample; of volumes it decides the slice.
        kind: of the task.

    Returns:
        ``(height, width)``, or ``(height, width, 3)`` of colour images.
    """
    labels = truth[0] if kind == "segmentation" and truth.ndim == image.ndim and len(truth) == 1 else truth
    if kind == "segmentation" and image.ndim == labels.ndim:
        return _cut(image, labels)
    channels = image[0] if image.shape[0] != 3 else None
    if channels is not None:
        return _cut(channels, labels if labels.ndim == channels.ndim else labels[0])
    return np.stack([_cut(channel, labels if kind == "segmentation" else labels[0]) for channel in image], axis=-1)


def _cut(volume: Image, reference: Image) -> Image:
    """A picture as it is; of a volume the slice along the last axis with most of the reference's foreground."""
    if volume.ndim == 2:
        return volume
    amounts = (reference > 0).sum(axis=(0, 1))
    place = int(amounts.argmax()) * volume.shape[2] // reference.shape[2]
    return np.rot90(volume[:, :, place])


def score(prediction: Image, truth: Image, *, kind: str) -> str:
    """How good one sample is, as its task is judged."""
    if kind == "segmentation":
        values = []
        for label in range(1, int(truth.max()) + 1):
            predicted, true = prediction.reshape(truth.shape) == label, truth == label
            total = int(predicted.sum() + true.sum())
            values.append(2 * float((predicted & true).sum()) / total if total else 1.0)
        return f"{np.mean(values):.2f}" if values else "–"
    error = float(np.mean((prediction.astype(np.float64) - truth.astype(np.float64)) ** 2))
    return f"{-10 * np.log10(error):.1f} dB" if error > 0 else "exact"


def _show(axes: Any, image: Image, *, kind: str, classes: int = 1) -> None:
    options: Mapping[str, Any]
    if kind == "segmentation":
        options = {"cmap": "cividis", "vmin": 0, "vmax": max(1, classes)}
    elif image.ndim == 3:
        options, image = {}, np.clip(_unit(image), 0, 1)
    elif kind == "image":
        options = {"cmap": "gray"}
    else:
        options = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
    axes.imshow(image, interpolation="none", **options)
    plotting.blank(axes)


def _unit(image: Image) -> Image:
    """Values in [0, 1] as they are; others, of normalised inputs, stretched to it."""
    low, high = float(image.min()), float(image.max())
    return image if low >= 0 and high <= 1.001 else (image - low) / max(high - low, 1e-9)
