r"""Inputs of a secure sum as words of a ring, and the masks on them.

A word is an integer modulo :math:`2^k`, k = 32 or 64, little-endian in files. Site i sends

.. math:: y_i = q(x_i) + PRG(b_i) + \sum_{j > i} PRG(s_{ij}) - \sum_{j < i} PRG(s_{ij}) \mod 2^k

where j > i compares the sites' names, and PRG is the key stream of ChaCha20 (RFC 8439) with the seed as its key, an
all-zero nonce and the counter from 0. Added up, the masks of a pair cancel. ``peer.site.identity.pair_keys`` derives
the seeds, ``peer.core.secure_sum`` decides when one may be opened; the secret keys never come here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from peer.core.roster import SiteName

WORD_TYPES: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
"""Bits of a ring -> the type of its words."""
FRACTION_BITS_MAX = 52
"""Bits of a float64's fraction: with more, the product before the rounding has none left to round."""
NOISE_DEVIATIONS = 12
"""Noise beyond so many standard deviations has a probability of 2^-105 in one coordinate."""
CHUNK_BYTES = 1 << 20
"""Key stream in memory at once: it stays in the processor's cache."""

Words = NDArray[Any]
Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How values become words: clipped to ``clip``, in multiples of ``clip / 2**fraction_bits``.

    Raises:
        ValueError: there is no such ring, or a number is out of its bounds.
    """

    bits: int
    fraction_bits: int
    clip: float

    def __post_init__(self) -> None:
        if self.bits not in WORD_TYPES:
            raise ValueError(f"a ring has 32 or 64 bits, not {self.bits}")
        if not 0 <= self.fraction_bits <= min(FRACTION_BITS_MAX, self.bits - 2):
            raise ValueError(f"{self.fraction_bits} bits of fraction do not fit a ring of {self.bits} bits")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"values are clipped to a positive number, not {self.clip}")

    @property
    def scale(self) -> float:
        """Units in 1: s."""
        return (1 << self.fraction_bits) / self.clip

    @property
    def error_max(self) -> float:
        """How far the mean of values within the clip may be from the mean of their float64: half a unit.

        A scale that is no power of two adds its own rounding, clip / 2^52.
        """
        return self.clip / (2 << self.fraction_bits) + self.clip / (1 << 52)

    def quantise(self, values: Values) -> tuple[NDArray[np.int64], int]:
        """Round values of any shape to units, half to even.

        Returns:
            The units, int64, of the same shape, and how many values were clipped.

        Raises:
            ValueError: a value is not finite.
        """
        wide = np.asarray(values, dtype=np.float64)
        if not np.isfinite(wide).all():
            raise ValueError("a value is infinite or no number; such an input would spoil the sum")
        clipped = int(np.count_nonzero(np.abs(wide) > self.clip))
        limited = np.clip(wide, -self.clip, self.clip)
        largest = 2**self.fraction_bits
        return np.clip(np.rint(limited * self.scale), -largest, largest).astype(np.int64), clipped

    def encode(self, units: NDArray[np.int64]) -> Words:
        """Take units as words of the ring."""
        return units.astype(np.uint64).astype(WORD_TYPES[self.bits])

    def decode(self, words: Words) -> NDArray[np.int64]:
        """Take words as units, the upper half of the ring as negative ones."""
        signed = np.int32 if self.bits == 32 else np.int64
        return words.astype(WORD_TYPES[self.bits], copy=False).astype(signed).astype(np.int64)

    def mean(self, total: NDArray[np.int64], weight: int) -> NDArray[np.float64]:
        """Divide a sum of units by the number of contributions, or by the sum of their weights."""
        return total / self.scale / weight


def holds(*, bits: int, sites: int, fraction_bits: int, weight: int = 1, noise_units: float = 0.0) -> bool:
    """Prove that no sum leaves the ring: N (W 2^f + 12 sigma_g) < 2^(k - 1), in exact integers.

    Args:
        bits: k.
        sites: N, all members of the federation.
        fraction_bits: f.
        weight: W, the largest weight of a contribution.
        noise_units: sigma_g, the standard deviation of one member's noise, in units.
    """
    largest: int = weight * (1 << fraction_bits) + math.ceil(NOISE_DEVIATIONS * noise_units)
    return sites * largest < 1 << (bits - 1)


def noise_in_units(*, multiplier: float, clip_ratio: float, fraction_bits: int, coordinates: int) -> float:
    """Compute sigma_g = sigma_i (C s + sqrt(d) / 2) / C of one member's noise.

    Args:
        multiplier: sigma_i / C, the noise in multiples of the bound C on the norm of one person's contribution.
        clip_ratio: C / c, where c is the bound on a coordinate.
        fraction_bits: f.
        coordinates: d; rounding them moves a contribution's norm by sqrt(d) / 2 units.
    """
    return multiplier * (math.ldexp(clip_ratio, fraction_bits) + math.sqrt(coordinates) / 2)


def largest_fraction_bits(
    *,
    bits: int,
    sites: int,
    weight: int = 1,
    multiplier: float = 0.0,
    clip_ratio: float = 1.0,
    coordinates: int = 0,
) -> int:
    """Return the largest f for which the ring ``holds``; the arguments are those of ``noise_in_units``.

    Raises:
        ValueError: there is none.
    """
    for fraction_bits in range(min(FRACTION_BITS_MAX, bits - 2), -1, -1):
        noise = noise_in_units(
            multiplier=multiplier, clip_ratio=clip_ratio, fraction_bits=fraction_bits, coordinates=coordinates
        )
        if holds(bits=bits, sites=sites, fraction_bits=fraction_bits, weight=weight, noise_units=noise):
            return fraction_bits
    raise ValueError(f"a ring of {bits} bits holds no sum of {sites} sites with weights up to {weight}")


def add_stream(words: Words, seed: bytes, sign: int) -> None:
    """Add the key stream of a seed to words in place, or subtract it where ``sign`` is -1.

    Words are 1-D and of one of ``WORD_TYPES``; the seed has 32 bytes.
    """
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    size = CHUNK_BYTES // words.itemsize
    zeros, buffer = bytes(min(CHUNK_BYTES, words.nbytes)), bytearray(min(CHUNK_BYTES, words.nbytes))
    add = np.add if sign > 0 else np.subtract
    for first in range(0, len(words), size):
        chunk = words[first : first + size]
        stream.update_into(memoryview(zeros)[: chunk.nbytes], buffer)
        add(chunk, np.frombuffer(buffer, words.dtype, len(chunk)), out=chunk)


def mask(words: Words, site: SiteName, own_seed: bytes, pair_seeds: Mapping[SiteName, bytes]) -> Words:
    """Mask the words of a site, ``(n,)``, with its own seed and one for each other member; return new ones."""
    masked = words.copy()
    add_stream(masked, own_seed, 1)
    for other, seed in sorted(pair_seeds.items()):
        add_stream(masked, seed, pair_sign(site, other))
    return masked


def unmask(
    masked: Iterable[Words],
    own_seeds: Iterable[bytes],
    left_seeds: Mapping[tuple[SiteName, SiteName], bytes],
) -> Words:
    """Add up the contributors' masked words, and subtract what does not cancel.

    Args:
        masked: of each contributor, ``(n,)``; read one after the other.
        own_seeds: of each contributor.
        left_seeds: by contributor and member that is none, the seed of their pair.

    Returns:
        The sum of the contributors' words, ``(n,)``.

    Raises:
        ValueError: nothing was given, or the lengths differ.
    """
    total: Words | None = None
    for words in masked:
        if total is None:
            total = words.copy()
        elif words.shape != total.shape or words.dtype != total.dtype:
            raise ValueError(f"masked inputs of {words.shape} and {total.shape} do not add up")
        else:
            np.add(total, words, out=total)
    if total is None:
        raise ValueError("there is nothing to sum")
    for seed in own_seeds:
        add_stream(total, seed, -1)
    for (site, dropped), seed in sorted(left_seeds.items()):
        add_stream(total, seed, -pair_sign(site, dropped))
    return total


def pair_sign(site: SiteName, other: SiteName) -> int:
    """Return with which sign a site adds the mask that it shares with another: + if its own name is the smaller."""
    return 1 if site < other else -1
