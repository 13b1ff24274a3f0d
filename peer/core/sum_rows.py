"""The journal's row of a secure sum, and the record of ``peer.core.sum_messages`` that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from peer.core.journal_row import OMITTED, JournalRow, frozen_row
from peer.core.roster import Sha256, SiteName

if TYPE_CHECKING:
    from peer.core.sum_messages import SumOpening, SumRecord

SumStep = Literal["keyed", "masked", "committed", "opened", "completed", "abandoned"]


@dataclass(frozen=True, slots=True)
class StoredOpening:
    """A member's opening, in hex."""

    own: str
    shared: Mapping[SiteName, str]


@frozen_row
class SumRow(JournalRow):
    """One step of this site in the round's secure sum; keys and the others' openings are in hex.

    ``keys`` are those with which this site has masked, ``artifact`` and ``commitments`` what it has sent, ``clipped``
    how many of its values were beyond the bound. ``contributions`` is the set to which it has committed.
    """

    kind = "sum"
    step: SumStep
    key: str | None = field(default=None, metadata=OMITTED)
    keys: Mapping[SiteName, str] | None = field(default=None, metadata=OMITTED)
    artifact: Sha256 | None = field(default=None, metadata=OMITTED)
    commitments: Mapping[SiteName, Sha256] | None = field(default=None, metadata=OMITTED)
    clipped: int | None = field(default=None, metadata=OMITTED)
    contributions: Mapping[SiteName, Sha256] | None = field(default=None, metadata=OMITTED)
    openings: Mapping[SiteName, StoredOpening] | None = field(default=None, metadata=OMITTED)
    reason: str | None = field(default=None, metadata=OMITTED)

    @classmethod
    def of(cls, round: int, record: SumRecord, *, clipped: int | None = None) -> SumRow:
        """Build the row of a record; ``clipped`` belongs to a ``SumMasking``."""
        from peer.core import sum_messages  # here, since the import takes time, and other rows do not need it

        match record:
            case sum_messages.SumKeyed(key):
                return cls(round, step="keyed", key=key.hex())
            case sum_messages.SumMasking(keys, masked):
                of_keys = {name: key.hex() for name, key in keys.items()}
                artifact, commitments = masked.artifact, dict(masked.commitments)
                return cls(
                    round, step="masked", keys=of_keys, artifact=artifact, commitments=commitments, clipped=clipped
                )
            case sum_messages.SumBound(contributions):
                return cls(round, step="committed", contributions=dict(contributions))
            case sum_messages.SumOpened():
                return cls(round, step="opened")
            case sum_messages.SumCompleted(openings):
                return cls(round, step="completed", openings={name: _stored(each) for name, each in openings.items()})
            case sum_messages.SumAbandoned(reason):
                return cls(round, step="abandoned", reason=reason)
        raise TypeError(f"no row holds a {type(record).__name__}")

    def record(self) -> SumRecord:
        """Return the record; raise ``ValueError`` if a key is missing or no hex text."""
        from peer.core import sum_messages

        if self.step == "opened":
            return sum_messages.SumOpened()
        if self.step == "keyed" and self.key is not None:
            return sum_messages.SumKeyed(bytes.fromhex(self.key))
        if self.step == "masked" and None not in (self.keys, self.artifact, self.commitments):
            keys = {name: bytes.fromhex(key) for name, key in (self.keys or {}).items()}
            return sum_messages.SumMasking(
                keys, sum_messages.SumMasked(self.artifact or Sha256(""), dict(self.commitments or {}))
            )
        if self.step == "committed" and self.contributions is not None:
            return sum_messages.SumBound(dict(self.contributions))
        if self.step == "completed" and self.openings is not None:
            return sum_messages.SumCompleted({name: _opening(each) for name, each in self.openings.items()})
        if self.step == "abandoned" and self.reason is not None:
            return sum_messages.SumAbandoned(self.reason)
        raise ValueError(f"a row of the step {self.step!r} lacks a key")


def _stored(opening: SumOpening) -> StoredOpening:
    return StoredOpening(opening.own.hex(), {name: seed.hex() for name, seed in opening.shared.items()})


def _opening(stored: StoredOpening) -> SumOpening:
    from peer.core.sum_messages import SumOpening

    return SumOpening(bytes.fromhex(stored.own), {name: bytes.fromhex(seed) for name, seed in stored.shared.items()})
