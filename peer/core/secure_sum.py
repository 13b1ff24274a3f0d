"""One secure sum at one site: who contributes, and when the masks may be opened, without a server.

N members add up their inputs for one (round, stage). At most t of them, the colluders, break the protocol together.
Each member masks its input with one seed of its own, b, and one for each pair, s, so that a masked artifact tells
nothing; the pairs' masks cancel in the sum. The law of this module:

- A site masks once. It commits once, to one set U of contributors, and only after every member of U has shown U to it.
- A site opens b, and the s that it shares with members outside U, to the members of U, and only once all of U have
  committed to U.
- U has ``members_min`` members at least, so that two such sets share more than t members: an honest one among them,
  which commits once. So there is one U, and no member outside it is ever unmasked.

A set names each contributor with the digest of its ``SumMasked``, which binds its artifact and the commitments to its
seeds. So the members of U agree on bytes and openings, and not on names alone.

Events in (``begin``, ``receive``, ``complete_masking``, ``give_up``, ``resume``), decisions out, in order. A
``PersistSum`` is on disk before the next decision is carried out. Keys, commitments and openings are opaque bytes, and
this site's own seeds never come here. The transport has verified the sender of each message, and that it is of this
federation, epoch, round and stage. Messages may arrive in any order and again. Specification: ``proto/README.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from peer.core.roster import Roster, Sha256, SiteName
from peer.core.sum_messages import (
    Contributions,
    MaskInput,
    NamePeer,
    NoSum,
    PersistSum,
    SendOpening,
    SendSum,
    SumAbandoned,
    SumBound,
    SumCommit,
    SumCompleted,
    SumDecision,
    SumKey,
    SumKeyed,
    SumMasked,
    SumMasking,
    SumMessage,
    SumOpened,
    SumOpening,
    SumReady,
    SumRecord,
    SumSet,
    commitment,
)

MEMBERS_MIN = 3
"""Of a sum of two, each contributor computes the other's input."""

TAKES_NO_PART = "takes no part"
FORGETFUL = "this site was restored, and may have committed to another set before"
OTHER_SEED = "committed to another seed than that of the two keys"
"""The member lies, or this site has forgotten the key that it showed the member: its folder is an older copy."""


