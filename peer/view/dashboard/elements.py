"""Parts of a page: tables that become cards on a narrow screen, times and sizes in words, escaped text."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peer.errors import one_line
from peer.web_page import escape

EMPTY = (None, "")
"""Values of cells that a card leaves out."""


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is safe as it is; any other value of a cell is text, which another site may have written."""

    html: str


def text(value: object) -> str:
    """A text of any origin as HTML: printable, on one line, escaped; what stands in backquotes is code."""
    parts = escape(one_line(str(value))).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()) -> str:
    """A table; where it is too wide for the screen, each row becomes a card with the headings in it.

    Args:
        numbers: the columns that are aligned right.
    """
    head = "".join(f'<th scope="col"{_classes(column in numbers)}>{text(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>"
        + "".join(
            f'<td data-label="{text(column)}"{_classes(column in numbers, empty=value in EMPTY)}>{_cell(value)}</td>'
            for column, value in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table class="cards"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'


def _classes(number: bool, *, empty: bool = False) -> str:
    names = [*(["number"] if number else []), *(["empty"] if empty else [])]
    return f' class="{" ".join(names)}"' if names else ""


def _cell(value: object) -> str:
    return value.html if isinstance(value, Markup) else "–" if value in EMPTY else text(value)


def clock(time_s: float) -> str:
    """A Unix time in this machine's time zone, to the minute."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")


def time_of_day(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s).strftime("%H:%M:%S")


def size(count: float) -> str:
    """Bytes in binary units, as ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
