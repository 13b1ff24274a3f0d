"""What a method does, as plain data: the torch-free daemon and the trainer read the same table.

A round runs through the plan's phases in order. ``exchange`` waits for other sites' artifacts, ``aggregate`` averages
them in the worker, ``train`` (or ``train:<stage>``) is one training stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Pattern = Literal["permutation", "circulate", "all_to_all", "none"]
Kind = Literal["model", "head", "proxy", "messenger"]
Unit = Literal["step", "epoch"]
Shared = Literal["maybe", "itself", "beside"]
Value = bool | int | float | str | tuple[int, ...] | tuple[str, ...]

SHARE_SLACK = 1e-9
"""0.29 of 100 rounds are 29, although the product in floating point is a little less."""

KINDS: tuple[Kind, ...] = ("model", "head", "proxy", "messenger")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter of a method: its default, its bounds, and what it means."""

    default: Value
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Value, ...] | None = None

    def problem(self, value: object) -> str | None:
        """Why the value is not allowed, or nothing."""
        if isinstance(self.default, tuple):
            if not isinstance(value, list | tuple) or not value:
                return f"must be a non-empty list, not {value!r}"
            wrong = [item for item in value if self.choices is not None and item not in self.choices]
            return f"{wrong[0]!r} is none of {', '.join(map(str, self.choices or ()))}" if wrong else None
        if isinstance(self.default, bool) or isinstance(value, bool):
            return None if isinstance(value, bool) and isinstance(self.default, bool) else f"{value!r} has a wrong type"
        if isinstance(self.default, str):
            if not isinstance(value, str):
                return f"must be a string, not {value!r}"
        elif not isinstance(value, int if isinstance(self.default, int) else int | float):
            return f"must be {'an integer' if isinstance(self.default, int) else 'a number'}, not {value!r}"
        if self.choices is not None and value not in self.choices:
            return f"{value!r} is none of {', '.join(map(str, self.choices))}"
        if self.minimum is not None and isinstance(value, int | float) and not value >= self.minimum:
            return f"{value} is below {self.minimum}"
        if self.maximum is not None and isinstance(value, int | float) and not value <= self.maximum:
            return f"{value} is above {self.maximum}"
        return None