def members_min(members: int, colluders: int) -> int:
    """Return how many contributors a sum needs, of N members with at most t colluders.

    Two sets of this size share more than t members, and in each there are two honest ones.
    """
    return max(MEMBERS_MIN, colluders + 2, (members + colluders) // 2 + 1)


@dataclass(slots=True)
class SecureSum:
    """The state machine of one sum at ``site``.

    Args:
        site: this site.
        members: N members of the round, whether or not they take part: the bound on sets counts all of them.
        colluders: t, at least 0.
        restored: this site may have forgotten what it said in this sum. It then takes no part.
        contributors_min: how many contributors the federation demands, where the protocol demands fewer.

    Attributes:
        keys: the first key of each member.
        used: the keys that this site's artifact is masked with; empty before.
        masked: by member, what it has masked.
        shown: by member, the intersection of all sets that it showed.
        commits: by member, the first set to which it committed.
        openings: by member, its openings, verified once this site has opened.
        refused: the members that broke the protocol, with the reason.
        held: the contributors whom this site would sum; only shrinks.
        last_shown: the set that this site showed last.
        bound: the set to which this site has committed.
        opened: whether its openings may leave.
        result: how it ended, if it has.
    """

    site: SiteName
    members: Roster
    colluders: int
    restored: bool = False
    contributors_min: int = 0
    own_key: bytes | None = None
    keys: dict[SiteName, bytes] = field(default_factory=dict)
    used: dict[SiteName, bytes] = field(default_factory=dict)
    masked: dict[SiteName, SumMasked] = field(default_factory=dict)
    shown: dict[SiteName, dict[SiteName, Sha256]] = field(default_factory=dict)
    commits: dict[SiteName, dict[SiteName, Sha256]] = field(default_factory=dict)
    openings: dict[SiteName, SumOpening] = field(default_factory=dict)
    refused: dict[SiteName, str] = field(default_factory=dict)
    held: dict[SiteName, Sha256] = field(default_factory=dict)
    last_shown: dict[SiteName, Sha256] | None = None
    bound: dict[SiteName, Sha256] | None = None
    opened: bool = False
    result: SumReady | NoSum | None = None
    _masking: bool = False
    _impatient: bool = False
    _out: list[SumDecision] = field(default_factory=list)

    @classmethod
    def rebuild(
        cls,
        site: SiteName,
        members: Roster,
        colluders: int,
        records: Iterable[SumRecord],
        *,
        restored: bool = False,
        contributors_min: int = 0,
    ) -> SecureSum:
        """Rebuild the state from its records, in their order.

        ``resume`` continues. Received keys, artifacts, sets and commits come again: from the disk, or from the members.
        """
        machine = cls(site, members, colluders, restored, contributors_min)
        for record in records:
            machine._apply(record)
        return machine

    def begin(self, key: bytes) -> list[SumDecision]:
        """Take part with this key. Its secret half and the own seed are on disk already."""
        if self.restored and self.result is None:
            self._abandon(FORGETFUL)
        elif self.own_key is None and self.result is None:
            self._persist(SumKeyed(key))
            self._send(self.members.others(self.site), SumKey(key))
            self._advance()
        return self._taken()

    def resume(self) -> list[SumDecision]:
        """Continue after a restart: say again all that was said, and wait for the rest."""
        if self.restored and self.result is None:
            self._abandon(FORGETFUL)
        for other in self.members.others(self.site):
            self._out += self.repeat(other)
        if self.result is not None:
            self._out.append(self.result)
        self._advance()
        return self._taken()

    def repeat(self, to: SiteName) -> list[SumDecision]:
        """Say again to a member, which may have restarted, all that this site has said to it."""
        if self.restored:
            return [SendSum(to, SumSet({}))]
        messages: list[SumMessage] = []
        if self.own_key is not None:
            messages.append(SumKey(self.own_key))
        if to in self.used:
            messages.append(self.masked[self.site])
        if self.last_shown is not None:
            messages.append(SumSet(self.last_shown))
        if self.bound is not None and to in self.bound:
            messages.append(SumCommit(self.bound))
        decisions: list[SumDecision] = [SendSum(to, message) for message in messages]
        if self.opened and self.bound is not None and to in self.bound:
            decisions.append(SendOpening(to, self._dropped()))
        return decisions

    def complete_masking(self, keys: Mapping[SiteName, bytes], masked: SumMasked) -> list[SumDecision]:
        """Take the own artifact, masked with the keys of ``MaskInput``; the first one counts, for ever."""
        if not self.used and self.result is None:
            self._persist(SumMasking(dict(keys), masked))
            self._send(self._partners(), masked)
            self._advance()
        return self._taken()

    def receive(self, sender: SiteName, message: SumMessage) -> list[SumDecision]:
        """Take a message of a member; of a ``SumMasked``, its artifact is on disk and has its digest."""
        if sender == self.site or sender not in self.members:
            return []
        if isinstance(message, SumKey):
            if self.keys.setdefault(sender, message.key) != message.key:
                self._refuse(sender, "gave two keys for one sum")
        elif isinstance(message, SumMasked):
            self._take_masked(sender, message)
        elif isinstance(message, SumSet):
            self._take_set(sender, message.contributions)
        elif isinstance(message, SumCommit):
            if self.commits.setdefault(sender, dict(message.contributions)) != message.contributions:
                self._second_commit(sender, message.contributions)
            self._take_set(sender, message.contributions)
        elif isinstance(message, SumOpening):
            self.openings.setdefault(sender, message)
        self._advance()
        return self._taken()

    def give_up(self) -> list[SumDecision]:
        """Wait no longer for what is missing now: name the absent, and go on without them, or without the sum."""
        self._impatient = True
        self._advance()
        self._impatient = False
        return self._taken()

    def abandon(self, reason: str) -> list[SumDecision]:
        """End this site's part: it has no sum."""
        if self.result is None:
            self._abandon(reason)
        return self._taken()

    def awaited(self) -> tuple[str, tuple[SiteName, ...]]:
        """Return what this site waits for, and of which members; for nothing while its own daemon works."""
        if self.result is not None or self.own_key is None or (self._masking and not self.used):
            return "", ()
        if not self.used:
            return "key", tuple(name for name in self._willing() if name not in self.keys)
        if self.last_shown is None:
            willing = self._willing()
            return "artifact", tuple(name for name in self._partners() if name not in self.masked and name in willing)
        if self.bound is None:
            unequal = (name for name in self.held if name != self.site and self.shown.get(name) != self.held)
            return "set", tuple(sorted(unequal))
        contributors = self._contributors()
        if not self.opened:
            return "commit", tuple(name for name in contributors if name not in self.commits)
        return "opening", tuple(name for name in contributors if name not in self.openings or name not in self.masked)

    # --- the course ---------------------------------------------------------------------------------------------------
    def _advance(self) -> None:
        if self.result is not None or self.own_key is None:
            return
        if not self.used:
            self._gather_keys()
        elif self.last_shown is None:
            self._gather_artifacts()
        if self.last_shown is not None and not self._is_bound() and self.result is None:
            self._agree()
        if self.bound is not None and self.result is None:
            self._open()

    def _gather_keys(self) -> None:
        awaited = [name for name in self._willing() if name not in self.keys]
        if self._masking or (awaited and not self._impatient):
            return
        self._name(awaited, "gave no key")
        keys = {name: self.keys[name] for name in self._willing() if name in self.keys}
        if len(keys) + 1 < self._least():
            self._abandon(f"{len(keys) + 1} of {self._least()} needed members gave a key")
            return
        self._masking = True
        self._out.append(MaskInput(keys))

    def _gather_artifacts(self) -> None:
        awaited = [name for name in self._partners() if name not in self.masked and name in self._willing()]
        if awaited and not self._impatient:
            return
        self._impatient = False  # the others' sets have not been waited for yet
        self._name(awaited, "sent no masked artifact")
        partners = {self.site, *self._partners()} - self.refused.keys()
        self.held = {name: self.masked[name].digest for name in sorted(partners & self.masked.keys())}
        for name in [name for name in self.held if name != self.site]:
            own, theirs = self.masked[self.site].commitments.get(name), self.masked[name].commitments
            if self.site not in theirs:
                self._drop(name, "masked without this site's key")
            elif theirs[self.site] != own:
                self._refuse(name, OTHER_SEED)
        self._agree()

    def _agree(self) -> None:
        """Shrink the own set by those that others show, show it, and commit to it once all its members show it."""
        self._shrink()
        if self.site not in self.held:
            out = sorted(name for name in self.held if name in self.shown and self.site not in self.shown[name])
            self._abandon(f"left out by {', '.join(out)}")
            return
        unequal = [name for name in self.held if name != self.site and self.shown.get(name) != self.held]
        if self._impatient:
            for name in unequal:
                self._drop(name, "showed no set" if name not in self.shown else "showed another set")
            self._impatient = False
            self._agree()
            return
        if len(self.held) < self._least():
            self._abandon(f"{len(self.held)} of {self._least()} needed members agree")
            return
        if self.last_shown != self.held:
            self.last_shown = dict(self.held)
            self._send(self._partners(), SumSet(self.last_shown))
        if not unequal and self.bound != self.held:
            self._persist(SumBound(dict(self.held)))
            self._send(self._contributors(), SumCommit(dict(self.held)))

    def _shrink(self) -> None:
        """Intersect the own set with those of its members.

        A member whose set would leave too few is dropped instead, so that one late site does not cost the others the
        sum. So is one that is bound to another set: it never agrees.
        """
        before = None
        while before != self.held and self.site in self.held:
            before = dict(self.held)
            for name in sorted(self.held):
                if name == self.site or name not in self.held or name not in self.shown:
                    continue
                common = {one: digest for one, digest in self.held.items() if self.shown[name].get(one) == digest}
                if len(common) < self._least():
                    self._drop(name, "shares too few contributors")
                    continue
                for lost in sorted(self.held.keys() - common.keys() - {self.site}):
                    self._drop(lost, f"is not in the set of {name}" if lost != name else "sent two masked artifacts")
                self.held = common
            for name in sorted(self.held):
                if name != self.site and self._is_bound_elsewhere(name, self.held):
                    self._drop(name, "committed to another set")

    def _open(self) -> None:
        """Open once all contributors have committed to the own set; end once all have opened, or none can."""
        contributions = self.bound or {}
        others = self._contributors()
        if not self.opened:
            refused = [name for name in others if name in self.refused]
            astray = [name for name in others if self._is_bound_elsewhere(name, contributions)]
            silent = [name for name in others if name not in self.commits and name not in self.refused]
            self._name(astray, "committed to another set")
            if refused or astray or (silent and self._impatient):
                self._name(silent, "did not commit")
                self._abandon(f"without a commit of {', '.join(sorted({*refused, *astray, *silent}))}")
                return
            if not self._all_committed():
                return
            self._impatient = False
            self._persist(SumOpened())
            self._out += [SendOpening(name, self._dropped()) for name in others]
        false = [name for name in others if name in self.openings and not self._is_true(name)]
        silent = [name for name in others if name not in self.openings or name not in self.masked]
        for name in false:
            self._refuse(name, "opened another seed than it committed to")
        if false or (silent and self._impatient):
            self._name(silent, "did not open its masks")
            self._abandon(f"without the openings of {', '.join(sorted({*false, *silent}))}")
        elif not silent:
            openings = {name: self._needed(name) for name in others}
            self._persist(SumCompleted(openings))
            self._out.append(SumReady(dict(contributions), openings))

    # --- rules --------------------------------------------------------------------------------------------------------
    def _is_bound(self) -> bool:
        return self.bound is not None

    def _all_committed(self) -> bool:
        return all(self.commits.get(name) == self.bound for name in self._contributors())

    def _is_bound_elsewhere(self, name: SiteName, contributions: Contributions) -> bool:
        return self.commits.get(name, contributions) != contributions

    def _second_commit(self, sender: SiteName, contributions: Contributions) -> None:
        self._refuse(sender, "committed to two sets")

    def _is_true(self, name: SiteName) -> bool:
        """Whether the openings are those of the contributor's commitments; true while these are not here yet."""
        if name not in self.masked:
            return True
        commitments, opening = self.masked[name].commitments, self.openings[name]
        shared = {other: opening.shared.get(other) for other in self._dropped_by(name)}
        return commitment(opening.own) == commitments[name] and all(
            seed is not None and commitment(seed) == commitments[other] for other, seed in shared.items()
        )

    def _needed(self, name: SiteName) -> SumOpening:
        opening = self.openings[name]
        return SumOpening(opening.own, {other: opening.shared[other] for other in self._dropped_by(name)})

    def _dropped_by(self, name: SiteName) -> tuple[SiteName, ...]:
        """Return the members whose pair masks with a contributor do not cancel."""
        return tuple(sorted(self.masked[name].commitments.keys() - (self.bound or {}).keys() - {name}))

    def _dropped(self) -> tuple[SiteName, ...]:
        return tuple(sorted(self.used.keys() - (self.bound or {}).keys()))

    def _least(self) -> int:
        return max(self.contributors_min, members_min(len(self.members), self.colluders))

    def _willing(self) -> list[SiteName]:
        """Return the other members that may take part: neither refused, nor did they show the empty set."""
        others = self.members.others(self.site)
        unwilling = {name for name, shown in self.shown.items() if not shown}
        return [name for name in others if name not in self.refused and name not in unwilling]

    def _partners(self) -> list[SiteName]:
        return sorted(self.used.keys() - {self.site})

    def _contributors(self) -> list[SiteName]:
        return sorted((self.bound or {}).keys() - {self.site})

    # --- memory -------------------------------------------------------------------------------------------------------
    def _take_masked(self, sender: SiteName, message: SumMasked) -> None:
        if sender not in message.commitments:
            self._refuse(sender, "committed to no seed of its own")
            return
        expected = (self.bound or {}).get(sender, message.digest)
        if message.digest != expected or self.masked.setdefault(sender, message) != message:
            self._refuse(sender, "sent two masked artifacts")

    def _take_set(self, sender: SiteName, contributions: Contributions) -> None:
        first, before = sender not in self.shown, self.shown.get(sender, contributions)
        self.shown[sender] = {
            name: digest for name, digest in sorted(contributions.items()) if before.get(name) == digest
        }
        if not self.shown[sender] and (before or first):
            self._name([sender], TAKES_NO_PART)

    def _apply(self, record: SumRecord) -> None:
        if isinstance(record, SumKeyed):
            self.own_key = record.key
        elif isinstance(record, SumMasking):
            self.used, self.masked[self.site] = dict(record.keys), record.masked
            self.keys |= record.keys
        elif isinstance(record, SumBound):
            self.held = dict(record.contributions)
            self.bound, self.last_shown = dict(self.held), dict(self.held)
        elif isinstance(record, SumOpened):
            self.opened = True
        elif isinstance(record, SumCompleted):
            self.openings |= record.openings
            self.result = SumReady(dict(self.bound or {}), record.openings)
        elif isinstance(record, SumAbandoned):
            self.result = NoSum(record.reason)
            self.last_shown = {} if self.bound is None else self.last_shown

    def _persist(self, record: SumRecord) -> None:
        self._out.append(PersistSum(record))
        self._apply(record)

    def _send(self, to: Iterable[SiteName], message: SumMessage) -> None:
        self._out += [SendSum(name, message) for name in to]

    def _name(self, sites: Iterable[SiteName], reason: str) -> None:
        self._out += [NamePeer(name, reason) for name in sites]

    def _drop(self, name: SiteName, reason: str) -> None:
        self.held.pop(name, None)
        self._name([name], reason)

    def _refuse(self, name: SiteName, reason: str) -> None:
        if name not in self.refused:
            self.refused[name] = reason
            self.held = {one: digest for one, digest in self.held.items() if one != name}
            self._out.append(NamePeer(name, reason, guilty=True))

    def _abandon(self, reason: str) -> None:
        self._persist(SumAbandoned(reason))
        if self.bound is None:
            self._send(self.members.others(self.site), SumSet({}))
        self._out.append(NoSum(reason))

    def _taken(self) -> list[SumDecision]:
        decisions, self._out = self._out, []
        return decisions
