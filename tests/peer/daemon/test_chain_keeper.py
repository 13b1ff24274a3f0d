"""A site's chain while it runs: heads are claims, what is valid is kept, and round keys are opened."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from peer.core import events, rows
from peer.core.messages import AmendmentsReply, ChainHead, SealedKey, SignedAmendment
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.daemon.chain_keeper import ASK_S, ASK_S_MAX, UNANSWERED_S, ChainKeeper, keeper_at_rest
from peer.errors import DiskError
from peer.net.transport.client import Unreachable
from peer.site.config.site_folder import SiteFolder, make_private
from peer.site.identity.certificates import certificate_der, certificate_key
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.chain import Chain
from peer.site.membership.folder import NOTICES_FILE, MembershipFolder
from peer.site.membership.round_keys import amendment_tag, seal_key
from peer.site.records.journal import Journal
from tests.fakes.chains import GENESIS_KEY, AmendedFederation, identity, newcomer, pin, round_key

FEDERATION = AmendedFederation("africa", "asia", "europe")
AMERICA, ASIA, EUROPE = map(SiteName, ("america", "asia", "europe"))


class KeptSite:
    """A keeper with its folder, what it reported, and a clock that the test moves."""

    def __init__(self, folder: Path, name: str, *, key: RoundKey | None = GENESIS_KEY, opened: int = 1) -> None:
        self.name, self.folder = SiteName(name), MembershipFolder(folder / name / "membership")
        self.reported: list[events.Event] = []
        self.now_s, self.opened, self.key = 0.0, opened, key
        self.calls: list[tuple[SiteName, int]] = []
        self.peers: dict[SiteName, KeptSite] = {}
        self.keeper = self.start()

    def start(self) -> ChainKeeper:
        return ChainKeeper(
            self.folder,
            FEDERATION.toml,
            own=lambda: identity(self.name),
            round_key=self.key,
            opened_round=lambda: self.opened,
            report=self.reported.append,
            clock=lambda: self.now_s,
        )

    def have(self, chain: Chain, *keys: RoundKey) -> "KeptSite":
        """Start again with this chain and these round keys on disk."""
        self.folder.save_chain(chain)
        self.folder.save_round_keys({amendment_tag(key, FEDERATION.config.digest): key for key in keys})
        self.keeper = self.start()
        return self

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        self.calls.append((peer, after))
        return self.peers[peer].keeper.answer(self.name, certificate_der(identity(self.name).certificate), after)

    def follow(self, peer: "KeptSite", head: ChainHead | None = None, *, after_s: float = ASK_S) -> bool:
        """Hear the peer's head some time later; by default the last true answer of the peer is long enough ago."""
        self.now_s += after_s
        self.peers[peer.name] = peer
        return asyncio.run(self.keeper.follow(peer.name, head or peer.keeper.head, self))

    def refusals(self) -> list[str]:
        return [each.reason for each in self.reported if isinstance(each, events.PeerRefused)]

    def learned(self) -> list[events.EpochsLearned]:
        return [each for each in self.reported if isinstance(each, events.EpochsLearned)]


@dataclass
class Answering:
    """A client whose peer gives one reply to every question."""

    reply: AmendmentsReply

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        return self.reply


MakeSite = Callable[..., KeptSite]


@pytest.fixture
def site(tmp_path: Path) -> MakeSite:
    return lambda name, **options: KeptSite(tmp_path, name, **options)


def chain(*changes: dict[str, Any]) -> Chain:
    grown = FEDERATION.chain()
    for each in changes:
        grown = FEDERATION.extend(grown, **each)
    return grown


def sealed_for_africa(key: RoundKey) -> bytes:
    public_key = certificate_key(identity("africa").certificate)
    return seal_key(key, public_key, federation=FEDERATION.config.digest, site=SiteName("africa"))


EXPULSION = chain({"from_round": 10, "add": (newcomer("america"),)}, {"from_round": 20, "key": 1, "expel": ASIA})


