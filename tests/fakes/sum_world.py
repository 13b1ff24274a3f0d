"""Whole secure sums under a seeded scheduler: messages in any order, kills, restored journals, absent sites, liars.

``play(seed)`` returns the first invariant that did not hold, or nothing. The masks are real ones, on three words.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fakes.memory_sums import mask, unmask
from peer.core import sum_messages as core
from peer.core.ring import Ring
from peer.core.roster import Roster, Sha256, SiteName
from peer.core.secure_sum import SecureSum, members_min
from peer.core.sum_messages import SumCommit, SumKey, SumMasked, SumMessage, SumOpening, SumSet, commitment
from peer.site.sums.masking import decode, encode
from peer.site.sums.pair_keys import SumContext, SumSecrets

CONTEXT = SumContext(Sha256("11" * 32), Sha256("22" * 32), 1, "aggregate")
RING = Ring(32, 20, 1.0, 7)
STEPS_MAX = 5000
KILLS_MAX = 5
HABITS = (
    "commits_twice",
    "keeps_commits",
    "hides_openings",
    "claims_gone",
    "gives_other_keys",
    "opens_early",
    "masks_rubbish",
    "sends_two_artifacts",
    "commits_to_rubbish",
    "agrees_with_all",
)


@functools.cache
def secrets(number: int) -> SumSecrets:
    private, own = (hashlib.sha256(f"{part} {number}".encode()).digest() for part in ("key", "seed"))
    return SumSecrets(private, own)


@functools.cache
def public_key(number: int) -> bytes:
    return secrets(number).public_key


@functools.cache
def pair_seed(number: int, own: SiteName, other: SiteName, key: bytes) -> bytes:
    return secrets(number).pair_seed(CONTEXT, own=own, other=other, other_key=key)


@dataclass
class Member:
    """One site, its disk and its process.

    Attributes:
        number: of its secrets; another one after the secrets were lost.
        records: its journal.
        files: by statement, the masked artifacts on its disk.
        keys: the keys that it masked with.
    """

    name: SiteName
    machine: SecureSum
    units: np.ndarray
    number: int
    records: list[core.SumRecord] = field(default_factory=list)
    files: dict[tuple[SiteName, Sha256], tuple[SumMasked, np.ndarray]] = field(default_factory=dict)
    keys: Mapping[SiteName, bytes] = field(default_factory=dict)
    absent: bool = False
    named: dict[SiteName, str] = field(default_factory=dict)
    restored: bool = False

    def seed(self, other: SiteName) -> bytes:
        return pair_seed(self.number, self.name, other, self.keys[other])

    def masked(self, keys: Mapping[SiteName, bytes]) -> tuple[SumMasked, np.ndarray]:
        self.keys = dict(keys)
        own = secrets(self.number).own_seed
        pairs = {other: self.seed(other) for other in keys}
        words = mask(encode(RING, self.units), self.name, own, pairs)
        commitments = {other: commitment(seed) for other, seed in {**pairs, self.name: own}.items()}
        return SumMasked(Sha256(hashlib.sha256(words.tobytes()).hexdigest()), commitments), words

    def opening(self, dropped: Iterable[SiteName]) -> SumOpening:
        return SumOpening(secrets(self.number).own_seed, {name: self.seed(name) for name in dropped})


@dataclass
class Parcel:
    """A message under way; a masked one has its artifact with it."""

    sender: SiteName
    to: SiteName
    message: SumMessage
    words: np.ndarray | None = None


class World:
    """One sum of N sites of which at most t lie, or were put back to an older state without knowing it.

    Attributes:
        silent_from: a site, and the first kind of message that it never sends.
        window: the scheduler chooses among so many of the oldest messages.
        claims_late: the liars that agree with all claim late that the victim is gone.
        calm: nobody lies, is killed or absent, and all are as patient.
        patience: how often each site has given up.
    """

    def __init__(self, seed: int, machine: type[SecureSum] = SecureSum, *, calm: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.kind, self.calm = machine, calm
        self.colluders = rng.choice((1, 1, 2))
        count = rng.randrange(members_min(5, self.colluders) + 1, 8)
        self.roster = Roster.of([f"s{number}" for number in range(count)])
        faulty = 0 if calm else rng.randrange(self.colluders + 1)
        self.liars = set(rng.sample(self.roster.names, faulty))
        self.habits = {name: set(rng.sample(HABITS, rng.choice((1, 2, 3)))) for name in sorted(self.liars)}
        self.victim = rng.choice([name for name in self.roster if name not in self.liars])
        self.patience = dict.fromkeys(self.roster, 0)
        self.silent_from: tuple[SiteName, type[SumMessage]] | None = None
        self.window = rng.choice((2, 8, STEPS_MAX))
        self.claims_late = rng.random() < 0.5
        self.unaware: set[SiteName] = set()
        self.kill_share = 0 if calm else rng.choice((0, 0, 0.02, 0.1))
        self.hasty_share = 0 if calm else rng.choice((0, 0, 0.005))
        self.kills_left = KILLS_MAX
        self.lossy = not calm and rng.random() < 0.5
        self.queue: list[Parcel] = []
        self.log: list[Parcel] = []
        self.members = {
            name: Member(
                name,
                machine(name, self.roster, self.colluders),
                np.array([rng.randrange(-(2**20), 2**20) for _ in range(3)]),
                number,
            )
            for number, name in enumerate(self.roster)
        }

    def run(self) -> World:
        for member in self.members.values():
            if self.lossy and member.name not in self.liars and self.rng.random() < 0.1:
                member.absent = True
                continue
            self.carry_out(member, member.machine.begin(public_key(member.number)))
        for _ in range(STEPS_MAX):
            if self.queue:
                self.step()
            elif not self.give_up():
                return self
        raise AssertionError("the sum does not end")

    def step(self) -> None:
        rng = self.rng
        parcel = self.queue.pop(rng.randrange(min(self.window, len(self.queue))))
        member = self.members[parcel.to]
        if member.absent:
            return
        honest = parcel.to not in self.liars
        if honest and self.lossy and rng.random() < 0.004:
            member.absent = True
            return
        if honest and rng.random() < self.hasty_share:
            self.carry_out(member, member.machine.give_up())
        self.deliver(member, parcel)
        if honest and self.dies(self.kill_share):
            self.kill(member)

    def deliver(self, member: Member, parcel: Parcel) -> None:
        message = parcel.message
        if isinstance(message, SumMasked):
            assert parcel.words is not None
            if hashlib.sha256(parcel.words.tobytes()).hexdigest() != message.artifact:
                return
            member.files[parcel.sender, message.digest] = message, parcel.words
        lies = self.habits.get(member.name, set())
        if "agrees_with_all" in lies and parcel.sender not in self.liars and isinstance(message, SumSet | SumCommit):
            self.agree(member, parcel.sender, message)
        self.carry_out(member, member.machine.receive(parcel.sender, message))

    def give_up(self) -> bool:
        """Let one site that still waits wait no longer; false once none does."""
        waiting = [one for one in self.members.values() if one.machine.result is None and not one.absent]
        if not waiting:
            return False
        member = self.rng.choice(waiting)
        if self.calm:
            member = min(waiting, key=lambda one: self.patience[one.name])
        self.patience[member.name] += 1
        self.carry_out(member, member.machine.give_up())
        return True

    def dies(self, share: float) -> bool:
        return self.kills_left > 0 and self.rng.random() < share

    def kill(self, member: Member) -> None:
        """Restart a site from its journal, or from an older one."""
        rng = self.rng
        self.kills_left -= 1
        fate = rng.random()
        if fate < 0.15:
            member.records = member.records[: rng.randrange(len(member.records) + 1)]
            member.restored = True
        elif fate < 0.3 and len(self.liars | self.unaware | {member.name}) <= self.colluders:
            member.records = member.records[: rng.randrange(len(member.records) + 1)]
            self.unaware.add(member.name)
        if self.lossy:
            self.queue = [parcel for parcel in self.queue if parcel.to != member.name or rng.random() < 0.5]
        machine = self.kind.rebuild(member.name, self.roster, self.colluders, member.records, restored=member.restored)
        member.machine = machine
        if machine.own_key is None and machine.result is None:
            member.number += 100  # its secrets were not on disk yet
            self.carry_out(member, machine.begin(public_key(member.number)))
        for (sender, _), (message, _) in list(member.files.items()):
            if sender != member.name:
                self.carry_out(member, machine.receive(sender, message))
        self.carry_out(member, machine.resume())
        for other in self.members.values():
            if other is not member and not other.absent:
                self.carry_out(other, other.machine.repeat(member.name))

    def carry_out(self, member: Member, decisions: list[core.SumDecision]) -> None:
        lies = self.habits.get(member.name, set())
        for decision in decisions:
            if not lies and self.dies(self.kill_share / 4):
                self.kill(member)
                return
            if isinstance(decision, core.PersistSum):
                member.records.append(decision.record)
            elif isinstance(decision, core.NamePeer):
                member.named[decision.site] = decision.reason
            elif isinstance(decision, core.MaskInput):
                message, words = member.masked(decision.keys)
                if "commits_to_rubbish" in lies:
                    message = SumMasked(message.artifact, {**message.commitments, self.victim: commitment(bytes(32))})
                if "masks_rubbish" in lies:
                    words = words + np.uint32(self.rng.randrange(2**32))
                    message = SumMasked(Sha256(hashlib.sha256(words.tobytes()).hexdigest()), message.commitments)
                member.files[member.name, message.digest] = message, words
                self.carry_out(member, member.machine.complete_masking(decision.keys, message))
            elif isinstance(decision, core.SendOpening):
                self.send(member, decision.to, member.opening(decision.dropped))
            elif isinstance(decision, core.SendSum):
                self.send(member, decision.to, decision.message)

    def send(self, member: Member, to: SiteName, message: SumMessage) -> None:
        if lies := self.habits.get(member.name, set()):
            self.lie(member, to, message, lies)
        else:
            self.post(member, to, message)

    def post(self, member: Member, to: SiteName, message: SumMessage) -> None:
        member.absent |= self.silent_from == (member.name, type(message))
        if member.absent:
            return
        words = None
        if isinstance(message, SumMasked):
            words = member.files[member.name, message.digest][1]
        parcel = Parcel(member.name, to, message, words)
        self.log.append(parcel)
        self.queue.append(parcel)

    # --- lies ---------------------------------------------------------------------------------------------------------
    def lie(self, member: Member, to: SiteName, message: SumMessage, lies: set[str]) -> None:
        rng, sent = self.rng, [message]
        if isinstance(message, SumKey) and "gives_other_keys" in lies and rng.random() < 0.5:
            sent = [SumKey(public_key(member.number + 50))]
        elif isinstance(message, SumMasked):
            if "sends_two_artifacts" in lies and rng.random() < 0.5:
                words = member.files[member.name, message.digest][1] + np.uint32(1)
                other = SumMasked(Sha256(hashlib.sha256(words.tobytes()).hexdigest()), message.commitments)
                member.files[member.name, other.digest] = other, words
                sent = [other]
            if "opens_early" in lies:
                sent.append(member.opening([name for name in member.keys if rng.random() < 0.5]))
        elif isinstance(message, SumSet) and "claims_gone" in lies and to != self.victim and rng.random() < 0.7:
            sent = [SumSet(without(message.contributions, self.victim))]
        elif isinstance(message, SumSet | SumCommit) and "agrees_with_all" in lies and message.contributions:
            sent = []  # it echoes sets instead
        elif isinstance(message, SumCommit):
            if "commits_twice" in lies:
                other_set = SumCommit(without(message.contributions, self.victim))
                sent = rng.choice(([message], [other_set], [message, other_set]))
            if "keeps_commits" in lies and rng.random() < 0.5:
                sent = []
        elif isinstance(message, SumOpening) and "hides_openings" in lies and rng.random() < 0.7:
            sent = [SumOpening(bytes(32), message.shared)] if rng.random() < 0.3 else []
        for one in sent:
            self.post(member, to, one)

    def agree(self, member: Member, sender: SiteName, message: SumSet | SumCommit) -> None:
        """Show and commit what the sender of a set would like to hear; keep the others from committing with the victim.

        ``claims_late``: only once they have committed with it.
        """
        everybody, remaining = message.contributions, without(message.contributions, self.victim)
        shows = isinstance(message, SumSet)
        if sender != self.victim and self.victim in everybody and self.claims_late != shows:
            self.post(member, sender, SumSet(remaining))
        elif shows:
            self.post(member, sender, SumSet(everybody))
        elif sender == self.victim or self.victim not in everybody:
            self.post(member, sender, SumCommit(everybody))

    # --- invariants ---------------------------------------------------------------------------------------------------
    def honest(self) -> list[Member]:
        out = self.liars | self.unaware
        return [member for member in self.members.values() if member.name not in out]

    def violation(self) -> str:
        for check in (self.bare, self.early, self.unequal, self.unexplained):
            if broken := check():
                return f"{check.__name__}: {broken}"
        return ""

    def bare(self) -> str:
        """What the coalition has been sent unmasks fewer than two honest inputs at once.

        Masked inputs are vertices, joined by pair seeds that both have used and the coalition does not know. Only the
        sum over a whole component has no pair masks left.
        """
        coalition = self.liars | self.unaware
        inputs: dict[SiteName, SumMasked] = {}
        known: set[str] = set()
        for parcel in self.log:
            if parcel.sender in coalition or parcel.to not in coalition:
                continue
            if isinstance(parcel.message, SumMasked):
                if inputs.setdefault(parcel.sender, parcel.message) != parcel.message:
                    return f"{parcel.sender} sent two masked artifacts"
            elif isinstance(parcel.message, SumOpening):
                known |= {commitment(parcel.message.own), *map(commitment, parcel.message.shared.values())}
        hidden = {
            name: {other for other, seed in one.commitments.items() if other not in coalition and seed not in known}
            for name, one in inputs.items()
        }
        left = set(inputs)
        while left:
            component, reached = set(), {min(left)}
            while reached:
                name = reached.pop()
                component.add(name)
                reached |= (hidden.get(name, set()) | {one for one in hidden if name in hidden[one]}) - component
            left -= component
            closed = all(
                name in inputs and all(agree(inputs, name, other) for other in hidden[name]) for name in component
            )
            if closed and len(component) < 2:
                return f"{component.pop()} is bare"
        return ""

    def early(self) -> str:
        """Honest sites commit to one set, and open only after all of it committed to them, to its members."""
        for member in self.honest():
            sent = [parcel for parcel in self.log if parcel.sender == member.name]
            sets = [parcel.message.contributions for parcel in sent if isinstance(parcel.message, SumCommit)]
            if any(one != sets[0] for one in sets):
                return f"{member.name} committed twice"
            for parcel in sent:
                if not isinstance(parcel.message, SumOpening):
                    continue
                if not sets or parcel.to not in sets[0]:
                    return f"{member.name} opened for {parcel.to}"
                commits = [one for one in self.log if one.to == member.name and one.message == SumCommit(sets[0])]
                if {one.sender for one in commits} | {member.name} < set(sets[0]):
                    return f"{member.name} opened before all commits"
        return ""

    def unequal(self) -> str:
        """Each sum is that of the honest inputs, and of what the others in the set have put in."""
        for member in self.honest():
            result = member.machine.result
            if not isinstance(result, core.SumReady):
                continue
            contributions = result.contributions
            openings = {**result.openings, member.name: member.opening(set(member.keys) - set(contributions))}
            total = unmask(
                (member.files[item][1] for item in contributions.items()),
                (opening.own for opening in openings.values()),
                {(name, lost): seed for name, one in openings.items() for lost, seed in one.shared.items()},
            )
            expected = sum(self.put_in(member, item) for item in contributions.items())
            if decode(RING, total).tolist() != decode(RING, np.asarray(expected)).tolist():
                return f"{member.name} sums {sorted(contributions)} to another number"
        return ""

    def put_in(self, member: Member, item: tuple[SiteName, Sha256]) -> np.ndarray:
        """The input of a contributor; a liar's is what is below the masks that it has committed to."""
        sender = self.members[item[0]]
        if sender.name not in self.liars:
            return encode(RING, sender.units)
        pairs = {other: sender.seed(other) for other in sender.keys}
        nothing = encode(RING, np.zeros_like(sender.units))
        masks: np.ndarray = mask(nothing, sender.name, secrets(sender.number).own_seed, pairs)
        return member.files[item][1] - masks

    def unexplained(self) -> str:
        """Each honest site has a result; without a sum, it says why, and names who was missing."""
        for member in self.honest():
            result = member.machine.result
            if member.absent:
                continue
            if result is None:
                return f"{member.name} still waits"
            if isinstance(result, core.NoSum):
                faulty = member.restored or "left out" in result.reason or member.named
                if not faulty:
                    return f"{member.name} names nobody: {result.reason}"
        return ""


def agree(inputs: Mapping[SiteName, SumMasked], one: SiteName, other: SiteName) -> bool:
    """Whether the masks of a pair cancel: both are there, with one seed."""
    return other != one and other in inputs and inputs[one].commitments[other] == inputs[other].commitments.get(one)


def without(contributions: Mapping[SiteName, Sha256], victim: SiteName) -> dict[SiteName, Sha256]:
    return {name: digest for name, digest in contributions.items() if name != victim}


def play(seed: int, machine: type[SecureSum] = SecureSum) -> str:
    """The first invariant that the seed breaks, or nothing."""
    return World(seed, machine).run().violation()
