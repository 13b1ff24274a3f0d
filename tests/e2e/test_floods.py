"""Floods against a real daemon: it lives, its rounds go on, and its log stays small.

``make bench`` compares its memory with the promise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.floods import FLOOD_S, KINDS, flood

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        pytest.param(KINDS, FLOOD_S / 2, id="all"),
        *(pytest.param([kind], FLOOD_S, id=kind, marks=pytest.mark.nightly) for kind in KINDS),
    ],
)
def test_a_flood_ends_neither_the_daemon_nor_its_rounds(tmp_path: Path, kinds: list[str], seconds: float) -> None:
    flooded = flood(tmp_path, kinds, seconds)
    assert flooded.lives
    assert flooded.log_bytes < 1 << 20
