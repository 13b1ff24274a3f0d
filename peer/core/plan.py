"""A method's plan: plain data that the torch-free daemon and the worker read alike.

A round runs through the plan's phases in order. ``exchange`` waits for other sites' artifacts, ``aggregate`` averages
them in the worker, ``train`` (or ``train:<stage>``) is one training stage. If models visit, ``returns`` waits for
copies of the own model that other sites have trained, and ``aggregate`` averages them with the local model.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Literal

from peer.core.kinds import KINDS as KINDS
from peer.core.kinds import Kind as Kind

Pattern = Literal["permutation", "circulate", "all_to_all", "visit", "none"]
Unit = Literal["step", "epoch"]
AggregateRule = Literal["mean", "capped", "trimmed_mean", "median"]
Wire = Literal["float32", "bfloat16"]
Shared = Literal["maybe", "itself", "beside"]
Value = bool | int | float | str | tuple[int, ...] | tuple[str, ...]

SHARE_SLACK = 1e-9
"""0.29 of 100 rounds are 29 rounds, although the floating-point product is slightly less."""

METHOD_KEYS = ("name", "package")
"""Keys of the table ``[method]`` that are not parameters."""
OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter of a method: its default, its bounds, and what it means."""

    default: Value
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Value, ...] | None = None

    def problem(self, value: object) -> str | None:
        """Return why the value is not allowed; ``None`` if it is."""
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
    """The length of one training stage, and its optimiser's settings; the defaults are the paper's.

    ``decay`` multiplies the learning rate from round to round.
    """

    unit: Unit
    count: int
    learning_rate: float
    weight_decay: float = 0.0
    decay: float = 1.0

    def in_round(self, round: int) -> Work:
        """Return the work of round t, whose learning rate has decayed t - 1 times."""
        return replace(self, learning_rate=self.learning_rate * self.decay ** (round - 1))


