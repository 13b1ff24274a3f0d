"""What a method does, as plain data: the torch-free daemon and the trainer read the same table.

A round runs through the plan's phases in order. ``exchange`` waits for other sites' artifacts, ``aggregate`` averages
them in the worker, ``train`` (or ``train:<stage>``) is one training stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Pattern = Literal["permutation", "circulate", "all_to_all", "none"]
Kind = Literal["model", "head", "proxy", "messenger"]
Unit = Literal["step", "epoch"]
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
    """How long one training stage lasts and how it steps; the paper's figures are the defaults."""

    unit: Unit
    count: int
    learning_rate: float
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The choreography of one method.

    ``published`` names the phase after which the artifact appears: ``commit`` is the end of the round before the one
    that consumes it, a stage's name is that stage of the same round. ``cached`` keeps the last artifact of every peer.
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
    source: str = ""

    def __post_init__(self) -> None:
        """Freeze the tables, and refuse a plan whose phases and stages disagree."""
        named = {phase.removeprefix("train:") for phase in self.phases if phase.startswith("train")}
        if named != set(self.stages):
            raise ValueError(f"phases name the stages {sorted(named)}, the table has {sorted(self.stages)}")
        object.__setattr__(self, "stages", MappingProxyType(dict(self.stages)))
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

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
}

PLANS: dict[str, Plan] = {
    "local": Plan(
        pattern="none",
        artifact=None,
        state="",
        published=None,
        phases=("train",),
        stages={"train": Work("step", 20, 1e-4)},
        never_leaves=("model", "head", "proxy", "messenger"),
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
