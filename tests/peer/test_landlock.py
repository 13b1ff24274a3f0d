"""Confinement by the kernel: what a confined process may still read and write, and what not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer import landlock

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock, or it is switched off")

SCRIPT = """
import sys, threading
from pathlib import Path
from peer import landlock

root = Path(sys.argv[1])
landlock.confine(hidden=[root / "site" / "pki", root / "none" / "pki"], writable=[root / "site" / "own", root / "none"])

def attempt(name, action):
    try:
        action()
    except OSError as error:
        print(name, type(error).__name__)
    else:
        print(name, "done")

def attempts():
    attempt("key", lambda: (root / "site" / "pki" / "key.pem").read_bytes())
    attempt("key by a link", lambda: (root / "link" / "pki" / "key.pem").read_bytes())
    attempt("data", lambda: (root / "data" / "image").read_bytes())
    attempt("package", lambda: __import__("wave"))
    attempt("list", lambda: list(root.iterdir()))
    attempt("own", lambda: (root / "site" / "own" / "new").write_text("x"))
    attempt("own again", lambda: (root / "site" / "own" / "new").rename(root / "site" / "own" / "newer"))
    attempt("own read", lambda: (root / "site" / "own" / "newer").read_text())
    attempt("journal", lambda: (root / "site" / "journal.db").write_text("x"))
    attempt("journal read", lambda: (root / "site" / "journal.db").read_text())
    attempt("new", lambda: (root / "data" / "new").touch())
    attempt("remove", lambda: (root / "site" / "pki" / "key.pem").unlink())
    attempt("move", lambda: (root / "site" / "pki" / "key.pem").rename(root / "site" / "own" / "key.pem"))
    attempt("hard link", lambda: (root / "site" / "own" / "key.pem").hardlink_to(root / "site" / "pki" / "key.pem"))

attempts()
thread = threading.Thread(target=attempts)
thread.start()
thread.join()
"""


def test_a_confined_process_reads_all_but_what_is_hidden_and_writes_only_where_it_may(tmp_path: Path) -> None:
    for folder in ("site/pki", "site/own", "data"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("site/pki/key.pem", "site/journal.db", "data/image"):
        (tmp_path / file).write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[: len(lines) // 2] == [
        "key PermissionError",
        "key by a link PermissionError",
        "data done",
        "package done",
        "list done",
        "own done",
        "own again done",
        "own read done",
        "journal PermissionError",
        "journal read done",
        "new PermissionError",
        "remove PermissionError",
        "move PermissionError",
        "hard link OSError",
    ]
    assert lines[len(lines) // 2 :] == lines[: len(lines) // 2], "a thread that it starts is confined, too"
