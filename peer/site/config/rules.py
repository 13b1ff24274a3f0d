"""The rules of a site's state machine and the setting of its worker, from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from peer.core import limits
from peer.core.epochs import PaceRules
from peer.core.roster import RoundKey, SiteName
from peer.core.rules import Rules
from peer.core.worker_protocol import WorkerSetting
from peer.privacy_budget import FOLDER as BUDGET_FOLDER
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.site_tables import EgressConfig, LimitsConfig
from peer.site.identity.noise_key import generation_noise_key, read_noise_key


def make_rules(
    federation: FederationConfig,
    name: SiteName,
    round_key: RoundKey,
    *,
    without: frozenset[SiteName] = frozenset(),
    stay: bool = False,
    egress: EgressConfig | None = None,
    received: LimitsConfig | None = None,
) -> Rules:
    """Return the rules of one site's state machine.

    Args:
        egress: the site's policy for evaluation at other sites; without one there is no such
            evaluation.
        received: the site's bounds on what it receives.
    """
    works = [federation.work(stage) for stage in federation.plan.stages_of(federation.plan.phases)]
    return Rules(
        site=name,
        roster=federation.roster,
        federation=federation.digest,
        round_key=round_key,
        method=federation.method.name,
        plan=federation.plan,
        rounds=federation.rounds,
        round_steps=sum(work.count for work in works) if all(work.unit == "step" for work in works) else None,
        schedule_kind=federation.schedule.kind,
        staleness=federation.schedule.staleness,
        parameters=federation.parameters,
        pace=PaceRules(**federation.pace.model_dump()),
        fallback=federation.fallback.kind,
        staleness_rounds_max=federation.fallback.staleness_rounds_max,
        quorum=federation.quorum,
        evaluation_every=federation.evaluation_every,
        global_test=federation.global_test and egress is not None,
        evaluation_permitted=egress is not None and egress.evaluate,
        evaluation_samples_min=egress.evaluation_samples_min if egress is not None else limits.EVALUATION_SAMPLES_MIN,
        received_ratio_max=(received or LimitsConfig()).received_ratio_max,
        secure=federation.aggregate.secure,
        colluders=federation.aggregate.colluders_max,
        sum_members_min=federation.aggregate.members_min or 0,
        sum_clip=federation.aggregate.clip,
        weighted=federation.weighting == "samples",
        without=without,
        stay=stay,
    )


def worker_setting(
    federation: FederationConfig, site: SiteConfig, name: SiteName, *, home: Path, folder: Path
) -> WorkerSetting:
    """Build the setting of a site's worker.

    Args:
        home: the generation's folder.
        folder: the site's, to which the paths in ``site.toml`` are relative.
    """
    return WorkerSetting(
        site_name=name,
        federation_digest=federation.digest,
        federation=federation.model_dump(mode="json"),
        site=site.model_dump(mode="json"),
        home=str(home),
        base_folder=str(folder),
    )


def with_noise(
    setting: WorkerSetting,
    federation: FederationConfig,
    folder: SiteFolder,
    generation: int,
    spent: Callable[[], float],
) -> WorkerSetting:
    """Add what the worker of a private federation gets beside: its noise's key, and the folder of the people's budget.

    Args:
        spent: reads from the ledger the largest mu that left.

    Raises:
        DiskError: ``pki/noise.key`` can be neither read nor written.
        StateError: it is damaged.
    """
    if federation.noise is None:
        return setting
    key = generation_noise_key(read_noise_key(folder.pki), federation.digest, generation)
    budget = str(folder.home / BUDGET_FOLDER)
    return replace(setting, noise_key=key.hex(), budget_folder=budget, spent_mu=spent())
