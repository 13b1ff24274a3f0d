r"""The ring of a secure sum: how values become words modulo :math:`2^k`, and the proof that no sum leaves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

RING_BITS = (32, 64)
FRACTION_BITS_MAX = 52
"""Bits of a float64's fraction: with more, the product before the rounding has none left to round."""
NOISE_DEVIATIONS = 12
"""Noise beyond so many standard deviations has a probability of 2^-105 in one coordinate."""
WEIGHT_MAX = 1 << 20
"""The largest weight of a contribution: a larger number of samples counts as this one."""


@dataclass(frozen=True, slots=True)
class Ring:
    """How values become words: clipped to ``clip``, in multiples of ``clip / 2**fraction_bits``; whole numbers as such.

    Attributes:
        bits: k, of a word.
        fraction_bits: f.
        clip: c, the bound on the absolute value of a coordinate.
        members: N, all members of the round.
        weighted: whether each value is multiplied by a weight, which is one more word.

    Raises:
        ValueError: there is no such ring, or a number is out of its bounds.
    """

    bits: int
    fraction_bits: int
    clip: float
    members: int
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.bits not in RING_BITS:
            raise ValueError(f"a ring has 32 or 64 bits, not {self.bits}")
        if not 0 <= self.fraction_bits <= min(FRACTION_BITS_MAX, self.bits - 2):
            raise ValueError(f"{self.fraction_bits} bits of fraction do not fit a ring of {self.bits} bits")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"values are clipped to a positive number, not {self.clip}")

    @classmethod
    def of(cls, *, members: int, clip: float, weighted: bool, whole: bool) -> Ring:
        """Choose the ring for a sum of N members: 64 bits for weights and for whole numbers, 32 otherwise.

        Raises:
            ValueError: no ring holds so many.
        """
        bits = 64 if weighted or whole else 32
        weight = WEIGHT_MAX if weighted else 1
        return cls(bits, largest_fraction_bits(bits=bits, sites=members, weight=weight), clip, members, weighted)

    @property
    def scale(self) -> float:
        """Units in 1: s."""
        return (1 << self.fraction_bits) / self.clip

    @property
    def whole_max(self) -> int:
        """The bound on a whole number, so that N of them with the largest weight stay in the ring."""
        return ((1 << (self.bits - 1)) - 1) // (self.members * (WEIGHT_MAX if self.weighted else 1))

    @property
    def error_max(self) -> float:
        """How far the mean of values within the clip may be from the mean of their float64: half a unit.

        A scale that is no power of two adds its own rounding, clip / 2^52.
        """
        return self.clip / (2 << self.fraction_bits) + self.clip / (1 << 52)


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
