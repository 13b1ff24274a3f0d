"""HTML pages from the jinja2 templates in ``peer/templates``: one file each, with its style inside.

Python hands over data, and only templates have markup. jinja2 escapes every value, and an unknown name is an error.
A value that another site may have written is printed with the filter ``text`` or ``line``, which also remove what
cannot be printed.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from peer.errors import one_line
from peer.quantities import duration

TEMPLATES = Path(__file__).with_name("templates")
STYLE = "page.css"
"""The style of every page, before its own."""
BLANK = (None, "")
"""Values of cells that a card leaves out."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A cell of some words with classes of the page's style."""

    words: str
    kind: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell with a share as a bar and in percent."""

    share: float

    @property
    def width(self) -> float:
        return 100 * min(1.0, max(0.0, self.share))


@dataclass(frozen=True, slots=True)
class PageTable:
    """The content of the macro ``table``.

    Attributes:
        rows: of texts, numbers, badges and bars, one a column; ``None`` leaves a cell blank.
        numbers: the columns that are aligned right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Sequence[str] = ()


def render_page(
    template: str,
    *,
    title: str,
    styles: Sequence[str] = (),
    script: str = "",
    images: bool = False,
    strict: bool = True,
    **content: object,
) -> str:
    """Render a page that may load nothing, and run nothing but this script.

    Args:
        styles: files in ``peer/templates``, as is ``script``.
        images: whether the page has pictures inside, as data URIs.
        strict: whether its ``content_policy`` is part of the page, which then can have neither style attributes nor
            event handlers.
    """
    page = environment().get_template(template)
    return page.render(
        title=title,
        policy=content_policy(styles=styles, script=script, images=images) if strict else None,
        style=Markup(_read_styles(styles)),
        script=Markup(_read(script) if script else ""),
        **content,
    )


def content_policy(*, styles: Sequence[str] = (), script: str = "", images: bool = False) -> str:
    """Return a page's Content-Security-Policy: its style and script by their hashes, and requests to the page's own
    address alone where a script runs.
    """
    allowed = ["default-src 'none'", f"style-src {_hash_source(_read_styles(styles))}"]
    allowed += ["base-uri 'none'", "form-action 'none'"]
    if images:
        allowed.append("img-src data:")
    if script:
        allowed += [f"script-src {_hash_source(_read(script))}", "connect-src 'self'"]
    return "; ".join(allowed)


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of all templates."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters |= {
        "clock": clock,
        "code": mark_code,
        "duration": duration,
        "line": lambda value: one_line(str(value)),
        "size": size,
        "text": lambda value: mark_code(one_line(str(value))),
        "time_of_day": lambda time_s: datetime.datetime.fromtimestamp(time_s).strftime("%H:%M:%S"),
    }
    templates.tests |= {
        "badge": lambda value: isinstance(value, Badge),
        "bar": lambda value: isinstance(value, Bar),
        "blank": lambda value: value in BLANK,
    }
    return templates


def mark_code(value: str) -> Markup:
    """Escape a text; what stands in backquotes becomes code."""
    parts = escape(value).split("`")
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if index % 2 else part for index, part in enumerate(parts))


def clock(time_s: float) -> str:
    """Format a Unix time in this machine's time zone, to the minute."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")


def size(count: float) -> str:
    """Format a number of bytes in binary units up to TiB, as ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@functools.cache
def _read(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")


def _read_styles(styles: Sequence[str]) -> str:
    return "\n" + "".join(map(_read, (STYLE, *styles)))


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
