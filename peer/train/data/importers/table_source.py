"""Tables of samples: CSV and TSV with any delimiter, encoding and line end that spreadsheets write."""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.errors import DataError, UsageError
from peer.train.data.datalist import OTHER_WORDS, squeezed_name
from peer.train.data.file_names import named
from peer.train.data.image_files import ARRAYS, FORMATS, file_ending
from peer.train.data.importers.candidates import (
    ROW,
    Candidate,
    ImportOptions,
    SourceContent,
    label_kind,
    resolve,
    with_label_file,
)

DELIMITERS = (";", ",", "\t", "|")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, because it begins with that mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
LEGACY = "cp1252"
"""The encoding that Western European programs write if not Unicode."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    "file": ("file", "image", "path", "filename"),
    "label": ("label", "class", "diagnosis"),
    "subject": ("subject", "subject_id", "patient", "patient_id", "participant_id"),
    "split": ("split",),
    "time": ("time", "duration", "follow_up"),
    "event": ("event", "status"),
}
"""Role -> column names that need no ``--column``."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The rows of a table with their line numbers, and how it was read."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]
    encoding: str
    notes: tuple[str, ...] = ()

    def where(self, line: int) -> str:
        return f"{self.path.name} line {line}"

    def column(self, role: str, options: ImportOptions, aliases: Sequence[str] = ()) -> str | None:
        """Return the column of a role: that of ``--column``, else the only one whose name is an alias of the role.

        Raise ``UsageError`` if the named column does not exist, or several could be meant.
        """
        columns = self.columns(role, options, aliases)
        if len(columns) > 1:
            raise UsageError(f"--column {role} is given {len(columns)} times", "give it once")
        return columns[0] if columns else None

    def columns(self, role: str, options: ImportOptions, aliases: Sequence[str] = ()) -> tuple[str, ...]:
        """Like ``column``, but ``--column`` may name several."""
        named = options.columns.get(role, ())
        for name in named:
            if name not in self.header:
                close = difflib.get_close_matches(name, self.header, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(self.header)}"
                raise UsageError(f"--column {role}={name}: {self.path} has no such column", hint)
        if named:
            return named
        fitting = [name for name in self.header if name.casefold() in aliases]
        if len(fitting) > 1:
            raise UsageError(
                f"{self.path} has several columns that could be the {role}: {', '.join(fitting)}",
                f"choose with --column {role}={fitting[0]}",
            )
        return tuple(fitting)


def read_table(path: Path, encoding: str | None = None) -> SampleTable:
    """Read a table with a header.

    Raises:
        DataError: the file cannot be read, or a line does not fit the header.
        UsageError: no encoding has this name.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "name the right file") from error
    text, encoding, notes = _decode(content, path, encoding)
    lines = text.splitlines()
    skipped, delimiter = 0, None
    if lines and lines[0].strip().strip('"').casefold().startswith("sep="):  # Excel's own line
        delimiter, skipped = lines[0].strip().strip('"')[4:5] or None, 1
        text = text.split("\n", 1)[1] if "\n" in text else ""
        lines = lines[1:]
    delimiter = delimiter or _delimiter(lines[0] if lines else "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        raw = [(reader.line_num + skipped, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num + skipped}: {error}", "save it as CSV in UTF-8") from error
    rows = [(line, cells) for line, cells in raw if any(cells)]
    if not rows:
        raise DataError(f"{path} is empty", "write a header line, and a line for each sample")
    _, header = rows[0]
    while header and not header[-1]:  # spreadsheets write empty columns at the end
        header.pop()
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated or "" in header:
        which = f"{', '.join(repeated)} twice" if repeated else "a column without a name"
        raise DataError(f"{path} line {rows[0][0]}: the header has {which}", "give each column a name of its own")
    return SampleTable(path, tuple(header), tuple(_records(path, header, rows[1:], delimiter)), encoding, notes)


def _records(
    path: Path, header: Sequence[str], rows: Iterable[tuple[int, list[str]]], delimiter: str
) -> Iterable[tuple[int, dict[str, str]]]:
    for line, cells in rows:
        if len(cells) != len(header) and any(cells[len(header) :]):
            raise DataError(
                f"{path} line {line} has {len(cells)} cells, the header {len(header)}",
                f"put cells that contain {delimiter!r} in double quotes",
            )
        yield line, dict(zip(header, [*cells, *[""] * len(header)], strict=False))


def _decode(content: bytes, path: Path, encoding: str | None) -> tuple[str, str, tuple[str, ...]]:
    """Return the text, its encoding, and a note if the encoding is a guess."""
    marked = next((name for mark, name in MARKS if content.startswith(mark)), None)
    name = encoding or marked or _wide(content) or "utf-8"
    try:
        return content.decode(name), name, ()
    except LookupError:
        raise UsageError(f"--encoding {encoding}: unknown", "name one such as cp1252, utf-16 or iso-8859-2") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if encoding or name != "utf-8":
            raise DataError(f"{path} line {line} is not {name}", "save the table as UTF-8") from error
    try:
        text = content.decode(LEGACY)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} line {line} is neither UTF-8 nor Windows-1252",
            "save it as UTF-8, or name its encoding with --encoding",
        ) from error
    shown = text.splitlines()[line - 1].strip()[:60]
    note = f"{path} is not UTF-8 and was read as Windows-1252, in which line {line} is {shown!r}"
    return text, LEGACY, (f"{note}; if letters are wrong there, name the encoding with --encoding",)


def _wide(content: bytes) -> str | None:
    """Detect UTF-16 without a byte order mark: every other byte of a header in Latin letters is 0."""
    start = content[:200]
    if start.count(0) * 3 < len(start):
        return None
    return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"


def _delimiter(header: str) -> str:
    """Return the delimiter that gives the header the most columns; the comma if there is a single column."""
    widths = {delimiter: len(next(csv.reader([header], delimiter=delimiter), [])) for delimiter in DELIMITERS}
    best = max(DELIMITERS, key=lambda delimiter: widths[delimiter])
    return best if widths[best] > 1 else ","


def _task(table: SampleTable, label: str | None) -> str:
    """Return ``segmentation`` if all labels of the table are names of image files, else ``classification``."""
    names = [row[label] for _, row in table.rows if row[label]] if label else []
    known = (*FORMATS, *ARRAYS)
    return (
        "segmentation"
        if names and all(Path(name).suffix and file_ending(Path(name)) in known for name in names)
        else "classification"
    )


def own_names(table: SampleTable, columns: Iterable[TableColumn], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the table's own name of each column; "" where ``chosen`` says that it has none.

    Args:
        chosen: names that differ from the federation's, by the federation's.

    Raises:
        DataError: the table lacks a column; the message names all of these.
    """
    headers = {name.strip().casefold(): name for name in table.header}
    names, missing = dict[str, str](), []
    for column in columns:
        wanted = chosen.get(column.name, column.name).strip().casefold()
        if wanted and wanted not in headers:
            close = difflib.get_close_matches(wanted, headers, n=1)
            missing.append(wanted + (f" (did you mean {headers[close[0]]!r}?)" if close else ""))
        names[column.name] = headers.get(wanted, "")
    if missing:
        raise DataError(
            f"{table.path} line 1: there is no column {', '.join(missing)}; it has {', '.join(table.header)}",
            "say in [data.columns] of site.toml, or with --column NAME=COLUMN, how the table calls it, or "
            '"" where the site has none',
        )
    return names


