"""What is known of a federation before it trains, and which methods it could train with."""

from __future__ import annotations

from dataclasses import dataclass

from peer.core.plan import Plan, visits
from peer.errors import ConfigError
from peer.lab.advice.evidence import StudyRow
from peer.methods.registry import PLANS, find_plan, installed_methods
from peer.site.config.aggregate_table import secure_problem
from peer.site.config.schema import FederationConfig, SiteConfig


@dataclass(frozen=True)
class Question:
    """A federation, as far as it is known.

    Attributes:
        site: the settings of the site that asks; ``None``: not given.
        people: of a site, for training; ``None``: not known.
        people_from: the source of that number, in words.
        classes_alike: whether the site has the shares of the classes that the others have; ``None``: not known.
    """

    federation: FederationConfig
    site: SiteConfig | None = None
    people: float | None = None
    people_from: str = ""
    classes_alike: bool | None = None

    @property
    def networks_differ(self) -> bool:
        """Whether a site may have a network of its own; a ``[shared_model]`` beside it does not prevent that."""
        return self.federation.shared_model is None or self.federation.plan.shared == "beside"

    @property
    def epsilon(self) -> float | None:
        privacy = self.federation.privacy
        return None if privacy.mechanism == "none" else privacy.epsilon

    def count_visits(self, row: StudyRow) -> int | None:
        """Return how many sites a model of this row visits in a round here; ``None`` if no model visits."""
        return visits(_find_plan(row), sites=len(self.federation.site), parameters=row.parameters) or None

    def refuse(self, row: StudyRow) -> str | None:
        """Return why this federation, or this site, could not train with a method; ``None`` if it could."""
        task, aggregate = self.federation.task, self.federation.aggregate
        try:
            plan = _find_plan(row)
        except ConfigError as error:
            return error.message
        if undefined := {task.kind, task.target} & set(plan.not_for):
            return f"is not defined for {undefined.pop()}"
        if plan.shared == "itself" and self.networks_differ:
            return "needs one network for all sites, and the plan has no [shared_model] for it"
        if self.epsilon is not None and (problem := plan.noise_problem(row.parameters)) is not None:
            return f"cannot train with noise: {problem}"
        if aggregate.secure and (problem := self._secure_problem(row.method, plan)) is not None:
            return f"cannot be added up under masks: {problem}"
        if row.shared_noise and not aggregate.secure:
            return "was measured with noise that sites share, and the plan has no [aggregate] secure"
        if self.site is not None and (kept := set(plan.sends) - set(self.site.egress.permitted_kinds(plan))):
            return f"sends a {min(kept)}, which [egress] of site.toml keeps at the site"
        return None

    def _secure_problem(self, method: str, plan: Plan) -> str | None:
        federation = self.federation
        problem = secure_problem(
            federation.aggregate,
            plan,
            method=method,
            sites=len(federation.site),
            rounds=1 if plan.artifact == "sums" else federation.rounds,
            weighting=federation.weighting,
            wire=federation.wire,
            staleness=federation.schedule.staleness,
            global_test=federation.global_test,
        )
        return None if problem is None else problem[1].partition(";")[0]


def _find_plan(row: StudyRow) -> Plan:
    package = None if row.method in PLANS else dict(installed_methods()).get(row.method)
    return find_plan(row.method, package)
