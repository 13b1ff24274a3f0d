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
MIGRATIONS: Mapping[int, str] = {}
"""By schema version, the statements that lead to the next one. Release 0.3.0 writes version 3.

No body is rewritten: each row has its version.
"""
GENESIS = "0" * 64
"""The hash before the first row of a chain."""
CHAINED = "seq, time_s, kind, round, body, version, cause"
"""The columns that the hash of a row covers."""
WITHOUT_MANIFESTS = """
CASE WHEN json_valid(body) THEN json_remove(body, '$.body', '$.signature', '$.certificate_der', '$.manifests')
ELSE body END
"""
"""The SQL of a body without its signed manifests: SQLite removes them without making Python objects.

A body that is no JSON fails later, in ``json.loads``, whose error names the file.
"""
WRITE_AHEAD = b"\x02\x02"
"""The versions in a database's header that its write-ahead log needs."""
COLUMN_TYPES = (int, float, str, int, str, int, str | None)
"""The types of these columns; a damaged page can have others."""


def open_database(
    path: Path,
    schema: str,
    *,
    version: int,
    read_only: bool = False,
    migrations: Mapping[int, str] | None = None,
) -> sqlite3.Connection:
    """Open a connection to a journal or a ledger, with a write-ahead log, and each commit on disk before
    it returns.

    A file whose writer was killed before it made a table reads as an empty one. A file of an
    earlier version is copied to ``<name>.before-<version>`` and migrated to this version, unless it
    is opened ``read_only``.

    Raises:
        StateError: the file is no database, or a newer program wrote it, or one so old that it cannot
            be migrated.
        DiskError: the file cannot be written.
    """
    with storage(path):
        if read_only:
            connection = _connect_read_only(path)
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
            earlier = range(stored_version or version, version)
            if not set(earlier) <= set(migrations or {}):
                raise errors.StateError(
                    f"{path} was written before release 0.3.0 (schema {stored_version}, this one reads {version})",
                    "start this site once with release 0.3.0, which converts it",
                )
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                if earlier:
                    _back_up(connection, path, version=version)
                migration = "".join((migrations or {})[number] for number in earlier)
                connection.executescript(
                    f"BEGIN IMMEDIATE; {migration} {schema} PRAGMA user_version = {version}; COMMIT;"
                )
            elif not stored_version:
                connection.close()
                connection = sqlite3.connect(":memory:", isolation_level=None)
                connection.executescript(f"{schema} PRAGMA user_version = {version};")
            on_failure.pop_all()
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a file that this user may read, also where nothing can be written, as in a snapshot for an auditor.

    SQLite makes a file of locks beside a database. Where it cannot, a database without a write-ahead log is opened as
    one that nobody changes: a daemon that runs has such a log.

    Raises:
        DiskError: the log must be read in first, which needs a folder that can be written to.
    """
    uri, wal = f"{path.absolute().as_uri()}?mode=ro", path.with_name(f"{path.name}-wal")
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        version_of(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        unwritable = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if error.sqlite_errorcode & 0xFF not in unwritable or _is_damage(error, path) or not path.exists():
            raise
        if wal.exists():
            reason = f"its log {wal.name} must be read in first, and nothing can be written here"
            raise errors.DiskError(f"{path}: {reason}", "copy the folder to where this user may write") from error
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema version of a database; 0 while it has no table."""
    stored: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return stored


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
    """Return the error for a journal or a ledger that this program did not leave like this."""
    without = f"; without one, move {path.parent} away and begin anew with `mhfl-peer start --resume fresh`"
    remedy = f"restore it from a backup{without if path.name == JOURNAL else ''}"
    return errors.StateError(f"{path} is damaged: {reason}", remedy)


