"""A database that somebody changes beside the program."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from peer.core.rows import KINDS
from peer.site.records.journal import CHAINED, GENESIS, chain_hash

TENSORS = [{"name": "w", "dtype": "F32", "shape": [2]}]


def edit(path: Path, *statements: str) -> None:
    """Change the file without the journal or the ledger."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("; ".join(statements))


def write_as_0_3_0(path: Path) -> None:
    """Rewrite a journal as release 0.3.0 wrote it: each artifact with its list of tensors."""

    def with_tensors(value: Any) -> Any:
        if isinstance(value, list):
            return [with_tensors(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "spec" in value:
            return {**value, "tensors": TENSORS}
        return {key: with_tensors(inner) for key, inner in value.items()}

    def encode(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        previous = GENESIS
        for seq, time_s, kind, round, body, _, cause in connection.execute(f"SELECT {CHAINED} FROM row").fetchall():
            if kind in KINDS and KINDS[kind].version == 2:
                body = encode(with_tensors(json.loads(body)))
            previous = chain_hash(previous, encode((seq, time_s, kind, round, body, 1, cause)))
            connection.execute("UPDATE row SET body = ?, version = 1, hash = ? WHERE seq = ?", (body, previous, seq))
