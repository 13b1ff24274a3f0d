"""Everything that can happen to a site, in the past tense. Nothing here does anything.

Events that answer a command carry the (generation, round, attempt) of that command; one that does not match what the
site is doing now is ignored. Events of the worker travel as JSON lines (``peer.core.worker_protocol``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.core.messages import Artifact, EvaluationResult, Heartbeat, Hello, Purpose, Unavailable
from peer.core.roster import Sha256, SiteName

FAULTS = ("memory", "data", "configuration", "crash")
"""What made the worker fail, by whose hands it can be mended."""
Answer = Literal["taken", "refused", "none"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Began(Event):
    """The daemon runs: its lock is held, its server listens, its journal is read."""


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """Time passed; whatever was due is due now."""


@dataclass(frozen=True, slots=True)
class PauseRequested(Event):
    """The operator wants the site to stop training and keep serving."""


@dataclass(frozen=True, slots=True)
class ResumeRequested(Event):
    """The operator wants a paused site to go on."""


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The operator, or a signal, wants the daemon to leave cleanly."""


@dataclass(frozen=True, slots=True)
class PeerGreeted(Event):
    """A peer passed Hello in either direction: same protocol, same federation, same roster."""

    site: SiteName
    greeting: Hello


@dataclass(frozen=True, slots=True)
class PeerHeard(Event):
    """An authenticated byte came from a peer; with its state where it was a beat."""

    site: SiteName
    pulse: Heartbeat | None = None


@dataclass(frozen=True, slots=True)
class PeerRefused(Event):
    """A peer broke the protocol or belongs to another federation; the reason names what differs."""

    site: SiteName
    reason: str


@dataclass(frozen=True, slots=True)
class ArtifactArrived(Event):
    """A fetched artifact is on disk, its digest and manifest verified."""

    generation: int
    round: int
    attempt: int
    origin: SiteName
    origin_generation: int
    true_round: int
    purpose: Purpose
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class ArtifactUnavailable(Event):
    """The origin answered that it has no such artifact, and will not have it in this round."""

    generation: int
    round: int
    attempt: int
    origin: SiteName
    purpose: Purpose
    answer: Unavailable


@dataclass(frozen=True, slots=True)
class ArtifactRefused(Event):
    """What came was not acceptable: digest, signature, names, shapes, values, size or turn."""

    generation: int
    round: int
    attempt: int
    origin: SiteName
    purpose: Purpose
    reason: str


@dataclass(frozen=True, slots=True)
class Initialised(Event):
    """The local model exists in its initial state; ``state`` names the checkpoint, ``artifact`` what may be shared."""

    generation: int
    attempt: int
    state: str
    artifact: Artifact | None
    samples: Mapping[str, int]
    threads: int
    device: str


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """A training stage moved; ``losses`` are the terms of the newest step."""

    generation: int
    round: int
    attempt: int
    stage: str
    step: int
    steps: int
    losses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trained(Event):
    """A training stage is over and its checkpoint is on disk."""

    generation: int
    round: int
    attempt: int
    stage: str
    state: str
    artifact: Artifact | None
    metrics: Mapping[str, float]
    threads: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Aggregated(Event):
    """The shared module is the mean of its contributors; the checkpoint is on disk."""

    generation: int
    round: int
    attempt: int
    state: str
    sha256: Sha256
    contributors: tuple[SiteName, ...]


@dataclass(frozen=True, slots=True)
class Adopted(Event):
    """The site's own model came home and replaced the local state."""

    generation: int
    round: int
    attempt: int
    state: str
    artifact: Artifact | None


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The local model's metrics on the local test split; empty without one; ``artifact`` is what may be lent."""

    generation: int
    round: int
    attempt: int
    metrics: Mapping[str, float]
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """A guest's metrics on the local test split, or why it was ``refused`` before it was run."""

    generation: int
    round: int
    attempt: int
    metrics: Mapping[str, float]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MeasurementFailed(Event):
    """A guest could not be measured; the training knows nothing of it. ``fault`` is as of ``WorkFailed``."""

    generation: int
    attempt: int
    fault: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportArrived(Event):
    """A site says how a model of this site did there."""

    site: SiteName
    report: EvaluationResult


@dataclass(frozen=True, slots=True)
class ReportAnswered(Event):
    """A report was taken, refused for a reason, or not answered."""

    attempt: int
    site: SiteName
    answer: Answer
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsed(Event):
    """Every part of a round was tried: the seconds of a step by stage, and what a round of them would take.

    ``memory_bytes`` is the largest amount that was held on the device (on a CPU: by the process), ``available_bytes``
    what there was for it before; ``artifact_bytes`` is the size of what the site will send, 0 where it sends nothing.
    """

    generation: int
    attempt: int
    device: str
    step_s: Mapping[str, float]
    round_s: float
    memory_bytes: int
    available_bytes: int
    artifact_bytes: int


@dataclass(frozen=True, slots=True)
class Halted(Event):
    """The worker wrote a checkpoint where it stood and does nothing now."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ArtifactRejected(Event):
    """The worker found a received artifact unusable before it reached the device."""

    generation: int
    round: int
    attempt: int
    origin: SiteName
    sha256: Sha256
    reason: str


@dataclass(frozen=True, slots=True)
class WorkFailed(Event):
    """The worker could not do what it was told; ``fault`` is one of ``FAULTS``."""

    generation: int
    attempt: int
    fault: str
    reason: str
