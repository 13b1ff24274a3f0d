"""The table ``[privacy]`` of federation.toml, and what it demands of the other tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from models.spec import HYPER
from peer.core.plan import Plan, Value
from peer.core.privacy import EPSILON_MAX, Noise
from peer.site.config.aggregate_table import AggregateConfig
from peer.site.config.site_tables import EgressConfig, ModelConfig, TrainingConfig
from peer.site.config.toml import Count, Positive, StrictTable

LOCAL = frozenset({"dam", "head", "visitor"})
"""The networks of a plan that are ``[model]``, or a part of such a one."""
SIGMA_MAX = 1e6
"""In units of the clipping norm; with more noise nothing is learnt."""
DELTA_SHARE_MAX = 0.1
"""The largest delta for n people, in 1 / n: one in ten such cohorts may lose one person's data entirely."""

NO_AGGREGATE = AggregateConfig()


class NoiseConfig(StrictTable):
    """``[privacy]`` of federation.toml: noise on what leaves, with a guarantee for each person."""

    mechanism: Literal["none", "noise"] = "none"
    """With "noise", every step of a network that leaves, or from which such a network learns, clips the gradient of
    each person (the `subject` of the datalist; without one, each sample) and adds Gaussian noise to their sum. All
    people of a site are in each step, so that an epoch is one step. What never leaves trains without noise.
    `pooled_head` and `statistics` add noise to their sums once; with `[aggregate] secure` and `members_min`, sites
    share that noise."""
    epsilon: Annotated[float, Field(gt=0, le=EPSILON_MAX)] | None = None
    """With `mechanism`: what all rounds together keep to: (epsilon, delta)-differential privacy of one person more or
    less, against everybody outside the site; where sites share the noise, against `colluders_max` of the others."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """With `mechanism`: see `epsilon`. A site with more than 1 / (10 delta) people refuses to train."""
    clip: Positive = 1.0
    """With `mechanism`: the largest L2 norm of a person's gradient, over all tensors of a step together."""
    people: Count | None = None
    """With `mechanism`: by what the sum over people is divided: about the number of a site's people, but public and the
    same at every site."""

    def noise(
        self, plan: Plan, counts: Mapping[str, int], rounds: int, aggregate: AggregateConfig = NO_AGGREGATE
    ) -> Noise | None:
        """Return the noise of a federation with this plan, steps by stage and rounds; ``None`` without a mechanism.

        Sites share the noise of sums that are secure, and have the noise of ``members_min`` of them at least.
        """
        if self.mechanism == "none" or self.epsilon is None:
            return None
        steps = plan.noised_steps(counts, rounds)
        if not plan.sensitivity:
            return None if self.people is None else Noise(self.epsilon, self.delta, self.clip, self.people, steps)
        noise = Noise(self.epsilon, self.delta, plan.sensitivity, 1, steps)
        if not aggregate.secure or aggregate.members_min is None:
            return noise
        sharers, colluders = aggregate.members_min - aggregate.colluders_max, aggregate.colluders_max
        return noise if sharers < 2 else replace(noise, sharers=sharers, colluders=colluders)


def mechanism_problem(
    table: NoiseConfig,
    plan: Plan,
    *,
    method: str,
    parameters: Mapping[str, Value],
    counts: Mapping[str, int],
    rounds: int,
    weighting: str,
    global_test: bool,
    shared: tuple[str, Mapping[str, object]] | None = None,
) -> tuple[str, str] | None:
    """Return the key and the reason why there can be no noise, or why a key has no use without it.

    Args:
        shared: name and parameters of the network of ``[shared_model]``, or of the method's own default.
    """
    if table.mechanism == "none":
        defaults = NoiseConfig()
        for key in ("epsilon", "delta", "clip", "people"):
            if getattr(table, key) != getattr(defaults, key):
                return f"privacy.{key}", 'only noise has a use for it; set mechanism = "noise", or leave it out'
        return None
    if plan.sensitivity:
        for key in ("clip", "people"):
            if getattr(table, key) != getattr(NoiseConfig(), key):
                return f"privacy.{key}", f"{method} bounds what its sums have of a person by itself; leave it out"
        if rounds > 1:
            return "rounds", f"{method} would send the same sums again, with other noise; set rounds = 1"
    for key in ("epsilon",) if plan.sensitivity else ("epsilon", "people"):
        if getattr(table, key) is None:
            return f"privacy.{key}", 'mechanism = "noise" needs it'
    if (reason := plan.noise_problem(parameters)) is not None:
        return "privacy.mechanism", f"{method} {reason}; take another method, such as fedavg, or leave it out"
    if weighting == "samples":
        return "weighting", 'the number of samples would leave without noise; leave it out, or set mechanism = "none"'
    if global_test:
        return (
            "global_test",
            'figures of each site\'s people would leave without noise; leave it out, or set mechanism = "none"',
        )
    learns = plan.noised if plan.shared != "beside" else plan.noised - LOCAL
    if shared is not None and learns and (reason := batch_norm_problem(*shared)) is not None:
        return "shared_model.norm", reason
    if table.people is not None and table.delta * table.people > DELTA_SHARE_MAX:
        return "privacy.delta", f"{table.delta:g} is above a tenth of 1 / people = 1 / {table.people}; lower it"
    noise = table.noise(plan, counts, rounds)
    if noise is not None and not noise.steps:
        return "rounds", f"{method} sends nothing in its last round, which is the only one; raise it"
    if noise is not None and noise.sigma > SIGMA_MAX:
        return (
            "privacy.epsilon",
            f"{table.epsilon:g} over {noise.steps} steps takes noise of {noise.sigma:.3g} clip; raise it",
        )
    return None


def batch_norm_problem(name: str, parameters: Mapping[str, object]) -> str | None:
    """Return why a network cannot train with noise; ``None`` if it can, or if only the worker can tell."""
    if "norm" not in HYPER.get(name, ()) or parameters.get("norm", "batch") != "batch":
        return None
    return (
        f"{name} has batch norm, in which each person changes the gradients of all others, and federation.toml has "
        '[privacy] mechanism = "noise"; write norm = "group", or take a network without batch norm'
    )


def site_noise_problems(
    egress: EgressConfig, training: TrainingConfig, model: ModelConfig, plan: Plan
) -> Iterator[str]:
    """Problems with the keys of site.toml that would make the guarantee of a federation with noise untrue."""
    because = 'federation.toml has [privacy] mechanism = "noise"'
    if egress.leak_auc_max is not None:
        yield f"egress.leak_auc_max: refusing an artifact tells of its people, and {because}; leave it out"
    if egress.training_set_size:
        yield f"egress.training_set_size: it leaves without noise, and {because}; leave it out"
    if isinstance(training.class_weights, str):
        yield f"training.class_weights: they depend on all people, and {because}; write numbers, or leave it out"
    if training.class_sampling is not None:
        yield f"training.class_sampling: every step has each person's samples, since {because}; leave it out"
    if training.clip_norm is not None:
        yield f"training.clip_norm: each person's gradient is clipped by itself, since {because}; leave it out"
    learns = plan.noised & LOCAL and not model.freeze and model.adapters is None  # what is frozen couples nobody
    if learns and (reason := batch_norm_problem(model.name, model.parameters)) is not None:
        yield f"model.parameters.norm: {reason}"
    if training.processes > 1:
        yield f"training.processes: one process takes a step with noise, and {because}; leave it out"
