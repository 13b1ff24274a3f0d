"""A database that somebody changes beside the program."""

import contextlib
import sqlite3
from pathlib import Path


def edit(path: Path, *statements: str) -> None:
    """Change the file without the journal or the ledger."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("; ".join(statements))