def read_cells(row: Mapping[str, str], own: Mapping[str, str], columns: Iterable[TableColumn]) -> dict[str, Any]:
    """Return the cells by the federation's names: as values where they fit, as they stand where they do not."""
    cells: dict[str, Any] = {}
    for column in columns:
        text = row.get(own[column.name], "")
        try:
            cells[column.name] = column.show(column.parse(text))
        except ValueError:
            cells[column.name] = text
    return cells


def gather(source: Path, options: ImportOptions) -> SourceContent:
    """Gather the candidates of a table: one per row, with files relative to ``--root`` or the table's folder."""
    table = read_table(source, options.encoding)
    root = source.parent if options.root is None else options.root
    chosen = {**options.own_columns, **{name: own[0] for name, own in options.columns.items()}}
    own = own_names(table, options.table, chosen)
    files = () if options.table else table.columns("file", options, ALIASES["file"])
    if not files and not options.table:
        raise DataError(
            f"{source} line 1: none of the columns {', '.join(table.header)} is named file",
            "name the columns in the first line, or give --column file=COLUMN",
        )
    answers = options.target.roles
    roles = {
        role: table.column(role, options, ALIASES.get(role, (role.casefold(),)))
        for role in (*answers, "subject", "split")
    }
    task = "tabular" if options.table else options.task or _task(table, roles["label"])
    content = SourceContent("table", task, encoding=table.encoding)
    content.notes += table.notes
    kind = label_kind(content.task)
    if (lacking := [role for role in answers if roles[role] is None]) and kind != "file or none":
        raise DataError(
            f"{source} line 1: none of the columns {', '.join(table.header)} is named {lacking[0]}",
            f"give --column {shlex.quote(f'{lacking[0]}=COLUMN')}",
        )
    content.columns = {
        **({"file": ", ".join(files)} if files else {}),
        **{role: name for role, name in roles.items() if name is not None},
        **{name: column for name, column in own.items() if column},
    }
    unknown = [name for name in options.keep if name not in table.header]
    if unknown:
        raise UsageError(f"--keep {unknown[0]}: {source} has no such column", f"it has {', '.join(table.header)}")
    unused = [name for name in table.header if name not in {*content.columns.values(), *files, *options.keep}]
    if unused:
        content.notes.append(f"columns that are not used: {named(unused)}; --keep takes one along")
        meant = [name for name in unused if OTHER_WORDS.get(squeezed_name(name)) == "subject"]
        if meant:
            content.subject_remedy = f"name the column, perhaps with --column {shlex.quote(f'subject={meant[0]}')}"
    for line, row in table.rows:
        where = table.where(line)
        if any(not row[name] for name in files):
            content.left_out.add("no file", where)
            continue
        candidate = Candidate(
            where=where,
            images=tuple(resolve(root, row[name]) for name in files) or (Path(where),),
            label=row[label] if (label := roles.get("label")) else None,
            cells={role: row[name] for role in answers if (name := roles[role])},
            subject=(row[roles["subject"]] or None) if roles["subject"] else None,
            split=row[roles["split"]] if roles["split"] else None,
            extra={name: row[name] for name in options.keep if row[name]}
            | ({ROW: read_cells(row, own, options.table)} if options.table else {}),
        )
        content.candidates.append(candidate if kind == "class" else with_label_file(candidate, root))
    return content
