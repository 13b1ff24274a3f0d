"""Write the first table of RESULTS.md and ``pictures/room.svg``: method by preset, the share of the room.

``--check`` only compares. Run it from anywhere, after ``python deploy/evidence.py``, whose table it reads.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

DEPLOY = Path(__file__).resolve().parent
EVIDENCE = DEPLOY.parent / "peer" / "lab" / "advice" / "evidence.csv"
RESULTS = DEPLOY / "examples" / "experiments" / "RESULTS.md"
PICTURE = RESULTS.parent / "pictures" / "room.svg"
HEADING = "## The room that each method takes\n"
STUDIES = {
    "digits, classes alike": ("digits,", "classes alike"),
    "digits, classes differ": ("digits,", "classes differ"),
    "EEG, blinks": ("EEG,", "blinks"),
    "EEG, slow potentials": ("EEG, slow", "potentials"),
    "lung nodules": ("lung", "nodules"),
}
"""Studies with room, and their names in two lines."""
TESTS = ("local", "global")
CELL, ROW, LEFT, TOP = 58, 26, 200, 92
"""Width and height of a cell, of the methods' names and of the studies'."""
STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --dim: #59636e; --page: #ffffff; }
svg { --more: #0b69c7; --less: #b35900; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #f0f3f6; --dim: #a5afba; --page: #0d1117; --more: #3f8fe0; --less: #d07c2e; }
}
text { fill: var(--ink); text-anchor: middle; } .dim { fill: var(--dim); font-size: 11px; } .name { text-anchor: end; }
.more { fill: var(--more); } .less { fill: var(--less); } .study { font-weight: 600; }
"""
Shares = Mapping[tuple[str, str], float]
"""Shares of a study's room in per cent, by study and test."""


@dataclass(frozen=True)
class Room:
    """What the evidence says: rooms in points by study and test, and shares by method, the best mean first."""

    points: Mapping[tuple[str, str], float]
    shares: Mapping[str, Shares]


def read_room(rows: Sequence[Mapping[str, str]]) -> Room:
    """Read the rows of the studies with room."""
    bounds: dict[tuple[str, str, str], float] = {}
    shares: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        for test in TESTS if row["study"] in STUDIES else ():
            if row["row"] in ("centralised", "local"):
                bounds[row["study"], test, row["row"]] = float(row[test])
            elif row[f"{test}_share"]:
                shares.setdefault(row["row"], {})[row["study"], test] = float(row[f"{test}_share"])
    columns = [(study, test) for study in STUDIES for test in TESTS]
    points = {
        (study, test): 100 * (bounds[study, test, "centralised"] - bounds[study, test, "local"])
        for study, test in columns
    }
    complete = {name: share for name, share in shares.items() if all(column in share for column in columns)}
    best = sorted(complete, key=lambda name: fmean(complete[name].values()), reverse=True)
    return Room(points, {name: complete[name] for name in best})


def draw_table(room: Room) -> str:
    """Return the table in Markdown: each cell has the shares on Local and Global Test."""
    head = ["method", *STUDIES, "mean"]
    lines = [head, ["---"] * len(head)]
    points = (f"{room.points[study, 'local']:.1f}, {room.points[study, 'global']:.1f} points" for study in STUDIES)
    lines.append(["the room", *points, ""])
    for name, shares in room.shares.items():
        cells = (f"{shares[study, 'local']:.0f}, {shares[study, 'global']:.0f} %" for study in STUDIES)
        lines.append([f"`{name}`", *cells, f"{fmean(shares.values()):.0f} %"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace(" |  |\n", " | |\n")


def draw_picture(room: Room) -> str:
    """Return the same as SVG, a cell the darker, the larger its share."""
    columns = list(room.points)
    width, height = LEFT + CELL * len(columns) + 20, TOP + ROW * len(room.shares) + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>The share of the room between training alone and pooled data that each method takes</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--page)"/>',
            *_heads(columns, room),
            *(line for number, name in enumerate(room.shares) for line in _row(number, name, room.shares[name])),
            f'<text class="dim" x="{width / 2}" y="{height - 12}">Per cent of the room: 0 is training alone, '
            "100 all data pooled. Five seeds each.</text>",
            "</svg>\n",
        ]
    )


def _heads(columns: Sequence[tuple[str, str]], room: Room) -> Iterator[str]:
    for number, (study, test) in enumerate(columns):
        middle = LEFT + CELL * number + CELL / 2
        if test == "local":
            for line, words in enumerate(STUDIES[study]):
                yield f'<text class="study" x="{middle + CELL / 2}" y="{24 + 17 * line}">{words}</text>'
        yield f'<text class="dim" x="{middle}" y="62">{test.title()}</text>'
        yield f'<text class="dim" x="{middle}" y="78">{room.points[study, test]:.1f} pt</text>'
    yield f'<text class="dim name" x="{LEFT - 12}" y="78">the room, in points</text>'


def _row(number: int, name: str, shares: Shares) -> Iterator[str]:
    top = TOP + ROW * number
    yield f'<text class="name" x="{LEFT - 12}" y="{top + 17}">{name}</text>'
    for column, share in enumerate(shares.values()):
        left, kind = LEFT + CELL * column, "more" if share >= 0 else "less"
        shade = 0.06 + 0.6 * min(abs(share), 100) / 100
        box = f'x="{left + 1}" y="{top + 1}" width="{CELL - 2}" height="{ROW - 2}" rx="3"'
        yield f'<rect class="{kind}" {box} fill-opacity="{shade:.2f}"/>'
        yield f'<text x="{left + CELL / 2}" y="{top + 17}">{share:.0f}</text>'


def insert(text: str, table: str) -> str:
    """Return the page with this table in place of the first below its heading."""
    start = text.index("\n|", text.index(HEADING)) + 1
    end = text.index("\n\n", start) + 1
    return text[:start] + table + text[end:]


def main(arguments: list[str] | None = None) -> int:
    """Write both; the exit status is 1 if ``--check`` finds one stale, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is stale")
    check = parser.parse_args(arguments).check
    with EVIDENCE.open(encoding="utf-8", newline="") as file:
        room = read_room(list(csv.DictReader(file)))
    stale = 0
    for path, text in {
        RESULTS: insert(RESULTS.read_text("utf-8"), draw_table(room)),
        PICTURE: draw_picture(room),
    }.items():
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale = 1
        if check:
            print(f"{path.relative_to(DEPLOY.parent)} is stale: run python deploy/room.py", file=sys.stderr)
        else:
            path.write_text(text, "utf-8")
            print(f"{path.relative_to(DEPLOY.parent)} written")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
