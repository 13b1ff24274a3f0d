"""The events of the state machine, in the past tense.

An event that answers a command carries the (generation, round, attempt) of that command. The state
machine ignores an answer that does not match its present order. Events of the worker travel as JSON
lines (``peer.core.worker_protocol``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.core import limits
from peer.core.artifacts import Artifact, EvaluationResult, Purpose
from peer.core.epochs import Epochs
from peer.core.messages import Heartbeat, Hello, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumStatements

FAULTS = ("memory", "data", "configuration", "divergence", "crash", "hang", "disk")
"""Why the worker failed, by where the remedy lies."""
Answer = Literal["taken", "refused", "none"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Began(Event):
    """The daemon runs: it holds its lock, its server listens, its journal is read."""


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """The time of the last ``WakeAt`` has come."""


@dataclass(frozen=True, slots=True)
class PauseRequested(Event):
    """The operator asked the site to stop training and keep serving."""


@dataclass(frozen=True, slots=True)
class ResumeRequested(Event):
    """The operator asked a paused site to go on."""


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The operator, or a signal, asked the daemon to end in order."""


@dataclass(frozen=True, slots=True)
class EpochsLearned(Event):
    """The chain of amendments or the notices of leaving sites have grown, and are on disk.

    The daemon checked them; ``epochs`` are all of them, from the genesis on.
    """

    epochs: Epochs


@dataclass(frozen=True, slots=True)
class PeerGreeted(Event):
    """A peer passed Hello in either direction: same protocol, same federation, same roster.

    ``greeting.seen`` is there only where this site's own signature proves it.
    """

    site: SiteName
    greeting: Hello


@dataclass(frozen=True, slots=True)
class PeerHeard(Event):
    """An authenticated byte arrived from a peer; ``pulse`` is its state if it was a heartbeat."""

    site: SiteName
    pulse: Heartbeat | None = None


@dataclass(frozen=True, slots=True)
class RoundProved(Event):
    """A verified signature shows that a peer has published an artifact for this round."""

    site: SiteName
    round: int


@dataclass(frozen=True, slots=True)
class PeerRefused(Event):
    """A peer broke the protocol or belongs to another federation; the reason names what differs.

    ``declined`` says that the peer refused this site's call, in its own words.
    """

    site: SiteName
    reason: str
    declined: bool = False


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
    """The fetched artifact was refused for its digest, signature, names, shapes, values, size or turn.

    ``blameless`` says that this site's disk had no room for it, or that this program failed: its
    origin is not named. ``declined`` says that the origin itself does not send it here, for a reason
    in its own words.
    """

    generation: int
    round: int
    attempt: int
    origin: SiteName
    purpose: Purpose
    reason: str
    blameless: bool = False
    declined: bool = False


