"""Masks and fixed-point numbers: known answers, and sums that equal those of whole numbers to the bit."""

from __future__ import annotations

import json
import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fakes import reference_sum
from fakes.memory_sums import mask, unmask
from peer.core.ring import FRACTION_BITS_MAX, Ring, holds, largest_fraction_bits
from peer.site.sums import masking
from peer.site.sums.masking import Masks, decode, encode, quantise

VECTORS = json.loads(reference_sum.PATH.read_text("utf-8"))["sums"]
# RFC 8439, A.1: the first and the second block of the stream of a zero key; the second block of the key 0...01.
STREAM = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
SECOND_BLOCK = (
    "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
)


@pytest.mark.parametrize("bits", [32, 64])
def test_the_mask_is_the_stream_of_rfc_8439(bits: int) -> None:
    words = np.zeros(1024 // bits, masking.WORD_TYPES[bits])
    Masks([(bytes(32), 1)]).add_to(words)
    assert words.tobytes().hex() == STREAM
    Masks([(bytes(32), -1)]).add_to(words)
    assert not words.any()
    Masks([(bytes(31) + b"\1", 1)]).add_to(words)
    assert words.tobytes()[64:].hex() == SECOND_BLOCK


def test_a_long_stream_goes_on_from_chunk_to_chunk_and_from_call_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.zeros(100, "<u4")
    Masks([(bytes(range(32)), 1)]).add_to(whole)
    monkeypatch.setattr(masking, "CHUNK_BYTES", 64)
    chunks = np.zeros(100, "<u4")
    masks = Masks([(bytes(range(32)), 1)])
    masks.add_to(chunks[:33])
    masks.add_to(chunks[33:])
    assert np.array_equal(whole, chunks)
    assert whole.tobytes() == reference_sum.chacha20(bytes(range(32)), 400)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['bits']}-{vector['clip']}")
def test_a_sum_is_the_known_answer(vector: dict[str, Any]) -> None:
    ring = Ring(vector["bits"], vector["fraction_bits"], vector["clip"], len(vector["members"]))
    masked = {}
    for site, member in vector["members"].items():
        units, clipped = quantise(ring, np.array(member["values"]))
        assert (units.tolist(), clipped) == (member["units"], member["clipped"])
        seeds = {other: bytes.fromhex(seed) for other, seed in member["pair_seeds"].items()}
        masked[site] = mask(encode(ring, units), site, bytes.fromhex(member["own_seed"]), seeds)
        assert masked[site].tobytes().hex() == member["masked"]
    members, contributors = vector["members"], vector["contributors"]
    left = {
        (site, other): bytes.fromhex(members[site]["pair_seeds"][other])
        for site in contributors
        for other in members.keys() - {*contributors}
    }
    own = [bytes.fromhex(members[site]["own_seed"]) for site in contributors]
    units = decode(ring, unmask((masked[site] for site in contributors), own, left))
    assert units.tolist() == vector["units"]
    assert units / ring.scale / len(contributors) == pytest.approx(vector["mean"], rel=1e-15)


@pytest.mark.parametrize("sites", [3, 4, 7, 16, 64])
@pytest.mark.parametrize("bits", [32, 64])
def test_a_sum_has_the_bits_of_the_whole_numbers_whoever_is_absent(sites: int, bits: int) -> None:
    rng = random.Random(sites)
    names = [f"s{number}" for number in range(sites)]
    fraction_bits = largest_fraction_bits(bits=bits, sites=sites)
    ring, largest = Ring(bits, fraction_bits, 1.0, sites), 2**fraction_bits
    seeds = {frozenset(pair): rng.randbytes(32) for pair in combinations(names, 2)}
    own = {name: rng.randbytes(32) for name in names}
    units = {
        name: [rng.choice((-largest, largest, rng.randrange(-largest, largest))) for _ in range(3)] for name in names
    }
    masked = {}
    for name in names:
        pairs = {other: seeds[frozenset((name, other))] for other in names if other != name}
        masked[name] = mask(encode(ring, np.array(units[name])), name, own[name], pairs)
    for _ in range(5):
        present = rng.sample(names, rng.randrange(2, sites + 1))
        left = {(i, d): seeds[frozenset((i, d))] for i in present for d in set(names) - {*present}}
        total = decode(ring, unmask((masked[name] for name in present), (own[name] for name in present), left))
        assert total.tolist() == [sum(column) for column in zip(*(units[name] for name in present), strict=True)]


