"""Command output: one JSON document for scripts, or a table for people. Only tables import rich."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peer.errors import Interrupted, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.console import RenderableType as RenderableType
    from rich.table import Table

PIPE_WIDTH = 160  # columns where stdout is no terminal: wide enough for a digest beside other cells

FINGERPRINT = re.compile("(?:[0-9a-f]{2}:){8,}[0-9a-f]{2}")

PATIENCE_S = 2.0
"""Work that takes longer shows that it is still running."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
Document = Mapping[str, Any] | Sequence[Any]


def json_option(command: AnyCallable) -> AnyCallable:
    """Add ``--json``, for every command that prints a document; the parameter is ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")(command)


def emit(document: Document, *, as_json: bool, render: Callable[[Any], RenderableType]) -> None:
    """Print the document as JSON, or as rendered by ``render``."""
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        console().print(render(document))


def emit_line(document: Document) -> None:
    """Print the document as one line of JSON and flush it, for ``--watch --json``."""
    click.echo(json.dumps(document, separators=(",", ":")))
    sys.stdout.flush()


def console() -> Console:
    """Create a console on the current ``sys.stdout``, which tests replace."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


@contextlib.contextmanager
def working(text: str, *, patience_s: float = PATIENCE_S) -> Iterator[Callable[[str], None]]:
    """Show the text, which the yielded function replaces, once the block runs longer than ``patience_s``.

    Write to standard error, and only if it is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    status = Console(file=sys.stderr, highlight=False).status(text)
    timer = threading.Timer(patience_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield status.update
    finally:
        timer.cancel()
        timer.join()  # the timer may be starting the status right now
        status.stop()


@contextlib.contextmanager
def stages(first: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Print to standard error which stage of long work begins; the yielded function begins the next.

    A terminal shows the current stage alone. Otherwise each stage prints one line when it begins and one when it ends.

    Args:
        quiet: print nothing if standard error is not a terminal.
    """
    if quiet or sys.stderr.isatty():
        with working(first) as show:
            yield show
        return
    stage, began_s = first, time.monotonic()

    def begin(following: str | None) -> None:
        nonlocal stage, began_s
        click.echo(f"{stage}: {time.monotonic() - began_s:.1f} s", err=True)
        if following is not None:
            stage, began_s = following, time.monotonic()
            click.echo(f"{stage} ...", err=True)

    click.echo(f"{stage} ...", err=True)
    try:
        yield begin
    finally:
        begin(None)


def confirm(question: str, *, otherwise: str) -> None:
    """Ask whether to go on. Raises ``Interrupted`` if the answer is no, or nobody can answer.

    Args:
        otherwise: what the command has not done then.
    """
    try:
        click.confirm(question, abort=True)
    except click.Abort as error:
        raise Interrupted(otherwise, "answer y, or give --yes") from error


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Build a table of plain text, since other sites may have written it; ``None`` prints as ``-``.

    The cells of a column named ``time`` never wrap, however narrow the terminal is.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for column in columns:
        grid.add_column(column, no_wrap=column == "time")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    return grid


def fields(pairs: Iterable[tuple[str, object]]) -> Table:
    """Build a grid of names and values, one pair per line."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(_cell(name), _cell(value))
    return grid


def _cell(value: object) -> Any:
    return _cell_type()("-" if value is None else one_line(str(value)), overflow="fold")


@functools.cache
def _cell_type() -> Any:
    from rich.text import Text

    class Cell(Text):
        def wrap(self, console: Any, width: int, **options: Any) -> Any:
            """Wrap like rich, but break a fingerprint that is wider than the cell between two bytes."""
            if len(self.plain) <= width:
                return super().wrap(console, width, **options)
            whole = max(1, (width - 1) // 3) * 3  # a comma may follow the last byte
            text = FINGERPRINT.sub(lambda match: re.sub(f"(.{{{whole}}})(?=.)", r"\1\n", match[0]), self.plain)
            return Text(text).wrap(console, width, **options)

    return Cell