def test_a_site_learns_the_chain_from_a_peer_and_keeps_it(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa")
    assert africa.keeper.head is None
    assert africa.follow(europe)
    assert africa.keeper.head == europe.keeper.head
    epochs = africa.learned()[-1].epochs
    assert [epochs.at(round).members for round in (9, 20)] == [
        ("africa", "asia", "europe"),
        ("africa", "america", "europe"),
    ]
    assert epochs.at(20).round_key == round_key(1)
    assert africa.start().epochs() == epochs
    assert africa.calls == [("europe", 0)]


def test_nothing_is_asked_for_a_head_that_the_site_has(site: MakeSite) -> None:
    europe, africa = site("europe"), site("africa").have(EXPULSION, round_key(1))
    for head in (None, africa.keeper.head, EXPULSION.after(1).head):
        africa.now_s += ASK_S
        assert not asyncio.run(africa.keeper.follow(europe.name, head, africa))
    assert africa.calls == []


def test_one_question_to_a_peer_in_ten_seconds_and_a_liar_delays_nobody_else(site: MakeSite) -> None:
    liar, europe, africa = site("asia"), site("europe").have(EXPULSION), site("africa")
    claim = ChainHead(9, Sha256("ab" * 32))
    assert not africa.follow(liar, claim)
    for later_s, peer in ((UNANSWERED_S / 2, europe), (ASK_S - 1.0, liar)):
        assert not africa.follow(peer, peer.keeper.head or claim, after_s=later_s)
    assert len(africa.calls) == 1
    africa.now_s = 2 * ASK_S
    africa.follow(liar, claim, after_s=10 * ASK_S)
    assert africa.follow(europe, after_s=UNANSWERED_S)


def test_a_peer_whose_heads_are_false_is_asked_less_and_less_often(site: MakeSite) -> None:
    liar, africa = site("asia"), site("africa")
    asked_s = []
    for second in range(1800):
        calls = len(africa.calls)
        africa.follow(liar, ChainHead(9, Sha256(f"{second:064x}")), after_s=1.0)
        if len(africa.calls) > calls:
            asked_s.append(second)
    waits_s = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert waits_s == [20, 40, 80, 160, 320, 320, 320, 320]


def test_a_true_head_forgives_the_false_ones_before(site: MakeSite) -> None:
    asia, africa = site("asia"), site("africa")
    for number in range(3):
        africa.follow(asia, ChainHead(9, Sha256(f"{number:064x}")), after_s=ASK_S_MAX)
    asia.have(EXPULSION.until(1))
    assert africa.follow(asia, after_s=ASK_S_MAX)
    assert not africa.follow(asia, ChainHead(9, Sha256("ab" * 32)))
    asia.have(EXPULSION)
    assert africa.follow(asia, after_s=2 * ASK_S)


def test_the_head_of_a_fork_of_lived_rounds_is_logged_once_and_asked_for_less_often(
    site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    africa = site("africa", opened=10).have(chain({"settings": {"rounds": 200}}))
    europe = site("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    asked = [africa.follow(europe) or len(africa.calls) for _ in range(7)]
    assert [later - earlier for earlier, later in itertools.pairwise([0, *asked])] == [2, 0, 2, 0, 0, 0, 2]
    assert caplog.messages.count("chain forked") == 1


def test_a_true_head_delays_no_question_to_a_peer_with_a_later_one(site: MakeSite) -> None:
    asia, europe, africa = site("asia").have(EXPULSION.until(1)), site("europe").have(EXPULSION), site("africa")
    assert africa.follow(asia)
    africa.now_s -= ASK_S
    assert africa.follow(europe)
    assert africa.keeper.head == europe.keeper.head


def test_after_a_question_that_nobody_answered_another_peer_is_asked_soon(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION), site("africa")

    class Unplugged:
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            raise Unreachable(peer, "no answer")

    with pytest.raises(Unreachable):
        asyncio.run(africa.keeper.follow(ASIA, europe.keeper.head, Unplugged()))
    assert not africa.keeper.follows(EUROPE, europe.keeper.head)
    assert africa.follow(europe, after_s=UNANSWERED_S)


def test_a_head_that_a_peer_does_not_have_is_named_once(site: MakeSite) -> None:
    liar, africa = site("asia"), site("africa")
    claim = ChainHead(9, Sha256("ab" * 32))
    for _ in range(3):
        africa.follow(liar, claim)
    assert africa.refusals() == ["its amendments: states amendment 9 (abababababab…) and does not have it"]
    assert africa.learned() == []


def test_a_peer_that_took_another_chain_since_it_stated_its_head_is_not_named(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa").have(EXPULSION, round_key(1))
    before = chain({"from_round": 10, "hold": True})
    assert not africa.follow(europe, before.head.head)
    assert africa.refusals() == []
    assert africa.keeper.chain == EXPULSION


@pytest.mark.parametrize("fetched", [True, False])
def test_a_peer_is_not_named_for_an_amendment_that_this_site_has_seen(site: MakeSite, fetched: bool) -> None:
    """The peer followed it, and took this site's chain before its earlier statements were compared."""
    chains = HOLDS, chain({"hold": True, "settings": {"rounds": 90}})
    own, other = sorted(chains, key=lambda each: each.head.digest)
    africa, europe = site("africa").have(own), site("europe").have(other)
    if fetched:
        assert not africa.follow(europe)
    europe.have(own)
    for _ in range(2):
        assert not africa.follow(europe, other.head.head, after_s=ASK_S_MAX)
    assert any("does not have it" in reason for reason in africa.refusals()) != fetched


def test_an_answer_without_the_stated_head_delays_the_next_question_though_another_one_changed_the_chain(
    site: MakeSite,
) -> None:
    """Statements that the peer sent before it took another chain may still be under way."""
    africa, claim = site("africa"), HOLDS.head.head

    class Meanwhile:
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            africa.keeper.enact(EXPULSION.links[0].signed)
            return AmendmentsReply((), (), ())

    assert not asyncio.run(africa.keeper.follow(EUROPE, claim, Meanwhile()))
    africa.now_s += ASK_S
    assert not africa.keeper.follows(EUROPE, claim)
    africa.now_s += ASK_S
    assert africa.keeper.follows(EUROPE, claim)
    assert africa.refusals() == []


def test_a_peer_that_shows_this_site_s_own_chain_again_and_again_ends_the_question(
    site: MakeSite,
) -> None:
    africa = site("africa").have(EXPULSION, round_key(1))
    own, forged = tuple(link.signed for link in EXPULSION.links), SignedAmendment(b"{}", ())

    class Repeating:
        calls = 0

        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            self.calls += 1
            assert self.calls < 10, "the question goes on for ever"
            return AmendmentsReply(own[after:] or (forged,), (), ())

    liar = Repeating()
    africa.now_s += ASK_S
    assert not asyncio.run(africa.keeper.follow(EUROPE, ChainHead(9, Sha256("ab" * 32)), liar))
    assert liar.calls == 3
    assert africa.refusals() == ["its amendments: the amendment is refused: it has no 'federation'"]
    assert africa.keeper.chain == EXPULSION


def test_chains_that_are_replayed_cut_or_of_another_federation_change_nothing(site: MakeSite) -> None:
    own = tuple(link.signed for link in EXPULSION.links)
    foreign = AmendedFederation("africa", "asia", "europe", rounds=50)
    other = foreign.sign(foreign.after(foreign.chain(), hold=True))
    unsigned = FEDERATION.sign(FEDERATION.after(FEDERATION.chain(), hold=True), ("asia",), founder=False)
    foreign_key = SealedKey(1, sealed_for_africa(round_key(7)))
    for number, (amendments, reason) in enumerate(
        (
            ((own[0], own[0]), "amendment 1 is not next in the chain, which ends with 1"),
            ((own[1],), "amendment 2 is not next in the chain, which ends with 0"),
            ((other,), "the amendment is of the federation"),
            ((replace(own[0], by=()),), "amendment 1 is not signed by the founder's CA key"),
            ((unsigned,), "amendment 1 is not signed by the founder's CA key"),
            ((replace(own[0], body=own[0].body + b" "),), "canonical"),
        )
    ):
        africa = site("africa")
        forger = Answering(AmendmentsReply(amendments, (foreign_key,), ()))
        africa.now_s += ASK_S
        assert not asyncio.run(africa.keeper.follow(EUROPE, ChainHead(2, Sha256("ab" * 32)), forger)), number
        assert reason in africa.refusals()[0]
        assert africa.keeper.chain == FEDERATION.chain()
        assert africa.folder.round_keys() == {}
        assert africa.learned() == []


def test_a_longer_fork_is_taken_and_who_signed_both_is_named(site: MakeSite) -> None:
    own = chain({"settings": {"rounds": 200}})
    africa = site("africa").have(own)
    europe = site("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    assert africa.follow(europe)
    assert africa.keeper.head == europe.keeper.head
    assert africa.refusals() == ["has another amendment 1 than this site; signed both: the founder"]
    assert [fork.double_signers for fork in africa.folder.forks(africa.keeper.chain)] == [("the founder",)]
    assert africa.follow(europe) is False


def test_a_fork_of_rounds_that_were_lived_is_not_taken(site: MakeSite) -> None:
    own = chain({"settings": {"rounds": 200}})
    africa = site("africa", opened=10).have(own)
    europe = site("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    assert not africa.follow(europe)
    assert africa.keeper.chain == own
    assert [fork.double_signers for fork in africa.folder.forks(own)] == [("the founder",)]


def test_a_restored_site_catches_up(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa", opened=50).have(EXPULSION.until(1))
    assert africa.follow(europe)
    assert africa.calls == [("europe", 1)]


def test_a_newcomer_gets_the_keys_of_its_own_epochs_alone(site: MakeSite) -> None:
    europe, america = site("europe").have(EXPULSION, round_key(1)), site("america", key=None)
    assert america.follow(europe)
    assert set(america.folder.round_keys().values()) == {GENESIS_KEY, round_key(1)}
    grown = FEDERATION.extend(EXPULSION, from_round=30, key=2, add=(newcomer("antarctica"),))
    europe.have(grown, round_key(1), round_key(2))
    antarctica = site("antarctica", key=None)
    assert antarctica.follow(europe)
    assert set(antarctica.folder.round_keys().values()) == {round_key(2)}


def test_an_expelled_site_gets_no_key(site: MakeSite) -> None:
    europe = site("europe").have(EXPULSION, round_key(1))
    reply = europe.keeper.answer(ASIA, certificate_der(identity("asia").certificate), 0)
    assert reply.keys == ()
    assert len(reply.amendments) == 2


def test_an_expelled_site_learns_which_amendment_expels_it_and_nothing_later(site: MakeSite) -> None:
    grown = FEDERATION.extend(EXPULSION, from_round=30, key=1, add=(newcomer("antarctica"),))
    europe, asia = site("europe").have(grown, round_key(1)), site("asia")
    asia.peers[SiteName("europe")] = europe
    asia.now_s = 2 * ASK_S
    asyncio.run(asia.keeper.ask_why(SiteName("europe"), asia))
    assert asia.keeper.chain.head.head == EXPULSION.head.head
    assert asia.learned()[-1].epochs.expelled_by(ASIA) == 2
    asked = len(asia.calls)
    asyncio.run(asia.keeper.ask_why(SiteName("europe"), asia))
    assert len(asia.calls) == asked
    assert (europe.keeper.expelled, ASIA in europe.keeper.callers) == ({ASIA: 2}, False)


@pytest.mark.parametrize(
    "keys", [(SealedKey(2, b"x" * 113), SealedKey(7, b"x")), (SealedKey(2, b"x" * 113),) * 1000], ids=["two", "many"]
)
def test_keys_that_do_not_fit_are_thrown_away_and_of_many_copies_one_is_opened(
    site: MakeSite, caplog: pytest.LogCaptureFixture, keys: tuple[SealedKey, ...]
) -> None:
    """Opening takes time, and the peer chooses how many copies it sends."""
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa")
    africa.now_s += ASK_S
    garbler = Answering(AmendmentsReply(tuple(link.signed for link in EXPULSION.links), keys))
    assert asyncio.run(africa.keeper.follow(EUROPE, europe.keeper.head, garbler))
    assert africa.folder.round_keys() == {}
    assert africa.keeper.epochs().at(20).round_key is None
    assert caplog.messages.count("sealed round key not usable") == 1


def test_a_notice_spreads_and_its_site_counts_as_leaving(site: MakeSite) -> None:
    europe, africa = site("europe"), site("africa")
    europe.folder.save_notices([FEDERATION.notice("asia")])
    europe.have(chain({"hold": True}))
    assert europe.keeper.epochs().leaving == {"asia"}
    assert africa.follow(europe)
    assert africa.keeper.epochs().leaving == {"asia"}
    assert africa.start().epochs().leaving == {"asia"}
    europe.have(chain({"hold": True}, {"leave": (FEDERATION.notice("asia"),)}))
    assert africa.follow(europe)
    assert africa.keeper.epochs().leaving == frozenset()


def test_a_notice_that_a_replaced_key_signed_counts_no_more(site: MakeSite) -> None:
    before = chain({"from_round": 5, "rekey": {EUROPE: pin("europe")}})
    after = FEDERATION.extend(before, from_round=10, rekey={EUROPE: pin("europe", 2)})
    africa = site("africa").have(before)
    africa.keeper.take_notices([FEDERATION.notice("asia"), FEDERATION.notice("europe")])
    assert africa.keeper.epochs().leaving == {"asia", "europe"}
    africa.keeper.enact(after.links[-1].signed)
    assert africa.learned()[-1].epochs.leaving == {"asia"}
    assert len(africa.folder.notices()) == 1
    africa.keeper.take_notices([FEDERATION.notice("europe", generation=2)])
    assert africa.start().epochs().leaving == {"asia", "europe"}


def test_a_disk_that_takes_the_chain_and_not_its_notices_leaves_all_parts_of_the_site_at_one_epoch(
    site: MakeSite,
) -> None:
    before = chain({"from_round": 5, "rekey": {EUROPE: pin("europe")}})
    after = FEDERATION.extend(before, from_round=10, rekey={EUROPE: pin("europe", 2)})
    africa = site("africa").have(before)
    africa.keeper.take_notices([FEDERATION.notice("europe")])
    (africa.folder.path / NOTICES_FILE).unlink()
    (africa.folder.path / NOTICES_FILE).mkdir()
    with pytest.raises(DiskError, match="cannot be written"):
        africa.keeper.enact(after.links[-1].signed)
    assert africa.keeper.chain == after
    assert africa.learned()[-1].epochs == africa.keeper.epochs()


def test_pinned_keys_change_at_once(site: MakeSite) -> None:
    africa = site("africa").have(EXPULSION)
    assert set(africa.keeper.callers) == {"africa", "america", "europe"}
    assert africa.keeper.callers[AMERICA] == newcomer("america").key


def test_a_site_with_the_former_key_gets_the_amendments_up_to_its_new_one_and_no_key(
    site: MakeSite,
) -> None:
    rekeyed = chain(
        {"rekey": {SiteName("africa"): pin("africa")}},
        {"rekey": {SiteName("africa"): pin("africa", 2)}},
        {"hold": True},
    )
    europe, africa = site("europe").have(rekeyed), site("africa").have(rekeyed.until(1))
    former = certificate_der(identity("africa").certificate)
    assert europe.keeper.had_key(africa.name, pin("africa"))
    assert not europe.keeper.had_key(EUROPE, pin("africa"))
    reply = europe.keeper.answer(africa.name, former, 1)
    assert reply == AmendmentsReply((rekeyed.links[1].signed,))
    for _ in range(3):
        africa.follow(europe, after_s=ASK_S)
    assert africa.keeper.chain == rekeyed.until(2)
    assert africa.refusals() == []  # europe has the head that it states, and gives it once the new key asks
    renewed = certificate_der(identity("africa", 2).certificate)
    assert len(europe.keeper.answer(africa.name, renewed, 2).amendments) == 1
    assert europe.keeper.answer(africa.name, renewed, 2).keys


@pytest.mark.parametrize("rounds", range(200, 204))  # of two chains as long, the smaller digest decides
def test_a_site_whose_key_another_chain_replaced_sees_where_that_begins_and_names_nobody_for_less(
    site: MakeSite, rounds: int
) -> None:
    pinned = {"rekey": {SiteName("africa"): pin("africa")}}
    replaced = {"rekey": {SiteName("africa"): pin("africa", 2)}}
    theirs, own = chain(pinned, replaced, {"hold": True}), chain(pinned, {"settings": {"rounds": rounds}})
    europe, africa = site("europe").have(theirs), site("africa").have(own)
    for _ in range(3):
        africa.follow(europe)
    assert [fork.number for fork in africa.folder.forks(africa.keeper.chain)] == [2]
    assert africa.refusals() == ["has another amendment 2 than this site; signed both: the founder"]
    again = FEDERATION.extend(theirs, **pinned)
    europe.have(again)
    africa.follow(europe)
    assert africa.keeper.chain == again


HOLDS = chain({"hold": True})
EXPELS = chain({"expel": ASIA, "key": 1})


def test_a_round_key_that_is_missing_is_asked_of_a_peer_with_the_same_chain(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa").have(EXPULSION)
    africa.follow(europe)
    assert africa.calls == [("europe", 1)]
    assert africa.learned()[-1].epochs.at(20).round_key == round_key(1)
    africa.follow(europe)
    assert len(africa.calls) == 1


def test_a_round_key_counts_that_comes_after_another_peer_brought_the_same_chain(site: MakeSite) -> None:
    europe, africa = site("europe").have(EXPULSION, round_key(1)), site("africa")
    reply = europe.keeper.answer("africa", certificate_der(identity("africa").certificate), 0)

    class Overtaken(Answering):
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            africa.now_s += ASK_S
            assert await africa.keeper.follow(ASIA, europe.keeper.head, Answering(replace(reply, keys=())))
            return self.reply

    asyncio.run(africa.keeper.follow(europe.name, europe.keeper.head, Overtaken(reply)))
    assert africa.learned()[-1].epochs.at(20).round_key == round_key(1)


def test_an_operators_amendment_is_kept_and_told(site: MakeSite) -> None:
    africa = site("africa")
    africa.keeper.enact(HOLDS.links[0].signed)
    assert africa.keeper.head == HOLDS.head.head
    assert [event.epochs.at(10).hold for event in africa.learned()] == [True]
    assert africa.start().chain == HOLDS
    africa.keeper.enact(HOLDS.links[0].signed)
    assert len(africa.learned()) == 1


@pytest.mark.parametrize(
    ("amendment", "by", "opened", "reason"),
    [
        ({"hold": True, "number": 2}, ("founder",), 1, "amendment 2 is not next in the chain, which ends with 0"),
        ({"hold": True}, ("asia",), 1, "amendment 1 is not signed by the founder's CA key"),
        ({"hold": True}, ("founder",), 10, "round 10 is past: this site has opened round 10"),
        ({"add": (newcomer("asia", 2),)}, ("founder",), 1, "add: the name asia is used, or was"),
        ({"settings": {"quorum": -1}}, ("founder",), 1, "amendment 1"),
        ({"expel": ASIA, "key": 1}, ("founder",), 1, "amendment 1 names a round key that this site does not have"),
        (
            {"leave": tuple(map(FEDERATION.notice, ("africa", "asia", "europe")))},
            ("founder",),
            1,
            "amendment 1 leaves the federation without a member",
        ),
    ],
)
def test_what_cannot_be_enacted_is_named_and_changes_nothing(
    site: MakeSite, amendment: dict[str, Any], by: tuple[str, ...], opened: int, reason: str
) -> None:
    africa = site("africa", opened=opened)
    drawn = FEDERATION.after(FEDERATION.chain(), **{key: amendment[key] for key in amendment if key != "number"})
    signers = [name for name in by if name != "founder"]
    signed = FEDERATION.sign(replace(drawn, number=amendment.get("number", 1)), signers, founder="founder" in by)
    with pytest.raises(AmendmentRefused, match=reason):
        africa.keeper.enact(signed)
    assert (africa.keeper.head, africa.start().head, africa.reported) == (None, None, [])


@pytest.mark.parametrize("again", [False, True])
def test_an_enacted_round_key_is_opened_from_its_sealed_copy_also_where_it_was_lost(
    site: MakeSite, again: bool
) -> None:
    africa = site("africa").have(EXPELS if again else FEDERATION.chain())
    africa.keeper.enact(EXPELS.links[0].signed, sealed=sealed_for_africa(round_key(1)))
    assert africa.learned()[-1].epochs.at(10).round_key == round_key(1)
    assert africa.keeper.chain == EXPELS


def test_a_sites_notice_is_spread_and_a_strangers_refused(site: MakeSite) -> None:
    africa = site("africa")
    with pytest.raises(AmendmentRefused, match="a notice is refused: america is no member"):
        africa.keeper.leave(FEDERATION.notice("america"))
    africa.keeper.leave(FEDERATION.notice("asia"))
    assert africa.learned()[-1].epochs.leaving == {"asia"}
    assert africa.keeper.answer(EUROPE, certificate_der(identity("europe").certificate), 0).notices


def test_the_file_of_an_amendment_beside_the_own_one_is_kept_as_a_fork_to_choose(site: MakeSite) -> None:
    """Whoever has a new key that the others do not know cannot ask them."""
    own, theirs = chain({"settings": {"rounds": 200}}), chain({"settings": {"rounds": 300}})
    africa = site("africa", opened=10).have(own)
    with pytest.raises(AmendmentRefused, match="follows another amendment 1; it keeps this one as a fork") as refused:
        africa.keeper.enact(theirs.links[0].signed)
    assert f"federation choose {theirs.head.digest[:12]}`" in refused.value.remedy
    assert africa.keeper.chain == own
    africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == theirs
    forged = replace(chain({"settings": {"rounds": 400}}).links[0].signed, by=())
    with pytest.raises(AmendmentRefused, match="is not next in the chain"):
        africa.keeper.enact(forged)
    assert len(africa.folder.forks(theirs)) == 1


def test_the_file_of_another_chain_s_expulsion_brings_its_round_key_for_the_choice(site: MakeSite) -> None:
    own, sealed = chain({"hold": True}), sealed_for_africa(round_key(1))
    africa = site("africa", opened=10).have(own)
    with pytest.raises(AmendmentRefused, match="is not next in the chain"):
        africa.keeper.enact(replace(EXPELS.links[0].signed, by=()), sealed=sealed)
    for each in (b"", sealed_for_africa(round_key(2)), sealed):
        assert africa.folder.round_keys() == {}
        with pytest.raises(AmendmentRefused, match="it keeps this one as a fork"):
            africa.keeper.enact(EXPELS.links[0].signed, sealed=each)
    africa.keeper.choose(EXPELS.head.digest)
    assert africa.learned()[-1].epochs.at(10).round_key == round_key(1)


def test_an_amendment_of_a_member_s_chain_is_enacted_though_its_first_round_is_past(site: MakeSite) -> None:
    """The only peer that has it may have its present key pinned by it alone: then no site can ask that peer."""
    grown = FEDERATION.extend(EXPELS, key=1, settings={"rounds": 200})
    africa = site("africa", opened=11).have(EXPELS, round_key(1))
    with pytest.raises(AmendmentRefused, match="round 10 is past: this site has opened round 11"):
        africa.keeper.enact(grown.links[1].signed)
    with pytest.raises(AmendmentRefused, match="is not signed by the founder"):
        africa.keeper.enact(replace(grown.links[1].signed, by=()), is_followed=True)
    africa.keeper.enact(grown.links[1].signed, is_followed=True)
    assert africa.start().chain == africa.keeper.chain == grown
    restored = site("europe", opened=11)
    with pytest.raises(AmendmentRefused, match="names a round key that this site does not have"):
        restored.keeper.enact(EXPELS.links[0].signed, is_followed=True)


def test_no_operator_chooses_what_the_site_would_undo_by_itself(site: MakeSite) -> None:
    long, short = chain(*[{"from_round": 50, "hold": True}] * 2), chain({"from_round": 60, "hold": True})
    africa, europe = site("africa").have(short), site("europe").have(long)
    assert africa.follow(europe)
    with pytest.raises(AmendmentRefused, match="by itself until it has opened round 50: it would switch back"):
        africa.keeper.choose(short.head.digest)
    assert africa.start().chain == africa.keeper.chain == long
    africa.opened = 50
    africa.keeper.choose(short.head.digest)
    assert not africa.follow(europe)
    assert africa.start().chain == africa.keeper.chain == short


def test_a_newcomer_counts_as_added_by_the_amendment_of_its_bundle_alone(site: MakeSite) -> None:
    true = chain({"from_round": 5, "hold": True}, {"from_round": 10, "add": (newcomer("america"),)})
    asia, europe = site("asia").have(chain({"from_round": 2, "add": (newcomer("america"),)})), site("europe").have(true)
    america = site("america", key=None, opened=2)
    pinned = true.head.head
    assert pinned is not None
    america.folder.save_joined(pinned)
    america.keeper = america.start()
    america.peers = {ASIA: asia, EUROPE: europe}
    asyncio.run(america.keeper.ask(ASIA, america))
    assert (america.keeper.head, america.keeper.is_added) == (asia.keeper.head, False)
    assert not america.start().is_added
    asyncio.run(america.keeper.ask(EUROPE, america))
    assert (america.keeper.head, america.keeper.is_added) == (pinned, True)
    with pytest.raises(AmendmentRefused, match="the amendment of this site's bundle"):
        america.keeper.choose(asia.keeper.chain.head.digest)
    assert america.start().is_added


def test_the_operator_switches_to_the_other_body_and_back(site: MakeSite) -> None:
    own, theirs = chain({"settings": {"rounds": 200}}), chain({"settings": {"rounds": 300}}, {"hold": True})
    africa, europe = site("africa", opened=10).have(own), site("europe").have(theirs)
    assert not africa.follow(europe)
    with pytest.raises(AmendmentRefused, match="no fork that this site has seen has the amendment"):
        africa.keeper.choose(Sha256("ab" * 32))
    africa.keeper.choose(theirs.after(1).digest)
    assert africa.keeper.chain == theirs.until(1)
    assert africa.follow(europe)
    assert africa.start().chain == theirs
    africa.keeper.choose(own.head.digest)
    assert africa.keeper.chain == own


def test_no_operator_chooses_a_chain_whose_round_key_the_site_lacks(site: MakeSite) -> None:
    own, theirs = chain({"hold": True}), chain({"key": 1, "expel": ASIA})
    africa, europe = site("africa", opened=10).have(own), site("europe").have(theirs)
    assert not africa.follow(europe)
    with pytest.raises(AmendmentRefused, match=r"does not have the round key of the amendment .* until a peer"):
        africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == own
    assert africa.learned() == []
    europe.have(theirs, round_key(1))
    assert not africa.follow(europe, after_s=ASK_S_MAX)
    africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == theirs
    asia = site("asia", opened=10).have(own)
    assert not asia.follow(europe)
    asia.keeper.choose(theirs.head.digest)  # which expels it: it needs no key
    assert asia.keeper.chain == theirs


def test_a_site_whose_daemon_does_not_run_enacts_and_its_opened_round_counts(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path, "trial", SiteName("africa"))
    make_private(folder.path)
    folder.federation_toml.write_text(FEDERATION.toml)
    keeper_at_rest(folder, identity("africa")).enact(HOLDS.links[0].signed)
    assert keeper_at_rest(folder, identity("africa")).chain == HOLDS
    with contextlib.closing(Journal(folder.generation(folder.create_generation()) / "journal.db")) as journal:
        journal.write(rows.OpenedRow(20, sources=()))
    longer = FEDERATION.sign(FEDERATION.after(HOLDS, from_round=20, settings={"rounds": 200}))
    with pytest.raises(AmendmentRefused, match="round 20 is past: this site has opened round 20"):
        keeper_at_rest(folder, identity("africa")).enact(longer)
