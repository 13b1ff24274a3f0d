"""The journal's kinds of rows: one frozen dataclass a kind, with its JSON body on disk.

A row's fields are the keys of its body. A body that an earlier program wrote stays readable:
decoding skips an unknown key, and a key with a default may be missing. Any other change raises the
``version`` of the kind, and adds to ``MIGRATIONS`` the function that rewrites the former body.
``Memory`` is the fold of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from peer.core.artifacts import Artifact, EvaluationResult, Purpose, Source
from peer.core.journal_row import OMITTED, ON_DISK, ArtifactRow, frozen_row, values_of, without_tensors
from peer.core.journal_row import Body as Body
from peer.core.journal_row import Cause as Cause
from peer.core.journal_row import JournalRow as JournalRow
from peer.core.journal_row import RowError as RowError
from peer.core.json_codec import to_json
from peer.core.roster import Sha256, SiteName
from peer.core.sum_rows import SumRow

ABSENT = "absent"
"""The reason in ``missing`` if the operator named the peer with `start --without`."""

# The rounds.


@frozen_row
class BeganRow(JournalRow):
    """The daemon started."""

    kind = "began"
    generation: int


@frozen_row
class InitialisedRow(ArtifactRow):
    """The initial model exists. ``publish`` is the round that its artifact serves, if any."""

    kind = "initialised"
    state: str
    artifact: Artifact | None = None
    samples: Mapping[str, int]
    threads: int = 0
    device: str = ""
    publish: int | None = None
    weights: str | None = field(default=None, metadata=OMITTED)


@frozen_row
class OpenedRow(ArtifactRow):
    """A round began. ``sources`` are received artifacts that its first stage already uses.

    ``epoch`` is the digest of the amendment that the round follows; the key is left out where the
    round follows the genesis. With ``away``, the site's own model, which was home, circulates again.
    """

    kind = "opened"
    sources: tuple[Source, ...]
    epoch: Sha256 | None = field(default=None, metadata=OMITTED)
    away: bool | None = field(default=None, metadata=OMITTED)


@frozen_row
class ArrivedRow(ArtifactRow):
    """A peer's artifact for the round is on disk."""

    kind = "arrived"
    source: Source
    origin_generation: int


@frozen_row
class ChosenRow(ArtifactRow):
    """The exchange is over.

    ``missing`` names the peers that did not contribute, each with the reason.

    ``position`` is the index of the plan's phase that is over. ``waited_s`` is how long the
    exchange took, ``None`` where the wait says nothing about the peers' pace. ``in_vain_s`` is how
    long the site waited for each peer that did not deliver. With the ``purpose`` return, the sources
    are the copies of the own model that other sites have trained. ``total`` is the sum of the sources and the own
    artifact, which are all masked.
    """

    kind = "chosen"
    position: int
    sources: tuple[Source, ...]
    missing: Mapping[str, str]
    waited_s: float | None
    below_quorum: bool
    in_vain_s: Mapping[SiteName, float] | None = field(default=None, metadata=OMITTED)
    purpose: Purpose | None = field(default=None, metadata=OMITTED)
    total: Artifact | None = field(default=None, metadata=OMITTED)


@frozen_row
class TrainedRow(ArtifactRow):
    """A training stage is over. ``publish`` is the round that the artifact serves, if any.

    ``returned`` are the visiting models that were trained; each serves this round at its owner.
    ``cohort`` is the digest of the people in the site's data, if it is recorded.
    """

    kind = "trained"
    position: int
    stage: str
    state: str
    artifact: Artifact | None = None
    metrics: Mapping[str, float]
    threads: int
    duration_s: float
    publish: int | None = None
    returned: tuple[Artifact, ...] | None = field(default=None, metadata=OMITTED)
    cohort: Sha256 | None = field(default=None, metadata=OMITTED)


@frozen_row
class AggregatedRow(ArtifactRow):
    """The shared module is the mean of its contributors; ``sha256`` is the mean's digest.

    ``cut`` names the sites whose contribution was left out or weighed less, each with the reason.
    ``artifact`` is what the commit publishes, where no later stage makes it.
    """

    kind = "aggregated"
    position: int
    state: str
    sha256: Sha256
    contributors: tuple[SiteName, ...]
    cut: Mapping[SiteName, str] | None = field(default=None, metadata=OMITTED)
    artifact: Artifact | None = field(default=None, metadata=OMITTED)