@pytest.mark.parametrize("missing", ["a pair", "an own seed"])
def test_without_one_seed_the_sum_stays_masked(missing: str) -> None:
    seeds, own = {"b": bytes(32)}, bytes([1] * 32)
    words = mask(np.zeros(64, "<u4"), "a", own, seeds)
    left = {} if missing == "a pair" else {("a", "b"): seeds["b"]}
    total = unmask([words], [] if missing == "an own seed" else [own], left)
    assert np.count_nonzero(total) > 60
    assert not unmask([words], [own], {("a", "b"): seeds["b"]}).any()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clip", [1.0, 0.3, 1e-3, 4096.0])
def test_the_mean_is_within_its_error(bits: int, dtype: Any, clip: float) -> None:
    sites = 5
    ring = Ring(bits, largest_fraction_bits(bits=bits, sites=sites), clip, sites)
    values = np.random.default_rng(1).uniform(-clip, clip, (sites, 1000)).astype(dtype).clip(-clip, clip)
    units = [quantise(ring, row) for row in values]
    assert sum(clipped for _, clipped in units) == np.count_nonzero(np.abs(values.astype(np.float64)) > clip)
    encoded = np.sum([encode(ring, row) for row, _ in units], axis=0, dtype=masking.WORD_TYPES[bits])
    error = np.abs(decode(ring, encoded) / ring.scale / sites - values.astype(np.float64).mean(0)).max()
    assert error <= ring.error_max
    assert bits == 64 or error > ring.error_max / 8, "the bound says something"


def test_values_beyond_the_clip_are_counted() -> None:
    ring = Ring(32, 2, 1.0, 1)
    units, clipped = quantise(ring, np.array([[-3.0, -1.0, -0.625, -0.0], [0.125, 0.375, 1.0, 1.001]], np.float32))
    assert (units.tolist(), clipped) == ([[-4, -4, -2, 0], [0, 2, 4, 4]], 2)
    assert decode(ring, encode(ring, units)).tolist() == units.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="infinite or no number"):
        quantise(Ring(32, 20, 1.0, 1), np.array([0.0, value], np.float32))


def test_a_ring_that_holds_is_proved_in_whole_numbers() -> None:
    assert largest_fraction_bits(bits=32, sites=64) == 24
    assert not holds(bits=32, sites=64, fraction_bits=25)
    assert not holds(bits=32, sites=128, fraction_bits=24), "N 2^f = 2^31 is one too many"
    assert largest_fraction_bits(bits=64, sites=64, weight=10**6) == 37
    assert largest_fraction_bits(bits=64, sites=3) == FRACTION_BITS_MAX


@pytest.mark.parametrize(("sites", "fraction_bits"), [(4, 21), (64, 20)])
def test_noise_needs_room_in_the_ring(sites: int, fraction_bits: int) -> None:
    """At epsilon 1, delta 1e-4 and 40 steps, shared by all but one member."""
    multiplier = 20.14815 / (sites - 1) ** 0.5
    assert largest_fraction_bits(bits=32, sites=sites, multiplier=multiplier, coordinates=10**6) == fraction_bits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 4, 1.0), "32 or 64 bits"),
        ((32, 31, 1.0), "31 bits of fraction"),
        ((64, 53, 1.0), "53 bits of fraction"),
        ((32, 4, 0.0), "a positive number"),
        ((32, 4, np.inf), "a positive number"),
    ],
)
def test_impossible_numbers_are_refused(arguments: tuple[int, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ring(*arguments, 3)


def test_what_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no sum"):
        largest_fraction_bits(bits=32, sites=64, weight=2**31)
    with pytest.raises(ValueError, match="do not add up"):
        unmask([np.zeros(2, "<u4"), np.zeros(3, "<u4")], [], {})
    with pytest.raises(ValueError, match="nothing to sum"):
        unmask([], [], {})
