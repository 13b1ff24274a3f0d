"""Masks and sums of words in memory, where the program works from file to file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from peer.core.roster import SiteName
from peer.site.sums.masking import Words, input_masks, sum_masks


def mask(words: Words, site: SiteName, own_seed: bytes, pair_seeds: Mapping[SiteName, bytes]) -> Words:
    """Mask the words of a site, ``(n,)``, with its own seed and one for each other member; return new ones."""
    masked = words.copy()
    input_masks(site, own_seed, pair_seeds).add_to(masked)
    return masked


def unmask(
    masked: Iterable[Words], own_seeds: Iterable[bytes], left_seeds: Mapping[tuple[SiteName, SiteName], bytes]
) -> Words:
    """Add up the contributors' masked words, ``(n,)`` each, and take away the masks that do not cancel.

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
    sum_masks(own_seeds, left_seeds).add_to(total)
    return total