@frozen_row
class EvaluatedRow(ArtifactRow):
    """The model was evaluated on the site's own test split.

    The ``artifact``, if any, is lent to other sites. ``best_by`` names the validation metric by
    which no round before was as good; the model's files are then kept, with those of the
    ``received`` heads with which it predicts.
    """

    kind = "evaluated"
    metrics: Mapping[str, float]
    artifact: Artifact | None = field(default=None, metadata=OMITTED)
    evaluation_denied: str | None = field(default=None, metadata={**OMITTED, ON_DISK: "kept_home"})
    best_by: str | None = field(default=None, metadata=OMITTED)
    received: tuple[Sha256, ...] | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True)
class UsedSource:
    """A source of a committed round."""

    site: SiteName
    round: int
    sha256: Sha256
    fallback: str = ""


@frozen_row
class CommittedRow(JournalRow):
    """A round is over.

    ``skipped`` lists the rounds that were left out before it. ``publish`` is the round that the
    artifact serves, if any. The artifact of a ``visiting`` model belongs to another site; the row
    ``trained`` describes it. ``returned`` are the copies of the own model that other sites trained
    and this site merged, ``missing_returns`` the sites whose copy is not among them.
    With staleness, ``made_in`` is the round whose training the sources hold; 0: the initial models.
    """

    kind = "committed"
    generation: int
    sources: tuple[UsedSource, ...]
    contributors: tuple[SiteName, ...]
    missing: Mapping[str, str]
    cut: Mapping[SiteName, str] | None = field(default=None, metadata=OMITTED)
    below_quorum: bool
    skipped: tuple[int, ...]
    artifact_sha256: Sha256 | None
    aggregate_sha256: Sha256 | None = None
    metrics: Mapping[str, float]
    threads: int
    duration_s: float
    state: str
    publish: int | None = None
    visiting: bool = False
    returned: tuple[UsedSource, ...] | None = field(default=None, metadata=OMITTED)
    missing_returns: Mapping[str, str] | None = field(default=None, metadata=OMITTED)
    made_in: int | None = field(default=None, metadata=OMITTED)


@frozen_row
class ComparedRow(JournalRow):
    """A peer ended the same round with the mean of this digest; ``agrees`` if it is this site's."""

    kind = "compared"
    site: SiteName
    sha256: Sha256
    agrees: bool


@frozen_row
class SkippedRow(JournalRow):
    """The site jumped to its peers' round: it left out ``first`` and the rounds up to this row's.

    ``proven`` has the peers that are there, each with the round that its signature proves.
    """

    kind = "skipped"
    first: int = field(metadata={ON_DISK: "from"})
    publish: int | None = None
    proven: Mapping[SiteName, int] | None = field(default=None, metadata=OMITTED)


@frozen_row
class JoinedRow(JournalRow):
    """The site joined a running federation: the rounds up to this row's were never its own.

    ``publish`` is the round that its initial artifact serves, if any. With ``home``, its model does
    not circulate, and waits for no hand-back.
    """

    kind = "joined"
    publish: int | None = None
    home: bool = False


@frozen_row
class AmendedRow(JournalRow):
    """The site learnt of an amendment, or of the notice of a leaving site.

    ``number``, ``digest`` and ``from_round`` are those of the newest amendment, ``gone`` the sites
    that newly count as gone. Where the open round is ``reopened``, its exchange begins again, and it
    follows ``epoch`` from now on. A site that ``departs`` is no member any more, and abandons it.
    """

    kind = "amended"
    number: int
    digest: Sha256 | None
    from_round: int
    gone: tuple[SiteName, ...]
    reopened: bool = False
    epoch: Sha256 | None = field(default=None, metadata=OMITTED)
    departs: bool | None = field(default=None, metadata=OMITTED)


@frozen_row
class PublishedRow(ArtifactRow):
    """The site serves the artifact for the row's round from now on."""

    kind = "published"
    artifact: Artifact


@frozen_row
class RetiredRow(JournalRow):
    """The site serves no artifact up to the row's round any more, except ``kept`` (round, owner)."""

    kind = "retired"
    kept: tuple[Any, ...] | None = None


@frozen_row
class DiscardedRow(JournalRow):
    """A received artifact is needed no more; or, if ``lost``, its file is gone, and it is to be fetched again."""

    kind = "discarded"
    sha256: Sha256
    lost: bool | None = field(default=None, metadata=OMITTED)


