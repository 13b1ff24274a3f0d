"""A site's chain of amendments in a running daemon: fetched from peers, verified, stored, and passed on.

A chain tip that a peer states is a claim. The daemon asks the peer for the amendments up to it: each peer at most once
in ``ASK_S`` unless its answer brought an amendment, with an exponential back-off while its chain tips are unusable. A
peer that twice lacks the chain tip that it stated is named. A valid chain is durable before the state machine learns of
it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core import events
from peer.core.epochs import Epochs
from peer.core.limits import AMENDMENTS_MAX
from peer.core.messages import AmendmentsReply, ChainHead, SealedKey, SignedAmendment, SignedNotice
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.certificates import Identity, certificate_key, key_digest
from peer.site.membership.amendment import AmendmentRefused, body_digest, decode
from peer.site.membership.chain import Chain, Membership
from peer.site.membership.epoch_rules import Genesis, epochs_of, upgrade_reason
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.forks import Choice, compare, prove
from peer.site.membership.proposal import check_not_past
from peer.site.membership.round_keys import amendment_tag, open_key, seal_key
from peer.site.membership.signatures import verify_notice
from peer.site.records.journal import Journal

log = logging.getLogger(__name__)

Value = TypeVar("Value")

UNANSWERED_S = 1.0
"""Wait after an unanswered request, in seconds."""
ASK_S = 10.0
"""Seconds between two requests to one peer whose answers bring no amendment."""
ASK_S_MAX = 320.0
"""Upper bound of the back-off while a peer's chain tips are false, or belong to a fork that this site cannot take."""


class QuestionTimes:
    """Rate limiter for amendment requests: one a second in all, with an exponential back-off for each peer.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._any_s = clock, float("-inf")
        self._from_s: dict[SiteName, float] = {}
        self._wait_s: dict[SiteName, float] = {}

    def may_ask(self, peer: SiteName) -> bool:
        return self._clock() >= max(self._any_s, self._from_s.get(peer, self._any_s))

    def begin(self, peer: SiteName) -> None:
        self._any_s = self._clock() + UNANSWERED_S
        self._from_s[peer] = self._clock() + self._wait_s.get(peer, ASK_S)

    def unanswered(self, peer: SiteName) -> None:
        """Shorten the wait for a peer that was not reached: it, or another one, is asked sooner."""
        self._from_s[peer] = self._clock() + UNANSWERED_S

    def forgive(self, peer: SiteName) -> None:
        """Reset the back-off of a peer that has the chain tip it stated."""
        self._wait_s.pop(peer, None)

    def distrust(self, peer: SiteName) -> None:
        """Double the back-off of a peer whose advertised chain tip was unusable."""
        wait_s = min(2 * self._wait_s.get(peer, ASK_S), ASK_S_MAX)
        self._wait_s[peer], self._from_s[peer] = wait_s, self._clock() + wait_s

    def ask_again(self, peer: SiteName) -> None:
        """Allow requests at once after an answer changed the chain: the peers may have a later one."""
        self._from_s.pop(peer, None)
        self._any_s = float("-inf")

    def forget(self) -> None:
        """Reset the waits of all peers."""
        self._from_s.clear()
        self._wait_s.clear()


class AmendmentsSource(Protocol):
    """The client's call."""

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        """Fetch a peer's amendments after a number."""


