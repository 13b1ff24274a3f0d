r"""Inputs of a secure sum as words of a ring, and the masks on them.

A word is an integer modulo :math:`2^k`, k = 32 or 64, little-endian in files. Site i sends

.. math:: y_i = q(x_i) + PRG(b_i) + \sum_{j > i} PRG(s_{ij}) - \sum_{j < i} PRG(s_{ij}) \mod 2^k

where j > i compares the sites' names, and PRG is the key stream of ChaCha20 (RFC 8439) with the seed as its key, an
all-zero nonce and the counter from 0. Added up, the masks of a pair cancel. ``peer.site.sums.pair_keys`` derives
the seeds, ``peer.core.secure_sum`` decides when one may be opened; the secret keys never come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from peer.core.ring import Ring
from peer.core.roster import SiteName

WORD_TYPES: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
"""Bits of a ring -> the type of its words."""
CHUNK_BYTES = 1 << 20
"""Key stream in memory at once: it stays in the processor's cache."""

Words = NDArray[Any]
Values = NDArray[Any]


def quantise(ring: Ring, values: Values) -> tuple[NDArray[np.int64], int]:
    """Round values of any shape to units, half to even.

    Returns:
        The units, int64, of the same shape, and how many values were clipped.

    Raises:
        ValueError: a value is not finite.
    """
    wide = np.asarray(values, dtype=np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("a value is infinite or no number; such an input would spoil the sum")
    clipped = int(np.count_nonzero(np.abs(wide) > ring.clip))
    limited = np.clip(wide, -ring.clip, ring.clip)
    largest = 2**ring.fraction_bits
    return np.clip(np.rint(limited * ring.scale), -largest, largest).astype(np.int64), clipped


def encode(ring: Ring, units: NDArray[np.int64]) -> Words:
    """Take units as words of the ring."""
    return units.astype(np.uint64).astype(WORD_TYPES[ring.bits])


def decode(ring: Ring, words: Words) -> NDArray[np.int64]:
    """Take words as units, the upper half of the ring as negative ones."""
    signed = np.int32 if ring.bits == 32 else np.int64
    return words.astype(WORD_TYPES[ring.bits], copy=False).astype(signed).astype(np.int64)


class Masks:
    """Key streams of seeds, each to be added or subtracted; each call goes on where the last one ended.

    Args:
        seeds: pairs of a seed, 32 bytes, and a sign, 1 or -1.
    """

    def __init__(self, seeds: Iterable[tuple[bytes, int]]) -> None:
        self._streams = [(Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor(), sign) for seed, sign in seeds]

    def add_to(self, words: Words) -> None:
        """Add the next words of all streams in place; words are ``(n,)`` and of one of ``WORD_TYPES``."""
        size = CHUNK_BYTES // words.itemsize
        zeros, buffer = bytes(min(CHUNK_BYTES, words.nbytes)), bytearray(min(CHUNK_BYTES, words.nbytes))
        for first in range(0, len(words), size):
            chunk = words[first : first + size]
            stream = np.frombuffer(buffer, words.dtype, len(chunk))
            for encryptor, sign in self._streams:
                encryptor.update_into(memoryview(zeros)[: chunk.nbytes], buffer)
                (np.add if sign > 0 else np.subtract)(chunk, stream, out=chunk)


def input_masks(site: SiteName, own_seed: bytes, pair_seeds: Mapping[SiteName, bytes]) -> Masks:
    """Return the masks on a site's input: of its own seed, and of one for each other member."""
    pairs = [(seed, pair_sign(site, other)) for other, seed in sorted(pair_seeds.items())]
    return Masks([(own_seed, 1), *pairs])


def sum_masks(own_seeds: Iterable[bytes], left_seeds: Mapping[tuple[SiteName, SiteName], bytes]) -> Masks:
    """Return what takes away the masks that do not cancel in a sum.

    Args:
        own_seeds: of each contributor.
        left_seeds: by contributor and by a member that is none, the seed of their pair.
    """
    pairs = [(seed, -pair_sign(site, dropped)) for (site, dropped), seed in sorted(left_seeds.items())]
    return Masks([*((seed, -1) for seed in own_seeds), *pairs])


def pair_sign(site: SiteName, other: SiteName) -> int:
    """Return with which sign a site adds the mask that it shares with another: + if its own name is the smaller."""
    return 1 if site < other else -1