@frozen_row
class RegeneratedRow(JournalRow):
    """A backup was restored: the site goes on as another generation."""

    kind = "regenerated"
    generation: int
    reported_by: SiteName
    their_round: int


@frozen_row
class AdoptedRow(ArtifactRow):
    """The site's own model is back after the circulating rounds; unchanged if ``state`` is empty."""

    kind = "adopted"
    state: str
    artifact: Artifact | None = None
    publish: int | None = None


@frozen_row
class SlotLostRow(JournalRow):
    """No usable copy of the site's own model was handed back."""

    kind = "slot_lost"


@frozen_row
class IsolatedRow(JournalRow):
    """No peer is heard any more."""

    kind = "isolated"


@frozen_row
class FinishedRow(JournalRow):
    """The last round is over."""

    kind = "finished"


@frozen_row
class PausedRow(JournalRow):
    """The operator paused the site."""

    kind = "paused"


@frozen_row
class ResumedRow(JournalRow):
    """The operator let the site go on."""

    kind = "resumed"


@frozen_row
class LeftRow(JournalRow):
    """The daemon ended in order; ``fault`` is empty unless the site could not go on."""

    kind = "left"
    fault: str
    reason: str


@frozen_row
class WorkFailedRow(JournalRow):
    """The worker failed, the ``count``-th time in a row."""

    kind = "work_failed"
    fault: str
    reason: str
    count: int = 1


@frozen_row
class RevertedRow(JournalRow):
    """Training diverged from a state that peers had a part in: the site went back to the one before.

    ``origins`` are the peers whose artifacts the last committed round had used. The open round goes
    on from ``state`` at this ``position`` of the plan's phases.
    """

    kind = "reverted"
    position: int
    state: str
    origins: tuple[SiteName, ...]
    reason: str


@frozen_row
class RefusedRow(JournalRow):
    """The site refused something that a peer sent or did, or the peer declined what the site asked for."""

    kind = "refused"
    origin: SiteName
    reason: str
    declined: bool | None = field(default=None, metadata=OMITTED)


@frozen_row
class IgnoredRow(JournalRow):
    """An event came too late or belongs to another phase."""

    kind = "ignored"
    event: str
    phase: str
    reason: str | None = field(default=None, metadata=OMITTED)


# Remote evaluation: the first two kinds at the site that lends the model, the others at the borrower.


@frozen_row
class ReportRow(JournalRow):
    """A peer reported the metrics of the round's model on its test split."""

    kind = "report"
    site: SiteName
    report: EvaluationResult


@frozen_row
class LapsedRow(JournalRow):
    """The peers that have not reported on the round's model; a ``retired`` model is lent no more."""

    kind = "lapsed"
    reasons: Mapping[SiteName, str]
    retired: bool


@frozen_row
class GuestRowBase(JournalRow):
    """Base of the rows about another site's model, of one generation of that site."""

    origin: SiteName
    origin_generation: int


@frozen_row
class GuestRow(GuestRowBase):
    """A model that another site lent is on disk, to be measured."""

    kind = "guest"
    version = 2
    source: Source


@frozen_row
class MislaidRow(GuestRowBase):
    """The evaluation process failed."""

    kind = "mislaid"
    fault: str = ""
    reason: str = ""


@frozen_row
class MeasuredRow(GuestRowBase):
    """The report on a borrowed model, which its origin has yet to get."""

    kind = "measured"
    report: EvaluationResult


@frozen_row
class SettledRow(GuestRowBase):
    """Nothing is left to do about a borrowed model."""

    kind = "settled"
    reason: str = ""


# Rows that the daemon writes beside the state machine; memory does not depend on them.


@frozen_row
class ConfiguredRow(JournalRow):
    """The generation's first configuration; ``site`` holds the keys of site.toml as ``table.key``."""

    kind = "configured"
    federation: Sha256
    site: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        return {"federation": self.federation, **self.site}

    @classmethod
    def from_body(cls, round: int, body: Body) -> Self:
        site = {key: value for key, value in body.items() if key != "federation"}
        return cls(round, **values_of(cls, {**body, "site": site}))


@frozen_row
class ManifestRow(JournalRow):
    """A manifest that the site signed: ``artifact`` is the digest, the others are base64."""

    kind = "manifest"
    artifact: Sha256
    signed_body: str = field(metadata={ON_DISK: "body"})
    signature: str
    certificate_der: str


