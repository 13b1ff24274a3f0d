"""The room between training alone and the pooled bound, and a method's share of it.

Room is the gain of training on the data of all sites together over training alone: the expected
upper bound of a federation. The share is the method's gain over training alone, divided by the
room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from peer.lab.statistics.means import defined, mean
from peer.lab.statistics.significance import MeanRatio, PairedT, paired_t, ratio_of_means

Values: TypeAlias = Mapping[int, Mapping[str, float | None]]
"""A method's values by repetition (fold or seed), then by site."""


@dataclass(frozen=True, slots=True)
class RoomShare:
    """A method's share of the room.

    Attributes:
        gain: the method against training alone.
        room: the pooled bound against training alone, on the same pairs as the gain.
        share: the mean gain divided by the mean room, with Fieller's interval.
        over_sites: the pairs are the sites of the only repetition, not repetitions.
    """

    gain: PairedT
    room: PairedT
    share: MeanRatio
    over_sites: bool

    def has_room(self, least: float) -> bool:
        """Return whether the room is at least ``least``, and its 95 % interval is above zero."""
        room = self.room
        return room.difference is not None and room.difference >= least and room.low is not None and room.low > 0


def share_of_room(method: Values, local: Values, pooled: Values) -> RoomShare:
    """Compare a method with training alone and with the pooled bound, pair by pair.

    A site's values are compared with the same site's values on the same test samples. A pair is the
    mean over the sites of one repetition; where there is only one repetition, each site is a pair.
    Repetitions and sites in which one of the three has no value are left out.
    """
    differences = {
        number: [
            (value - alone, bound - alone)
            for site, value in method[number].items()
            if defined(value)
            and defined(alone := local[number].get(site))
            and defined(bound := pooled[number].get(site))
        ]
        for number in method
        if number in local and number in pooled
    }
    differences = {number: pairs for number, pairs in differences.items() if pairs}
    over_sites = len(differences) == 1
    if over_sites:
        (pairs,) = differences.values()
    else:
        pairs = [
            (mean(gain for gain, _ in pairs) or 0.0, mean(room for _, room in pairs) or 0.0)
            for pairs in differences.values()
        ]
    gains, rooms = [gain for gain, _ in pairs], [room for _, room in pairs]
    zeros = [0.0] * len(pairs)
    return RoomShare(paired_t(gains, zeros), paired_t(rooms, zeros), ratio_of_means(gains, rooms), over_sites)
