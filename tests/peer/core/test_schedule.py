"""The order of a round against an implementation of its own, written from the specification with SHA-256 alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.core import schedule
from peer.core.roster import RoundKey, Sha256
from peer.core.schedule import KINDS, order, receivers

VECTORS = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "schedule.json").read_text())
KEY = RoundKey(bytes(range(32)))
DIGEST = Sha256(hashlib.sha256(b"a federation").hexdigest())


def reference_hmac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 as RFC 2104 defines it; keys here are at most a block long."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + message).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


class ReferenceStream:
    """The byte stream of a round, and uniform draws from it."""

    def __init__(self, seed: bytes) -> None:
        self.seed, self.blocks, self.bytes = seed, 0, b""

    def below(self, bound: int) -> int:
        largest = (2**64 // bound) * bound
        while True:
            if len(self.bytes) < 8:
                self.bytes += reference_hmac(self.seed, self.blocks.to_bytes(8, "big"))
                self.blocks += 1
            value, self.bytes = int.from_bytes(self.bytes[:8], "big"), self.bytes[8:]
            if value < largest:
                return value % bound

    def permutation(self, count: int) -> list[int]:
        drawn = list(range(count))
        for i in reversed(range(1, count)):
            j = self.below(i + 1)
            drawn[i], drawn[j] = drawn[j], drawn[i]
        return drawn


def reference_order(*, round_key: bytes, federation_digest: str, round: int, sites: int, kind: str) -> list[int]:
    message = b"mhfl/order/v1" + bytes.fromhex(federation_digest) + round.to_bytes(8, "big")
    stream = ReferenceStream(reference_hmac(round_key, message))
    drawn = stream.permutation(sites)
    if kind == "derangement":
        while any(i == drawn[i] for i in range(sites)):
            drawn = stream.permutation(sites)
    if kind == "ring":
        visiting, drawn = drawn, [-1] * sites
        for k in range(sites):
            drawn[visiting[k]] = visiting[(k - 1) % sites]
    return drawn


def drawn(round: int, sites: int, kind: str, *, key: bytes = KEY) -> tuple[int, ...]:
    return order(round_key=RoundKey(key), federation_digest=DIGEST, round=round, sites=sites, kind=kind)


rounds = st.integers(1, 10**9)
keys = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['kind']}-{v['sites']}-round{v['round']}")
def test_known_answers(vector: dict[str, object]) -> None:
    arguments = {key: value for key, value in vector.items() if key != "order"}
    arguments["round_key"] = bytes.fromhex(str(vector["round_key"]))
    assert list(order(**arguments)) == vector["order"]  # type: ignore[arg-type]
    assert reference_order(**arguments) == vector["order"]  # type: ignore[arg-type]


def test_known_answers_cover_the_specification() -> None:
    seen = {(vector["kind"], vector["sites"]) for vector in VECTORS}
    assert {kind for kind, _ in seen} == set(KINDS)
    assert {sites for _, sites in seen} >= {1, 2, 3, 4, 100}
    assert len({vector["round_key"] for vector in VECTORS}) > 1
    assert len({vector["federation_digest"] for vector in VECTORS}) > 1


@given(key=keys, digest=keys, round=rounds, sites=st.integers(2, 40), kind=st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_agrees_with_the_reference(key: bytes, digest: bytes, round: int, sites: int, kind: str) -> None:
    arguments = {"federation_digest": Sha256(digest.hex()), "round": round, "sites": sites, "kind": kind}
    assert list(order(round_key=RoundKey(key), **arguments)) == reference_order(round_key=key, **arguments)  # type: ignore[arg-type]


@given(key=keys, round=rounds, sites=st.integers(2, 60), kind=st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_is_a_permutation_of_its_kind(key: bytes, round: int, sites: int, kind: str) -> None:
    result = drawn(round, sites, kind, key=key)
    assert sorted(result) == list(range(sites))
    assert all(result[index] == origin for origin, index in enumerate(receivers(result)))
    if kind == "derangement":
        assert all(origin != site for site, origin in enumerate(result))
    if kind == "ring":
        visited, here = set(), 0
        while here not in visited:
            visited.add(here)
            here = result[here]
        assert len(visited) == sites


@given(round=rounds, sites=st.integers(9, 40))
@settings(max_examples=50, deadline=None)
def test_every_input_matters(round: int, sites: int) -> None:
    """Two draws of nine sites or more agree by chance once in 362,880 times at most."""
    other_digest = Sha256(hashlib.sha256(b"another").hexdigest())
    arguments = {"round_key": KEY, "federation_digest": DIGEST, "round": round, "sites": sites}
    changes = ({"round_key": RoundKey(bytes(32))}, {"federation_digest": other_digest}, {"round": round + 1})
    results = {order(**{**arguments, **change}) for change in ({}, *changes)}  # type: ignore[arg-type]
    assert len(results) >= 3


def uniform(results: Counter[object], cells: int) -> bool:
    """Whether counts fit a uniform law: chi-square below its 99.9 % point (Wilson and Hilferty)."""
    expected = results.total() / cells
    chi_square = sum((count - expected) ** 2 / expected for count in results.values())
    chi_square += (cells - len(results)) * expected
    freedom = cells - 1
    spread = 2 / (9 * freedom)
    return chi_square < freedom * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize(
    ("kind", "sites", "cells"),
    [("permutation", 2, 2), ("permutation", 4, 24), ("derangement", 4, 9), ("derangement", 5, 44), ("ring", 5, 24)],
)
def test_orders_are_uniform(kind: str, sites: int, cells: int) -> None:
    results: Counter[object] = Counter(drawn(round, sites, kind) for round in range(1, 100 * cells + 1))
    assert len(results) == cells
    assert uniform(results, cells)


def test_the_uniformity_test_can_fail() -> None:
    """A shuffle that swaps each place with any other, the classic mistake, is caught at the same sample size."""
    stream = ReferenceStream(b"seed")
    results: Counter[object] = Counter()
    for _ in range(2400):
        items = list(range(4))
        for i in range(4):
            j = stream.below(4)
            items[i], items[j] = items[j], items[i]
        results[tuple(items)] += 1
    assert set(results) == set(permutations(range(4)))
    assert not uniform(results, 24)


def test_each_site_receives_from_each_equally_often() -> None:
    sites, count = 10, 2000
    results: Counter[object] = Counter()
    for round in range(1, count + 1):
        results.update(enumerate(drawn(round, sites, "permutation")))
    assert uniform(results, sites * sites)


def test_rejects_words_that_would_bias() -> None:
    """2**64 - 1 is a multiple of 3: the one word at or above it is drawn again, its neighbour is not."""
    shuffle: Callable[..., list[int]] = schedule._shuffle
    assert shuffle(3, iter([2**64 - 1, 1, 0])) == shuffle(3, iter([1, 0])) == [2, 0, 1]
    assert shuffle(3, iter([2**64 - 2, 0])) == [1, 0, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "star"}, "schedule kind 'star' is none of permutation, derangement, ring"),
        ({"sites": 0}, "a permutation of 0 sites does not exist"),
        ({"sites": 1, "kind": "derangement"}, "a derangement of 1 sites does not exist"),
        ({"round": 0}, "rounds are counted from 1, not 0"),
    ],
)
def test_refuses_what_has_no_order(change: dict[str, object], message: str) -> None:
    arguments = {"round_key": KEY, "federation_digest": DIGEST, "round": 1, "sites": 4, **change}
    with pytest.raises(ValueError, match=message):
        order(**arguments)  # type: ignore[arg-type]


def test_one_site_stays_home() -> None:
    assert drawn(1, 1, "permutation") == drawn(1, 1, "ring") == (0,)
