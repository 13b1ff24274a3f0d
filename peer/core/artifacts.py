"""Artifacts, tensors, sources, and the metrics of a lent model: what messages, commands and journal rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from peer.core.json_codec import LEFT_OUT
from peer.core.kinds import Kind
from peer.core.leak import Leak
from peer.core.privacy import Spending
from peer.core.roster import Sha256, SiteName

Purpose = Literal["train", "handback", "evaluate", "return"]
PURPOSES: tuple[Purpose, ...] = ("train", "handback", "evaluate", "return")

DTYPES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Element types that a safetensors file from another site may have, with their bytes."""


Unmeasured = Literal["", "withheld", "not_received", "refused", "failed"]
UNMEASURED: tuple[Unmeasured, ...] = ("withheld", "not_received", "refused", "failed")
"""Why a site reports no metrics of a lent model: fixed words, since free text could leak data."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of an artifact."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A safetensors file that a worker wrote, named by its digest.

    ``steps`` counts the optimiser steps of the model. ``owner`` is the site whose model it is: the
    writer itself, except in circulating rounds and for a ``return``: a visiting model that the writer trained.
    The list of tensors is in the file's header, and in the manifest. ``leak`` is what an attack here learnt from an
    artifact of this site, ``None`` where it was not measured; ``spent`` what has left of a person's privacy with it, in
    a private federation. No message has them but for the federation's own part of what was spent.

    ``commitments`` are those of a masked artifact to the seeds of its masks, by site, as ``peer.core.secure_sum`` has
    them; ``None``: it is not masked.
    """

    kind: Kind
    owner: SiteName
    sha256: Sha256
    bytes: int
    steps: int
    spec: Mapping[str, Any]
    training_samples: int | None = None
    leak: Leak | None = field(default=None, compare=False, metadata=LEFT_OUT)
    commitments: Mapping[SiteName, Sha256] | None = field(default=None, metadata=LEFT_OUT)
    spent: Spending | None = field(default=None, compare=False, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Source:
    """An artifact that a round uses: received in this round, from an earlier one, or the site's
    own.

    ``round`` is the round that it was published for; ``fallback`` is empty when it is the scheduled
    artifact.
    """

    origin: SiteName
    round: int
    artifact: Artifact
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The metrics of a site's model of a round on another site's test split, in sums only.

    ``generation`` is that of the site whose model it is. ``sha256`` is the digest of the measured
    model, ``None`` only where the model was not received. ``samples`` is the size of the split.
    """

    generation: int
    round: int
    sha256: Sha256 | None
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    unmeasured: Unmeasured = ""
