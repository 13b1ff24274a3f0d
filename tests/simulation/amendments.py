"""Members that come and go in a run: what the operators sign, enact and choose, drawn from the seed.

Each amendment is signed as the federation's governance says, and enacted at one site by the action
of its control socket. From there it travels by itself, through all the other faults of the run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from peer import errors
from peer.core.machine import SiteMachine
from peer.core.messages import SignedAmendment, SignedNotice
from peer.core.phases import Phase
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.daemon.governance import MembershipActions
from peer.site.identity import certificates
from peer.site.identity.certificates import Identity
from peer.site.membership.amendment import (
    Amendment,
    AmendmentRefused,
    Newcomer,
    Requirements,
    body_digest,
    notice_to_base64,
)
from peer.site.membership.chain import Chain, Link
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.forks import Choice, compare
from peer.site.membership.proposal import Proposal
from peer.site.membership.round_keys import amendment_tag, seal_key
from peer.site.membership.signatures import endorse, endorse_as_founder, quorum, sign_notice
from simulation.loop import Crash
from simulation.programs import NEW_FEATURE, Roll
from simulation.sites import NAMES, Shape, Site, authority, enrolled, genesis_key, pinned, renewed

if TYPE_CHECKING:
    from simulation.seeded_run import Simulation

AMENDED_SHARE = 0.2
REKEYED_SHARE = 0.4
"""Of the seeds with amendments."""
ROUNDS = 6
ACTS_MAX = 3
ACTS_END_S = 20.0
KINDS = ("join", "leave", "expel", "hold", "set_rounds", "fork")
"""What is drawn where members change; new keys and requirements are drawn apart."""
TRY_S = 3.0
TRIES = 8
ISSUED = 1_577_836_800


@dataclass(frozen=True)
class Act:
    """What operators do at a moment.

    Attributes:
        at_s: seconds after the start.
        kind: the name of the operators' method.
        site: where it is enacted, if that site can.
        subject: the site that joins, leaves or is expelled.
        ahead: how many rounds after that site's present one the amendment begins.
        wait_s: until the act's second part.
    """

    at_s: float
    kind: str
    site: str
    subject: str
    ahead: int
    wait_s: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject} at {self.at_s:.1f} s by {self.site}, {self.ahead} rounds ahead"


def with_amendments(rng: random.Random, shape: Shape) -> tuple[Shape, list[Act]]:
    """The shape as it is; or, now and then, with more rounds, a governance, and acts that change its members."""
    if rng.random() > AMENDED_SHARE:
        return shape, []
    names = shape.names if len(shape.names) > 2 else NAMES[:3]
    changed = dataclasses.replace(
        shape, names=names, rounds=ROUNDS, linger_s=30, governance=rng.choice((None, None, 2, len(names)))
    )
    newcomers = list(NAMES[len(names) :])
    acts = []
    for _ in range(rng.randint(1, ACTS_MAX)):
        kind = rng.choice(KINDS)
        subject = newcomers.pop(0) if kind == "join" and newcomers else rng.choice(names)
        at_s, ahead, wait_s = rng.random() * ACTS_END_S, rng.choice((1, 1, 2, 3)), rng.choice((0.5, 5.0, 30.0))
        acts.append(Act(at_s, kind, rng.choice(names), subject, ahead, wait_s))
    return changed, sorted(acts, key=lambda act: act.at_s)


def with_rekeys(rng: random.Random, shape: Shape, acts: list[Act]) -> tuple[Shape, list[Act]]:
    """The acts; where there are some, now and then with the new key of a member or two."""
    if not acts or rng.random() > REKEYED_SHARE:
        return shape, acts
    rekeys = [
        Act(
            at_s=rng.random() * ACTS_END_S,
            kind="rekey",
            site=rng.choice(shape.names),
            subject=subject,
            ahead=rng.choice((1, 1, 2)),
            wait_s=rng.choice((-5.0, 0.0, 0.5, 5.0, 15.0)),
        )
        for subject in rng.sample(shape.names, rng.choice((1, 1, 2)))
    ]
    return dataclasses.replace(shape, stay=True), sorted([*acts, *rekeys], key=lambda act: act.at_s)


def with_requirement(rng: random.Random, shape: Shape, acts: Sequence[Act], roll: Roll) -> Sequence[Act]:
    """The acts; where sites change to a program that knows more, perhaps the requirement that all do."""
    if not acts or not roll.upgrades or rng.random() < 0.3:
        return acts
    at_s, site, subject = rng.random() * ACTS_END_S, rng.choice(shape.names), rng.choice(shape.names)
    return sorted([*acts, Act(at_s, "require", site, subject, rng.choice((1, 2)), 0.0)], key=lambda act: act.at_s)


class Operators:
    """The operators of all sites, and the founder.

    Args:
        run: whose sites they look after.
        acts: what they do while things go wrong.
        rng: draws who signs, and new round keys.
    """

    def __init__(self, run: Simulation, acts: Sequence[Act], rng: random.Random) -> None:
        self._run, self._acts, self._rng = run, acts, rng
        self._left: set[str] = set()
        self._notices: set[SignedNotice] = set()
        self._drawn: dict[Sha256, tuple[str, Proposal]] = {}

    async def play(self) -> None:
        """Carry out the acts; each is tried again elsewhere where it is refused, as a person would."""
        began_s = self._run.loop.time()
        async with asyncio.TaskGroup() as group:
            for act in self._acts:
                group.create_task(self._try(act, began_s + act.at_s))

    async def _try(self, act: Act, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._run.loop.time()))
        for _ in range(TRIES):
            candidates = [name for name in self._run.shape.names if name not in (act.site, act.subject)]
            self._rng.shuffle(candidates)
            for name in (act.site, *candidates):
                if self._can(name) and await getattr(self, act.kind)(self._run.sites[name], act):
                    self._run.trace(f"OPERATORS {act} done at {name}")
                    return
            await asyncio.sleep(TRY_S)
        self._run.trace(f"OPERATORS {act} given up")

    def tend(self) -> None:
        """End what only operators can end: forks of rounds that were lived, holds, and keys that a backup lacks."""
        for site in self._run.sites.values():
            if site.key_is_new:
                site.join_again()
        best = self.chain()
        if best is None:
            return
        members = self._members()
        if len(members) == 1 and self._can(members[0].name) and _has_no_round(members[0].daemon.machine):
            self._left.add(members[0].name)  # a newcomer whom the others have not met before they ended
        for site in members:
            known = {other.name for other in members if other is not site} & site.keeper.chain.head.keys.keys()
            if not site.keeper.is_added and self._can(site.name) and not known:
                self._left.add(site.name)  # all whom the newcomer knows have ended: it takes amendments of nobody else
        for site in members:
            number = first_difference(site.keeper.chain, best)
            if number and self._can(site.name):
                if self._act(site, "choose", digest=best.after(number).digest):
                    self._run.referee.switched.add(site.name)
                else:  # whoever has a new key that the others do not know cannot ask them: its operator gets a file
                    self._enact_file(site, best.links[number - 1])
                    former = site.keeper.chain.head.keys.get(SiteName(site.name))
                    if former not in (None, best.head.keys.get(SiteName(site.name))):
                        self._amend_best(best, rekey={SiteName(site.name): former})
        self._add_again(best)
        self._enact_again(best)
        self._rekey_again(best)
        if best.head.hold:
            self._amend_best(best, hold=False)

    def _add_again(self, best: Chain) -> None:
        """Enact at a restored site what only those still have whom it does not know, or not with their new keys."""
        knowing = [SiteName(site.name) for site in self._followers(best)]
        for site in self._members():
            chain = site.keeper.chain
            behind = len(chain.links) < len(best.links) and not first_difference(chain, best)
            hears = any(chain.head.keys.get(name) == best.head.keys.get(name) for name in knowing)
            if behind and self._can(site.name) and not hears:
                link = best.links[len(chain.links)]
                taken = self._enact_file(site, link)
                past = link.after.from_round <= site.daemon.machine.number
                if past and not taken and chain.head.keys.keys().isdisjoint(knowing):
                    self._left.update(knowing)  # the members have lived the round of those that alone know it

    def _enact_again(self, best: Chain) -> None:
        """Enact the file of an expulsion once more at its operator's site, which has lost the key with a backup."""
        for link in best.links:
            name, proposal = self._drawn.get(link.after.round_key_tag or Sha256(""), ("", None))
            if proposal is None or not self._can(name):
                continue
            site = self._run.sites[name]
            if same_head(site, best) and site.keeper.epochs().all[link.after.number].round_key is None:
                self._act(site, "enact", proposal=proposal.encode().decode())

    def _rekey_again(self, best: Chain) -> None:
        """Pin the key of a site whose own amendment with it was lost to another one of its number."""
        for subject in self._run.sites.values():
            _, key = renewed(subject.name) if subject.key_is_new else ({}, None)
            if key is None or best.head.keys.get(SiteName(subject.name)) in (None, key):
                continue
            if self._amend_best(best, rekey={SiteName(subject.name): key}):
                return

    def _amend_best(self, best: Chain, **changes: Any) -> bool:
        """Amend that chain at the first member that follows it and can, with what is never late."""
        return any(
            self.amend(site, best.head.from_round, **changes) for site in self._followers(best) if self._can(site.name)
        )

    def _followers(self, best: Chain) -> list[Site]:
        """The members whose newest amendment is that of this chain."""
        return [site for site in self._members() if same_head(site, best)]

    def _enact_file(self, site: Site, link: Link) -> bool:
        """Enact what a member wrote of its chain, with the file of the author, if that has a new round key."""
        _, proposal = self._drawn.get(link.after.round_key_tag or Sha256(""), ("", None))
        if proposal is None or proposal.digest != link.after.digest:
            proposal = Proposal(link.signed)
        return self._act(site, "enact", proposal=proposal.encode().decode(), is_followed=True)

    def chain(self) -> Chain | None:
        """The chain that all members should follow: the preferred one of all sites, also of those that ended."""
        best: Chain | None = None
        for site in filter(self._may_take_part, self._run.sites.values()):
            if site.keeper is None:
                continue
            if best is None or compare(best, site.keeper.chain, opened_round=0)[0] == Choice.TAKEN:
                best = site.keeper.chain
        return best

    def unfinished(self) -> list[str]:
        """The honest members that have not reached the last round."""
        best = self.chain()
        members = self._run.sites if best is None else best.head.keys
        return [site.name for site in self._run.sites.values() if self._takes_part(site) and site.name in members]

    def unreached(self) -> list[str]:
        """The honest members that are not done, and the pairs in which one has not answered the other since all
        was mended.
        """
        best = self.chain()
        sites = [self._run.sites[name] for name in self.unfinished()]
        missing = [site.name for site in sites if site.daemon is None or site.daemon.machine.phase != Phase.DONE]
        reached = self._run.referee.reached_since_mended()
        pairs = [(one.name, two.name) for one in sites for two in sites if one is not two]
        same = {site.name for site in (self._members() if best is None else self._followers(best))}
        relays = self._run.relays
        missing += [f"{site.name}, which has nothing parked" for site in sites if not relays.serves(site.name)]
        return missing + [f"{one} to {two}" for one, two in pairs if (one, two) not in reached and {one, two} <= same]

    def has_left(self, name: str) -> bool:
        """Whether the site's operator took it out; the program may have ended once that notice was on its disk."""
        keeper = self._run.sites[name].keeper
        return name in self._left or (keeper is not None and keeper.notices.get(SiteName(name)) in self._notices)

    def _takes_part(self, site: Site) -> bool:
        """Whether an honest site is one that nobody sent away, and is not yet done."""
        return self._may_take_part(site) and not site.left

    def _may_take_part(self, site: Site) -> bool:
        """Whether an honest site is one that nobody sent away."""
        expelled = {name for each in self._run.sites.values() for name in each.expelled}
        return site.liar is None and not self.has_left(site.name) and site.name not in expelled

    def _members(self) -> list[Site]:
        return [site for site in self._run.sites.values() if self._takes_part(site) and site.keeper is not None]

    def _can(self, name: str) -> bool:
        """Whether an operator can do something at a site now."""
        site = self._run.sites.get(name)
        return site is not None and site.running and site.daemon is not None and self._takes_part(site)

    def _act(self, site: Site, action: str, **arguments: Any) -> bool:
        """An action of the site's control socket; whether it was carried out."""
        daemon, process = site.daemon, site.process
        try:
            process.context().run(MembershipActions(daemon.chain, site.folder).act, action, arguments)
        except (errors.PeerError, AmendmentRefused) as error:
            self._run.trace(f"OPERATORS {action} refused at {site.name}: {error}")
            return False
        except Crash:
            return False
        self._run.trace(f"OPERATORS {action} at {site.name}: head {daemon.chain.chain.head.number}")
        return True

    def amend(self, site: Site, from_round: int, **changes: Any) -> bool:
        """Sign the next amendment of a site's chain and enact it there."""
        chain = site.keeper.chain
        from_round = max(from_round, chain.head.from_round)
        if from_round > max(chain.head.rounds, chain.head.from_round):
            return False
        return self._enact(site, chain, from_round, changes)

    def _enact(self, site: Site, chain: Chain, from_round: int, changes: Mapping[str, Any]) -> bool:
        head, expelled = chain.head, changes.get("expel")
        tag = head.round_key_tag or amendment_tag(genesis_key(), head.federation)
        by = [name for name in head.keys if name != expelled]
        sealed = {}
        if expelled is not None:
            key = RoundKey(self._rng.randbytes(32))
            tag = amendment_tag(key, head.federation)
            for name in (name for name in by if self._can(name)):
                public = identity(name, head.keys[name]).key.public_key()
                sealed[name] = seal_key(key, public, federation=head.federation, site=name)
        body = Amendment(
            federation=head.federation,
            number=head.number + 1,
            previous=head.digest,
            from_round=from_round,
            issued=ISSUED,
            round_key_tag=tag,
            **changes,
        ).encode()
        needed = quorum(len(head.keys), head.governance, expels=expelled is not None)
        if head.governance.members is None:
            signatures = [endorse_as_founder(authority()[0], body)]
        elif needed > len(by):
            return False
        else:
            signers = self._rng.sample(by, needed)
            signatures = [endorse(identity(name, head.keys[name]), body) for name in signers]
        self._run.referee.authorised.add(body_digest(body))
        proposal = Proposal(SignedAmendment(body, tuple(signatures)), sealed)
        if sealed:
            self._drawn[tag] = (site.name, proposal)
        return self._act(site, "enact", proposal=proposal.encode().decode())

    # --- the kinds of acts ---
    async def join(self, site: Site, act: Act) -> bool:
        """A hospital joins; its daemon starts a while after its admission."""
        if act.subject in self._run.sites:
            return await self.set_rounds(site, act)  # no name is left
        name = SiteName(act.subject)
        newcomer = Newcomer(name, pinned(name), self._run.shape.routes(name)[0])
        if not self.amend(site, self._first(site, act), add=(newcomer,)):
            return False
        added = site.keeper.chain.head.head
        joined = self._run.admit(name)
        MembershipFolder(joined.folder.membership).save_joined(added)
        await asyncio.sleep(act.wait_s)
        self._run.start(joined)
        return True

    async def leave(self, site: Site, act: Act) -> bool:
        """A site leaves by a notice of its own; perhaps an amendment takes it out later."""
        leaver = self._run.sites[act.subject]
        if not self._can(act.subject) or len(self._members()) < 3 or site is leaver:
            return False
        head = site.keeper.chain.head
        own = identity(leaver.name, head.keys.get(leaver.name))
        notice = sign_notice(own, federation=head.federation, issued=ISSUED)
        self._notices.add(notice)
        if not self._act(leaver, "leave", notice=notice_to_base64(notice)):
            return False
        self._left.add(leaver.name)
        await asyncio.sleep(act.wait_s)
        if self._can(site.name):
            self.amend(site, self._first(site, act), leave=(notice,))
        return True

    async def expel(self, site: Site, act: Act) -> bool:
        """The others expel a site, if they can a liar."""
        head = site.keeper.chain.head
        liars = [name for name, each in self._run.sites.items() if each.liar is not None and name in head.keys]
        subject = SiteName(min(liars, default=act.subject))
        enough = len(self._members()) > 2 or subject in liars
        if subject == site.name or subject not in head.keys or not enough:
            return False
        return self.amend(site, self._first(site, act), expel=subject)

    async def hold(self, site: Site, act: Act) -> bool:
        """The federation holds; ``tend`` ends it."""
        return self.amend(site, self._first(site, act), hold=True)

    async def set_rounds(self, site: Site, act: Act) -> bool:
        """One round more, or one less where that is still possible."""
        rounds, first = site.keeper.chain.head.rounds, self._first(site, act)
        change = self._rng.choice((-1, 1))
        return self.amend(site, first, settings={"rounds": max(first, rounds + change)})

    async def fork(self, site: Site, act: Act) -> bool:
        """Two bodies of one number are signed, and two sites enact one each."""
        others = [each for each in self._members() if each is not site and self._can(each.name)]
        alike = [each for each in others if same_head(each, site.keeper.chain)]
        if not alike:
            return False
        rounds, other = site.keeper.chain.head.rounds, self._rng.choice(alike)
        if not self.amend(site, self._first(site, act), settings={"rounds": rounds + 1}):
            return False
        await asyncio.sleep(min(act.wait_s, 5.0))
        if self._can(other.name):
            self._run.trace(f"OPERATORS fork at {other.name}")
            self.amend(other, self._first(other, act), settings={"rounds": rounds + 2})
        return True

    async def rekey(self, site: Site, act: Act) -> bool:
        """A member has a new key: an amendment pins it, and the founder's certificate comes before it, or after."""
        subject = self._run.sites[act.subject]
        if subject.liar is not None or subject.key_is_new or act.subject not in site.keeper.chain.head.keys:
            return False
        _, key = renewed(act.subject)
        self._run.referee.rekeyed.add(act.subject)
        if act.wait_s < 0:
            subject.join_again()
            await asyncio.sleep(-act.wait_s)
            if not self._can(site.name):
                return False
        if not self.amend(site, self._first(site, act), rekey={SiteName(act.subject): key}):
            return False
        subject.key_is_new = True
        await asyncio.sleep(max(0.0, act.wait_s))
        subject.join_again()  # or later, where its daemon has not heard of the amendment: see ``tend``
        return True

    async def require(self, site: Site, act: Act) -> bool:
        """The federation requires of all programs what the last one of a roll has."""
        requires = Requirements(self._run.roll.last.highest, (NEW_FEATURE,))
        return self.amend(site, self._first(site, act), requires=requires)

    def _first(self, site: Site, act: Act) -> int:
        return site.daemon.machine.number + act.ahead