@dataclass(frozen=True, slots=True)
class Work:
    """How long one training stage lasts and how it steps; the paper's figures are the defaults.

    ``decay`` multiplies the learning rate from round to round.
    """

    unit: Unit
    count: int
    learning_rate: float
    weight_decay: float = 0.0
    decay: float = 1.0

    def in_round(self, round: int) -> Work:
        """The work of round t: its learning rate has decayed t - 1 times."""
        return replace(self, learning_rate=self.learning_rate * self.decay ** (round - 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """The choreography of one method.

    ``published`` names the phase after which the artifact appears: ``commit`` is the end of the round before the one
    that consumes it, a stage's name is that stage of the same round. ``cached`` keeps the last artifact of every peer.
    ``stays`` says what of a site's prediction cannot be lent, where a model may leave that is not all of it.
    ``shared`` says what ``[shared_model]`` is: a network ``beside`` the local one, the local one ``itself``, or
    (``maybe``) the local one if the federation chooses to be homogeneous; ``shared_default`` names it where the file
    has none. ``not_for`` are the tasks for which the method is not defined.
    """

    pattern: Pattern
    artifact: Kind | None
    state: str
    published: str | None
    phases: tuple[str, ...]
    stages: Mapping[str, Work]
    never_leaves: tuple[Kind, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    cached: bool = False
    shared: Shared = "maybe"
    shared_default: Mapping[str, str] = field(default_factory=dict)
    not_for: tuple[str, ...] = ()
    stays: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Freeze the tables, and refuse a plan whose phases and stages disagree."""
        named = {phase.removeprefix("train:") for phase in self.phases if phase.startswith("train")}
        if named != set(self.stages):
            raise ValueError(f"phases name the stages {sorted(named)}, the table has {sorted(self.stages)}")
        object.__setattr__(self, "stages", MappingProxyType(dict(self.stages)))
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    @property
    def evaluation_denied(self) -> str | None:
        """Why the model that a site predicts with is evaluated at no other site; nothing where it may be."""
        if "model" in self.never_leaves:
            return "the method lets no private model leave its site"
        return self.stays or None

    def defaults(self) -> dict[str, Value]:
        """Every parameter at its default."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    def problems(self, parameters: Mapping[str, object]) -> list[tuple[str, str]]:
        """What is wrong with these parameters: (name, reason) pairs; unknown names have the reason ``unknown``."""
        found = []
        for name, value in parameters.items():
            known = self.parameters.get(name)
            reason = "unknown" if known is None else known.problem(value)
            if reason is not None:
                found.append((name, reason))
        return found


DENSE = {
    "segmentation_loss": Parameter(
        "dice_ce", "supervised loss of segmentation; other tasks have one", choices=("dice_ce", "dice", "ce")
    ),
}
DICE = {"segmentation_loss": replace(DENSE["segmentation_loss"], default="dice")}
CE = {"segmentation_loss": replace(DENSE["segmentation_loss"], default="ce")}

FEDSKD_PARAMETERS = {
    "gamma": Parameter(1.0, "weight of the similarity distillation; the paper uses 1 (FedASD) and 100 (FedSkin)", 0.0),
    "terms": Parameter(
        ("batch", "position", "region"),
        "similarity terms that are summed; region needs masks at the site and is left out without them",
        choices=("batch", "position", "region"),
    ),
    "taps": Parameter((1, 2, 3, 4), "stages that are compared, 1 = shallowest", choices=tuple(range(1, 17))),
    "activation": Parameter(
        0.0, "share of the rounds that only circulate models before distillation starts (rho)", 0.0, 1.0
    ),
    "position_form": Parameter("auto", "form of the position similarity", choices=("auto", "direct", "linear")),
    "accumulate": Parameter("float32", "precision of the similarity sums", choices=("float32", "float64")),
    **DENSE,
}
MH_PFLID_PARAMETERS = {
    "injection": Parameter(0.9, "injection's weight of the local model's loss; the messenger's has the rest", 0.0, 1.0),
    "distillation": Parameter(
        0.9, "weight of the messenger's supervised loss in distillation; the divergence has the rest", 0.0, 1.0
    ),
    "receiver": Parameter("attention", "addition is the ablation", choices=("attention", "addition")),
    "transmitter": Parameter("attention", "addition is the ablation", choices=("attention", "addition")),
    "tie": Parameter(False, "one set of weights for receiver and transmitter, as the authors' code has it"),
    "average": Parameter("both", "part of the messenger that is sent and averaged", choices=("both", "body", "head")),
    "temperature": Parameter(1.0, "outputs are divided by it in the supervised losses; the authors run 4 and 2", 0.1),
    **DICE,
}
FEDDAL_PARAMETERS = {
    "top": Parameter(1, "classes that the proxy feeds back (v); the paper uses 2 on Fed-ISIC", 1),
    "backward": Parameter(
        "feeding", "transfer is the ablation that passes the distribution", choices=("feeding", "transfer")
    ),
    "consensus": Parameter("jaccard", "weight of the feeding; one is the ablation", choices=("jaccard", "one")),
    "alternating": Parameter(True, "both steps on each batch; false: all batches for the proxy, then for the private"),
    "proxy_supervision": Parameter(0.0, "weight of the labels in the proxy's loss", 0.0),
    "forward_kl_updates_private": Parameter(False, "the composite loss as printed"),
    **CE,
}
MIXTURE_PARAMETERS = {
    "mixing": Parameter("attention", "gate is the ablation without the paper's mixture", choices=("attention", "gate")),
    "attention": Parameter("per_pixel", "queries of dense tasks", choices=("per_pixel", "per_sample")),
    "detach": Parameter(False, "no gradient from the mixture into the body"),
    **DENSE,
}
DFLMOE_PARAMETERS = {
    **MIXTURE_PARAMETERS,
    "transform": Parameter(True, "false is the ablation without the transform; features must be equally wide then"),
}

WEIGHT_DECAY = 1e-4  # of Adam, in the code of the MH-pFLID and FedDAL authors

DFLMOE = Plan(
    pattern="all_to_all",
    artifact="head",
    state="the local model's head: parameters and buffers",
    published="local",
    phases=("train:local", "exchange", "train:decide"),
    stages={
        "local": Work("epoch", 4, 1e-3, WEIGHT_DECAY),
        "decide": Work("epoch", 1, 1e-4, WEIGHT_DECAY),
    },
    never_leaves=("model",),
    parameters=DFLMOE_PARAMETERS,
    cached=True,
    source="dFLMoE, CVPR 2025",
)
FEDAVG = Plan(
    pattern="all_to_all",
    artifact="model",
    state="the one model of all: parameters and buffers",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("step", 5, 1e-4)},
    never_leaves=(),
    parameters=DENSE,
    shared="itself",
    source="FedAvg, AISTATS 2017, without its server",
)

PLANS: dict[str, Plan] = {
    "local": Plan(
        pattern="none",
        artifact=None,
        state="",
        published=None,
        phases=("train",),
        stages={"train": Work("step", 20, 1e-4)},
        never_leaves=KINDS,
        parameters=DENSE,
        source="every paper's lower bound",
    ),
    "fedskd": Plan(
        pattern="permutation",
        artifact="model",
        state="the whole local model: parameters and buffers",
        published="commit",
        phases=("exchange", "train"),
        stages={"train": Work("step", 20, 1e-4)},
        never_leaves=(),
        parameters=FEDSKD_PARAMETERS,
        source="FedSKD, arXiv 2503.18981",
    ),
    "mh_pflid": Plan(
        pattern="all_to_all",
        artifact="messenger",
        state="the messenger: parameters and buffers",
        published="distill",
        phases=("train:inject", "train:distill", "exchange", "aggregate"),
        stages={
            "inject": Work("epoch", 4, 1e-4, WEIGHT_DECAY),
            "distill": Work("epoch", 1, 1e-5, WEIGHT_DECAY),
        },
        never_leaves=("model", "head"),
        parameters=MH_PFLID_PARAMETERS,
        shared="beside",
        shared_default={task: f"messenger_{task}" for task in ("classification", "segmentation", "time_series")},
        source="MH-pFLID, ICML 2024",
    ),
    "feddal": Plan(
        pattern="all_to_all",
        artifact="proxy",
        state="the proxy: parameters and buffers",
        published="train",
        phases=("train", "exchange", "aggregate"),
        stages={"train": Work("epoch", 5, 1e-4, WEIGHT_DECAY)},
        never_leaves=("model", "head"),
        parameters=FEDDAL_PARAMETERS,
        shared="beside",
        not_for=("super_resolution",),
        source="FedDAL",
    ),
    "dflmoe": DFLMOE,
    "dflmoe_models": replace(
        DFLMOE,
        artifact="model",
        state="the whole local model: parameters and buffers",
        never_leaves=(),
        parameters=MIXTURE_PARAMETERS,
        stays="a site predicts with a mixture of all sites' models, of which none is the whole",
        source="dFLMoE, table 8: whole models as experts",
    ),
    "dflmoe_averaged": replace(
        DFLMOE,
        state="the local model's head, and the transform and attention that mix: parameters and buffers",
        source="dFLMoE, table 9: centralized MoE and FST, without a server",
    ),
    "fedcross": Plan(
        pattern="circulate",
        artifact="model",
        state="the model that is passed on: parameters and buffers",
        published="commit",
        phases=("exchange", "train"),
        stages={"train": Work("step", 20, 1e-4)},
        never_leaves=(),
        parameters=DENSE,
        source="FedCross, and FedCross-het of the FedSKD paper",
    ),
    "proxyfl": Plan(
        pattern="permutation",
        artifact="proxy",
        state="the proxy: parameters and buffers",
        published="train",
        phases=("train", "exchange", "aggregate"),
        stages={"train": Work("epoch", 1, 1e-3, WEIGHT_DECAY)},
        never_leaves=("model", "head"),
        parameters={"alpha": Parameter(0.5, "weight of learning from the other network", 0.0, 1.0), **CE},
        shared="beside",
        not_for=("super_resolution",),
        source="ProxyFL, Nature Communications 2023",
    ),
    "fedavg": FEDAVG,
    "fedprox": replace(
        FEDAVG,
        parameters={"mu": Parameter(0.01, "pull towards the mean that the round began with", 0.0), **DENSE},
        source="FedProx, MLSys 2020, without its server",
    ),
    "fedbn": replace(
        FEDAVG,
        state="the one model of all without its normalisation layers",
        stays="each site's normalisation layers stay there",
        source="FedBN, ICLR 2021, without its server",
    ),
    "lg_fedavg": replace(
        FEDAVG,
        artifact="head",
        state="the local model's head: parameters and buffers",
        never_leaves=("model",),
        shared="maybe",
        source="LG-FedAvg, arXiv 2001.01523, without its server; dFLMoE, table 9: aggregated head",
    ),
}


def pattern(plan: Plan, *, round: int, rounds: int, parameters: Mapping[str, object]) -> Pattern:
    """The exchange pattern of one round: a method with an activation round circulates before it.

    Args:
        plan: the method's plan.
        round: t, from 1.
        rounds: T.
        parameters: the federation's; ``activation`` is the share of rounds that circulate.
    """
    return "circulate" if round <= circulating(plan, rounds=rounds, parameters=parameters) else plan.pattern


def circulating(plan: Plan, *, rounds: int, parameters: Mapping[str, object]) -> int:
    """After how many rounds the slots go back to their owners; 0 where nothing circulates."""
    if plan.pattern == "circulate":
        return rounds
    share = parameters.get("activation", 0.0) if "activation" in plan.parameters else 0.0
    return math.floor(share * rounds + SHARE_SLACK) if isinstance(share, int | float) else 0