def _is_damage(error: sqlite3.OperationalError, path: Path) -> bool:
    """Return whether the file's content is the reason, and not the disk.

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
    """Return the hash of a row: SHA-256 over the hash before it, a line feed, and the row's canonical JSON."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


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
        self._connection = open_database(path, SCHEMA, **options)
        self._last_read = 0
        self._writing = False

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

        Rows that were cut off at the end do not show.
        """
        expected, previous = 1, GENESIS
        with storage(self.path):
            for *columns, stored in self._connection.execute(f"SELECT {CHAINED}, hash FROM row ORDER BY seq"):
                seq = columns[0]
                if seq != expected:
                    raise rows.RowError(f"row {expected} is missing: row {seq} stands in its place")
                _check_types(columns)
                previous = chain_hash(previous, _json(columns))
                if stored != previous:
                    raise rows.RowError(f"row {seq} was changed, or a row before it")
                expected += 1
            faults = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if faults != "ok":
                raise rows.RowError(faults)

    def fold(self, function: Callable[[Iterator[Row]], Result], kinds: Iterable[str] = ()) -> Result:
        """Apply the function to the rows of these kinds, or to all rows.

        ``StateError`` where one is damaged.
        """
        try:
            return function(self.rows(kinds))
        except rows.RowError as error:
            raise damaged(self.path, f"row {self._last_read}: {error}") from error

    def rows(self, kinds: Iterable[str] = ()) -> Iterator[Row]:
        """Return the rows of these kinds, or all rows, oldest first."""
        included = tuple(kinds)
        for record in self._select(f"{_where_kind(included)} ORDER BY seq", included):
            yield record["kind"], record["round"], record["body"]

    def since(self, seq: int, kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Return the rows of these kinds after a number, with their Unix times and without signed manifests,
        oldest first, read lazily.

        For a reader that reads each row once: the query walks the table from that row on, not the
        index.
        """
        included = tuple(kinds)
        where = f"WHERE seq > ? AND +kind IN ({_placeholders(included)}) ORDER BY seq"
        return self._select(where, (seq, *included), manifests=False)

    def newest(self, kinds: Iterable[str]) -> Iterator[Row]:
        """Return the newest row of each of these kinds, oldest first.

        Its time does not depend on the journal's length.
        """
        included = tuple(kinds)
        newest = f"SELECT max(seq) FROM row {_where_kind(included)} GROUP BY kind"
        for record in self._select(f"WHERE seq IN ({newest}) ORDER BY seq", included):
            yield record["kind"], record["round"], record["body"]

    def best_evaluation(self) -> list[Row]:
        """Return the row ``evaluated`` of the best round on validation data; empty where there is none."""
        where = "WHERE kind = ? AND json_extract(body, '$.best_by') IS NOT NULL ORDER BY seq DESC LIMIT 1"
        return [(row["kind"], row["round"], row["body"]) for row in self._select(where, (rows.EvaluatedRow.kind,))]

    def received_artifact(self, peer: str, sha256: str) -> Iterator[Mapping[str, Any]]:
        """Return the rows ``received`` of this artifact from this peer, newest first; it may serve several rounds."""
        of_artifact = "json_extract(body, '$.peer') = ? AND json_extract(body, '$.sha256') = ?"
        where = f"WHERE kind = ? AND {of_artifact} ORDER BY seq DESC"
        for record in self._select(where, (rows.ReceivedRow.kind, peer, sha256)):
            yield record["body"]

    def newest_received(self, peer: str) -> Mapping[str, Any] | None:
        """Return the newest row ``received`` of a peer's artifact for a round, if its signed manifest is there."""
        own = "json_extract(body, '$.peer') = ? AND json_extract(body, '$.purpose') != 'evaluate'"
        where = f"WHERE kind = ? AND {own} ORDER BY seq DESC LIMIT 1"
        newest = next(self._select(where, (rows.ReceivedRow.kind, peer)), None)
        return None if newest is None or "signature" not in newest["body"] else newest["body"]

    def received_in_round(self, round: int, *, peer: str | None = None) -> list[Mapping[str, Any]]:
        """Return the rows ``received`` of a round, from one peer or from all."""
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
        manifests: bool = True,
    ) -> list[dict[str, Any]]:
        """Rows with their Unix times, oldest first.

        Args:
            kinds: only rows of these kinds; default: all.
            without: no rows of these kinds.
            last: the number of newest rows to return; default: all.
            manifests: whether the bodies keep their signed manifests.
        """
        included, excluded = tuple(kinds), tuple(without)
        where = _where_kind(included) or f"WHERE kind NOT IN ({_placeholders(excluded)})"
        limit = -1 if last is None else last
        values = (*(included or excluded), limit)
        return list(self._select(f"{where} ORDER BY seq DESC LIMIT ?", values, manifests=manifests))[::-1]

    def of_round(self, round: int) -> list[dict[str, Any]]:
        """Return the rows from the end of the round before to the start of the round after, each with its
        ``cause``.

        The cause is ``None`` in rows that no event caused.
        """
        ends = rows.CommittedRow.kind, rows.SkippedRow.kind
        begins = rows.OpenedRow.kind, rows.SkippedRow.kind
        before = "SELECT coalesce(max(seq), 0) FROM row WHERE kind IN (?, ?) AND round < ?"
        after = "SELECT coalesce(min(seq), 1 << 62) FROM row WHERE kind IN (?, ?) AND round > ?"
        bounds = f"WHERE seq > ({before}) AND seq <= ({after}) ORDER BY seq"
        return list(self._select(bounds, (*ends, round, *begins, round), causes=True))

    def _select(
        self, where: str, values: tuple[Any, ...], *, causes: bool = False, manifests: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Return the rows as records; each body is upgraded to the current version of its kind."""
        body = "body" if manifests else WITHOUT_MANIFESTS
        query = f"SELECT seq, time_s, kind, round, {body}, version, cause FROM row {where}"
        with storage(self.path):
            for columns in self._connection.execute(query, values):
                record, cause = self._record(*columns)
                self._last_read = record["seq"]
                yield {**record, "cause": cause} if causes else record

    def _record(self, *columns: Any) -> tuple[dict[str, Any], Any]:
        """Return a row as a record, and its cause. Raises ``RowError`` if the row is damaged."""
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
        """Return whether the body of any row has this text, such as a digest."""
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


def _placeholders(values: tuple[str, ...]) -> str:
    return ",".join("?" * len(values))