def _has_no_round(newcomer: SiteMachine) -> bool:
    """Whether a site that joined later has committed none of its rounds, and opened none."""
    memory, first = newcomer.memory, newcomer.rules.first_round
    return memory.open is None and memory.committed < first and first > 1


def same_head(site: Site, chain: Chain) -> bool:
    """Whether a site's newest amendment is that of a chain."""
    return site.keeper.chain.head.digest == chain.head.digest


def first_difference(one: Chain, two: Chain) -> int:
    """The number of the first amendment in which two chains differ; 0 where one is a part of the other."""
    pairs = zip(one.links, two.links, strict=False)
    return next((a.after.number for a, b in pairs if a.after.digest != b.after.digest), 0)


def identity(name: str, pinned_key: Sha256 | None) -> Identity:
    """A site's key and certificate, for its operator to sign with: its first key, unless the chain pins the new one."""
    files, new = renewed(name)
    folder = enrolled()[1][name]
    if pinned_key == new:
        folder = {
            certificates.KEY_FILE: files[certificates.PENDING_KEY_FILE],
            certificates.CERTIFICATE_FILE: files[certificates.CERTIFICATE_FILE],
        }
    key: Any = load_pem_private_key(folder[certificates.KEY_FILE], None)
    certificate = x509.load_pem_x509_certificate(folder[certificates.CERTIFICATE_FILE])
    return Identity(SiteName(name), key, certificate, authority()[1], genesis_key())
