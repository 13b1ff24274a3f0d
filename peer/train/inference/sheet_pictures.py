"""Pictures of prepared samples: middle slices with the outlines of labels as PNG, and the curves of signals."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peer.documents.data import SheetView

Array: TypeAlias = NDArray[Any]

OPPOSITE = dict(zip("RLAPSI", "LRPAIS", strict=True))
PLANES = {**dict.fromkeys("RL", "sagittal"), **dict.fromkeys("AP", "coronal"), **dict.fromkeys("SI", "axial")}
"""Direction of the axis across which a plane lies -> the plane's name."""
COLOURS = np.array(
    [[255, 196, 0], [0, 200, 255], [255, 80, 160], [90, 230, 90], [255, 130, 40], [170, 130, 255], [240, 240, 90]],
    dtype=np.uint8,
)
"""Colours of the outlines of the labels 1, 2, ...; legible on grey and on skin."""
SIDE_MIN, SIDE_MAX = 240, 512
"""Pixels of a picture's longer side: a smaller image is enlarged by a whole number, a larger one loses pixels."""
CHANNELS_MAX = 4
POINTS_MAX = 240
"""Maximum number of points of a curve, which is a few hundred pixels wide."""


@dataclass(frozen=True, slots=True)
class ShownPlane:
    """A plane through an image, and how its axes become rows and columns of a picture."""

    view: SheetView
    axis: int | None
    transposed: bool = False
    turned: bool = False

    def cut(self, values: Array) -> Array:
        """Cut the plane ``(..., rows, columns)`` out of values ``(..., *space)``."""
        if self.axis is not None:
            values = np.take(values, self.view["index"] or 0, axis=values.ndim - 3 + self.axis)
        if self.transposed:
            values = values.swapaxes(-1, -2)
        return values[..., ::-1, :] if self.turned else values


def planes(space: Sequence[int], codes: str | None, labels: Array | None) -> list[ShownPlane]:
    """Return the planes to show: a picture itself, or three of a volume.

    Args:
        codes: the direction in the patient of each axis of a volume, such as
            ``RAS``; with them, a volume stands upright.
        labels: if there are any, the slices with most of them are shown; else the middle ones.
    """
    if len(space) == 2:
        return [ShownPlane({"plane": "", "index": None, "edges": None}, None)]
    shown = []
    for axis in (2, 1, 0):
        across, down = (other for other in range(3) if other != axis)
        if codes and (codes[across] in "SI" or (codes[across] in "AP" and codes[down] in "RL")):
            across, down = down, across
        turned = codes is not None and codes[down] in "AS"
        view: SheetView = {
            "plane": PLANES[codes[axis]] if codes else f"axis {axis + 1}:",
            "index": _slice_index(space[axis], axis, labels),
            "edges": _edges(codes[across], codes[down], turned=turned) if codes else None,
        }
        shown.append(ShownPlane(view, axis, transposed=across < down, turned=turned))
    return shown


def _slice_index(length: int, axis: int, labels: Array | None) -> int:
    if labels is None or not labels.any():
        return length // 2
    others = tuple(other for other in range(3) if other != axis)
    return int(np.count_nonzero(labels, axis=others).argmax())


def _edges(across: str, down: str, *, turned: bool) -> dict[str, str]:
    """Return the directions at the left, right, top and bottom edge of a picture."""
    top, bottom = (down, OPPOSITE[down]) if turned else (OPPOSITE[down], down)
    return {"left": OPPOSITE[across], "right": across, "top": top, "bottom": bottom}


def png(values: Array, window: tuple[float, float], *, labels: Array | None = None, colour: bool = False) -> str:
    """Encode the picture of values ``(c, rows, columns)`` in base64; ``window`` holds the values of black and white.

    Args:
        labels: ``(rows, columns)``; each label above 0 is outlined.
        colour: the three channels are red, green and blue; otherwise channels are shown side by side.
    """
    low, high = window
    scaled = np.clip((values.astype(np.float64) - low) / ((high - low) or 1), 0, 1) * 255
    step = -(-max(values.shape[1:]) // SIDE_MAX)
    levels = scaled.round().astype(np.uint8)[:, ::step, ::step]
    times = max(1, SIDE_MIN // max(levels.shape[1:]))
    levels = levels.repeat(times, axis=1).repeat(times, axis=2)
    panels = [levels] if colour else [np.repeat(channel[None], 3, axis=0) for channel in levels[:CHANNELS_MAX]]
    if labels is not None:
        enlarged = labels[::step, ::step].repeat(times, axis=0).repeat(times, axis=1)
        panels = [_outlined(panel, enlarged) for panel in panels]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(np.concatenate(panels, axis=2).transpose(1, 2, 0))).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _outlined(picture: NDArray[np.uint8], labels: Array) -> NDArray[np.uint8]:
    """Draw each label's border, inside the label, on the picture ``(3, rows, columns)``."""
    padded = np.pad(labels, 1)
    inner = padded[1:-1, 1:-1]
    border = np.zeros(labels.shape, dtype=bool)
    for neighbour in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        border |= neighbour != inner
    border &= labels > 0
    outlined = picture.copy()
    outlined[:, border] = COLOURS[(labels[border].astype(int) - 1) % len(COLOURS)].T
    return outlined


def curves(signal: Array) -> list[list[float]]:
    """Return the first channels of a signal ``(c, length)`` as equidistant points."""
    step = -(-signal.shape[1] // POINTS_MAX)
    return [[float(f"{value:.4g}") for value in channel[::step]] for channel in signal[: 2 * CHANNELS_MAX]]
