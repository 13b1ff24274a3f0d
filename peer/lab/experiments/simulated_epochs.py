"""Changes of members in a simulated federation, and the moment at which the sites learn of them.

All sites learn of a change at one moment. A change that only adds sites is known as soon as those
before it are. One that removes sites is known once each of them has committed the round before: that
is their last one, and they count as gone at once, as with daemons.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from peer.core.epochs import Epoch, Epochs
from peer.core.roster import Sha256, SiteName

Change = Mapping[str, Any]
"""``from_round``, and the names to ``add``, ``leave`` and ``expel``: a row of ``[[links.NAME.epochs]]``."""


class SimulatedEpochs:
    """The chain of a run, of which the sites know a prefix; at first the genesis.

    Raise ``ValueError`` for a change that removes a site which is not a member, or the last one.
    """

    def __init__(self, genesis: Epoch, changes: Sequence[Change] = ()) -> None:
        self._changes = tuple(changes)
        epochs = [genesis]
        for change in self._changes:
            epochs.append(_amended(epochs[-1], change))
        self._all = tuple(epochs)
        self._known = 0

    @property
    def known(self) -> Epochs:
        """The epochs that the sites know now."""
        return Epochs(self._all[: self._known + 1])

    def learn_due(self, committed: Mapping[SiteName, int]) -> bool:
        """Let the sites know the changes that are due; return whether there are any.

        Args:
            committed: the last committed round of each site.
        """
        before = self._known
        while self._known < len(self._changes) and self._is_due(self._changes[self._known], committed):
            self._known += 1
        return self._known > before

    @staticmethod
    def _is_due(change: Change, committed: Mapping[SiteName, int]) -> bool:
        departing = map(SiteName, (*change["leave"], *change["expel"]))
        return all(committed.get(name, 0) >= change["from_round"] - 1 for name in departing)


def _amended(before: Epoch, change: Change) -> Epoch:
    added, left, expelled = (frozenset(map(SiteName, change[key])) for key in ("add", "leave", "expel"))
    if strangers := sorted((left | expelled) - set(before.members)):
        raise ValueError(f"{strangers[0]!r} is no member before round {change['from_round']}")
    members = tuple(sorted({*before.members, *added} - left - expelled))
    if not members:
        raise ValueError(f"nobody is left from round {change['from_round']} on")
    number = before.number + 1
    return dataclasses.replace(
        before,
        number=number,
        digest=Sha256(hashlib.sha256(json.dumps([number, change], sort_keys=True).encode()).hexdigest()),
        from_round=change["from_round"],
        members=members,
        newcomers=added,
        expelled=before.expelled | expelled,
        left=before.left | left,
    )
