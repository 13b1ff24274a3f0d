"""Messages between sites, as the core knows them; the wire has its own types."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from peer.core.artifacts import Artifact, TensorSpec
from peer.core.roster import Sha256, SiteName


class Unavailable(enum.StrEnum):
    """Why a site has no artifact for a round.

    The receiver asks again on NOT_YET and EPOCH, and falls back otherwise. EPOCH: the two sites have
    different amendments for the round.
    """

    NOT_YET = "not_yet"
    RETIRED = "retired"
    SKIPPED = "skipped"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The signed description of an artifact; ``round`` is the round that consumes it.

    An artifact for ``evaluation`` is the origin's model at the end of ``round``: receivers measure
    it and do not train with it. ``mu`` is what the origin has spent in this federation, this artifact included, as
    ``Spending.federation_mu``; ``None`` without noise.
    """

    federation: Sha256
    generation: int
    method: str
    origin: SiteName
    round: int
    artifact: Artifact
    tensors: tuple[TensorSpec, ...]
    reexport: bool = False
    egress_count: int = 0
    egress_head: str = ""
    evaluation: bool = False
    head: ChainHead | None = None
    mu: float | None = None


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest as it travels: the exact bytes, the signature over them, the signer's certificate."""

    body: bytes
    signature: bytes
    certificate_der: bytes


@dataclass(frozen=True, slots=True)
class SignedRound:
    """A signed statement of the newest round that a site has published for, as it travels."""

    body: bytes
    signature: bytes
    certificate_der: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest artifact that a site remembers of another; shows that a backup was restored there.

    ``manifest`` is the other site's own, and proves it.
    """

    generation: int
    round: int
    sha256: str
    manifest: SignedManifest | None = None


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest amendment that a site has: a claim, until its body is there. ``None`` is the genesis."""

    number: int
    digest: Sha256


@dataclass(frozen=True, slots=True)
class Endorsement:
    """A signature of an amendment; without a certificate it is the federation's CA key's."""

    certificate_der: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedAmendment:
    """An amendment as it travels: the exact bytes, and the signatures over them."""

    body: bytes
    by: tuple[Endorsement, ...]


@dataclass(frozen=True, slots=True)
class SignedNotice:
    """A site's notice that it leaves, as it travels."""

    body: bytes
    signature: bytes
    certificate_der: bytes


@dataclass(frozen=True, slots=True)
class SealedKey:
    """The round key that an amendment names, encrypted for one site; number 0 is the genesis'."""

    number: int
    sealed: bytes


@dataclass(frozen=True, slots=True)
class AmendmentsReply:
    """Amendments after a number, with the round keys of the asking site's epochs, and notices."""

    amendments: tuple[SignedAmendment, ...] = ()
    keys: tuple[SealedKey, ...] = ()
    notices: tuple[SignedNotice, ...] = ()


COMPARES_MANIFESTS = "compares-manifests"
PROVES_ROUNDS = "proves-rounds"
AMENDMENTS = "amendments"
SECURE_SUMS = "secure-sums"
FEATURES = (COMPARES_MANIFESTS, PROVES_ROUNDS, AMENDMENTS, SECURE_SUMS)
"""What this program understands beside the protocol's first version."""

NO_TAG = Sha256("0" * 64)
"""The tag of no key."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The content of a Hello, in either direction.

    ``clock_s`` is Unix time; no decision depends on it.

    ``round_key_tag`` is ``peer.core.roster.round_key_tag``: sites with different keys would
    disagree on every order. ``evaluates`` says whether the site takes part in remote evaluation;
    ``None`` where its program does not support it. ``protocol`` is the lowest version that the site
    speaks, ``protocol_max`` the highest; 0 where the site names one version only. ``class_names``
    are those of ``peer.core.class_numbering.digest_names``.
    """

    protocol: int
    federation: Sha256
    roster: Sha256
    generation: int
    clock_s: float
    seen: Seen | None = None
    software: str = ""
    round_key_tag: Sha256 = NO_TAG
    evaluates: bool | None = None
    protocol_max: int = 0
    features: tuple[str, ...] = ()
    head: ChainHead | None = None
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The content of a Beat, in either direction.

    ``progress`` is the share of the phase that is done, in [0, 1]. ``aggregate`` is the digest of
    the mean that the committed round ended with. ``proof`` is for a receiver that is far behind.
    ``notice`` says that the sender leaves the federation.
    """

    generation: int
    round: int
    phase: str
    progress: float = 0.0
    published_round: int = 0
    committed_round: int = 0
    aggregate: Sha256 | None = None
    proof: SignedRound | None = None
    head: ChainHead | None = None
    notice: SignedNotice | None = None


@dataclass(frozen=True, slots=True)
class LastHeard:
    """A site's last known state, and when it was heard: seconds of this site's monotonic clock.

    ``proven_round`` is the newest round for which a manifest or a statement with the site's
    signature was seen.
    """

    pulse: Heartbeat | None = None
    last_s: float = field(default=float("-inf"))
    proven_round: int = 0
