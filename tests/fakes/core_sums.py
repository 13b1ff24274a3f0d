"""Secure sums in the federation in memory: real keys and masks on a few words, and who may read what."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fakes.memory_sums import mask, unmask
from peer.core import commands, events, secure_exchange
from peer.core.artifacts import Artifact
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumOpening, commitment
from peer.site.sums.masking import decode, encode
from peer.site.sums.pair_keys import SumContext, SumSecrets

WORDS = 3
POLL_S = 0.5


def input_of(artifact: Artifact) -> np.ndarray:
    """The units that an unmasked artifact stands for."""
    return np.frombuffer(bytes.fromhex(artifact.sha256)[: 2 * WORDS], "<i2").astype(np.int64)


@dataclasses.dataclass
class SumFiles:
    """The masked artifacts of all sites, and the truth about each.

    Attributes:
        words: by digest, the masked words.
        inputs: by digest, what was masked.
        totals: by digest, the contributors whose inputs it is the sum of.
        opened: by round, the contributors of the one set whose masks were opened.
    """

    words: dict[Sha256, np.ndarray] = dataclasses.field(default_factory=dict)
    inputs: dict[Sha256, np.ndarray] = dataclasses.field(default_factory=dict)
    totals: dict[Sha256, tuple[SiteName, ...]] = dataclasses.field(default_factory=dict)
    opened: dict[int, frozenset[SiteName]] = dataclasses.field(default_factory=dict)


class Sums:
    """What a simulation of sites does for their secure sums; ``machines`` and the rest are those of ``Simulation``."""

    machines: Mapping[SiteName, Any]
    _later: Callable[[Any, float, Callable[[], events.Event | None]], None]
    delay_s: Callable[..., float]
    _linked: Callable[[str, str], bool]

    def __init__(self) -> None:
        self.files = SumFiles()

    def secrets(self, machine: Any, round: int) -> SumSecrets:
        return machine.secrets[round]

    def context(self, machine: Any, round: int, epoch: Sha256 | None) -> SumContext:
        federation = machine.rules.federation
        return SumContext(federation, epoch or federation, round, "train")

    def _drawsumkey(self, machine: Any, command: commands.DrawSumKey) -> None:
        if command.round not in machine.secrets:
            text = f"{machine.rules.site} {command.round} {machine.life}"
            machine.secrets[command.round] = SumSecrets(
                hashlib.sha256(f"key {text}".encode()).digest(), hashlib.sha256(f"own {text}".encode()).digest()
            )
        key = machine.secrets[command.round].public_key
        order = (command.generation, command.round, command.attempt)
        self._later(machine, self.delay_s(), lambda: events.SumKeyDrawn(*order, key))

    def _hearsum(self, machine: Any, command: commands.HearSum) -> None:
        machine.hearing = command.attempt
        for name in command.members:
            self._later(machine, self.delay_s(), lambda name=name: self._ask(machine, command, name))

    def _ask(self, machine: Any, command: commands.HearSum, name: SiteName) -> events.Event | None:
        if machine.hearing != command.attempt:
            return None
        self._later(machine, self.delay_s(POLL_S), lambda: self._ask(machine, command, name))
        me, other = machine.rules.site, self.machines[name]
        if not (self._linked(me, name) and self._linked(name, me)) or other.round is None or other.exit is not None:
            return None
        if secure_exchange.epoch_of(other.round, command.round) != command.epoch:
            return None
        shown = secure_exchange.shown_to(other.round, command.round, me)
        order = (command.generation, command.round, command.attempt, name)
        if shown is None:
            return events.SumShown(*order, secure_exchange.SumStatements(), over=True)
        statements, dropped = shown
        if dropped is not None:
            statements = dataclasses.replace(statements, opening=self._opening(other, command, me, dropped))
        return events.SumShown(*order, statements)

    def _opening(
        self, other: Any, command: commands.HearSum, to: SiteName, dropped: tuple[SiteName, ...]
    ) -> SumOpening:
        """The opening of another site, which it shows to one member of the one set that it has committed to."""
        machine = secure_exchange.machine_of(other.round, command.round)
        bound = frozenset(machine.bound or ())
        assert to in bound
        assert self.files.opened.setdefault(command.round, bound) == bound, "masks are opened for two sets"
        secrets, context = self.secrets(other, command.round), self.context(other, command.round, command.epoch)
        shared = {
            name: secrets.pair_seed(context, own=other.rules.site, other=name, other_key=machine.used[name])
            for name in dropped
        }
        return SumOpening(secrets.own_seed, shared)

    def _endsum(self, machine: Any, command: commands.EndSum) -> None:
        machine.hearing = 0

    def _showsum(self, machine: Any, command: commands.ShowSum) -> None:
        pass

    def _forgetsums(self, machine: Any, command: commands.ForgetSums) -> None:
        kept = {round: each for round, each in machine.secrets.items() if round >= command.before}
        machine.secrets.clear()
        machine.secrets.update(kept)

    def _maskartifact(self, machine: Any, command: commands.MaskArtifact) -> None:
        assert command.artifact.sha256 in machine.files, "what is to be masked is not on disk"
        me, secrets = machine.rules.site, self.secrets(machine, command.round)
        context = self.context(machine, command.round, command.epoch)
        pairs = {
            name: secrets.pair_seed(context, own=me, other=name, other_key=key) for name, key in command.keys.items()
        }
        units = input_of(command.artifact)
        words = mask(encode(command.ring, units), me, secrets.own_seed, pairs)
        digest = Sha256(hashlib.sha256(words.tobytes()).hexdigest())
        self.files.words[digest], self.files.inputs[digest] = words, units
        machine.files.add(digest)
        commitments = {name: commitment(seed) for name, seed in {**pairs, me: secrets.own_seed}.items()}
        masked = dataclasses.replace(command.artifact, sha256=digest, bytes=words.nbytes, commitments=commitments)
        order = (command.generation, command.round, command.attempt)
        self._later(machine, self.delay_s(), lambda: events.ArtifactMasked(*order, masked, 0))

    def _addmasked(self, machine: Any, command: commands.AddMasked) -> None:
        me, secrets = machine.rules.site, self.secrets(machine, command.round)
        context = self.context(machine, command.round, machine.round.opened.epoch)
        digests = {me: command.own.sha256, **{source.origin: source.artifact.sha256 for source in command.sources}}
        assert machine.files >= {*digests.values(), command.plain.sha256}, "a masked artifact is not on disk"
        keys = secure_exchange.machine_of(machine.round, command.round).used
        left = {
            (me, name): secrets.pair_seed(context, own=me, other=name, other_key=key)
            for name, key in keys.items()
            if name not in digests
        }
        for name, opening in command.openings.items():
            left |= {(name, dropped): seed for dropped, seed in opening.shared.items()}
        own = [secrets.own_seed, *(opening.own for opening in command.openings.values())]
        total = decode(command.ring, unmask((self.files.words[each] for each in digests.values()), own, left))
        truth = sum(self.files.inputs[each] for each in digests.values())
        assert np.array_equal(total, truth), f"{me}: the sum of round {command.round} is not that of its contributors"
        text = f"{command.round} {sorted(digests)} {total.tolist()}"
        digest = Sha256(hashlib.sha256(text.encode()).hexdigest())
        self.files.totals[digest] = tuple(sorted(digests))
        machine.files.add(digest)
        artifact = dataclasses.replace(command.plain, sha256=digest)
        order = (command.generation, command.round, command.attempt)
        self._later(machine, self.delay_s(), lambda: events.MaskedAdded(*order, artifact))
