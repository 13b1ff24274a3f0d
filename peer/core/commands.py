"""Everything that the core can ask for, in the imperative. The daemon carries commands out in the order given.

A ``Persist`` stands before whatever depends on it. Commands to the worker travel as JSON lines
(``peer.core.worker_protocol``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peer.core.messages import Artifact, EvaluationResult, Purpose
from peer.core.plan import Kind
from peer.core.roster import Sha256, SiteName


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
    """Sign the artifact's manifest for the round that consumes it, journal it, and serve it to whom it may concern.

    For ``evaluation`` it is the local model at the end of the round, lent to be measured.
    """

    round: int
    artifact: Artifact
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class Fetch(Command):
    """Get an artifact and keep trying until it is there, refused, unavailable or cancelled."""

    generation: int
    round: int
    attempt: int
    origin: SiteName
    kind: Kind
    purpose: Purpose
    owner: SiteName


@dataclass(frozen=True, slots=True)
class CancelFetch(Command):
    """Stop trying."""

    origin: SiteName
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Discard(Command):
    """Delete a received artifact; it was used, or nothing will use it."""

    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Announce(Command):
    """Beat to every peer now: the phase that begins matters to them."""


@dataclass(frozen=True, slots=True)
class WakeAt(Command):
    """Send ``Ticked`` at this time of the monotonic clock; the newest replaces the one before."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Exit(Command):
    """Everything is on disk: end the daemon. ``fault`` is empty when the site leaves in order."""

    fault: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One received (or own, or cached) artifact that a round uses, as the journal keeps it.

    ``round`` is the round it was made for; ``fallback`` is empty when it is the scheduled one.
    """

    origin: SiteName
    round: int
    artifact: Artifact
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Initialise(Command):
    """Build the local model from its seed, check the data, write the first checkpoint and artifact."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Train(Command):
    """Run one training stage from the checkpoint ``base``; the sources are in roster order.

    ``circulate`` names the owner of the visiting model when the round only moves models on: then that model, not the
    local one, is trained and becomes the artifact.
    """

    generation: int
    round: int
    attempt: int
    stage: str
    base: str
    sources: tuple[Source, ...]
    circulate: SiteName | None = None


@dataclass(frozen=True, slots=True)
class Aggregate(Command):
    """Average the shared module over the own state and the sources, in roster order."""

    generation: int
    round: int
    attempt: int
    base: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Adopt(Command):
    """Replace the local model by the copy that came home."""

    generation: int
    round: int
    attempt: int
    base: str
    source: Source


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    """Measure what the site predicts with on the local test split: its networks, and the heads that it holds.

    Where it is to be ``lent``, also write the local model as an artifact, for other sites to measure.
    """

    generation: int
    round: int
    attempt: int
    base: str
    sources: tuple[Source, ...] = ()
    lent: bool = False


@dataclass(frozen=True, slots=True)
class Measure(Command):
    """Measure a guest, another site's model, on the local test split, beside the training and never in its way."""

    generation: int
    round: int
    attempt: int
    source: Source


@dataclass(frozen=True, slots=True)
class Dismiss(Command):
    """Measure no guest any more; what is being measured is broken off."""


@dataclass(frozen=True, slots=True)
class SendReport(Command):
    """Tell a site once how its model did here."""

    attempt: int
    site: SiteName
    report: EvaluationResult


@dataclass(frozen=True, slots=True)
class Rehearse(Command):
    """Try a step of everything that a round does, with this site's own artifact in place of the others'.

    A preflight's order: nothing that comes of it is kept.
    """

    generation: int
    attempt: int
    others: tuple[SiteName, ...]


@dataclass(frozen=True, slots=True)
class Halt(Command):
    """Write a checkpoint where the work stands and stop working."""

    generation: int
    attempt: int
