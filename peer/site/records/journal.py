"""The journal: a site's append-only record in one SQLite table.

A row is on disk before ``append`` returns. The memory of the state machine is the fold of these
rows (``peer.core.site_memory``). The daemon therefore never changes or deletes a row.
``peer.core.rows`` has the keys of each kind of row. The rows form a hash chain, so that a start
notices a changed or removed row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from peer import errors
from peer.core import rows
from peer.core.site_memory import Row
from peer.files import sync_folder

log = logging.getLogger(__name__)
Result = TypeVar("Result")

JOURNAL = "journal.db"
SCHEMA_VERSION = 3
SCHEMA = """
CREATE TABLE IF NOT EXISTS row (
    seq INTEGER PRIMARY KEY,
    time_s REAL NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    body TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    cause TEXT,
    hash TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS row_kind ON row (kind, seq);
CREATE INDEX IF NOT EXISTS row_received ON row (round) WHERE kind = 'received';
"""
"""Run at each start that writes: a journal of an earlier program gets an index that it lacks."""
MIGRATIONS: Mapping[int, str] = {
    1: """
ALTER TABLE row ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE row ADD COLUMN cause TEXT;
""",
    2: "ALTER TABLE row ADD COLUMN hash TEXT;",
}
"""By schema version, the statements that lead to the next one.

No body is rewritten: each row has its version.
"""
GENESIS = "0" * 64
"""The hash before the first row of a chain."""
CHAINED = "seq, time_s, kind, round, body, version, cause"
"""The columns that the hash of a row covers."""
WRITE_AHEAD = b"\x02\x02"
"""The versions in a database's header that its write-ahead log needs."""
CHAIN_BATCH = 500
"""Rows without a hash that a migration reads at once: a manifest may have a megabyte."""
COLUMN_TYPES = (int, float, str, int, str, int, str | None)
"""The types of these columns; a damaged page can have others."""


def open_database(
    path: Path,
    schema: str,
    *,
    version: int,
    read_only: bool = False,
    migrations: Mapping[int, str] | None = None,
    complete: Callable[[sqlite3.Connection], None] = lambda connection: None,
) -> sqlite3.Connection:
    """A connection to a journal or a ledger: with a write-ahead log, and each commit on disk before
    it returns.

    A file whose writer was killed before it made a table reads as an empty one. A file of an
    earlier version is copied to ``<name>.before-<version>`` and migrated to this version, unless it
    is opened ``read_only``. ``complete`` ends a migration, in its transaction.

    Raises:
        StateError: the file is no database, or a newer program wrote it.
        DiskError: the file cannot be written.
    """
    with storage(path):
        if read_only:
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        else:
            connection = sqlite3.connect(path, isolation_level=None)
            path.chmod(0o600)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(connection.close)
            stored_version = version_of(connection)
            if stored_version > version:
                raise errors.StateError(
                    f"{path} was written by a newer mhfl-peer (schema {stored_version}, this one knows {version})",
                    "update mhfl-peer at this site",
                )
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                migration = ""
                if 0 < stored_version < version:
                    _back_up(connection, path, version=version)
                    migration = "".join((migrations or {})[earlier] for earlier in range(stored_version, version))
                connection.executescript(f"BEGIN IMMEDIATE; {migration} {schema} PRAGMA user_version = {version};")
                if migration:
                    complete(connection)
                connection.execute("COMMIT")
            elif not stored_version:
                connection.close()
                connection = sqlite3.connect(":memory:", isolation_level=None)
                connection.executescript(f"{schema} PRAGMA user_version = {version};")
            on_failure.pop_all()
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a database; 0 while it has no table."""
    stored: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    # The first version's writer may have been killed after it made the tables, before it set the
    # number.
    return stored or min(tables, 1)


def _back_up(connection: sqlite3.Connection, path: Path, *, version: int) -> None:
    """Copy the database beside itself, durably, before its schema changes."""
    copy = path.with_name(f"{path.name}.before-{version}")
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(part)) as target:
            part.chmod(0o600)
            connection.backup(target)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(copy)
        sync_folder(path.parent)
    except OSError as error:
        remedy = "free space, or make the folder writable for this user: the file is copied before it is migrated"
        raise errors.DiskError(f"{copy} cannot be written: {error.strerror}", remedy) from error
    log.info("database copied before its migration", extra={"path": str(path), "schema": version, "backup": str(copy)})


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn SQLite's errors in this block into a ``DiskError`` or a ``StateError`` that names the
    file and a remedy.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if _is_damage(error, path):
            raise damaged(path, error) from error
        remedy = "check that the folder exists, that this user may write there and that the disk has space"
        raise errors.DiskError(f"{path}: {error}", remedy) from error
    except (sqlite3.DatabaseError, json.JSONDecodeError, UnicodeDecodeError, rows.RowError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, reason: object) -> errors.StateError:
    """The error for a journal or a ledger that this program did not leave like this."""
    without = f"; without one, move {path.parent} away and begin anew with `mhfl-peer start --resume fresh`"
    remedy = f"restore it from a backup{without if path.name == JOURNAL else ''}"
    return errors.StateError(f"{path} is damaged: {reason}", remedy)


def _is_damage(error: sqlite3.OperationalError, path: Path) -> bool:
    """Whether the file's content is the reason, and not the disk.

    The statements never change: where SQLite finds an error in one, the file has another table than
    it should. Python sets no code where a text is no UTF-8. The header of a damaged file can forbid
    writing.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code != sqlite3.SQLITE_READONLY:
        return code == sqlite3.SQLITE_ERROR
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(20)[18:20] != WRITE_AHEAD
    return False


def chain_hash(previous: str, text: str) -> str:
    """The hash of a row: SHA-256 over the hash before it, a line feed, and the row's canonical JSON."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _add_hashes(connection: sqlite3.Connection) -> None:
    """Chain the rows that an earlier program wrote."""
    seq, previous = 0, GENESIS
    query = f"SELECT {CHAINED} FROM row WHERE seq > ? ORDER BY seq LIMIT {CHAIN_BATCH}"
    while batch := connection.execute(query, (seq,)).fetchall():
        for columns in batch:
            seq, previous = columns[0], chain_hash(previous, _json(columns))
            connection.execute("UPDATE row SET hash = ? WHERE seq = ?", (previous, seq))


class RowBody(dict[str, Any]):
    """The body of a row; a key that is missing is an error that names the row."""

    def __init__(self, body: Mapping[str, Any], *, path: Path, seq: int, kind: str) -> None:
        super().__init__(body)
        self._where = path, seq, kind

    def __missing__(self, key: str) -> Any:
        path, seq, kind = self._where
        raise damaged(path, f"row {seq} ({kind!r}): {key!r} is missing")


class Journal:
    """The rows of one generation.

    Args:
        path: of ``journal.db``, which is made if it does not exist.
        read_only: only read, also while the daemon runs.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        options: dict[str, Any] = {"version": SCHEMA_VERSION, "read_only": read_only, "migrations": MIGRATIONS}
        self._connection = open_database(path, SCHEMA, **options, complete=_add_hashes)
        self._last_read = 0
        self._writing = False
        with storage(path):
            self._version = version_of(self._connection)

    @property
    def _later_columns(self) -> str:
        """The columns that a journal of the first schema lacks; such a journal is only read."""
        return "version, cause" if self._version > 1 else "1, NULL"

    def write(self, row: rows.JournalRow) -> None:
        """Append a row that is no effect of an event of the state machine."""
        self.append(row.kind, row.round, row.body())

    def append(self, kind: str, round: int, body: Mapping[str, Any], cause: Mapping[str, Any] | None = None) -> None:
        """Append one row; it is on disk when this returns, or when the block ``together`` around it ends.

        ``DiskError`` when it cannot be written.
        """
        version = rows.KINDS[kind].version if kind in rows.KINDS else 1
        body_json, cause_json = _json(body), None if cause is None else _json(cause)
        with self.together():
            newest = self._connection.execute("SELECT seq, hash FROM row ORDER BY seq DESC LIMIT 1").fetchone()
            seq, previous = newest or (0, GENESIS)
            columns = (seq + 1, time.time(), kind, round, body_json, version, cause_json)
            self._connection.execute(
                f"INSERT INTO row ({CHAINED}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*columns, chain_hash(previous, _json(columns))),
            )

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Rows appended in this block are on disk, all or none, when it ends: one sync of the disk for all."""
        if self._writing:
            yield
            return
        self._writing = True
        try:
            with storage(self.path), self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
        finally:
            self._writing = False

    def verify(self) -> None:
        """``StateError`` where a row was changed or removed, or the file is damaged.

        Rows that were cut off at the end do not show. A journal of an earlier schema has no hashes
        yet: there, only a row that is missing shows.
        """
        chained = self._version > 2
        columns = f"{CHAINED}, hash" if chained else "seq"
        expected, previous = 1, GENESIS
        with storage(self.path):
            for seq, *rest in self._connection.execute(f"SELECT {columns} FROM row ORDER BY seq"):
                if seq != expected:
                    raise rows.RowError(f"row {expected} is missing: row {seq} stands in its place")
                if chained:
                    *values, stored = rest
                    _check_types((seq, *values))
                    previous = chain_hash(previous, _json((seq, *values)))
                    if stored != previous:
                        raise rows.RowError(f"row {seq} was changed, or a row before it")
                expected += 1
            faults = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if faults != "ok":
                raise rows.RowError(faults)

    def fold(self, function: Callable[[Iterator[Row]], Result], kinds: Iterable[str] = ()) -> Result:
        """The function's result over the rows of these kinds, or all rows.

        ``StateError`` where one is damaged.
        """
        try:
            return function(self.rows(kinds))
        except rows.RowError as error:
            raise damaged(self.path, f"row {self._last_read}: {error}") from error

    def rows(self, kinds: Iterable[str] = ()) -> Iterator[Row]:
        """The rows of these kinds, or all rows, oldest first."""
        included = tuple(kinds)
        for record in self._select(f"{_where_kind(included)} ORDER BY seq", included):
            yield record["kind"], record["round"], record["body"]

    def since(self, seq: int, kinds: Iterable[str], *, leave_out: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The rows of these kinds after a number, with their Unix times, oldest first, read lazily.

        For a reader that reads each row once: the query walks the table from that row on, not the
        index.

        Args:
            seq: the number of the last row to skip.
            kinds: the kinds of the rows.
            leave_out: JSON paths to remove from each body, such as ``$.signature``.
        """
        included = tuple(kinds)
        return self._select(
            f"WHERE seq > ? AND +kind IN ({_placeholders(included)}) ORDER BY seq",
            (seq, *included),
            leave_out=leave_out,
        )

    def newest(self, kinds: Iterable[str]) -> Iterator[Row]:
        """The newest row of each of these kinds, oldest first.

        Its time does not depend on the journal's length.
        """
        included = tuple(kinds)
        newest = f"SELECT max(seq) FROM row {_where_kind(included)} GROUP BY kind"
        for record in self._select(f"WHERE seq IN ({newest}) ORDER BY seq", included):
            yield record["kind"], record["round"], record["body"]

    def best_evaluation(self) -> list[Row]:
        """The row ``evaluated`` of the best round on validation data; empty where there is none."""
        where = "WHERE kind = ? AND json_extract(body, '$.best_by') IS NOT NULL ORDER BY seq DESC LIMIT 1"
        return [(row["kind"], row["round"], row["body"]) for row in self._select(where, (rows.EvaluatedRow.kind,))]

    def received_artifact(self, peer: str, sha256: str) -> Iterator[Mapping[str, Any]]:
        """The rows ``received`` of this artifact from this peer, newest first; it may serve several rounds."""
        of_artifact = "json_extract(body, '$.peer') = ? AND json_extract(body, '$.sha256') = ?"
        where = f"WHERE kind = ? AND {of_artifact} ORDER BY seq DESC"
        for record in self._select(where, (rows.ReceivedRow.kind, peer, sha256)):
            yield record["body"]

    def received_in_round(self, round: int, *, peer: str | None = None) -> list[Mapping[str, Any]]:
        """The rows ``received`` of a round, from one peer or from all."""
        of_peer = " AND json_extract(body, '$.peer') = ?" if peer is not None else ""
        where = f"WHERE kind = '{rows.ReceivedRow.kind}' AND round = ?{of_peer}"  # a constant, as the index has it
        values = (round,) if peer is None else (round, peer)
        return [record["body"] for record in self._select(f"{where} ORDER BY seq", values)]

    def records(
        self,
        kinds: Iterable[str] = (),
        *,
        without: Iterable[str] = (),
        last: int | None = None,
        leave_out: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Rows with their Unix times, oldest first.

        Args:
            kinds: only rows of these kinds; default: all.
            without: no rows of these kinds.
            last: the number of newest rows to return; default: all.
            leave_out: JSON paths to remove from each body.
        """
        included, excluded = tuple(kinds), tuple(without)
        where = _where_kind(included) or f"WHERE kind NOT IN ({_placeholders(excluded)})"
        limit = -1 if last is None else last
        return list(
            self._select(f"{where} ORDER BY seq DESC LIMIT ?", (*(included or excluded), limit), leave_out=leave_out)
        )[::-1]

    def of_round(self, round: int) -> list[dict[str, Any]]:
        """The rows from the end of the round before to the start of the round after, each with its
        ``cause``.

        The cause is ``None`` in rows of an earlier version of the program, and in rows that no
        event caused.
        """
        ends = rows.CommittedRow.kind, rows.SkippedRow.kind
        begins = rows.OpenedRow.kind, rows.SkippedRow.kind
        before = "SELECT coalesce(max(seq), 0) FROM row WHERE kind IN (?, ?) AND round < ?"
        after = "SELECT coalesce(min(seq), 1 << 62) FROM row WHERE kind IN (?, ?) AND round > ?"
        bounds = f"WHERE seq > ({before}) AND seq <= ({after}) ORDER BY seq"
        return list(self._select(bounds, (*ends, round, *begins, round), causes=True))

    def _select(
        self, where: str, values: tuple[Any, ...], *, causes: bool = False, leave_out: Sequence[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """The rows as records; each body is upgraded to the current version of its kind."""
        query = f"SELECT seq, time_s, kind, round, {_body(leave_out)}, {self._later_columns} FROM row {where}"
        with storage(self.path):
            for columns in self._connection.execute(query, values):
                record, cause = self._record(*columns)
                self._last_read = record["seq"]
                yield {**record, "cause": cause} if causes else record

    def _record(self, *columns: Any) -> tuple[dict[str, Any], Any]:
        """A row as a record, and its cause; ``RowError`` where the row is damaged."""
        seq, time_s, kind, round, text, version, cause_text = columns
        _check_types(columns)
        try:
            body = json.loads(text)
            if not isinstance(body, dict):
                raise rows.RowError("its body is no JSON object")
            cause = None if cause_text is None else json.loads(cause_text)
            body = RowBody(rows.upgrade(kind, version, body), path=self.path, seq=seq, kind=kind)
        except (ValueError, RecursionError) as error:
            raise rows.RowError(f"row {seq}: {error}") from error
        return {"seq": seq, "time": time_s, "kind": kind, "round": round, "body": body}, cause

    def mentions(self, text: str) -> bool:
        """Whether the body of any row has this text, such as a digest."""
        with storage(self.path):
            query = "SELECT 1 FROM row WHERE instr(body, ?) LIMIT 1"
            return self._connection.execute(query, (text,)).fetchone() is not None

    def empty(self) -> bool:
        with storage(self.path):
            return self._connection.execute("SELECT 1 FROM row LIMIT 1").fetchone() is None

    def close(self) -> None:
        self._connection.close()


def _check_types(columns: Sequence[Any]) -> None:
    """``RowError`` where a column of ``CHAINED`` has a value that this program never writes."""
    if not all(isinstance(value, expected) for value, expected in zip(columns, COLUMN_TYPES, strict=True)):
        raise rows.RowError(f"row {columns[0]}: a column is of another type than it should be")


def _json(body: Mapping[str, Any] | Sequence[Any]) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def _where_kind(kinds: tuple[str, ...]) -> str:
    return f"WHERE kind IN ({_placeholders(kinds)})" if kinds else ""


def _body(leave_out: Sequence[str]) -> str:
    """The SQL of the bodies' column.

    SQLite removes these paths without making Python objects of them.
    """
    if not leave_out:
        return "body"
    paths = ", ".join(f"'{path}'" for path in leave_out)
    # A body that is no JSON fails later, in json.loads, whose error names the file.
    return f"CASE WHEN json_valid(body) THEN json_remove(body, {paths}) ELSE body END"


def _placeholders(values: tuple[str, ...]) -> str:
    return ",".join("?" * len(values))
