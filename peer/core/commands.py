"""The commands of the state machine, in the imperative.

The daemon carries them out in the order given.

A ``Persist`` precedes the commands that depend on it. Commands to the worker travel as JSON lines
(``peer.core.worker_protocol``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peer.core import limits
from peer.core.artifacts import Artifact, EvaluationResult, Purpose, Source
from peer.core.kinds import Kind
from peer.core.ring import Ring
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumOpening


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True, slots=True)
class Persist(Command):
    """Append a row to the journal, durably, before the next command.

    ``cause`` is a ``peer.core.rows.Cause`` as it lies on disk.
    """

    kind: str
    round: int
    body: Mapping[str, Any]
    cause: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Publish(Command):
    """Sign the artifact's manifest for the round that consumes it, journal the manifest, and serve
    the artifact.

    For ``evaluation`` the artifact is the local model at the end of the round, lent to be measured.
    """

    round: int
    artifact: Artifact
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class Fetch(Command):
    """Fetch an artifact; try until it is on disk, refused, unavailable or cancelled.

    One of more than ``bytes_max`` is refused before its first byte.
    """

    generation: int
    round: int
    attempt: int
    origin: SiteName
    kind: Kind
    purpose: Purpose
    owner: SiteName
    bytes_max: int = limits.ARTIFACT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class CancelFetch(Command):
    """End a fetch without an event."""

    origin: SiteName
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Discard(Command):
    """Delete the file of a received artifact, which is needed no more."""

    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Announce(Command):
    """Send every peer a heartbeat now: the phase has changed."""


@dataclass(frozen=True, slots=True)
class WakeAt(Command):
    """Send ``Ticked`` at this time of the monotonic clock; replaces the former ``WakeAt``."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Exit(Command):
    """Everything is on disk: end the daemon. ``fault`` is empty when the site leaves in order."""

    fault: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Initialise(Command):
    """Build the local model from its seed, check the data, write the first checkpoint and artifact."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Train(Command):
    """Run one training stage from the checkpoint ``base``; the sources are in roster order.

    In a circulating round ``circulate`` names the owner of the visiting model: the worker then
    trains that model instead of the local one, and the result is the artifact. ``earlier`` and
    ``final`` are as in ``Adopt``. The stage lasts as long as in so many ``rounds``: more than one
    where a copy was refused, so that its model does not miss the rounds since the copy before. The
    worker keeps the checkpoints ``kept``: those to which the site may go back, and the best round's.
    """

    generation: int
    round: int
    attempt: int
    stage: str
    base: str
    sources: tuple[Source, ...]
    circulate: SiteName | None = None
    kept: tuple[str, ...] = ()
    earlier: Source | None = None
    final: bool = True
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Aggregate(Command):
    """Average the shared module over the site's own state and the sources, in roster order.

    The worker keeps the checkpoints ``kept``: those to which the site may go back, and the best
    round's. Where models visit, the sources are the returns: copies of the own model ``sent`` that
    other sites trained in this round. With staleness, ``sent`` is the own artifact of this round, and is
    in the mean instead of the state. A ``shadow`` is no member yet: its own state is not in the mean.

    ``total`` is the sum that the contributors, this site and the origins of the sources, have added up under masks. It
    takes the place of all states: no site has another's. ``joined`` is the first round of the newest member.
    """

    generation: int
    round: int
    attempt: int
    base: str
    sources: tuple[Source, ...]
    kept: tuple[str, ...] = ()
    sent: Source | None = None
    shadow: bool = False
    total: Artifact | None = None
    joined: int = 1


@dataclass(frozen=True, slots=True)
class Adopt(Command):
    """Replace the local model by the copy that a peer handed back.

    The worker compares the copy with ``earlier``, another copy of the same model. Unless ``final``,
    it rejects a copy that is merely suspicious; the site then fetches the copy from which this one
    was trained, and orders the same again.
    """

    generation: int
    round: int
    attempt: int
    base: str
    source: Source
    earlier: Source | None = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    """Measure the site's prediction on the local test split: by its networks, and the heads that it
    received.

    With ``lent``, the worker also writes the local model as an artifact, for other sites to
    measure.
    """

    generation: int
    round: int
    attempt: int
    base: str
    sources: tuple[Source, ...] = ()
    lent: bool = False


@dataclass(frozen=True, slots=True)
class Measure(Command):
    """Measure a model that another site lent, on the local test split, beside the training."""

    generation: int
    round: int
    attempt: int
    source: Source


@dataclass(frozen=True, slots=True)
class Dismiss(Command):
    """End the evaluation process, and the measurement under way."""


@dataclass(frozen=True, slots=True)
class SendReport(Command):
    """Try once to send a site the report on its model."""

    attempt: int
    site: SiteName
    report: EvaluationResult


@dataclass(frozen=True, slots=True)
class Rehearse(Command):
    """Try one step of each part of a round, with this site's own artifact in place of the peers'.

    The preflight orders it; its results are discarded.
    """

    generation: int
    attempt: int
    others: tuple[SiteName, ...]


@dataclass(frozen=True, slots=True)
class Halt(Command):
    """Write a checkpoint of the work in hand, and stop."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class DrawSumKey(Command):
    """Draw this site's secrets of a round's secure sum, keep them on disk, and answer with the public key."""

    generation: int
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class HearSum(Command):
    """Ask these members for their statements on a round's sum, again and again, until ``EndSum``.

    ``epoch`` is the digest of the amendment that the round follows, ``None`` for the genesis.
    """

    generation: int
    round: int
    attempt: int
    epoch: Sha256 | None
    members: tuple[SiteName, ...]


@dataclass(frozen=True, slots=True)
class EndSum(Command):
    """Ask no member for statements any more."""


@dataclass(frozen=True, slots=True)
class MaskArtifact(Command):
    """Mask an artifact with the keys of members and the own seed, and commit to the seeds.

    Only a ring with ``weights`` counts the ``weight``: every value is multiplied by it, and one more word has it.
    """

    generation: int
    round: int
    attempt: int
    artifact: Artifact
    keys: Mapping[SiteName, bytes]
    ring: Ring
    weight: int
    epoch: Sha256 | None


@dataclass(frozen=True, slots=True)
class AddMasked(Command):
    """Add up the contributors' masked artifacts, ``sources`` and this site's ``own``, and remove the masks.

    ``plain`` is this site's artifact before it was masked: it has the names and shapes of the tensors.
    """

    generation: int
    round: int
    attempt: int
    sources: tuple[Source, ...]
    own: Artifact
    plain: Artifact
    openings: Mapping[SiteName, SumOpening]
    ring: Ring


@dataclass(frozen=True, slots=True)
class ShowSum(Command):
    """Let the members that wait for this site's statements on a sum look again."""


@dataclass(frozen=True, slots=True)
class ForgetSums(Command):
    """Delete the secrets of the sums of the rounds before this one."""

    before: int


WORKER_ORDERS = (Initialise, Train, Aggregate, Adopt, Evaluate, Halt)
"""Orders to the worker: it answers the newest one."""
