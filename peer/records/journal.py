"""The journal: a site's append-only record in one SQLite table.

A row is on disk before ``append`` returns. The memory of the state machine is the fold of these
rows (``peer.core.site_memory``). The daemon therefore never changes or deletes a row.
``peer.core.rows`` has the keys of each kind of row.
"""

from __future__ import annotations

import contextlib
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

SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS row (
    seq INTEGER PRIMARY KEY,
    time_s REAL NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    body TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    cause TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS row_kind ON row (kind, seq);
"""
MIGRATIONS: Mapping[int, str] = {
    1: """
ALTER TABLE row ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE row ADD COLUMN cause TEXT;
""",
}
"""By schema version, the statements that lead to the next one.

No body is rewritten: each row has its version.
"""


def open_database(
    path: Path, schema: str, *, version: int, read_only: bool = False, migrations: Mapping[int, str] | None = None
) -> sqlite3.Connection:
    """A connection to a journal or a ledger: with a write-ahead log, and each commit on disk before
    it returns.

    A file whose writer was killed before it made a table reads as an empty one. A file of an
    earlier version is copied to ``<name>.before-<version>`` and migrated to this version, unless it
    is opened ``read_only``.

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
        stored_version = version_of(connection)
        if stored_version > version:
            raise errors.StateError(
                f"{path} was written by a newer mhfl-peer (schema {stored_version}, this one knows {version})",
                "update mhfl-peer at this site",
            )
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            script = schema
            if 0 < stored_version < version:
                _back_up(connection, path, version=version)
                script = "".join((migrations or {})[earlier] for earlier in range(stored_version, version)) + schema
            connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {version}; COMMIT;")
        elif not stored_version:
            connection.close()
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.executescript(f"{schema} PRAGMA user_version = {version};")
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
        remedy = "check that the folder exists, that this user may write there and that the disk has space"
        raise errors.DiskError(f"{path}: {error}", remedy) from error
    except (sqlite3.DatabaseError, json.JSONDecodeError, rows.RowError) as error:
        raise errors.StateError(f"{path} is damaged: {error}", "restore it from a backup") from error


class Journal:
    """The rows of one generation.

    Args:
        path: of ``journal.db``, which is made if it does not exist.
        read_only: only read, also while the daemon runs.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        options: dict[str, Any] = {"version": SCHEMA_VERSION, "read_only": read_only, "migrations": MIGRATIONS}
        self._connection = open_database(path, SCHEMA, **options)
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
        """Append one row; it is on disk when this returns. ``DiskError`` when it cannot be written."""
        version = rows.KINDS[kind].version if kind in rows.KINDS else 1
        body_json, cause_json = _json(body), None if cause is None else _json(cause)
        with storage(self.path):
            self._connection.execute(
                "INSERT INTO row (time_s, kind, round, body, version, cause) VALUES (?, ?, ?, ?, ?, ?)",
                (time.time(), kind, round, body_json, version, cause_json),
            )

    def fold(self, function: Callable[[Iterator[Row]], Result], kinds: Iterable[str] = ()) -> Result:
        """The function's result over the rows of these kinds, or all rows.

        ``StateError`` where one is damaged.
        """
        with storage(self.path):
            return function(self.rows(kinds))

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

    def received_manifest(self, peer: str, sha256: str) -> Mapping[str, Any] | None:
        """The newest row ``received`` of this artifact from this peer, which has its signed manifest."""
        of_artifact = "json_extract(body, '$.peer') = ? AND json_extract(body, '$.sha256') = ?"
        where = f"WHERE kind = ? AND {of_artifact} ORDER BY seq DESC LIMIT 1"
        newest = next(self._select(where, (rows.ReceivedRow.kind, peer, sha256)), None)
        return newest["body"] if newest is not None else None

    def received_in_round(self, round: int, *, peer: str | None = None) -> list[Mapping[str, Any]]:
        """The rows ``received`` of a round, from one peer or from all."""
        where = "WHERE kind = ? AND round = ?" + (" AND json_extract(body, '$.peer') = ?" if peer is not None else "")
        values = (rows.ReceivedRow.kind, round, *((peer,) if peer is not None else ()))
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
            for seq, time_s, kind, round, text, version, cause in self._connection.execute(query, values):
                body = rows.upgrade(kind, version, json.loads(text))
                record = {"seq": seq, "time": time_s, "kind": kind, "round": round, "body": body}
                yield {**record, "cause": None if cause is None else json.loads(cause)} if causes else record

    def empty(self) -> bool:
        with storage(self.path):
            return self._connection.execute("SELECT 1 FROM row LIMIT 1").fetchone() is None

    def close(self) -> None:
        self._connection.close()


def _json(body: Mapping[str, Any]) -> str:
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
