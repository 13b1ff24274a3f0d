"""What a command shows: one JSON document for scripts, or a table for people; rich is imported only for the latter."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peer.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPE_WIDTH = 160  # columns when stdout is no terminal: wide enough for a digest beside other cells

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
Document = Mapping[str, Any] | Sequence[Any]


def json_option(command: AnyCallable) -> AnyCallable:
    """``--json``, for every command that shows something; the parameter is ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)


def emit(document: Document, *, as_json: bool, render: Callable[[Any], RenderableType]) -> None:
    """Show the document: as JSON, or as ``render`` draws it."""
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        console().print(render(document))


def emit_line(document: Document) -> None:
    """Write the document as one line of JSON at once, for ``--watch --json``."""
    click.echo(json.dumps(document, separators=(",", ":")))
    sys.stdout.flush()


def console() -> Console:
    """A console on stdout as it is now."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A table whose cells are plain text, whatever another site put into them; ``None`` shows as ``-``."""
    from rich.box import SIMPLE
    from rich.table import Table

    drawn = Table(*columns, title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for row in rows:
        drawn.add_row(*(_cell(value) for value in row))
    return drawn


def fields(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one pair a line."""
    from rich.table import Table

    drawn = Table.grid(padding=(0, 2))
    for name, value in pairs:
        drawn.add_row(_cell(name), _cell(value))
    return drawn


def _cell(value: object) -> Any:
    from rich.text import Text

    return Text("-" if value is None else one_line(str(value)), overflow="fold")
