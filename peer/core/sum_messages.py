"""What the members of a secure sum tell each other, and what its state machine decides and records.

``peer.core.secure_sum`` has the machine and the law; ``proto/README.md`` section 10 specifies the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from peer.core.roster import Sha256, SiteName, canonical_json

COMMITMENT_LABEL = b"mhfl/sum-opening/v1\0"

Contributions = Mapping[SiteName, Sha256]
"""A set of contributors: by site, the digest of its ``SumMasked``."""


def commitment(opening: bytes) -> Sha256:
    """Compute the commitment to a seed of 32 bytes: SHA-256("mhfl/sum-opening/v1" || 0x00 || seed), in hex."""
    return Sha256(hashlib.sha256(COMMITMENT_LABEL + opening).hexdigest())


# --- messages ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SumMessage:
    """Base of what a site says to another about one sum."""


@dataclass(frozen=True, slots=True)
class SumKey(SumMessage):
    """KEYS: the sender's key for this round and stage, one for ever."""

    key: bytes


@dataclass(frozen=True, slots=True)
class SumMasked(SumMessage):
    """MASKED: the sender's masked artifact, which the receiver has, and commitments to the seeds of its masks.

    ``commitments`` has one for each pair's seed, by the other member, and the one of the sender's own seed by its own
    name. So it also names the members whose keys the sender has used.
    """

    artifact: Sha256
    commitments: Mapping[SiteName, Sha256]

    @property
    def digest(self) -> Sha256:
        """The SHA-256 of its canonical JSON."""
        document = {"artifact": self.artifact, "commitments": dict(self.commitments)}
        return Sha256(hashlib.sha256(canonical_json(document)).hexdigest())


@dataclass(frozen=True, slots=True)
class SumSet(SumMessage):
    """SET: the contributors whom the sender would sum; not binding. An empty set: the sender takes no part."""

    contributions: Contributions


@dataclass(frozen=True, slots=True)
class SumCommit(SumMessage):
    """COMMIT: the one set that the sender ever opens its masks for."""

    contributions: Contributions


@dataclass(frozen=True, slots=True)
class SumOpening(SumMessage):
    """OPEN: the sender's own seed, and those that it shares with members outside the set."""

    own: bytes
    shared: Mapping[SiteName, bytes]


@dataclass(frozen=True, slots=True)
class SumStatements:
    """All that a member shows another of one sum beside its masked artifact; ``None``: not yet."""

    key: bytes | None = None
    shown: Contributions | None = None
    commit: Contributions | None = None
    opening: SumOpening | None = None


# --- decisions --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SumDecision:
    """Base of what the daemon does for a sum."""


@dataclass(frozen=True, slots=True)
class SumRecord:
    """Base of a journalled fact of one sum."""


@dataclass(frozen=True, slots=True)
class SumKeyed(SumRecord):
    """This site's key; its secret half and the own seed are on disk."""

    key: bytes


@dataclass(frozen=True, slots=True)
class SumMasking(SumRecord):
    """This site's masked artifact, and the keys of the members with whom it is masked."""

    keys: Mapping[SiteName, bytes]
    masked: SumMasked


@dataclass(frozen=True, slots=True)
class SumBound(SumRecord):
    """The set to which this site has committed."""

    contributions: Contributions


@dataclass(frozen=True, slots=True)
class SumOpened(SumRecord):
    """All contributors have committed to this site's set: its openings may leave."""


@dataclass(frozen=True, slots=True)
class SumCompleted(SumRecord):
    """The openings of all other contributors."""

    openings: Mapping[SiteName, SumOpening]


@dataclass(frozen=True, slots=True)
class SumAbandoned(SumRecord):
    """This site has no sum, and opens nothing that it has not opened before."""

    reason: str


@dataclass(frozen=True, slots=True)
class PersistSum(SumDecision):
    """Append a record to the journal, durably, before the next decision."""

    record: SumRecord


@dataclass(frozen=True, slots=True)
class SendSum(SumDecision):
    """Send a message to a member."""

    to: SiteName
    message: SumMessage


@dataclass(frozen=True, slots=True)
class MaskInput(SumDecision):
    """Mask this site's input with these members' keys and the own seed; ``complete_masking`` has the result."""

    keys: Mapping[SiteName, bytes]


@dataclass(frozen=True, slots=True)
class SendOpening(SumDecision):
    """Send a ``SumOpening`` to a contributor: the own seed, and the seeds of the pairs with ``dropped``."""

    to: SiteName
    dropped: tuple[SiteName, ...]


@dataclass(frozen=True, slots=True)
class NamePeer(SumDecision):
    """Name a member that is missing from the sum. ``guilty``: it broke the protocol, or lost its memory."""

    site: SiteName
    reason: str
    guilty: bool = False


@dataclass(frozen=True, slots=True)
class SumReady(SumDecision):
    """Unmask the sum of these contributions with the others' openings and the own seeds."""

    contributions: Contributions
    openings: Mapping[SiteName, SumOpening]


@dataclass(frozen=True, slots=True)
class NoSum(SumDecision):
    """The round goes on without this sum."""

    reason: str
