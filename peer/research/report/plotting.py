"""What all pictures share: one style, one colour per method, and SVG that follows the page into light and dark.

The only module that imports matplotlib, and only inside functions. Nothing global is touched: the settings hold within
``style()``.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peer.research.result_files import CENTRALISED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, RULE = "#0a0b0c", "#0a0b0d"
"""Stand for the page's text and grid colours until a picture is placed; nothing else is drawn in them."""
PAPER = {INK: "#1f2328", RULE: "#d0d7de"}
"""Those colours in a file of its own, which is white."""
PAGE = {INK: "currentColor", RULE: "var(--rule)"}

# Okabe and Ito 2008, told apart by colour-blind readers, without the yellow that nobody sees on white; of equal
# methods the best-known rows have always the same colour.
METHOD_COLOURS: Mapping[str, str] = {
    "local": "#8a8a8a",
    CENTRALISED: "#b08968",
    "fedskd": "#d55e00",
    "fedcross": "#0086d1",
    "dflmoe": "#009e73",
    "feddal": "#cc79a7",
    "proxyfl": "#e69f00",
    "mh_pflid": "#56b4e9",
}
SPARE_COLOURS = ("#7a68c8", "#a3a51f", "#c44569", "#3b8686", "#9c6644", "#5b8def", "#6a994e", "#b56576")
MARKERS = "osD^vPX*<>hp"
CLASS_COLOURS = (
    "#4e8fc7", "#e08a3c", "#4aa96c", "#cf5c60", "#8f7cc3", "#9a7b68", "#d983b8", "#8c8c8c", "#b3a833", "#3fb0bd",
)  # fmt: skip
"""Of classes and of sites; as light as they are dark, for both backgrounds."""
HEAT, DIVERGING = "viridis", "RdBu_r"
DOTS_PER_INCH = 150
"""Of the parts of a picture that are no vectors."""


@dataclass(frozen=True)
class ReportFigure:
    """One finished picture.

    Attributes:
        name: stem of its file.
        title: above it.
        caption: below it: what is drawn, of which runs, in which units.
        drawing: SVG in the stand-in colours.
    """

    name: str
    title: str
    caption: str
    drawing: str

    @property
    def inline(self) -> str:
        """For the page: transparent, in the page's colours; no identifier that another picture also has."""
        return _coloured(self.drawing, PAGE).replace("<svg ", '<svg role="img" ', 1)

    @property
    def file(self) -> str:
        """For a file of its own: on white."""
        drawing = _coloured(self.drawing, PAPER)
        return re.sub(r"(<svg [^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', drawing, count=1)


@dataclass(frozen=True)
class Style:
    """How a row of the tables is drawn, the same in every picture."""

    colour: str
    marker: str


def styles(labels: Mapping[str, str]) -> dict[str, Style]:
    """Of each label (with the method behind it) its colour and marker."""
    spare, taken, found = itertools.cycle(SPARE_COLOURS), set(), {}
    for index, (label, method) in enumerate(labels.items()):
        colour = METHOD_COLOURS.get(method)
        if colour is None or colour in taken:
            colour = next(spare)
        taken.add(colour)
        found[label] = Style(colour, MARKERS[index % len(MARKERS)])
    return found


@contextmanager
def style() -> Iterator[None]:
    """The settings of all pictures, for what is drawn and finished inside."""
    import matplotlib

    settings: dict[str, Any] = {
        "axes.axisbelow": True,
        "axes.edgecolor": INK,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": INK,
        "axes.labelsize": 9,
        "axes.linewidth": 0.7,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "figure.constrained_layout.h_pad": 0.06,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.w_pad": 0.06,
        "figure.dpi": DOTS_PER_INCH,
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "savefig.dpi": DOTS_PER_INCH,
        "savefig.facecolor": "none",
        "svg.fonttype": "path",
        "svg.hashsalt": "mhfl-peer",
        "text.color": INK,
        "xtick.color": INK,
        "xtick.labelsize": 8,
        "ytick.color": INK,
        "ytick.labelsize": 8,
    }
    with matplotlib.rc_context(settings):
        yield


def figure(
    width: float, height: float, *, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[list[Any]]]:
    """An empty figure of so many inches, and its axes by row and column."""
    made = sheet(width, height)
    return made, made.subplots(rows, columns, squeeze=False, **options).tolist()


def sheet(width: float, height: float) -> Figure:
    """An empty figure of so many inches, without axes."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def finished(made: Figure, *, name: str, title: str, caption: str) -> ReportFigure:
    out = io.StringIO()
    made.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    drawing = text[text.index("<svg ") :]
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\b(id="|href="#|url\(#)', rf"\1{name}-", drawing)
    return ReportFigure(name, title, caption, drawing)


def blank(axes: Any) -> None:
    """Axes for an image: no frame, no ticks, no grid."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def shade(axes: Any, values: Any, *, digits: int, colours: str = HEAT, limits: tuple[float, float]) -> Any:
    """A matrix with its numbers written into it, where there is room for them; NaN stays empty."""
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="none")
    axes.grid(visible=False)
    rows, columns = values.shape
    if columns <= 12:
        for row, column in itertools.product(range(rows), range(columns)):
            value = values[row, column]
            if value == value:
                red, green, blue, _ = image.cmap(image.norm(value))
                bright = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
                axes.text(
                    column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=7.5,
                    color="#101010" if bright else "#fafafa",
                )  # fmt: skip
    return image


def logarithmic(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic horizontal axis for positive values, with plain numbers at 1, 2 and 5 of every power of ten."""
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for factor in (1, 2, 5) if low <= (tick := factor * 10.0**power) <= high]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def names(axis: Any, labels: Sequence[str], *, turned: bool = False) -> None:
    """Ticks that are names; turned where they would run into each other."""
    options: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    axis.set_ticks(range(len(labels)), labels, **options)


def _coloured(drawing: str, colours: Mapping[str, str]) -> str:
    for stand_in, colour in colours.items():
        drawing = drawing.replace(stand_in, colour)
    return drawing
