"""The table ``[aggregate]`` of federation.toml, and what it demands of the other tables."""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field

from peer.core.plan import AggregateRule, Plan, Wire
from peer.core.secure_sum import MEMBERS_MIN, members_min
from peer.site.config.toml import StrictTable

SECURE_SITES_MAX = 64
"""Each pair of sites shares a mask, so that the work of a secure sum grows with the square of their number."""


class AggregateConfig(StrictTable):
    """``[aggregate]``: how sites average, in methods that do."""

    rule: AggregateRule = "mean"
    """Methods that average: "mean"; "capped", which brings every contribution as near to the median of all as the
    median contribution is (of visits: a copy moves as far as the model that stayed, at most); or coordinate-wise
    "trimmed_mean" or "median", which take no weights. All but the mean bound what one site of four can do even with
    small lies."""
    bounds: bool = True
    """Whether a contribution far from the median of all is left out, and a number of samples counts as at most ten
    times the median of all claims; `rounds` names the site. Without effect where `secure` is true: no site sees
    another's contribution."""
    secure: bool = False
    """Whether masks hide what each site sends, so that a site learns the sum of those that take part in a round, and
    no other site's contribution. Takes 3 to 64 sites and a method that averages what all sites send; the rule is
    "mean" then. No amendment changes it."""
    colluders_max: Annotated[int, Field(ge=1, le=SECURE_SITES_MAX)] = 1
    """With `secure`: how many sites may break the protocol together and still learn no other site's contribution. A
    round with N members has a sum only of more than (N + colluders_max) / 2 of them, of 3 and of colluders_max + 2 at
    least."""
    members_min: Annotated[int, Field(ge=MEMBERS_MIN, le=SECURE_SITES_MAX)] | None = None
    """With `secure`: how many contributors a sum needs, where it would need fewer; a round with fewer has no sum. Where
    `[privacy]` adds noise to sums, sites share it with this key: each adds 1 / (members_min - colluders_max) of the
    variance, so that the sum has the whole noise whoever is absent. Not `[pace] members_min`, which says how many
    members must be heard before a round begins, and protects nobody."""
    clip: Annotated[float, Field(ge=1e-6, le=1e6)] = 64.0
    """With `secure`: a value above it counts as this one, a value below its negative as that. Values are rounded to
    multiples of clip / 2^24 or finer."""

    def contributors_min(self, members: int) -> int:
        """Return how many contributors a secure sum needs in a round with so many members."""
        return max(self.members_min or 0, members_min(members, self.colluders_max))


def rule_problem(rule: AggregateRule, plan: Plan, *, method: str, weighting: str) -> str | None:
    """Return why the method or the weighting has no use for a rule other than the mean."""
    if rule == "mean":
        return None
    if "aggregate" not in plan.phases:
        return f"{method} averages nothing; leave it out"
    if plan.artifact == "sums":
        return f"{method} adds up sums, which have no robust mean; leave it out"
    if plan.pattern == "visit" and rule == "capped":
        return None
    if plan.pattern == "visit":
        return f"{method} averages a model with its own copies, which are too few; leave it out"
    if plan.pattern != "all_to_all":
        return f"{method} averages pairs, of which only a mean exists; leave it out"
    if rule == "capped":
        return None
    return f'{rule} takes no weights, but weighting = "samples"' if weighting == "samples" else None


def secure_problem(
    table: AggregateConfig,
    plan: Plan,
    *,
    method: str,
    sites: int,
    rounds: int,
    weighting: str,
    wire: Wire,
    staleness: int,
    global_test: bool,
) -> tuple[str, str] | None:
    """Return the key and the reason why there can be no secure sum, or why a key has no use without one."""
    if not table.secure:
        defaults = AggregateConfig()
        for key in ("colluders_max", "members_min", "clip"):
            if getattr(table, key) != getattr(defaults, key):
                return f"aggregate.{key}", "only a secure sum has a use for it; set secure = true, or leave it out"
        return None
    if (reason := _unsummable(plan)) is not None:
        return "aggregate.secure", f"{method} {reason}; leave it out"
    if table.rule != "mean":
        return (
            "aggregate.rule",
            f"{table.rule} compares contributions, which secure = true hides; leave out one of them",
        )
    if plan.artifact == "sums" and rounds > 1:
        return "rounds", f"the difference of two rounds' sums of {method} may be one site's; set rounds = 1"
    if plan.artifact == "prototype" and weighting == "samples":
        return "weighting", f"{method} weighs each class, for which a secure sum has no weights; leave it out"
    if plan.artifact == "prototype" and table.clip < 1:
        return (
            "aggregate.clip",
            f"{table.clip} is below 1, and {method} counts the sites of a class; set it to 1 at least",
        )
    if wire != "float32":
        return "wire", f"{wire} makes no masked artifact smaller; leave it out"
    if staleness:
        return "schedule.staleness", "a masked artifact is for the sum of its own round; leave it out"
    if global_test:
        return (
            "global_test",
            "a lent model leaves its site unmasked, but aggregate.secure = true; leave out one of them",
        )
    least = next(number for number in itertools.count(1) if members_min(number, table.colluders_max) <= number)
    if sites < least:
        return (
            "aggregate.secure",
            f"colluders_max = {table.colluders_max} needs {least} sites at least, and here are {sites}",
        )
    if sites < (table.members_min or 0):
        return "aggregate.members_min", f"{table.members_min} is more than the {sites} sites; lower it"
    if sites > SECURE_SITES_MAX:
        return (
            "aggregate.secure",
            f"a secure sum has {SECURE_SITES_MAX} sites at most, and here are {sites}; leave it out",
        )
    return None


def _unsummable(plan: Plan) -> str | None:
    """Return why a method needs more than the sum of what all sites send."""
    if "aggregate" not in plan.phases:
        return "averages nothing"
    if plan.pattern != "all_to_all" or plan.circulating_share is not None:
        return "has no mean of all sites, which alone can be added up under masks"
    return "also uses what each site sends by itself" if plan.uses_each else None
