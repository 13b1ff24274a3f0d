"""Strips and tiles of TIFF files, as far as no picture is needed to judge them."""

import zlib

import pytest

from peer.train.data.tiff_files import PIECE_BYTES, count_deflated

LARGE = bytes(3 * PIECE_BYTES)


def test_a_whole_strip_is_counted_whatever_stands_behind_it() -> None:
    assert count_deflated(zlib.compress(LARGE) + b"padding", len(LARGE)) == len(LARGE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zlib.compress(LARGE)[:-1], "a strip or tile is an incomplete or truncated stream"),
        (zlib.compress(LARGE)[:-1] + b"?", "incorrect data check"),
        (b"", "incomplete or truncated stream"),
        (zlib.compress(LARGE + b"1"), "hold more than the picture has"),
    ],
)
def test_a_strip_that_is_cut_damaged_or_too_large_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"is damaged: .*{reason}"):
        count_deflated(content, len(LARGE))
