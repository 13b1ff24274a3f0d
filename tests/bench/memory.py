"""The peak memory of a daemon that many peers send to at once, and of one that a member floods."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from row import Row, below

MEMORY_MB_MAX = 120
HEADERS_MB_MAX = 300  # until its settings are acknowledged, gRPC buffers 16 MiB of headers for each connection


def measure(*, quick: bool) -> Iterator[Row]:
    """One row of many senders, and one of each flood; a quick run has all floods in one."""
    from fakes.floods import KINDS, flood
    from fakes.many_senders import PEERS, receive

    with tempfile.TemporaryDirectory() as folder:
        peak = receive(Path(folder), 20)["peak_mb"]
    yield below(f"peak memory, {PEERS} peers send 20 MB at once", peak, "MB", MEMORY_MB_MAX)
    for kinds in [KINDS] if quick else [[kind] for kind in KINDS]:
        with tempfile.TemporaryDirectory() as folder:
            peak = flood(Path(folder), kinds).peak_mb
        limit = HEADERS_MB_MAX if "CONTINUATION" in kinds else MEMORY_MB_MAX
        yield below(f"peak memory, flood: {', '.join(kinds) if len(kinds) == 1 else 'all kinds'}", peak, "MB", limit)
