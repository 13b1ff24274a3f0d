"""The order of a round: which site receives from which.

The shared round key determines it, bit by bit.

``seed(t) = HMAC-SHA256(round_key, "mhfl/order/v1" || federation_digest || u64be(t))``. The byte stream of a round is
``HMAC-SHA256(seed, u64be(0)) || HMAC-SHA256(seed, u64be(1)) || ...``; a draw takes the next eight bytes as a big-endian
integer and rejects it at or above the largest multiple of its bound. Known answers: ``proto/vectors/schedule.json``.
"""

from __future__ import annotations

import hmac
import itertools
import struct
from collections.abc import Iterator

from peer.core.roster import RoundKey, Sha256

KINDS = ("permutation", "derangement", "ring")
LABEL = b"mhfl/order/v1"
WORD = 1 << 64


def order(
    *, round_key: RoundKey, federation_digest: Sha256, round: int, sites: int, kind: str = "permutation"
) -> tuple[int, ...]:
    """Draw the order of one round: ``order[i]`` is the index of the site whose artifact site ``i`` receives.

    ``order[i] == i`` means that site ``i`` consolidates by itself in this round.

    Args:
        round_key: the 32 bytes that all sites share.
        federation_digest: hex SHA-256 of the federation.
        round: t, counted from 1.
        sites: N, at least 1; a derangement needs at least 2.
        kind: ``permutation`` (any), ``derangement`` (nobody stays home), ``ring`` (one cycle through all sites).

    Raises:
        ValueError: an argument is outside these bounds.
    """
    if kind not in KINDS:
        raise ValueError(f"schedule kind {kind!r} is none of {', '.join(KINDS)}")
    if sites < 1 or (kind == "derangement" and sites < 2):
        raise ValueError(f"a {kind} of {sites} sites does not exist")
    if round < 1:
        raise ValueError(f"rounds are counted from 1, not {round}")
    seed = hmac.digest(round_key, LABEL + bytes.fromhex(federation_digest) + struct.pack(">Q", round), "sha256")
    words = _words(seed)
    drawn = _shuffle(sites, words)
    if kind == "derangement":
        while any(index == target for index, target in enumerate(drawn)):
            drawn = _shuffle(sites, words)
    elif kind == "ring":
        ring = [0] * sites
        for position, site in enumerate(drawn):
            ring[site] = drawn[position - 1]
        drawn = ring
    return tuple(drawn)


def visiting_orders(ring: tuple[int, ...], visits: int) -> tuple[tuple[int, ...], ...]:
    """Compute the orders of visits 1 to ``visits``: the ring, applied once for the first, twice for the second, and so
    on.

    With the ring's circle p, ``orders[v - 1][p[k]]`` is ``p[k - v]``: the site whose model visits site ``p[k]``.
    """
    orders = [ring][:visits]
    while len(orders) < visits:
        orders.append(tuple(ring[target] for target in orders[-1]))
    return tuple(orders)


def receivers(order: tuple[int, ...]) -> tuple[int, ...]:
    """Invert the order: for each origin, the index of the site that receives its artifact."""
    inverse = [0] * len(order)
    for index, origin in enumerate(order):
        inverse[origin] = index
    return tuple(inverse)


def _words(seed: bytes) -> Iterator[int]:
    for counter in itertools.count():
        yield from struct.unpack(">4Q", hmac.digest(seed, struct.pack(">Q", counter), "sha256"))


def _shuffle(count: int, words: Iterator[int]) -> list[int]:
    """Shuffle indices by Fisher-Yates, from the last index down to 1."""
    items = list(range(count))
    for last in range(count - 1, 0, -1):
        bound = last + 1
        limit = WORD - WORD % bound
        while (word := next(words)) >= limit:
            pass
        chosen = word % bound
        items[last], items[chosen] = items[chosen], items[last]
    return items
