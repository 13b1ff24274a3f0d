"""A site's chain while it runs: what peers bring is verified, kept and passed on, and round keys are opened."""

import asyncio
from dataclasses import replace

import pytest

from fakes.kept_sites import AMERICA, ASIA, EUROPE, EXPULSION, FEDERATION, Answering, MakeSite, chain, sealed_for_africa
from peer.core.messages import AmendmentsReply, ChainHead, SealedKey
from peer.core.roster import Sha256, SiteName
from peer.daemon.chain_keeper import ASK_S
from peer.errors import DiskError
from peer.site.identity.certificates import certificate_der
from peer.site.membership.folder import NOTICES_FILE
from tests.fakes.chains import GENESIS_KEY, AmendedFederation, identity, newcomer, pin, round_key


def test_a_site_learns_the_chain_from_a_peer_and_keeps_it(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa")
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


def test_nothing_is_asked_for_a_head_that_the_site_has(keep: MakeSite) -> None:
    europe, africa = keep("europe"), keep("africa").have(EXPULSION, round_key(1))
    for head in (None, africa.keeper.head, EXPULSION.after(1).head):
        africa.now_s += ASK_S
        assert not asyncio.run(africa.keeper.follow(europe.name, head, africa))
    assert africa.calls == []


def test_chains_that_are_replayed_cut_or_of_another_federation_change_nothing(keep: MakeSite) -> None:
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
        africa = keep("africa")
        forger = Answering(AmendmentsReply(amendments, (foreign_key,), ()))
        africa.now_s += ASK_S
        assert not asyncio.run(africa.keeper.follow(EUROPE, ChainHead(2, Sha256("ab" * 32)), forger)), number
        assert reason in africa.refusals()[0]
        assert africa.keeper.chain == FEDERATION.chain()
        assert africa.folder.round_keys() == {}
        assert africa.learned() == []


def test_a_longer_fork_is_taken_and_who_signed_both_is_named(keep: MakeSite) -> None:
    own = chain({"settings": {"rounds": 200}})
    africa = keep("africa").have(own)
    europe = keep("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    assert africa.follow(europe)
    assert africa.keeper.head == europe.keeper.head
    assert africa.refusals() == ["has another amendment 1 than this site; signed both: the founder"]
    assert [fork.double_signers for fork in africa.folder.forks(africa.keeper.chain)] == [("the founder",)]
    assert africa.follow(europe) is False


def test_a_fork_of_rounds_that_were_lived_is_not_taken(keep: MakeSite) -> None:
    own = chain({"settings": {"rounds": 200}})
    africa = keep("africa", opened=10).have(own)
    europe = keep("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    assert not africa.follow(europe)
    assert africa.keeper.chain == own
    assert [fork.double_signers for fork in africa.folder.forks(own)] == [("the founder",)]


def test_a_restored_site_catches_up(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa", opened=50).have(EXPULSION.until(1))
    assert africa.follow(europe)
    assert africa.calls == [("europe", 1)]


def test_a_notice_spreads_and_its_site_counts_as_leaving(keep: MakeSite) -> None:
    europe, africa = keep("europe"), keep("africa")
    europe.folder.save_notices([FEDERATION.notice("asia")])
    europe.have(chain({"hold": True}))
    assert europe.keeper.epochs().leaving == {"asia"}
    assert africa.follow(europe)
    assert africa.keeper.epochs().leaving == {"asia"}
    assert africa.start().epochs().leaving == {"asia"}
    europe.have(chain({"hold": True}, {"leave": (FEDERATION.notice("asia"),)}))
    assert africa.follow(europe)
    assert africa.keeper.epochs().leaving == frozenset()


def test_a_notice_that_a_replaced_key_signed_counts_no_more(keep: MakeSite) -> None:
    before = chain({"from_round": 5, "rekey": {EUROPE: pin("europe")}})
    after = FEDERATION.extend(before, from_round=10, rekey={EUROPE: pin("europe", 2)})
    africa = keep("africa").have(before)
    africa.keeper.take_notices([FEDERATION.notice("asia"), FEDERATION.notice("europe")])
    assert africa.keeper.epochs().leaving == {"asia", "europe"}
    africa.keeper.enact(after.links[-1].signed)
    assert africa.learned()[-1].epochs.leaving == {"asia"}
    assert len(africa.folder.notices()) == 1
    africa.keeper.take_notices([FEDERATION.notice("europe", generation=2)])
    assert africa.start().epochs().leaving == {"asia", "europe"}


def test_a_disk_that_takes_the_chain_and_not_its_notices_leaves_all_parts_of_the_site_at_one_epoch(
    keep: MakeSite,
) -> None:
    before = chain({"from_round": 5, "rekey": {EUROPE: pin("europe")}})
    after = FEDERATION.extend(before, from_round=10, rekey={EUROPE: pin("europe", 2)})
    africa = keep("africa").have(before)
    africa.keeper.take_notices([FEDERATION.notice("europe")])
    (africa.folder.path / NOTICES_FILE).unlink()
    (africa.folder.path / NOTICES_FILE).mkdir()
    with pytest.raises(DiskError, match="cannot be written"):
        africa.keeper.enact(after.links[-1].signed)
    assert africa.keeper.chain == after
    assert africa.learned()[-1].epochs == africa.keeper.epochs()


def test_pinned_keys_change_at_once(keep: MakeSite) -> None:
    africa = keep("africa").have(EXPULSION)
    assert set(africa.keeper.callers) == {"africa", "america", "europe"}
    assert africa.keeper.callers[AMERICA] == newcomer("america").key


def test_a_newcomer_gets_the_keys_of_its_own_epochs_alone(keep: MakeSite) -> None:
    europe, america = keep("europe").have(EXPULSION, round_key(1)), keep("america", key=None)
    assert america.follow(europe)
    assert set(america.folder.round_keys().values()) == {GENESIS_KEY, round_key(1)}
    grown = FEDERATION.extend(EXPULSION, from_round=30, key=2, add=(newcomer("antarctica"),))
    europe.have(grown, round_key(1), round_key(2))
    antarctica = keep("antarctica", key=None)
    assert antarctica.follow(europe)
    assert set(antarctica.folder.round_keys().values()) == {round_key(2)}


def test_an_expelled_site_gets_no_key(keep: MakeSite) -> None:
    europe = keep("europe").have(EXPULSION, round_key(1))
    reply = europe.keeper.answer(ASIA, certificate_der(identity("asia").certificate), 0)
    assert reply.keys == ()
    assert len(reply.amendments) == 2


def test_an_expelled_site_learns_which_amendment_expels_it_and_nothing_later(keep: MakeSite) -> None:
    grown = FEDERATION.extend(EXPULSION, from_round=30, key=1, add=(newcomer("antarctica"),))
    europe, asia = keep("europe").have(grown, round_key(1)), keep("asia")
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
    keep: MakeSite, caplog: pytest.LogCaptureFixture, keys: tuple[SealedKey, ...]
) -> None:
    """Opening takes time, and the peer chooses how many copies it sends."""
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa")
    africa.now_s += ASK_S
    garbler = Answering(AmendmentsReply(tuple(link.signed for link in EXPULSION.links), keys))
    assert asyncio.run(africa.keeper.follow(EUROPE, europe.keeper.head, garbler))
    assert africa.folder.round_keys() == {}
    assert africa.keeper.epochs().at(20).round_key is None
    assert caplog.messages.count("sealed round key not usable") == 1


def test_a_site_with_the_former_key_gets_the_amendments_up_to_its_new_one_and_no_key(
    keep: MakeSite,
) -> None:
    rekeyed = chain(
        {"rekey": {SiteName("africa"): pin("africa")}},
        {"rekey": {SiteName("africa"): pin("africa", 2)}},
        {"hold": True},
    )
    europe, africa = keep("europe").have(rekeyed), keep("africa").have(rekeyed.until(1))
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
    keep: MakeSite, rounds: int
) -> None:
    pinned = {"rekey": {SiteName("africa"): pin("africa")}}
    replaced = {"rekey": {SiteName("africa"): pin("africa", 2)}}
    theirs, own = chain(pinned, replaced, {"hold": True}), chain(pinned, {"settings": {"rounds": rounds}})
    europe, africa = keep("europe").have(theirs), keep("africa").have(own)
    for _ in range(3):
        africa.follow(europe)
    assert [fork.number for fork in africa.folder.forks(africa.keeper.chain)] == [2]
    assert africa.refusals() == ["has another amendment 2 than this site; signed both: the founder"]
    again = FEDERATION.extend(theirs, **pinned)
    europe.have(again)
    africa.follow(europe)
    assert africa.keeper.chain == again


def test_a_round_key_that_is_missing_is_asked_of_a_peer_with_the_same_chain(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa").have(EXPULSION)
    africa.follow(europe)
    assert africa.calls == [("europe", 1)]
    assert africa.learned()[-1].epochs.at(20).round_key == round_key(1)
    africa.follow(europe)
    assert len(africa.calls) == 1


def test_a_round_key_counts_that_comes_after_another_peer_brought_the_same_chain(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa")
    reply = europe.keeper.answer("africa", certificate_der(identity("africa").certificate), 0)

    class Overtaken(Answering):
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            africa.now_s += ASK_S
            assert await africa.keeper.follow(ASIA, europe.keeper.head, Answering(replace(reply, keys=())))
            return self.reply

    asyncio.run(africa.keeper.follow(europe.name, europe.keeper.head, Overtaken(reply)))
    assert africa.learned()[-1].epochs.at(20).round_key == round_key(1)
