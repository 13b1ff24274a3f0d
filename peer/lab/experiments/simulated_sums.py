"""Secure sums of simulated sites: the masks and sums of daemons, with secrets that a seed repeats.

Secrets of a simulation protect nobody: all sites are in one process.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer.core import commands, events, secure_exchange
from peer.core.artifacts import Artifact
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumOpening, SumStatements, commitment
from peer.files import artifact_path
from peer.site.sums.masked_files import add_masked, mask_file
from peer.site.sums.pair_keys import SumContext, SumSecrets

ORDERS = (
    commands.DrawSumKey,
    commands.HearSum,
    commands.EndSum,
    commands.ShowSum,
    commands.MaskArtifact,
    commands.AddMasked,
    commands.ForgetSums,
)


class SimulatedSums:
    """Carries out the orders of secure sums.

    Args:
        sites: all sites, by name.
        forge: returns the artifact that a site adds in place of its own.
        reaches: whether what a site shows in a round can reach another: (round, from, to).
        tell: hands an event to a site after the answer's time.
    """

    def __init__(
        self,
        sites: Mapping[SiteName, Any],
        forge: Callable[[SiteName, Artifact], Artifact],
        reaches: Callable[[int, SiteName, SiteName], bool],
        tell: Callable[[SiteName, events.Event], None],
    ) -> None:
        self._sites, self._forge, self._reaches, self._tell = sites, forge, reaches, tell
        self._hearing: dict[SiteName, commands.HearSum] = {}

    def carry_out(self, name: SiteName, command: Any) -> None:
        """Carry out one of ``ORDERS`` for a site."""
        match command:
            case commands.DrawSumKey(generation, round, attempt):
                key = self._secrets(name, round).public_key
                self._tell(name, events.SumKeyDrawn(generation, round, attempt, key))
            case commands.HearSum():
                self._hearing[name] = command
                for other in command.members:
                    self._show(other, name)
            case commands.EndSum():
                self._hearing.pop(name, None)
            case commands.ShowSum():
                self.show(name)
            case commands.MaskArtifact():
                self._tell(name, self._mask(name, command))
            case commands.AddMasked():
                self._tell(name, self._add(name, command))

    def show(self, name: SiteName) -> None:
        """Show a site's statements to all that wait for them."""
        for other, order in list(self._hearing.items()):
            if name in order.members:
                self._show(name, other)

    def _show(self, name: SiteName, to: SiteName) -> None:
        order, site = self._hearing[to], self._sites[name]
        if not site.started or not self._reaches(order.round, name, to):
            return
        answer = (order.generation, order.round, order.attempt, name)
        shown = secure_exchange.shown_to(site.machine, order.round, to)
        if shown is None or (site.exit is not None and shown[0] == SumStatements()):
            self._tell(to, events.SumShown(*answer, SumStatements(), over=True))
            return
        statements, dropped = shown
        if dropped is not None:
            seeds = {other: self._pair_seed(name, order.round, order.epoch, other) for other in dropped}
            statements = dataclasses.replace(
                statements, opening=SumOpening(self._secrets(name, order.round).own_seed, seeds)
            )
        self._tell(to, events.SumShown(*answer, statements))

    def _mask(self, name: SiteName, order: commands.MaskArtifact) -> events.Event:
        pairs = {other: self._pair_seed(name, order.round, order.epoch, other) for other in order.keys}
        own, folder = self._secrets(name, order.round).own_seed, self._folder(name)
        answer = (order.generation, order.round, order.attempt)
        try:
            masked = mask_file(
                artifact_path(folder, self._forge(name, order.artifact).sha256),
                folder,
                ring=order.ring,
                weight=order.weight,
                site=name,
                own_seed=own,
                pair_seeds=pairs,
            )
        except ValueError as error:
            return events.SumFailed(*answer, str(error))
        commitments = {other: commitment(seed) for other, seed in {**pairs, name: own}.items()}
        artifact = _rewritten(order.artifact, masked.sha256, masked.bytes, commitments)
        return events.ArtifactMasked(*answer, artifact, masked.clipped)

    def _add(self, name: SiteName, order: commands.AddMasked) -> events.Event:
        folder, contributors = self._folder(name), {name, *(source.origin for source in order.sources)}
        machine = self._sites[name].machine
        used, epoch = secure_exchange.machine_of(machine, order.round).used, machine.opened.epoch
        left = {(name, other): self._pair_seed(name, order.round, epoch, other) for other in used.keys() - contributors}
        for other, opening in order.openings.items():
            left |= {(other, dropped): seed for dropped, seed in opening.shared.items()}
        own = [self._secrets(name, order.round).own_seed, *(opening.own for opening in order.openings.values())]
        paths = [
            artifact_path(folder, each.sha256) for each in (order.own, *(source.artifact for source in order.sources))
        ]
        answer = (order.generation, order.round, order.attempt)
        plain = artifact_path(folder, order.plain.sha256)
        try:
            sha256, size = add_masked(paths, plain, folder, ring=order.ring, own_seeds=own, left_seeds=left)
        except ValueError as error:
            return events.SumFailed(*answer, str(error))
        return events.MaskedAdded(*answer, _rewritten(order.plain, sha256, size, None))

    def _secrets(self, name: SiteName, round: int) -> SumSecrets:
        text = f"{self._sites[name].rules.federation} {name} {round}"
        private, own = (hashlib.sha256(f"{part} {text}".encode()).digest() for part in ("key", "seed"))
        return SumSecrets(private, own)

    def _pair_seed(self, name: SiteName, round: int, epoch: Sha256 | None, other: SiteName) -> bytes:
        rules = self._sites[name].rules
        context = SumContext(rules.federation, epoch or rules.federation, round, rules.plan.published)
        secrets, key = self._secrets(name, round), self._secrets(other, round).public_key
        return secrets.pair_seed(context, own=name, other=other, other_key=key)

    def _folder(self, name: SiteName) -> Path:
        folder = self._sites[name].artifacts
        if folder is None:
            raise ValueError(f"{name} has no files, and a secure sum adds up files")
        return Path(folder)


def _rewritten(
    artifact: Artifact, sha256: Sha256, size: int, commitments: Mapping[SiteName, Sha256] | None
) -> Artifact:
    return dataclasses.replace(
        artifact, sha256=sha256, bytes=size, commitments=commitments, training_samples=None, leak=None
    )
