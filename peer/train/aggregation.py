"""Aggregation of several sites' states: Byzantine-robust rules, and bounds on each contribution.

Both depend only on the contributions, including this site's own. Sites with the same contributors therefore exclude the
same ones and compute bit-identical aggregates.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.core.plan import AggregateRule
from peer.core.roster import SiteName
from peer.train.tensors import State, mean, pieces, trimmed_mean

DISTANCE_RATIO_MAX = 8.0
"""Maximum distance of a contribution from the median of all, in multiples of the median distance."""
DISTANCE_SHARE = 0.5
"""A contribution closer than this share of the median's own norm is never too far."""
STATISTICS_RATIO_MAX = 100.0
"""Maximum size of batch statistics, in multiples of their median: sites differ in scanners and units."""
PAIR_RATIO_MAX = 100.0
"""Maximum size of one of two contributions, in multiples of the other: with two, neither has a majority."""
SAMPLES_RATIO_MAX = 10.0
"""Upper bound on a claimed number of samples, in multiples of the median claim."""
SITE_RATIO_MAX = 100.0
"""Upper bound on the samples in a site's sums, in multiples of the median: hospitals differ, but not that much."""
SAMPLES = "count"
"""Suffix of the tensor in a table of sums with the number of samples."""
TABLE = ("prototypes", "counts")
"""Suffixes of the tensors in a table of prototypes."""
STATISTICS = ("running_mean", "running_var")
"""Suffixes of the tensors that are batch statistics."""


@dataclass(frozen=True)
class Aggregation:
    """The result of an aggregation.

    Attributes:
        state: the aggregate.
        contributors: the sites whose states are in it, in ascending order.
        cut: the sites whose contribution was excluded, weighs less than claimed, or is equal to another's, each with
            the reason.
        kept: the parts of the contributors' states that the method keeps by site, as they were sent.
    """

    state: State
    contributors: list[SiteName]
    cut: dict[SiteName, str] = field(default_factory=dict)
    kept: dict[SiteName, State] = field(default_factory=dict)


def aggregate(
    states: Mapping[SiteName, State],
    samples: Mapping[SiteName, int | None],
    *,
    rule: AggregateRule = "mean",
    bounds: bool = True,
    weighted: bool = False,
) -> Aggregation:
    """Aggregate states by the federation's rule, after applying the bounds.

    A contribution beyond a bound is excluded as a whole. Norm clipping (Sun et al. 2019, "Can You Really Backdoor
    Federated Learning?") would keep its direction, and an average of four would still move by a quarter of the bound
    each round. A state without some of its tensors is a network that no site trained. A claimed number of samples is
    clipped instead, because a large claim may be true and the state has bounds of its own. Of equal states one counts:
    training on other samples makes no equal ones, so a site has signed another's.

    Args:
        states: states by site, with equal names, shapes and types.
        samples: the number of training samples that each site claims.
        rule: ``mean``; ``capped``, the mean after each state was brought as near to the coordinate-wise median as the
            median state is; or coordinate-wise ``trimmed_mean`` or ``median`` (Yin et al. 2018,
            "Byzantine-Robust Distributed Learning").
        bounds: whether to exclude and clip.
        weighted: weight a mean by the samples, if every site reports its number.
    """
    cut = find_outliers(states) if bounds else {}
    copies = find_copies(states) if bounds else {}
    contributors = sorted(site for site in states if site not in cut and copies.get(site, site) == site)
    cut = _name_copies(copies) | cut
    kept = [states[site] for site in contributors]
    if rule not in ("mean", "capped"):
        trimmed = (len(kept) - 1) // 2 if rule == "median" else math.ceil(len(kept) / 4) if len(kept) > 2 else 0
        return Aggregation(trimmed_mean(kept, trimmed), contributors, cut)
    combine = capped_mean if rule == "capped" else mean
    claims = [float(count) for site in contributors if (count := samples[site])]
    if not weighted or len(claims) < len(contributors):
        return Aggregation(combine(kept, [1.0] * len(kept)), contributors, cut)
    largest = SAMPLES_RATIO_MAX * statistics.median(claims)
    if bounds:
        for site, claim in zip(contributors, claims, strict=True):
            if claim > largest:
                cut[site] = f"claims {claim:.0f} samples, and counts as {largest:.0f}: {SAMPLES_RATIO_MAX:g} medians"
        claims = [min(claim, largest) for claim in claims]
    return Aggregation(combine(kept, claims), contributors, cut)


