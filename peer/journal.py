"""A site's own append-only record: SQLite, one table, a row durable before ``append`` returns.

Everything that the state machine remembers is the fold of these rows (``peer.core.replay``), so nothing here is ever
changed or deleted.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peer import errors
from peer.core.replay import Row

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

    Raises:
        StateError: the file is no database, or a newer program wrote it.
        DiskError: it cannot be written.
    """
    try:
        if read_only:
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
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
    except sqlite3.OperationalError as error:
        raise errors.DiskError(f"{path}: {error}", "check that the folder exists and has space") from error
    except sqlite3.DatabaseError as error:
        raise errors.StateError(f"{path} is damaged: {error}", "restore it from a backup") from error
    return connection


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
        try:
            self._connection.execute(
                "INSERT INTO row (time_s, kind, round, body) VALUES (?, ?, ?, ?)", (time.time(), kind, round, text)
            )
        except sqlite3.OperationalError as error:
            raise errors.DiskError(f"{self.path}: {error}", "free space on this disk, then start again") from error

    def rows(self) -> Iterator[Row]:
        """All rows, oldest first."""
        for kind, round, body in self._connection.execute("SELECT kind, round, body FROM row ORDER BY seq"):
            yield kind, round, json.loads(body)

    def records(self, kinds: Iterable[str] = (), *, last: int | None = None) -> list[dict[str, Any]]:
        """Rows with their Unix times, oldest first: of these kinds only if any are named, the ``last`` n if given."""
        wanted = tuple(kinds)
        where = f"WHERE kind IN ({','.join('?' * len(wanted))})" if wanted else ""
        limit = "" if last is None else "LIMIT ?"
        query = f"SELECT seq, time_s, kind, round, body FROM row {where} ORDER BY seq DESC {limit}"
        found = self._connection.execute(query, (*wanted, *(() if last is None else (last,)))).fetchall()
        return [
            {"seq": seq, "time": time_s, "kind": kind, "round": round, "body": json.loads(body)}
            for seq, time_s, kind, round, body in reversed(found)
        ]

    def empty(self) -> bool:
        """No row yet."""
        return self._connection.execute("SELECT 1 FROM row LIMIT 1").fetchone() is None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
