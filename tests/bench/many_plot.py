"""Draw the figures of ``many.py`` and ``simulator.py``: ``python tests/bench/many_plot.py FILE OUT.svg``.

FILE is the JSON of either. Both axes are logarithmic: a law N^k is a straight line of slope k.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from peer.lab.report.plotting import assign_styles, new_figure, plot_style, render, set_log_axis

DAEMONS = {
    "messages": "messages of a site in a round",
    "rows": "journal rows of a site in a round",
    "cpu_s": "CPU of a daemon in a round, s",
    "peak_mb": "peak memory of a daemon, MB",
    "round_s": "round, s",
    "idle_messages": "messages in a second, idle",
}
SIMULATED = {
    "site_round_ms": "CPU of a site in a round, ms",
    "events": "events of a site in a round",
    "rows": "journal rows of a site in a round",
    "row_bytes": "their bytes",
    "peak_mb": "memory of all sites, MB",
    "fetches": "fetches of a site in a round",
}
COLUMNS, PANEL = 3, (2.9, 2.3)


def main(source: Path, target: Path) -> None:
    """Draw one panel for each quantity, with a line for each pattern."""
    runs: list[dict[str, Any]] = json.loads(source.read_text())["runs"]
    panels = DAEMONS if "cpu_s" in runs[0] else SIMULATED
    patterns = sorted({run["pattern"] for run in runs})
    styles = assign_styles({pattern: pattern for pattern in patterns})
    rows = -(-len(panels) // COLUMNS)
    with plot_style():
        figure, axes = new_figure(COLUMNS * PANEL[0], rows * PANEL[1] + 0.3, rows=rows, columns=COLUMNS)
        for (key, label), axis in zip(panels.items(), (axis for row in axes for axis in row), strict=True):
            for pattern in patterns:
                of_pattern = [run for run in runs if run["pattern"] == pattern and key in run]
                of_pattern.sort(key=lambda run: run["sites"])
                points = [run["sites"] for run in of_pattern], [run[key] for run in of_pattern]
                axis.plot(
                    *points, marker=styles[pattern].marker, color=styles[pattern].colour, label=pattern, markersize=4
                )
            set_log_axis(axis, [run["sites"] for run in runs])
            axis.set_yscale("log")
            axis.set_title(label)
        axes[-1][0].set_xlabel("sites N")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower right", ncols=len(patterns))
        drawing = render(figure, name=target.stem, title="", caption="")
    target.write_text(drawing.file + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