class ChainKeeper:
    """The chain of one site.

    Args:
        folder: stores the chain, proofs of forks, notices and round keys.
        federation_toml: the text of the genesis.
        own: returns this site's identity; its certificate may be renewed meanwhile.
        round_key: the genesis' key; ``None`` at a site that never had it.
        opened_round: returns the newest round that this site has opened.
        report: passes events to the state machine.
        clock: a monotonic clock, in seconds.

    Attributes:
        chain: the chain that this site follows.
        names: every site that is or was a member.
        callers: the sites that may call this one, each with its pinned key: the members, newcomers included before
            their first round, and those that left of their own accord.
        pins: the pinned key of every site that is or was a member.
        expelled: by expelled site, the number of the amendment that expels it.
    """

    names: frozenset[SiteName]
    callers: Mapping[SiteName, Sha256 | None]
    pins: Mapping[SiteName, Sha256 | None]
    expelled: Mapping[SiteName, int]
    chain: Chain

    def __init__(
        self,
        folder: MembershipFolder,
        federation_toml: str,
        *,
        own: Callable[[], Identity],
        round_key: RoundKey | None,
        opened_round: Callable[[], int],
        report: Callable[[events.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._toml = folder, federation_toml
        self._own, self._round_key, self._opened_round = own, round_key, opened_round
        self._report, self._times = report, QuestionTimes(clock)
        self._genesis = Genesis.parse(federation_toml)
        self._lies: set[tuple[SiteName, Sha256]] = set()
        self._lived: set[Sha256] = set()
        self._missed: set[SiteName] = set()
        self._seen: set[ChainHead | None] = set()
        self._site, self._keys, self._pin = own().name, folder.round_keys(), folder.joined()
        self._notices: dict[SiteName, SignedNotice] = {}
        self._adopted(folder.chain(self._genesis.config))
        self._notices = self._with_notices(folder.notices())

    @property
    def own(self) -> Identity:
        """This site's current key and certificate."""
        return self._own()

    @property
    def head(self) -> ChainHead | None:
        """The chain tip, as this site's messages state it."""
        return self.chain.head.head

    def later_authorities(self) -> tuple[str, ...]:
        """Return the CAs, in PEM, that amendments have added."""
        return self.chain.head.authorities[1:]

    def addresses(self) -> Mapping[SiteName, str]:
        """Return the members' addresses in the amendments."""
        return self.chain.head.addresses

    def settings(self, digest: Sha256 | None) -> FederationConfig:
        """Return the settings of the epoch of this digest, or the newest earlier ones that this program can apply."""
        links = self.chain.links
        number = next((link.after.number for link in links if link.after.digest == digest), 0)
        for each in range(number, 0, -1):
            with contextlib.suppress(AmendmentRefused):
                return self._genesis.settings_after(self.chain.after(each))
        return self._genesis.config

    def epochs(self) -> Epochs:
        """Build the epochs of the chain and the notices, with this site's round keys."""
        epochs = epochs_of(self.chain, self._toml, round_key=self._round_key, keys=self._keys)
        return replace(epochs, leaving=frozenset(self._notices) & self.chain.head.keys.keys())

    @property
    def is_added(self) -> bool:
        """Whether this site is or was a member; a newcomer only by the amendment that its bundle pins."""
        return self._site in self.names and self._has_pin(self.chain)

    @property
    def notices(self) -> Mapping[SiteName, SignedNotice]:
        """The notices of leaving members that no amendment has removed yet."""
        return self._notices

    def accepted(self) -> frozenset[SiteName]:
        """Return the newcomers that the operator accepted as receivers."""
        return self._folder.accepted()

    def had_key(self, site: SiteName, key: Sha256) -> bool:
        """Return whether the chain has ever pinned the key for the site."""
        return self.chain.head.used_keys.get(key) == site

    def answer(self, caller: SiteName, certificate_der: bytes, after: int) -> AmendmentsReply:
        """Return the amendments after a number, with the round keys of the caller's epochs and all notices.

        An expelled site gets only the amendments up to its expulsion, and so learns why it is refused. A caller with a
        replaced key gets only those up to the replacement.
        """
        head = self.chain.head
        if caller in self.expelled:
            return AmendmentsReply(tuple(link.signed for link in self.chain.links[after : self.expelled[caller]]))
        key = certificate_key(x509.load_der_x509_certificate(certificate_der))
        if self.pins.get(caller) not in (None, key_digest(key)):
            return AmendmentsReply(tuple(link.signed for link in self.chain.links[after : self._replaced(caller, key)]))
        keys = []
        if caller in head.keys:
            keyring = self._keyring()
            sealed: dict[Sha256, bytes] = {}
            for membership in (self.chain.genesis, *(link.after for link in self.chain.links[after:])):
                tag = self._tag(membership)
                if caller not in membership.keys or tag is None or tag not in keyring or tag in sealed:
                    continue
                sealed[tag] = seal_key(keyring[tag], key, federation=head.federation, site=caller)
                keys.append(SealedKey(membership.number, sealed[tag]))
        signed = tuple(link.signed for link in self.chain.links[after:])
        notices = tuple(notice for name, notice in self._notices.items() if name in head.keys)
        return AmendmentsReply(signed, tuple(keys), notices)

    def _replaced(self, site: SiteName, key: ec.EllipticCurvePublicKey) -> int:
        """Return the number of the amendment that replaced a site's former key; 0 if none did."""
        former, pinned = key_digest(key), False
        for membership in (self.chain.genesis, *(link.after for link in self.chain.links)):
            if pinned and membership.keys.get(site) != former:
                return membership.number
            pinned = membership.keys.get(site) == former
        return 0

    def is_news(self, head: ChainHead | None) -> bool:
        """Return whether this site lacks a peer's chain tip."""
        if head is None or head.number > AMENDMENTS_MAX:
            return False
        own = self.chain.head
        return head.number > own.number or (head.number >= 1 and self.chain.after(head.number).digest != head.digest)

    def follows(self, peer: SiteName, head: ChainHead | None) -> bool:
        """Return whether to request amendments or a missing round key from a peer with this chain tip now."""
        if head is None or not self._times.may_ask(peer):
            return False
        return self.is_news(head) or (head == self.head and self._missing_key() is not None)

    def enact(self, signed: SignedAmendment, *, sealed: bytes = b"", is_followed: bool = False) -> None:
        """Append the operator's amendment to the chain; one that is in the chain already only adds its round key.

        Raises ``AmendmentRefused`` with the reason if it is invalid.

        Args:
            signed: the amendment with its signatures.
            sealed: the copy of its round key for this site, if it has a new one.
            is_followed: whether it is of a member's chain; its first round may be past then, as if that member sent it.
        """
        amendment, digest, opened = decode(signed.body), body_digest(signed.body), self._opened_round()
        keys = [SealedKey(amendment.number, sealed)] if sealed else []
        if any(link.after.digest == digest for link in self.chain.links):
            self._take_keys(self.chain, keys)
            return
        self._refuse_rival(amendment.number, signed, keys)
        chain = self.chain.extended(signed)
        if not is_followed:
            check_not_past(amendment, opened, f"this site has opened round {opened}")
        self._genesis.settings_after(chain.head)
        self._take_keys(chain, keys)
        if amendment.round_key_tag not in self._keyring():
            raise AmendmentRefused(
                f"amendment {amendment.number} names a round key that this site does not have",
                "enact the proposal's file at a site for which it has a copy of the key",
            )
        self._adopt(chain)

    def _refuse_rival(self, number: int, signed: SignedAmendment, keys: Sequence[SealedKey]) -> None:
        """Store an amendment that forks from the chain, and its key, for ``choose``; then refuse it.

        A site whose new key the other sites do not know gets the amendment only by its file.
        """
        try:
            fork = prove(self.chain, number, signed)
        except AmendmentRefused:  # it is the next one, or it was never valid in that place
            return
        self._folder.save_fork(fork, kept=fork.own)
        self._take_keys(self.chain.until(number - 1).extended(signed), keys)
        raise AmendmentRefused(
            f"this site follows another amendment {number}; it keeps this one as a fork",
            f"take it with `mhfl-peer federation choose {body_digest(signed.body)[:12]}`, once the members agree",
        )

    def leave(self, notice: SignedNotice) -> None:
        """Spread a site's notice that it leaves; raise ``AmendmentRefused`` unless a present member signed it."""
        self._leaver(notice)
        self.take_notices([notice])

    def choose(self, digest: Sha256) -> None:
        """Switch to the other side of a fork, as the operator decides, even if this site has opened its rounds.

        The peers supply the later amendments. Raises ``AmendmentRefused`` if no fork has the digest, or this site would
        return to its former chain with the next peer.
        """
        for fork in self._folder.forks(self.chain):
            if body_digest(fork.other.body) == digest:
                chain = self.chain.until(fork.number - 1).extended(fork.other)
                if self.is_added and not self._has_pin(chain):
                    raise AmendmentRefused(
                        f"the chain with {digest[:12]}… lacks the amendment of this site's bundle, which adds it",
                        "ask the founder which of the two adds this site",
                    )
                if self._site in chain.head.keys and chain.head.round_key_tag not in self._keyring():
                    raise AmendmentRefused(
                        f"this site does not have the round key of the amendment {digest[:12]}…, without which it has "
                        "no order for a round that it has opened",
                        "let the daemon run until a peer with that chain gives the key, or enact the proposal's file",
                    )
                back, _ = compare(chain, self.chain, opened_round=self._opened_round())
                if back == Choice.TAKEN:
                    first = min(decode(each.body).from_round for each in (fork.own, fork.other))
                    raise AmendmentRefused(
                        "of two chains this site follows the longer, or of two as long the one with the smaller "
                        f"digest, by itself until it has opened round {first}: it would switch back",
                        f"choose after round {first} has begun, or enact an amendment at a site with the other chain",
                    )
                self._folder.save_fork(fork, kept=fork.other)
                self._adopt(chain)
                self._times.forget()
                return
        raise AmendmentRefused(
            f"no fork that this site has seen has the amendment {digest[:12]}…",
            "`federation show` lists the forks with their digests",
        )

    async def follow(self, peer: SiteName, head: ChainHead | None, source: AmendmentsSource) -> bool:
        """Fetch a peer's amendments up to a chain tip that this site lacks; return whether this changed the chain.

        If the peer has this site's chain, request the round keys that are missing here. ``QuestionTimes`` limits the
        rate.
        """
        if head is None or not self.follows(peer, head):
            return False
        missing, choice, times = self._missing_key(), Choice.SAME, self._times
        times.begin(peer)
        try:
            if self.is_news(head):
                other, notices = await self._fetch(peer, head, source)
                choice = self._take(peer, other)
                self.take_notices(notices)
                if choice != Choice.LIVED and _has(other, head):
                    times.forgive(peer)
                elif not self._is_kept_from(other):
                    times.distrust(peer)
            elif missing is not None:
                reply = await source.get_amendments(peer, after=missing - 1)
                self._take_keys(self.chain, reply.keys)
        except AmendmentRefused as error:
            times.distrust(peer)
            self._name(peer, head, error.message)
        except BaseException:
            times.unanswered(peer)
            raise
        if choice == Choice.TAKEN:
            times.ask_again(peer)
        return choice == Choice.TAKEN

    async def ask(self, peer: SiteName, source: AmendmentsSource) -> None:
        """Fetch the chain of a peer that stated no chain tip; a site that an amendment adds starts this way."""
        self._times.begin(peer)
        try:
            other, notices = await self._fetch(peer, None, source)
            self._take(peer, other)
            self.take_notices(notices)
        except AmendmentRefused as error:
            log.warning("amendments refused", extra={"peer": peer, "reason": str(error)})

    async def ask_why(self, peer: SiteName, source: AmendmentsSource) -> None:
        """Fetch the chain of a peer that does not admit this site, which it may have expelled.

        ``QuestionTimes`` limits the rate.
        """
        if self._times.may_ask(peer):
            await self.ask(peer, source)

    async def _fetch(
        self, peer: SiteName, head: ChainHead | None, source: AmendmentsSource
    ) -> tuple[Chain, tuple[SignedNotice, ...]]:
        """Fetch and verify the peer's chain up to the chain tip that it stated, and its notices; store round keys."""
        own = self.chain
        chain = own if head is None or head.number > len(own.links) else own.until(0)
        from_genesis = chain is not own
        notices: tuple[SignedNotice, ...] = ()
        while head is None or chain.head.number < head.number:
            reply = await source.get_amendments(peer, after=chain.head.number)
            may_differ = not from_genesis and chain.links and chain.head.digest == own.head.digest
            try:
                longer = chain.with_all(reply.amendments)
            except AmendmentRefused:
                if not may_differ:
                    raise
                longer = chain
            if longer is chain:
                if not may_differ:
                    break
                # The peer's chain differs before this site's chain tip, or replaces this site's key before it.
                chain, from_genesis = own.until(0), True
                continue
            chain = longer
            self._compare_pin(chain)
            notices = reply.notices
            self._take_keys(chain, reply.keys)
        self._seen.update(link.after.head for link in chain.links)
        if head is not None and head not in self._seen and not self._is_kept_from(chain):
            if peer in self._missed:
                raise AmendmentRefused(
                    f"states amendment {head.number} ({head.digest[:12]}…) and does not have it", "tell its operator"
                )
            self._missed.add(peer)  # once: it may have taken another chain since it stated this chain tip
        return chain, notices

    def _is_kept_from(self, chain: Chain) -> bool:
        """Return whether peers send no amendment after this chain: it expels this site, or replaces its key."""
        pinned = chain.head.keys.get(self._site)
        return self._site in chain.head.expelled or pinned not in (None, key_digest(self._own().key.public_key()))

    def _has_pin(self, chain: Chain) -> bool:
        return self._pin is None or _has(chain, self._pin)

    def _compare_pin(self, chain: Chain) -> None:
        """Raise ``AmendmentRefused`` if the chain adds this site by another amendment than that of its bundle."""
        pin = self._pin
        if pin is not None and pin.number <= len(chain.links) and not _has(chain, pin):
            raise AmendmentRefused(
                f"has another amendment {pin.number} than the one of this site's bundle, {pin.digest[:12]}…",
                "ask the founder which of the two adds this site",
            )

    def _take(self, peer: SiteName, other: Chain) -> Choice:
        lived = self._opened_round() if self.is_added else 0  # a newcomer opened no round of a chain without its pin
        choice, fork = compare(self.chain, other, opened_round=lived)
        if fork is not None and self._folder.save_fork(fork, kept=fork.other if choice == Choice.TAKEN else fork.own):
            signers = ", ".join(fork.double_signers) or "nobody"
            self._report(
                events.PeerRefused(peer, f"has another amendment {fork.number} than this site; signed both: {signers}")
            )
        if choice == Choice.LIVED and other.head.digest not in self._lived:
            self._lived.add(other.head.digest)
            log.error("chain forked", extra={"peer": peer, "head": other.head.digest, "own": self.chain.head.digest})
        if choice == Choice.TAKEN:
            self._adopt(other)
        return choice

    def _adopt(self, chain: Chain) -> None:
        """Store a chain durably, then tell the state machine. Only notices of members of this chain stay."""
        self._folder.save_chain(chain)
        self._adopted(chain)
        known, self._notices = self._notices, {}
        self._notices = self._with_notices(tuple(known.values()))
        log.info("chain of amendments", extra={"number": chain.head.number, "digest": chain.head.digest})
        self._report(events.EpochsLearned(self.epochs()))
        if self._notices.keys() != known.keys():  # last: a start drops notices that the chain makes invalid
            self._folder.save_notices(self._notices.values())

    def _adopted(self, chain: Chain) -> None:
        """Follow the chain: keys, expulsions and CAs apply at once, whatever their round."""
        self.chain = chain
        self._seen.update(link.after.head for link in chain.links)  # a peer with another chain may have had it, too
        keys = dict(chain.genesis.keys)
        for link in chain.links:
            keys.update(link.after.keys)
        self.names, self.pins = frozenset(keys), keys
        self.expelled = {name: link.after.number for link in reversed(chain.links) for name in link.after.expelled}
        self.callers = {name: key for name, key in keys.items() if name not in chain.head.expelled}
        try:
            self._genesis.settings_after(chain.head)
            reason = upgrade_reason(chain.head)
        except AmendmentRefused as error:
            reason = str(error)
        if reason:
            log.error("this site will hold", extra={"from_round": chain.head.from_round, "reason": reason})

    def _missing_key(self) -> int | None:
        """Return the number of the newest amendment whose round key this site should have but lacks, or None."""
        keyring = self._keyring()
        for link in reversed(self.chain.links):
            if self._site in link.after.keys and link.after.round_key_tag not in keyring:
                return link.after.number
        return None

    def take_notices(self, notices: Sequence[SignedNotice]) -> None:
        """Store notices of members, one of each; drop invalid ones."""
        known = self._with_notices(notices)
        if known.keys() != self._notices.keys():
            self._folder.save_notices(known.values())
            self._notices = known
            self._report(events.EpochsLearned(self.epochs()))

    def _with_notices(self, notices: Sequence[SignedNotice]) -> dict[SiteName, SignedNotice]:
        known = dict(self._notices)
        for notice in notices:
            try:
                known.setdefault(self._leaver(notice), notice)
            except AmendmentRefused as error:
                log.debug("notice not valid", extra={"reason": error.message})
        return known

    def _take_keys(self, chain: Chain, keys: Sequence[SealedKey]) -> None:
        """Store the round keys that open and fit their tags; drop the others."""
        own, opened, tried = self._own(), {}, set(self._keyring())
        for sealed in keys:
            tag = self._tag(chain.after(sealed.number)) if sealed.number <= len(chain.links) else None
            if tag is None or tag in tried:  # one copy of each key: opening takes time, and the peer chose how many
                continue
            tried.add(tag)
            try:
                federation = chain.genesis.federation
                opened[tag] = open_key(sealed.sealed, own.key, federation=federation, tag=tag, site=own.name)
            except ValueError as error:
                log.warning("sealed round key not usable", extra={"number": sealed.number, "reason": str(error)})
        if opened:
            self._folder.save_round_keys(opened)
            self._keys.update(opened)
            # Even for a chain under way: another peer may have brought it meanwhile.
            self._report(events.EpochsLearned(self.epochs()))

    def _keyring(self) -> dict[Sha256, RoundKey]:
        keys = dict(self._keys)
        if self._round_key is not None:
            keys[amendment_tag(self._round_key, self.chain.genesis.federation)] = self._round_key
        return keys

    def _tag(self, membership: Membership) -> Sha256 | None:
        """Return the tag of a membership's round key; that of the genesis only if this site has the key."""
        if membership.round_key_tag is not None or self._round_key is None:
            return membership.round_key_tag
        return amendment_tag(self._round_key, membership.federation)

    def leaver(self, notice: SignedNotice) -> SiteName | None:
        """Return the member that leaves by the notice; ``None`` if the notice is invalid."""
        with contextlib.suppress(AmendmentRefused):
            return self._leaver(notice)
        return None

    def _leaver(self, notice: SignedNotice) -> SiteName:
        """Verify a notice and return the member that leaves; ``AmendmentRefused`` unless a present member signed it."""
        head = self.chain.head
        notified = verify_notice(notice, federation=head.federation, authorities=head.authorities, keys=head.keys)
        return notified.site

    def _name(self, peer: SiteName, head: ChainHead, reason: str) -> None:
        """Journal a peer's false chain tip once."""
        if (peer, head.digest) not in self._lies:
            self._lies.add((peer, head.digest))
            self._report(events.PeerRefused(peer, f"its amendments: {reason}"))


def _has(chain: Chain, head: ChainHead) -> bool:
    return head.number <= len(chain.links) and chain.after(head.number).digest == head.digest


def keeper_at_rest(folder: SiteFolder, own: Identity) -> ChainKeeper:
    """Open the chain of a site whose daemon does not run; the caller holds the folder's lock.

    The operator may enact, leave and choose here, too: the next start informs the peers.
    """
    opened_round = _opened_round(folder)
    return ChainKeeper(
        MembershipFolder(folder.membership),
        folder.federation_toml.read_text("utf-8"),
        own=lambda: own,
        round_key=own.round_key,
        opened_round=lambda: opened_round,
        report=lambda event: None,
        clock=lambda: 0.0,
    )


def _opened_round(folder: SiteFolder) -> int:
    """Return the newest round that the site has opened; 0 before the first."""
    path = folder.generation(max(folder.generations(), default=0)) / "journal.db"
    if not path.exists():
        return 0
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        return max((round for _, round, _ in journal.newest(("opened",))), default=0)


class CurrentSites(Mapping[SiteName, Value]):
    """A live view of a mapping by site: ``read`` returns the present one."""

    def __init__(self, read: Callable[[], Mapping[SiteName, Value]]) -> None:
        self._read = read

    def __getitem__(self, site: SiteName) -> Value:
        return self._read()[site]

    def __iter__(self) -> Iterator[SiteName]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
