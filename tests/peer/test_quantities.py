"""Durations and sizes as people read them."""

import pytest

from peer.quantities import duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "0.0123 s"), (0.4, "0.4 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (8000, "2 h 13 min")],
)
def test_a_duration_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (2 << 40, "2048.0 GiB")]
)
def test_a_size_reads_well(count: int, text: str) -> None:
    assert size(count) == text
