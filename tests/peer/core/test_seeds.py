"""Seeds are fixed for ever, and every part changes them."""

from __future__ import annotations

import hashlib

from peer.core.seeds import derive


def test_a_seed_is_the_digest_of_its_parts() -> None:
    text = b'["mhfl/seed/v1","abc","alpha",3,"order",0]'
    expected = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
    assert derive("abc", "alpha", 3, "order", 0) == expected
    assert 0 <= expected < 1 << 63


def test_every_part_and_its_place_change_the_seed() -> None:
    seeds = {derive("a", "b"), derive("b", "a"), derive("ab"), derive("a", "b", 0), derive("a", "b", "0"), derive("a")}
    assert len(seeds) == 6