@frozen_row
class ReceivedRow(JournalRow):
    """A transfer to this site ended. The simulator signs nothing, and leaves the manifest out."""

    kind = "received"
    peer: SiteName
    purpose: str
    kind_of_artifact: str = field(metadata={ON_DISK: "kind"})
    sha256: Sha256
    bytes: int
    outcome: str
    seconds: float | None = field(default=None, metadata=OMITTED)
    egress_count: int | None = field(default=None, metadata=OMITTED)
    egress_head: str | None = field(default=None, metadata=OMITTED)
    signed_body: str | None = field(default=None, metadata={**OMITTED, ON_DISK: "body"})
    signature: str | None = field(default=None, metadata=OMITTED)
    certificate_der: str | None = field(default=None, metadata=OMITTED)


@frozen_row
class EquivocatedRow(JournalRow):
    """A site signed two artifacts for one round; ``manifests`` are both, in base64."""

    kind = "equivocated"
    origin: SiteName
    sha256: tuple[Sha256, ...]
    manifests: tuple[Mapping[str, str], ...]


@frozen_row
class DeniedRow(JournalRow):
    """A call was refused by the schedule or by this site's policy."""

    kind = "denied"
    caller: str
    call: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageCount:
    """Messages and their bytes."""

    messages: int
    bytes: int


@frozen_row
class SpokenRow(JournalRow):
    """Messages sent to each peer beside artifacts, since the daemon began.

    On disk the peers are the keys.
    """

    kind = "spoken"
    by_peer: Mapping[str, MessageCount]

    def body(self) -> dict[str, Any]:
        return {name: to_json(count) for name, count in self.by_peer.items()}

    @classmethod
    def from_body(cls, round: int, body: Body) -> Self:
        return cls(round, **values_of(cls, {"by_peer": dict(body)}))


KINDS: Mapping[str, type[JournalRow]] = {
    row_type.kind: row_type
    for row_type in (
        BeganRow, InitialisedRow, JoinedRow, AmendedRow, OpenedRow, ArrivedRow, ChosenRow, TrainedRow, AggregatedRow,
        EvaluatedRow,
        CommittedRow, ComparedRow, SkippedRow, PublishedRow, RetiredRow, DiscardedRow, RegeneratedRow,
        AdoptedRow, SlotLostRow, IsolatedRow, FinishedRow, PausedRow, ResumedRow, LeftRow, WorkFailedRow,
        RevertedRow, RefusedRow, IgnoredRow, ReportRow, LapsedRow, GuestRow, MislaidRow, MeasuredRow, SettledRow,
        ConfiguredRow, ManifestRow, ReceivedRow, EquivocatedRow, DeniedRow, SpokenRow, SumRow,
    )
}  # fmt: skip
"""Every kind of row, by its name on disk."""

MIGRATIONS: Mapping[tuple[str, int], Callable[[Body], Body]] = {
    (kind, 1): without_tensors for kind, row_type in KINDS.items() if row_type.version == 2
}
"""(kind, version) -> the body of that version as one of the next version. Release 0.3.0 writes version 1."""


def decode(kind: str, round: int, body: Body) -> JournalRow:
    """Decode the row with this body of its kind's current version. Raises ``RowError`` if it does not fit."""
    row_type = KINDS.get(kind)
    if row_type is None:
        raise RowError(f"no row is of kind {kind!r}")
    try:
        return row_type.from_body(round, body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RowError(f"a row {kind!r} of round {round}: {error}") from error


def upgrade(
    kind: str,
    version: int,
    body: Body,
    *,
    kinds: Mapping[str, type[JournalRow]] = KINDS,
    migrations: Mapping[tuple[str, int], Callable[[Body], Body]] = MIGRATIONS,
) -> Body:
    """Upgrade the body of an earlier version to the kind's current version.

    Raises:
        RowError: a newer program wrote the row, or the body is not of its version.
    """
    known = kinds[kind].version if kind in kinds else version
    if version > known:
        raise RowError(f"a row {kind!r} is of version {version}, this mhfl-peer knows {known}: update mhfl-peer")
    for earlier in range(version, known):
        try:
            body = migrations[(kind, earlier)](body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RowError(f"a row {kind!r} of version {earlier}: {error!r}") from error
    return body
