"""Charges each stage with noise to the people's budget, and labels the artifacts with what was spent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from peer import __version__
from peer.cohorts import person_of
from peer.core import events
from peer.core.artifacts import Artifact
from peer.core.commands import Train
from peer.core.privacy import Spending, mu_of
from peer.privacy_budget import PrivacyBudget
from peer.site.config.privacy_table import DELTA_SHARE_MAX
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import Loop
from peer.train.noise import declared_name
from peer.train.samples import DataSplit, SiteData
from peer.train.settings import TrainingSettings

BARE = "bare"
"""Key of a checkpoint's record: a network that may leave was trained without noise, in the last round."""


class PrivacyMeter:
    """Keeps the account of one site of a private federation; in others it does nothing.

    Args:
        settings: the site's settings.
        data: reads the site's data.
    """

    def __init__(self, settings: TrainingSettings, data: Callable[[], SiteData]) -> None:
        self._settings, self._data = settings, data
        self._member = f"{settings.federation}/{settings.site}"
        self._budget = None if settings.budget is None or settings.noise is None else PrivacyBudget(settings.budget)

    def check(self) -> None:
        """Raise ``UnusableConfigurationError`` if there are too many people for the federation's delta."""
        noise = self._settings.noise
        if noise is not None and noise.delta * len(self._people()) > DELTA_SHARE_MAX:
            raise UnusableConfigurationError(
                f"[privacy] delta = {noise.delta:g} of federation.toml is too large for so many people as this site "
                "has: one in ten such cohorts could lose a person's data entirely; the federation needs a smaller one"
            )

    def charge(self, command: Train, loop: Loop, work: str, base: Mapping[str, Any]) -> dict[str, Any]:
        """Record what a stage will spend, before its first step; return what its checkpoint's record must tell.

        Raises:
            UnusableConfigurationError: an earlier stage of these networks had no noise, or the account cannot be
                read.
        """
        noise = self._settings.noise
        if noise is None:
            return {}
        sends_sums = bool(self._settings.plan.sensitivity)
        if sends_sums and command.stage not in self._settings.plan.noised_stages:
            return {}
        if loop.noise is None and not sends_sums:
            covered = self._settings.plan.noised
            return {BARE: True} if any(declared_name(name) in covered for name in loop.stage.trains) else {}
        if base.get(BARE):
            raise UnusableConfigurationError(
                "the last round trained this site's networks without noise, and a further one would send what they "
                "learnt; found a new federation for more rounds"
            )
        if self._budget is not None:
            settings, splits = self._settings, self._splits()
            steps = 1 if sends_sums else loop.noised_steps
            made_of = (
                work,
                *map(_digest, splits),
                settings.noise_key.hex(),
                str(loop.device),
                settings.training.threads,
            )
            entry = hashlib.sha256(repr((*made_of, torch.__version__, __version__)).encode()).hexdigest()
            try:
                self._budget.restore(self._member, settings.spent_mu, self._people())
                self._budget.charge(
                    entry,
                    self._member,
                    noise.mu_squared(steps),
                    self._people(),
                    mu_max=mu_of(settings.epsilon_max, noise.delta),
                    steps=steps,
                    generation=command.generation,
                    colluders=noise.colluders,
                )
            except (OSError, ValueError) as error:
                raise self._unreadable(error) from error
        return {}

    def label(self, event: events.Event) -> events.Event:
        """Return the answer to a command, each of its trained artifacts with what was spent until now."""
        noise, settings = self._settings.noise, self._settings
        if self._budget is None or noise is None or not isinstance(event, events.WorkResult):
            return event
        if not any(each.steps for each in events.made_artifacts(event)):
            return event
        try:
            bound = mu_of(settings.epsilon_max, noise.delta)
            standing = self._budget.standing(self._member, self._people(), mu_max=bound)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        spending = Spending(
            standing.mu,
            noise.delta,
            settings.epsilon_max,
            exceeded=not standing.is_within,
            steps=standing.steps,
            federation_mu=standing.federation_mu,
            colluders=standing.colluders,
        )

        def labelled(artifact: Artifact) -> Artifact:
            return replace(artifact, spent=spending) if artifact.steps else artifact

        changes: dict[str, Any] = {}
        if event.artifact is not None:
            changes["artifact"] = labelled(event.artifact)
        if isinstance(event, events.Trained):
            changes["returned"] = tuple(map(labelled, event.returned))
        return replace(event, **changes)

    def _people(self) -> set[str]:
        """Return the people that this site trains on, or of whom it sends sums."""
        samples = (sample for split in self._splits() for sample in split.samples)
        return {f"{self._settings.population}/{person_of(sample.name, sample.subject)}" for sample in samples}

    def _splits(self) -> list[DataSplit]:
        data = self._data()
        return [data.training, *((data.validation, data.test) if self._settings.plan.everybody else ())]

    def _unreadable(self, error: Exception) -> UnusableConfigurationError:
        return UnusableConfigurationError(
            f"the account of what this machine's people have lost, {self._settings.budget}, cannot be used: {error}; "
            "put it back from a backup of this machine: without it nobody knows what was spent"
        )


def _digest(split: DataSplit) -> str:
    """Return the digest of what a stage reads: names, labels, rows, and the sizes and times of files."""
    digest = hashlib.sha256(split.digest.encode())
    for sample in split.samples:
        label = [sample.label] if isinstance(sample.label, Path) else []
        stamps = [(path.stat().st_size, path.stat().st_mtime_ns) for path in (*sample.images, *label)]
        digest.update(repr((sample.row, sample.label_values, stamps)).encode())
    return digest.hexdigest()