def aggregate_prototypes(
    states: Mapping[SiteName, State],
    samples: Mapping[SiteName, int | None],
    *,
    rule: AggregateRule = "mean",
    bounds: bool = True,
    weighted: bool = False,
) -> Aggregation:
    """Aggregate each class's prototype over the sites that have the class, after applying the bounds.

    A state has two tensors: ``...prototypes``, with one row per class, and ``...counts``, the number of samples per
    class. A class without samples has no prototype. The aggregate has count 1 for every class with a prototype.
    ``samples`` counts whole sites and is not used.
    """
    prototypes, counts = (next(name for name in next(iter(states.values())) if name.endswith(end)) for end in TABLE)
    own = next(iter(states.values()))
    mean_of = {prototypes: torch.zeros_like(own[prototypes]), counts: torch.zeros_like(own[counts])}
    contributors: set[SiteName] = set()
    cut: dict[SiteName, str] = {}
    for number in range(len(own[counts])):
        rows = {
            site: {prototypes: state[prototypes][number]} for site, state in states.items() if state[counts][number] > 0
        }
        if not rows:
            continue
        sizes = {site: int(states[site][counts][number]) for site in rows}
        of_class = aggregate(rows, sizes, rule=rule, bounds=bounds, weighted=weighted)
        mean_of[prototypes][number], mean_of[counts][number] = of_class.state[prototypes], 1
        contributors |= set(of_class.contributors)
        cut |= {site: f"class {number}: {reason}" for site, reason in of_class.cut.items() if site not in cut}
    return Aggregation(mean_of, sorted(contributors), cut)


def aggregate_sums(
    states: Mapping[SiteName, State],
    samples: Mapping[SiteName, int | None],
    *,
    rule: AggregateRule = "mean",
    bounds: bool = True,
    weighted: bool = False,
) -> Aggregation:
    """Add up tables of sums, which are integers: the order of the sites does not change a bit.

    With bounds, of equal tables one counts, and a table of many times the samples of the others is excluded: a sum has
    no other bound on the share of one site. The federation's rule and weighting have no effect.
    """
    (count_name,) = (name for name in next(iter(states.values())) if name.endswith(SAMPLES))
    counts = {site: int(state[count_name]) for site, state in states.items()}
    largest = SITE_RATIO_MAX * max(1.0, statistics.median(counts.values())) if bounds else math.inf
    copies = find_copies(states) if bounds else {}
    large = {
        site: f"is of {count} samples, more than {largest:.0f}: {SITE_RATIO_MAX:g} medians"
        for site, count in counts.items()
        if count > largest
    }
    contributors = sorted(site for site in states if site not in large and copies.get(site, site) == site)
    kept = [states[site] for site in contributors]
    total = {name: torch.stack([state[name] for state in kept]).sum(0) for name in kept[0]}
    return Aggregation(total, contributors, _name_copies(copies) | large)


