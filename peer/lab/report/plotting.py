"""Base of all figures: one style, one colour per method, and SVG in the page's light or dark colours.

Only this module imports matplotlib, and only inside functions. It changes no global settings: the
style holds inside ``plot_style()``.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peer.lab.experiments.result_files import CENTRALISED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, RULE = "#0a0b0c", "#0a0b0d"
"""Placeholders of the page's text and grid colours, which ``ReportFigure`` replaces."""
PAPER = {INK: "#1f2328", RULE: "#d0d7de"}
"""The colours in an SVG file, which has a white background."""
PAGE = {INK: "currentColor", RULE: "var(--rule)"}

# Okabe and Ito 2008, which colour-blind readers can distinguish, without the yellow that is
# invisible on white. A method has the same colour in every report.
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
"""For classes and sites; of medium lightness, for both backgrounds."""
HEAT, DIVERGING = "viridis", "RdBu_r"
PANELS_IN_ROW = 4
DOTS_PER_INCH = 150
"""For the rasterised parts of a figure."""


@dataclass(frozen=True)
class ReportFigure:
    """One rendered figure.

    Attributes:
        caption: below it: the figure's content, runs and units.
        drawing: SVG in the placeholder colours.
        figure: what was drawn, for other formats.
    """

    name: str
    title: str
    caption: str
    drawing: str
    figure: Figure | None = field(default=None, repr=False, compare=False)

    @property
    def inline(self) -> str:
        """The SVG inside the HTML page: transparent, in the page's colours."""
        return _recolour(self.drawing, PAGE).replace("<svg ", '<svg role="img" ', 1)

    @property
    def file(self) -> str:
        """The SVG as a file: on a white background."""
        drawing = _recolour(self.drawing, PAPER)
        return re.sub(r"(<svg [^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', drawing, count=1)

    def pdf(self) -> bytes:
        """Return the figure as PDF, with its fonts embedded as TrueType, which publishers ask for."""
        import matplotlib

        assert self.figure is not None
        out = io.BytesIO()
        with plot_style(), matplotlib.rc_context({"pdf.fonttype": 42, "pdf.compression": 0}):
            self.figure.savefig(out, format="pdf", metadata={"CreationDate": None})
        content = out.getvalue()
        for placeholder, colour in PAPER.items():  # of equal length: the file lists where its objects begin
            before = _pdf_colour(placeholder)
            content = content.replace(before, _pdf_colour(colour).ljust(len(before))[: len(before)])
        return content


@dataclass(frozen=True)
class Style:
    """The colour and marker of a method, the same in every figure."""

    colour: str
    marker: str


def assign_styles(labels: Mapping[str, str]) -> dict[str, Style]:
    """Assign a colour and a marker to each label, given its method."""
    spare_colours, used_colours, styles = itertools.cycle(SPARE_COLOURS), set(), {}
    for index, (label, method) in enumerate(labels.items()):
        colour = METHOD_COLOURS.get(method)
        if colour is None or colour in used_colours:
            colour = next(spare_colours)
        used_colours.add(colour)
        styles[label] = Style(colour, MARKERS[index % len(MARKERS)])
    return styles


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply the settings of all figures, which are drawn and rendered inside the block."""
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


def new_figure(
    width: float, height: float, *, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[list[Any]]]:
    """Make an empty figure, with width and height in inches, and its axes by row and column."""
    figure = blank_figure(width, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def new_panels(count: int) -> tuple[Figure, list[Any]]:
    """Make a figure of ``count`` panels with common axes, at most ``PANELS_IN_ROW`` in a row; return both."""
    columns = min(PANELS_IN_ROW, count)
    rows = -(-count // columns)
    figure, grid = new_figure(
        0.6 + 1.9 * columns, 0.5 + 2.0 * rows, rows=rows, columns=columns, sharex=True, sharey=True
    )
    all_axes = [axes for line in grid for axes in line]
    for axes in all_axes[count:]:
        axes.set_visible(False)
    return figure, all_axes[:count]


def blank_figure(width: float, height: float) -> Figure:
    """Make an empty figure without axes, with width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def render(figure: Figure, *, name: str, title: str, caption: str) -> ReportFigure:
    """Render a figure to SVG; its identifiers are made unique within the page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    drawing = text[text.index("<svg ") :]
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\b(id="|href="#|url\(#)', rf"\1{name}-", drawing)
    return ReportFigure(name, title, caption, drawing, figure)


def hide_axes(axes: Any) -> None:
    """Remove frame, ticks and grid, for images."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_matrix(axes: Any, values: Any, *, digits: int, colours: str = HEAT, limits: tuple[float, float]) -> Any:
    """Draw a matrix as a heatmap, with its numbers if they have room; NaN stays empty."""
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


def set_log_axis(axes: Any, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with ticks at 1, 2 and 5 of each power of ten."""
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for factor in (1, 2, 5) if low <= (tick := factor * 10.0**power) <= high]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def set_name_ticks(axis: Any, labels: Sequence[str], *, rotated: bool = False) -> None:
    """Use names as ticks; ``rotated`` if they would overlap."""
    options: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if rotated else {}
    axis.set_ticks(range(len(labels)), labels, **options)


def _pdf_colour(colour: str) -> bytes:
    """Write a colour as matplotlib does in a PDF: three numbers from 0 to 1."""
    from matplotlib.backends.backend_pdf import pdfRepr
    from matplotlib.colors import to_rgb

    return b" ".join(map(pdfRepr, to_rgb(colour)))


def _recolour(drawing: str, colours: Mapping[str, str]) -> str:
    for placeholder, colour in colours.items():
        drawing = drawing.replace(placeholder, colour)
    return drawing