@dataclass(frozen=True, slots=True)
class Learning:
    """What one optimiser step on a batch learns from the people of this site.

    Attributes:
        trains: the networks that the step trains, by name; a visiting model is ``visitor``.
        reads: the networks beside those that its losses use, and that the people of this site may have shaped.
        computes: the networks that it changes without an optimiser, from gradients with noise, from networks, and from
            no sample itself: control variates, predictions of public images.
    """

    trains: tuple[str, ...]
    reads: tuple[str, ...] = ()
    computes: tuple[str, ...] = ()

    @property
    def changes(self) -> set[str]:
        """The networks that are others after the step."""
        return {*self.trains, *self.computes}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The choreography of one method.

    Attributes:
        implementation: the object with the stages, as ``module:OBJECT``: a ``peer.methods.method.Method``. Only the
            worker imports that module.
        pattern: which sites receive an artifact from which in a round.
        artifact: what a site sends.
        state: the part of the network that it sends, in words.
        published: the phase after which the artifact appears: ``commit`` is the end of the round before the one that
            consumes it, a stage's name is that stage of the same round.
        phases: of a round, in order.
        stages: how long each training stage lasts.
        steps_per_site: by stage, its optimiser steps in a round for each site of the roster, if the paper counts so;
            ``federation create`` writes the product as the stage's ``count``.
        never_leaves: the kinds of artifact that no setting of a site can release.
        parameters: the keys of ``[method]`` beside its name.
        circulating_share: the parameter that holds the share of the rounds, from the first one on, that only circulate
            models before ``pattern`` starts.
        last_round: the phases of the federation's last round, if the plan has others for it: every site trains at home,
            and exchanges nothing.
        visits: the parameter that holds how many sites train a copy of each model in a round of the pattern ``visit``.
        keeps_last_received: whether a site keeps the last artifact of every peer, and uses it if no newer one arrived.
        uses_each: whether a site uses what another sent by itself, beside the mean.
        takes_older: whether the method is still valid with artifacts that are one round older: ``[schedule]
            staleness``.
        shared: what ``[shared_model]`` is: a network ``beside`` the local one, the local one ``itself``, or (``maybe``)
            the local one if the federation chooses to be homogeneous.
        shared_default: by task, the network for a missing ``[shared_model]``.
        not_for: the kinds of tasks, and the targets, for which the method is not defined.
        why_not: by some of them, the reason.
        stays: the part of a site's prediction that cannot be lent, if the model that may leave is only a part of it.
        fixed_sites: whether networks have a place for each site of federation.toml, and none for a site that an
            amendment adds.
        public: whether sites predict a public set of images, of which each has a copy.
        predicts: whether sites have a model to predict with afterwards; a method without one has one round.
        source: the paper.
        travels: the networks that leave the site, whole or in part.
        keeps: the part that stays of a network that leaves in part, if no other name in ``learning`` says it.
        learning: by stage, its optimiser steps on a batch. Without it, a federation with noise refuses the plan. Losses
            of one step that share no network may be two entries.
        personal: the networks that stay and train without noise; a plan in which what travels learns from one is
            refused.
        couples: the parameters, each with the values, for which a loss of one person depends on the data of others:
            compared samples, the classes of the site, their number.
        unnoised: why no noise makes private what the method sends; empty if it does.
        sensitivity: of a method that sends sums over people, the largest L2 norm by which one person changes them. The
            stage that publishes them then adds the noise, once; 0 where steps add it to gradients.
        everybody: whether such sums are of the people of all splits, and not of the training samples alone.
        final_rates: by stage, the share of its learning rate that is left in the last round. The rate falls by the same
            factor from round to round: the stage's ``decay``, where the file has none.
        earlier_defaults: by path in federation.toml (``method.visits``, ``stages.train.learning_rate``), the default in
            earlier releases of what has another one now. A federation that was founded without the key goes on with
            it; ``federation create`` writes the key.
    """

    implementation: str
    pattern: Pattern
    artifact: Kind | None
    state: str
    published: str | None
    phases: tuple[str, ...]
    stages: Mapping[str, Work]
    never_leaves: tuple[Kind, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    steps_per_site: Mapping[str, int] = field(default_factory=dict)
    circulating_share: str | None = None
    last_round: tuple[str, ...] = ()
    visits: str | None = None
    keeps_last_received: bool = False
    uses_each: bool = False
    takes_older: bool = False
    shared: Shared = "maybe"
    shared_default: Mapping[str, str] = field(default_factory=dict)
    not_for: tuple[str, ...] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    stays: str = ""
    fixed_sites: bool = False
    public: bool = False
    predicts: bool = True
    source: str = ""
    travels: tuple[str, ...] = ()
    keeps: str = ""
    learning: Mapping[str, tuple[Learning, ...]] = field(default_factory=dict)
    personal: tuple[str, ...] = ()
    couples: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    unnoised: str = ""
    sensitivity: float = 0.0
    everybody: bool = False
    final_rates: Mapping[str, float] = field(default_factory=dict)
    earlier_defaults: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the tables; raise ``ValueError`` for a plan that contradicts itself."""
        if not OBJECT.fullmatch(self.implementation):
            raise ValueError(f"implementation must be module:OBJECT, not {self.implementation!r}")
        named = self.stages_of(self.phases) | self.stages_of(self.last_round)
        if named != set(self.stages):
            raise ValueError(f"phases name the stages {sorted(named)}, the table has {sorted(self.stages)}")
        if not self.steps_per_site.keys() <= self.stages.keys():
            raise ValueError(
                f"steps_per_site names {', '.join(self.steps_per_site)}; the table has {sorted(self.stages)}"
            )
        if not all(phase.startswith("train") for phase in self.last_round):
            raise ValueError(f"last_round only trains, and has {', '.join(self.last_round)}")
        if reserved := self.parameters.keys() & METHOD_KEYS:
            raise ValueError(f"a parameter must not be called {min(reserved)!r}: [method] has a key of that name")
        if self.circulating_share is not None and self.circulating_share not in self.parameters:
            raise ValueError(f"circulating_share: there is no parameter {self.circulating_share!r}")
        if (self.pattern == "visit") != (self.visits in self.parameters):
            raise ValueError("the pattern `visit`, and no other, has a parameter that holds the number of visits")
        if self.pattern == "visit" and self.phases[-2:] != ("returns", "aggregate"):
            raise ValueError("a round in which models visit ends with returns and aggregate")
        if self.learning and self.learning.keys() != self.stages.keys():
            raise ValueError(f"learning names the stages {sorted(self.learning)}, the table has {sorted(self.stages)}")
        if self.learning and (unknown := set(self.travels) - self._changed):
            raise ValueError(f"travels: no stage whose results may leave changes the network {min(unknown)!r}")
        if read := self.noised.intersection(self.personal):
            raise ValueError(f"personal: what travels learns from the network {min(read)!r}, which has no noise")
        if self.sensitivity and (self.artifact != "sums" or self.published not in self.stages):
            raise ValueError("sensitivity is of sums that a stage publishes")
        if self.everybody and not self.sensitivity:
            raise ValueError("everybody is of sums that have a sensitivity")
        if unknown := self.final_rates.keys() - self.stages.keys():
            raise ValueError(f"final_rates: there is no stage {min(unknown)!r}")
        keys = {f"method.{name}" for name in self.parameters}
        keys |= {f"stages.{stage}.{each.name}" for stage in self.stages for each in fields(Work)}
        if unknown := self.earlier_defaults.keys() - keys:
            raise ValueError(f"earlier_defaults: there is no key {min(unknown)!r}")
        if unknown := self.couples.keys() - self.parameters.keys():
            raise ValueError(f"couples: there is no parameter {min(unknown)!r}")
        object.__setattr__(self, "stages", MappingProxyType(dict(self.stages)))
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        object.__setattr__(self, "steps_per_site", MappingProxyType(dict(self.steps_per_site)))
        object.__setattr__(self, "learning", MappingProxyType(dict(self.learning)))
        object.__setattr__(self, "couples", MappingProxyType(dict(self.couples)))
        object.__setattr__(self, "final_rates", MappingProxyType(dict(self.final_rates)))
        object.__setattr__(self, "earlier_defaults", MappingProxyType(dict(self.earlier_defaults)))

    def default_decay(self, stage: str, rounds: int) -> float:
        """Return what a stage's learning rate is multiplied by from round to round of so many."""
        decay: float = self.final_rates.get(stage, 1.0) ** (1 / max(1, rounds - 1))
        return round(decay, 4)

    @staticmethod
    def stages_of(phases: tuple[str, ...]) -> set[str]:
        """Return the training stages among these phases."""
        return {phase.removeprefix("train:") for phase in phases if phase.startswith("train")}

    @property
    def sends(self) -> tuple[Kind, ...]:
        """The kinds of artifacts that a site sends to other sites."""
        if self.artifact is None:
            return ()
        return (self.artifact, "return") if self.pattern == "visit" else (self.artifact,)

    @functools.cached_property
    def noised(self) -> frozenset[str]:
        """The networks that train with noise in a private federation: those that leave, and all that these learn from.

        A step that trains one of them may read the person's own sample, what was received, and networks with noise.
        What trains in the last round alone never leaves, if the plan has other phases for that round. Tables that steps
        compute from such networks are among them.
        """
        networks = set(self.travels)
        while True:
            read = {
                name
                for step in self._noised_learning
                if networks & step.changes
                for name in (*step.changes, *step.reads)
            }
            if read <= networks:
                return frozenset(networks)
            networks |= read

    @property
    def noised_stages(self) -> tuple[str, ...]:
        """The stages whose results may leave the site."""
        if self.sensitivity and self.published is not None:
            return (self.published,)
        return tuple(stage for stage in self.learning if stage in self.stages_of(self.phases))

    @property
    def _noised_learning(self) -> list[Learning]:
        return [step for stage in self.noised_stages for step in self.learning.get(stage, ())]

    @property
    def _changed(self) -> set[str]:
        return {name for step in self._noised_learning for name in step.changes}

    @property
    def noised_at_home(self) -> tuple[str, ...]:
        """What trains with noise although it stays: a part of what leaves, and networks by name, ``dam`` as model."""
        trained = {name for step in self._noised_learning for name in step.trains}
        networks = sorted((self.noised & trained) - set(self.travels))
        return (*filter(None, [self.keeps]), *("model" if name == "dam" else name for name in networks))

    def training_problem(self, stage: str, steps: Iterable[tuple[str, ...]]) -> str | None:
        """Return why optimiser steps on a batch, by what each trains, are not those declared; ``None`` if they are.

        A step may train less, as without a visitor.
        """
        trained = [{"visitor" if name.startswith("visitor-") else name for name in trains} for trains in steps]
        declared = [set(step.trains) for step in self.learning[stage]]
        if unknown := set().union(*trained) - set().union(*declared):
            return f"stage {stage!r} trains {', '.join(sorted(unknown))}, which `learning` of its plan does not name"
        most, noised = (sum(1 for names in each if names & self.noised) for each in (declared, trained))
        if noised > most:
            return (
                f"stage {stage!r} takes {noised} steps with noise on a batch, and `learning` of its plan names {most}"
            )
        return None

    def noised_steps(self, counts: Mapping[str, int], rounds: int) -> int:
        """Return how often a site adds noise in so many rounds, given each stage's ``count`` of steps."""
        if self.sensitivity:
            return rounds
        exchanging = rounds - 1 if self.last_round else rounds
        a_batch = {
            stage: sum(1 for step in self.learning[stage] if self.noised & set(step.trains))
            for stage in self.noised_stages
        }
        return exchanging * sum(number * counts[stage] for stage, number in a_batch.items())

    def noise_problem(self, parameters: Mapping[str, object]) -> str | None:
        """Return why noise cannot make private what the method sends; ``None`` if it can."""
        if self.unnoised or self.artifact is None:
            return self.unnoised or "sends nothing"
        if not self.sensitivity and not (self.learning and self.travels):
            return "does not declare what its stages learn from (`learning` and `travels` of its plan)"
        for name, values in self.couples.items():
            if (value := parameters.get(name, self.parameters[name].default)) in values:
                return f"has losses of one person that depend on the data of others with {name} = {value!r}"
        return None

    def staleness_problem(self, parameters: Mapping[str, object]) -> str | None:
        """Return why a site must not use artifacts that are one round older; ``None`` if it may."""
        if self.artifact is None:
            return "sends nothing"
        if self.pattern == "visit":
            return "takes a visiting model home in the round in which it left"
        if self.pattern == "circulate" or parameters.get(self.circulating_share or "", 0.0):
            return "circulates models, and each host trains what the host of the round before has made of one"
        if self.takes_older:
            return None
        if "aggregate" in self.phases:
            return "averages weights, and all sites must average those of one round"
        return "is not made for artifacts that are one round older"

    @property
    def evaluation_denied(self) -> str | None:
        """Why no other site may evaluate the model that a site predicts with; ``None`` if it may."""
        if "model" in self.never_leaves:
            return "the method lets no private model leave its site"
        return self.stays or None

    def defaults(self) -> dict[str, Value]:
        """Return every parameter at its default."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    def problems(self, parameters: Mapping[str, object]) -> list[tuple[str, str]]:
        """List the faults of these parameters as (name, reason) pairs; ``unknown`` for an unknown name."""
        problems = []
        for name, value in parameters.items():
            known = self.parameters.get(name)
            reason = "unknown" if known is None else known.problem(value)
            if reason is not None:
                problems.append((name, reason))
        return problems


def circulating(plan: Plan, *, rounds: int, parameters: Mapping[str, object]) -> int:
    """Return the round after which the slots return to their owners; 0 if no model circulates."""
    if plan.pattern == "circulate":
        return rounds - 1 if plan.last_round else rounds
    share = parameters.get(plan.circulating_share, 0.0) if plan.circulating_share is not None else 0.0
    return math.floor(share * rounds + SHARE_SLACK) if isinstance(share, int | float) else 0


def visits(plan: Plan, *, sites: int, parameters: Mapping[str, object]) -> int:
    """Return how many sites train a copy of each model in a round; 0 if no model visits.

    A roster with fewer other sites lowers the default. ``peer.site.config`` refuses a larger number in a file.
    """
    if plan.visits is None:
        return 0
    value = parameters.get(plan.visits, plan.parameters[plan.visits].default)
    return min(value, sites - 1) if isinstance(value, int) else 0