def divide_total(total: State, weight: int, own: State) -> State:
    """Divide the total of states by the sum of their weights.

    Floating values are rounded once, to the types of this site's own state. Whole numbers, such as counts of batches,
    are rounded down; of flags, those remain that all have set.
    """
    return {
        name: (value / weight if value.is_floating_point() else value // weight).to(own[name].dtype)
        for name, value in total.items()
    }


def divide_prototypes(total: State, weight: int, own: State) -> State:
    """Divide each class's row in a total of tables of prototypes by its count, the number of sites with the class.

    Each of these tables has count 1 and the prototype of a class, or count 0 and a row of zeros. A class without sites
    keeps no prototype; ``weight``, which counts all sites, is not used. The result has count 1 for the other classes.
    """
    prototypes, counts = (next(name for name in own if name.endswith(end)) for end in TABLE)
    sites = total[counts].round()  # the units of a sum need not divide 1
    present = sites > 0
    means = torch.where(present[:, None], total[prototypes] / sites.clamp(min=1)[:, None], 0.0)
    return {prototypes: means.to(own[prototypes].dtype), counts: present.to(own[counts].dtype)}


def keep_total(total: State, weight: int, own: State) -> State:
    """Return the total of tables of sums as it is."""
    return {name: value.to(own[name].dtype) for name, value in total.items()}


def capped_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Compute the weighted mean of states, none farther from the coordinate-wise median than the median distance.

    The distance is one number for a whole state, without batch statistics, which are averaged as they are. A state
    beyond the cap keeps its direction (centred clipping: Karimireddy et al. 2021, "Learning from History for Byzantine
    Robust Optimization").
    """
    centre = trimmed_mean(states, (len(states) - 1) // 2)
    names = [name for name in centre if centre[name].is_floating_point() and not name.endswith(STATISTICS)]
    distances = [0.0] * len(states)
    for name in names:
        for *values, middle in pieces([*(state[name] for state in states), centre[name]]):
            distances = [
                math.hypot(far, _norm(value.double() - middle.double()))
                for far, value in zip(distances, values, strict=True)
            ]
    cap = statistics.median(distances)
    if not cap:
        return centre
    shares = [weight * min(1.0, cap / (far or cap)) for weight, far in zip(weights, distances, strict=True)]
    rest = sum(weights) - sum(shares)
    result = mean(states, weights)
    if rest > 0:
        parts = [{name: state[name] for name in names} for state in (*states, centre)]
        result |= mean(parts, [*shares, rest])
    return result


def cap_change(sent: State, own: State, returned: State) -> State:
    """Bring a returned copy back to where it moved as far from the state ``sent`` as the model that stayed.

    Batch statistics and integers stay.
    """
    names = [name for name in sent if sent[name].is_floating_point() and not name.endswith(STATISTICS)]
    stayed, came = (
        math.hypot(*(_norm(state[name].double() - sent[name].double()) for name in names)) for state in (own, returned)
    )
    if came <= stayed:
        return returned
    share = stayed / came
    return returned | {name: sent[name].lerp(returned[name], share) for name in names}


def find_copies(states: Mapping[SiteName, State]) -> dict[SiteName, SiteName]:
    """Map each site whose state has the same bits as another's to the first of these sites, by name.

    If all are equal, none is a copy: nothing was trained.
    """
    first_of: dict[bytes, SiteName] = {}
    firsts = {}
    for site in sorted(states):
        digest = hashlib.sha256()
        for name in sorted(states[site]):
            digest.update(states[site][name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
        firsts[site] = first_of.setdefault(digest.digest(), site)
    return {site: first for site, first in firsts.items() if 1 < len(first_of) < len(states)}


def _name_copies(copies: Mapping[SiteName, SiteName]) -> dict[SiteName, str]:
    """Return for each site whose state another has, too, the reason that names the others."""
    equal = {site: [other for other in copies if other != site and copies[other] == copies[site]] for site in copies}
    return {site: f"is equal to that of {', '.join(others)}" for site, others in equal.items() if others}


def find_outliers(states: Mapping[SiteName, State]) -> dict[SiteName, str]:
    """Find the contributions beyond a bound, each with a reason: the tensor that exceeds its bound most.

    Each floating tensor is judged separately. Its distance to the coordinate-wise median of all contributions is
    compared with the median distance and with the median's norm: a site that trains longer than the others exceeds only
    the first. The norm counts as at least that of a fresh layer, so that biases that began at zero may move. Of two
    contributions, one is beyond the bound only if it is much larger than the other.
    """
    sites = sorted(states)
    if len(sites) < 2:
        return {}
    worst: dict[SiteName, tuple[float, str]] = {}
    for name, first in states[sites[0]].items():
        if not first.is_floating_point() or not first.numel():
            continue
        for site, (excess, reason) in zip(sites, _judge(name, [states[site][name] for site in sites]), strict=True):
            if excess > max(1.0, worst.get(site, (1.0, ""))[0]):
                worst[site] = excess, reason
    return {site: reason for site, (_, reason) in worst.items()}


def find_leap(sent: State, own: State, returned: State) -> str | None:
    """Return why a returned copy is beyond the bounds, compared with the model that stayed; ``None`` if it is not.

    Both were trained from the state ``sent``. Each floating tensor of the copy may move ``DISTANCE_RATIO_MAX`` times as
    far as that of the local model, or ``DISTANCE_SHARE`` of its norm, whichever is more. No other contribution enters,
    so colluding hosts cannot shift the bound.
    """
    worst, reason = 1.0, None
    for name, first in sent.items():
        if not first.is_floating_point() or not first.numel():
            continue
        start, stayed, came = (state[name].double() for state in (sent, own, returned))
        if name.endswith("running_var") and bool((came < 0).any()):
            return f"{name} has a negative variance"
        fresh = math.sqrt(first.shape[0]) if first.ndim else 1.0
        if name.endswith(STATISTICS):
            size = max(fresh, _norm(stayed))
            excess, text = _norm(came) / (size * STATISTICS_RATIO_MAX), f"{_norm(came) / size:.3g} times as large"
        else:
            far, size = _norm(came - start), max(fresh, _norm(start))
            excess = far / max(DISTANCE_RATIO_MAX * _norm(stayed - start), DISTANCE_SHARE * size)
            text = f"{far / size:.3g} times its size away from the model that left"
        if excess > worst:
            worst, reason = excess, f"{name} is {text}"
    return reason


def _judge(name: str, tensors: list[Tensor]) -> list[tuple[float, str]]:
    """Return for each site its tensor's size or distance, as a multiple of the bound, and a description."""
    if name.endswith("running_var") and any(negative := [bool((tensor < 0).any()) for tensor in tensors]):
        return [(math.inf, f"{name} has a negative variance") if each else (0.0, "") for each in negative]
    fresh = math.sqrt(tensors[0].shape[0]) if tensors[0].ndim else 1.0
    if len(tensors) == 2 or name.endswith(STATISTICS):
        norms = [math.hypot(*(_norm(piece.double()) for (piece,) in pieces([tensor]))) for tensor in tensors]
        usual = max(fresh, min(norms) if len(tensors) == 2 else statistics.median(norms))
        bound = usual * (PAIR_RATIO_MAX if len(tensors) == 2 else STATISTICS_RATIO_MAX)
        return [(norm / bound, f"{name} is {norm / usual:.3g} times as large as usual") for norm in norms]
    distances, size = [0.0] * len(tensors), 0.0
    for piece in pieces(tensors):
        values = [part.double() for part in piece]
        centre = trimmed_mean([{name: value} for value in values], (len(values) - 1) // 2)[name]
        distances = [math.hypot(far, _norm(value - centre)) for far, value in zip(distances, values, strict=True)]
        size = math.hypot(size, _norm(centre))
    usual, size = statistics.median(distances), max(fresh, size)
    bound = max(DISTANCE_RATIO_MAX * usual, DISTANCE_SHARE * size)
    return [
        (far / bound, f"{name} is {far / size:.3g} times its size away from the median of all contributions")
        for far in distances
    ]


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value))
