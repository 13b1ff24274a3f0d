"""Floods against a real daemon: it lives, its rounds go on, and its log stays small.

``make bench`` compares its memory with the promise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.floods import KINDS, flood

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(KINDS, id="all"), *(pytest.param([kind], id=kind, marks=pytest.mark.nightly) for kind in KINDS)],
)
def test_a_flood_ends_neither_the_daemon_nor_its_rounds(tmp_path: Path, kinds: list[str]) -> None:
    flooded = flood(tmp_path, kinds)
    assert flooded.lives
    assert flooded.log_bytes < 1 << 20
