"""A site's own append-only record: SQLite, one table, a row durable before ``append`` returns.

Everything that the state machine remembers is the fold of these rows (``peer.core.site_memory``), so nothing here is ever
changed or deleted.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import errors
from peer.core.site_memory import Row

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS row (
    seq INTEGER PRIMARY KEY,
    time_s REAL NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS row_kind ON row (kind, seq);
"""


def open_database(path: Path, schema: str, *, version: int, read_only: bool = False) -> sqlite3.Connection:
    """A connection to a database of ours: write-ahead log, every commit on disk before it returns.

    A file whose writer was killed before it held a table reads as an empty one.

    Raises:
        StateError: the file is no database, or a newer program wrote it.
        DiskError: it cannot be written.
    """
    with storage(path):
        if read_only:
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        else:
            connection = sqlite3.connect(path, isolation_level=None)
            path.chmod(0o600)
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found > version:
            raise errors.StateError(
                f"{path} was written by a newer mhfl-peer (schema {found}, this one knows {version})",
                "update mhfl-peer at this site",
            )
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(schema)
            connection.execute(f"PRAGMA user_version = {version}")
        elif not found:
            connection.close()
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.executescript(schema)
    return connection


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Name the database file, and what to do, when SQLite fails in this block: ``DiskError`` or ``StateError``."""
    try:
        yield
    except sqlite3.OperationalError as error:
        remedy = "check that the folder exists, that this user may write there and that the disk has space"
        raise errors.DiskError(f"{path}: {error}", remedy) from error
    except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
        raise errors.StateError(f"{path} is damaged: {error}", "restore it from a backup") from error


class Journal:
    """The rows of one generation.

    Args:
        path: of ``journal.db``; it is made if it is not there.
        read_only: look only; the daemon may be running.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._connection = open_database(path, SCHEMA, version=SCHEMA_VERSION, read_only=read_only)

    def append(self, kind: str, round: int, body: Mapping[str, Any]) -> None:
        """Write one row; it is on disk when this returns. ``DiskError`` when it cannot be."""
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        with storage(self.path):
            self._connection.execute(
                "INSERT INTO row (time_s, kind, round, body) VALUES (?, ?, ?, ?)", (time.time(), kind, round, text)
            )

    def rows(self, kinds: Iterable[str] = ()) -> Iterator[Row]:
        """Rows, oldest first; of these kinds only if any are named."""
        wanted = tuple(kinds)
        query = f"SELECT kind, round, body FROM row {_only(wanted)} ORDER BY seq"
        with storage(self.path):
            for kind, round, body in self._connection.execute(query, wanted):
                yield kind, round, json.loads(body)

    def since(self, seq: int, kinds: Iterable[str], *, leave_out: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Rows of these kinds beyond a number, with their Unix times, oldest first, read as they are asked for.

        For a reader that reads each row once: the table is walked from there on, not the index.

        Args:
            seq: of the last row that is not wanted.
            kinds: of the rows.
            leave_out: JSON paths of what no body shall hold, such as ``$.signature``.
        """
        wanted = tuple(kinds)
        where = f"WHERE seq > ? AND +kind IN ({_places(wanted)})"
        query = f"SELECT seq, time_s, kind, round, {_body(leave_out)} FROM row {where} ORDER BY seq"
        with storage(self.path):
            for found, time_s, kind, round, body in self._connection.execute(query, (seq, *wanted)):
                yield {"seq": found, "time": time_s, "kind": kind, "round": round, "body": json.loads(body)}

    def newest(self, kinds: Iterable[str]) -> Iterator[Row]:
        """Of each of these kinds the newest row, oldest first; fast however long the journal is."""
        wanted = tuple(kinds)
        newest = f"SELECT max(seq) FROM row {_only(wanted)} GROUP BY kind"
        with storage(self.path):
            found = f"SELECT kind, round, body FROM row WHERE seq IN ({newest}) ORDER BY seq"
            for kind, round, body in self._connection.execute(found, wanted):
                yield kind, round, json.loads(body)

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
            kinds: of these only, if any are named.
            without: none of these.
            last: the newest so many only; all if it is not given.
            leave_out: JSON paths of what no body shall hold.
        """
        wanted, unwanted = tuple(kinds), tuple(without)
        where = _only(wanted) or f"WHERE kind NOT IN ({_places(unwanted)})"
        query = f"SELECT seq, time_s, kind, round, {_body(leave_out)} FROM row {where} ORDER BY seq DESC LIMIT ?"
        with storage(self.path):
            limit = -1 if last is None else last
            found = self._connection.execute(query, (*(wanted or unwanted), limit)).fetchall()
            return [
                {"seq": seq, "time": time_s, "kind": kind, "round": round, "body": json.loads(body)}
                for seq, time_s, kind, round, body in reversed(found)
            ]

    def empty(self) -> bool:
        """No row yet."""
        with storage(self.path):
            return self._connection.execute("SELECT 1 FROM row LIMIT 1").fetchone() is None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def _only(kinds: tuple[str, ...]) -> str:
    return f"WHERE kind IN ({_places(kinds)})" if kinds else ""


def _body(leave_out: Sequence[str]) -> str:
    """The column of the bodies; SQLite leaves parts out without making Python objects of them."""
    if not leave_out:
        return "body"
    paths = ", ".join(f"'{path}'" for path in leave_out)
    return f"CASE WHEN json_valid(body) THEN json_remove(body, {paths}) ELSE body END"  # json.loads names the file


def _places(values: tuple[str, ...]) -> str:
    return ",".join("?" * len(values))