@dataclass(frozen=True, slots=True)
class Initialised(Event):
    """The initial model exists: ``state`` is its checkpoint, ``artifact`` the part that may be shared.

    ``weights`` says how the pretrained weights fit it, if there are any.
    """

    generation: int
    attempt: int
    state: str
    artifact: Artifact | None
    samples: Mapping[str, int]
    threads: int
    device: str
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """A training stage progressed; ``losses`` are the terms of the newest step."""

    generation: int
    round: int
    attempt: int
    stage: str
    step: int
    steps: int
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def told_share(self) -> float:
        """The share of the stage that is done, as heartbeats tell it: in quarters.

        From a finer share peers could count the batches of an epoch, which tell the size of the
        training set.
        """
        levels = limits.PROGRESS_LEVELS
        return min(1.0, max(0.0, levels * self.step // self.steps / levels)) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The order waits for its turn at the GPU, after ``ahead`` others; 0: its turn has come."""

    generation: int
    attempt: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Trained(Event):
    """A training stage is over and its checkpoint is on disk.

    ``returned`` are the models that visited and were trained, one for each owner. ``cohort`` is the
    digest of the people in the site's data (``peer.cohorts``), ``None`` where none is recorded.
    """

    generation: int
    round: int
    attempt: int
    stage: str
    state: str
    artifact: Artifact | None
    metrics: Mapping[str, float]
    threads: int
    duration_s: float
    returned: tuple[Artifact, ...] = ()
    cohort: Sha256 | None = None


@dataclass(frozen=True, slots=True)
class Aggregated(Event):
    """The shared module is the mean of its contributors; the checkpoint is on disk.

    ``cut`` names the sites whose contribution the federation's bounds left out or weighed less,
    each with the reason. ``artifact`` is the result as it may be shared, where the plan publishes it
    at the commit.
    """

    generation: int
    round: int
    attempt: int
    state: str
    sha256: Sha256
    contributors: tuple[SiteName, ...]
    cut: Mapping[SiteName, str] = field(default_factory=dict)
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True)
class Adopted(Event):
    """The site's own model, handed back by a peer, replaced the local state."""

    generation: int
    round: int
    attempt: int
    state: str
    artifact: Artifact | None


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The local model was measured on the local test split; ``metrics`` is empty without one.

    ``artifact`` is the model as it may be lent.
    """

    generation: int
    round: int
    attempt: int
    metrics: Mapping[str, float]
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """A lent model was measured on the local test split, or ``refused`` with a reason before that."""

    generation: int
    round: int
    attempt: int
    metrics: Mapping[str, float]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MeasurementFailed(Event):
    """The evaluation process failed; the training is not affected.

    ``fault`` is as in ``WorkFailed``.
    """

    generation: int
    attempt: int
    fault: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportArrived(Event):
    """A peer reported on a model that this site lends."""

    site: SiteName
    report: EvaluationResult


@dataclass(frozen=True, slots=True)
class ReportAnswered(Event):
    """The peer took a report, refused it for a reason, or did not answer."""

    attempt: int
    site: SiteName
    answer: Answer
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsed(Event):
    """Every part of a round was tried: ``step_s`` by stage, and ``round_s``, the estimate for a
    whole round.

    ``memory_bytes`` is the peak on the device (on a CPU: of the process), ``available_bytes`` was
    free before; ``artifact_bytes`` is the size of the artifact that the site will send, 0 where it
    sends none. ``padding_share`` of the local model's weights see nothing but padding.
    """

    generation: int
    attempt: int
    device: str
    step_s: Mapping[str, float]
    round_s: float
    memory_bytes: int
    available_bytes: int
    artifact_bytes: int
    padding_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Halted(Event):
    """The worker wrote a checkpoint and is idle."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ArtifactRejected(Event):
    """The worker found a received artifact unusable before it loaded it on the device.

    ``lost`` says that its file is gone or damaged, ``short`` that this site had too little memory to
    read it. Neither is its origin's fault.
    """

    generation: int
    round: int
    attempt: int
    origin: SiteName
    sha256: Sha256
    reason: str
    lost: bool = False
    short: bool = False


@dataclass(frozen=True, slots=True)
class WorkFailed(Event):
    """The worker could not carry out its order; ``fault`` is one of ``FAULTS``.

    ``reason`` is journalled, and names no sample. ``detail``, if any, is the reason for the operator of this site.
    """

    generation: int
    attempt: int
    fault: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SumKeyDrawn(Event):
    """This site's secrets of a secure sum are on disk; ``key`` is the public one, 32 bytes."""

    generation: int
    round: int
    attempt: int
    key: bytes


@dataclass(frozen=True, slots=True)
class SumShown(Event):
    """A member has shown its statements on the round's sum; its key is no point of small order.

    ``over``: it has none for this round any more.
    """

    generation: int
    round: int
    attempt: int
    site: SiteName
    statements: SumStatements
    over: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactMasked(Event):
    """The masked artifact is on disk; of its values, ``clipped`` were beyond the ring's bound."""

    generation: int
    round: int
    attempt: int
    artifact: Artifact
    clipped: int


@dataclass(frozen=True, slots=True)
class MaskedAdded(Event):
    """The sum of the contributors' artifacts is on disk."""

    generation: int
    round: int
    attempt: int
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class SumFailed(Event):
    """The artifact could not be masked, or the masked ones not added up."""

    generation: int
    round: int
    attempt: int
    reason: str


WorkResult = Initialised | Trained | Aggregated | Adopted | Evaluated
"""The answers with which the worker hands over what it made for an order."""


def made_artifacts(result: WorkResult) -> list[Artifact]:
    """Return the artifacts that the worker made for an order."""
    returned = result.returned if isinstance(result, Trained) else ()
    return [artifact for artifact in (result.artifact, *returned) if artifact is not None]
