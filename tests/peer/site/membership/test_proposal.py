"""Proposals: what cannot be is named before anybody signs, and signatures are collected."""

import json
from typing import Any

import pytest

from peer.core.roster import SiteName
from peer.site.membership.amendment import Amendment, AmendmentRefused, Newcomer
from peer.site.membership.chain import Chain
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.proposal import (
    PROPOSAL_BYTES_MAX,
    Proposal,
    approve,
    count_signatures,
    draw,
    first_round,
    make,
    open_round_key,
)
from peer.site.membership.round_keys import seal_key
from tests.fakes.chains import AmendedFederation, identity, newcomer, pin, round_key

MEMBERS = AmendedFederation("africa", "asia", "europe", "oceania", members=2)
GENESIS = Genesis.parse(MEMBERS.toml)
ASIA, OCEANIA = SiteName("asia"), SiteName("oceania")


def drawn(chain: Chain, *, reached: int = 5, **changes: Any) -> Amendment:
    return draw(chain, GENESIS, MEMBERS.after(chain, **changes), reached_round=reached)


def proposed(amendment: Amendment, *names: str, key: int = 1) -> Proposal:
    keys = {
        SiteName(name): seal_key(
            round_key(key), identity(name).key.public_key(), federation=MEMBERS.config.digest, site=SiteName(name)
        )
        for name in names
    }
    return Proposal(MEMBERS.sign(amendment, founder=False), keys)


def test_a_proposal_goes_from_member_to_member_until_enough_have_signed() -> None:
    chain = MEMBERS.chain()
    proposal = proposed(drawn(chain, add=(newcomer("america"),)))
    for name, missing in (("asia", 2), ("europe", 1), ("asia", 1), ("africa", 0)):
        proposal = Proposal.decode(approve(proposal, identity(name)).encode())
        assert count_signatures(chain, proposal).missing == missing
    assert count_signatures(chain, proposal).by == ("africa", "asia", "europe")
    assert chain.extended(proposal.signed).head.newcomers == {"america"}


def test_copies_of_a_proposal_count_together_with_the_round_keys_in_them() -> None:
    amendment = drawn(MEMBERS.chain(), expel=SiteName("asia"), key=1)
    one, two = (proposed(amendment, name) for name in ("africa", "europe"))
    one, two = approve(one, identity("africa")), approve(two, identity("europe"))
    assert one.merged(two).keys == two.merged(one).keys == {**one.keys, **two.keys}
    assert count_signatures(MEMBERS.chain(), one.merged(two)).by == ("africa", "europe")


def test_the_founders_signature_is_the_only_one_that_a_founder_needs() -> None:
    founded = AmendedFederation("africa", "asia")
    chain = founded.chain()
    amendment = founded.after(chain, hold=True)
    assert count_signatures(chain, Proposal(founded.sign(amendment, ("asia",)))).missing == 1
    assert count_signatures(chain, Proposal(founded.sign(amendment))).missing == 0


@pytest.mark.parametrize(
    ("reached", "changes", "reason", "remedy"),
    [
        (10, {"hold": True}, "round 10 is past: a member is in round 10", "round 11 or later"),
        (5, {"hold": True, "from_round": 101}, "after the last one, 100", "round 100 at the latest"),
        (5, {"settings": {"pace": {"tempo": 3}}}, "pace.tempo: unknown key", "correct the setting"),
        (5, {"settings": {"quorum": 0}}, "quorum", "correct the setting"),
        (5, {"add": (newcomer("asia", 2),)}, "the name asia is used", "another name"),
        (5, {}, "changes nothing", "say what it shall change"),
    ],
)
def test_what_cannot_be_is_named_and_not_drawn(reached: int, changes: Any, reason: str, remedy: str) -> None:
    with pytest.raises(AmendmentRefused, match=reason) as refused:
        drawn(MEMBERS.chain(), reached=reached, **changes)
    assert remedy in refused.value.remedy


def test_two_sites_have_one_address_at_a_relay_alone() -> None:
    def added(name: str, address: str) -> Newcomer:
        return Newcomer(SiteName(name), pin(name), address)

    chain = MEMBERS.extend(MEMBERS.chain(), ("africa", "asia", "europe"), add=(added("oslo", "oslo.example.org:7443"),))
    with pytest.raises(AmendmentRefused, match=r"the address oslo\.example\.org:7443 of lima is that of oslo"):
        drawn(chain, add=(added("lima", "oslo.example.org:7443"),))
    with pytest.raises(AmendmentRefused, match="of lima is that of quito"):
        drawn(chain, add=(added("lima", "example.org:7443"), added("quito", "example.org:7443")))
    assert drawn(chain, add=(added("lima", "oslo.example.org:7443"),), expel=SiteName("oslo"), key=1).add
    parked = "relay gate relay.example.org:443"
    assert len(drawn(chain, add=(added("lima", parked), added("quito", parked))).add) == 2
    doubled = ("africa", "asia", "europe")
    assert MEMBERS.extend(chain, doubled, add=(added("lima", "oslo.example.org:7443"),))  # a chain stays valid


def test_a_hold_can_be_ended_when_only_rounds_are_left_that_somebody_began() -> None:
    """A site that heard late of a hold has opened the last round, and no round is left after it."""
    held = MEMBERS.extend(MEMBERS.chain(), ("africa", "asia", "europe"), from_round=100, hold=True)
    assert drawn(held, reached=100, from_round=100, hold=False).hold is False
    with pytest.raises(AmendmentRefused, match="round 100 is past"):
        drawn(held, reached=100, from_round=100, hold=False, settings={"rounds": 120})


def test_a_new_key_can_be_pinned_when_only_rounds_are_left_that_somebody_began() -> None:
    """A key whose amendment lost to another one of its number needs another amendment, also in the last round."""
    chain, key = MEMBERS.chain(), pin("asia", 1)
    for changes in ({"rekey": {ASIA: key}}, {"rekey": {ASIA: key}, "hold": False}):
        assert drawn(chain, reached=100, from_round=100, **changes).rekey == {ASIA: key}
    for other in ({"hold": True}, {"settings": {"rounds": 120}}, {"add": (newcomer("america"),)}):
        with pytest.raises(AmendmentRefused, match="round 100 is past"):
            drawn(chain, reached=100, from_round=100, rekey={ASIA: key}, **other)


def test_a_hold_can_be_ended_when_the_federation_ends_before_the_amendment_s_own_round() -> None:
    """Such an amendment must not be the last one of the chain: nobody could open the rounds before it."""
    everybody = ("africa", "asia", "europe")
    held = MEMBERS.extend(MEMBERS.chain(), everybody, from_round=10, hold=True, settings={"rounds": 9})
    first = first_round(held, reached_round=3, lead_rounds_max=2)
    assert first == 10
    ended = MEMBERS.extend(held, everybody, from_round=first, hold=False)
    assert MEMBERS.extend(ended, everybody, from_round=10, settings={"rounds": 12}).head.rounds == 12


def test_of_two_members_none_expels_the_other() -> None:
    two = AmendedFederation("africa", "asia", members=1)
    with pytest.raises(AmendmentRefused, match="2 of 2 members would have to sign, and asia does not"):
        draw(
            two.chain(),
            Genesis.parse(two.toml),
            two.after(two.chain(), key=1, expel=SiteName("asia")),
            reached_round=1,
        )


def test_the_notice_of_a_site_that_leaves_counts_as_its_signature() -> None:
    chain = MEMBERS.chain()
    leave = {"leave": (MEMBERS.notice("oceania"),)}
    assert count_signatures(chain, proposed(drawn(chain, **leave))).by == ()  # number 1 states the round key
    chain = MEMBERS.extend(chain, ("africa", "asia", "europe"), settings={"rounds": 200})
    proposal = approve(proposed(drawn(chain, from_round=10, **leave)), identity("europe"))
    count = count_signatures(chain, proposal)
    assert (count.by, count.missing) == (("europe", "oceania"), 1)
    proposal = approve(proposal, identity("africa"))
    assert count_signatures(chain, proposal).missing == 0
    assert chain.extended(proposal.signed).head.left == {"oceania"}
    mixed = proposed(drawn(chain, settings={"rounds": 300}, **leave))
    assert count_signatures(chain, mixed).by == ()


def test_a_proposal_is_next_in_the_newest_chain() -> None:
    chain = MEMBERS.chain()
    proposal = proposed(drawn(chain, hold=True))
    newer = MEMBERS.extend(chain, ("africa", "asia", "europe"), settings={"rounds": 200})
    with pytest.raises(AmendmentRefused, match="not next in the chain, which ends with 1"):
        count_signatures(newer, proposal)
    assert drawn(newer, hold=True).number == 2


def test_an_amendment_is_proposed_for_a_round_that_nobody_can_have_begun() -> None:
    chain = MEMBERS.chain()
    assert first_round(chain, reached_round=7, lead_rounds_max=2) == 10
    assert first_round(chain, reached_round=99, lead_rounds_max=2) == 100
    later = MEMBERS.extend(chain, ("africa", "asia", "europe"), from_round=50, hold=True)
    assert first_round(later, reached_round=7, lead_rounds_max=2) == 50


@pytest.mark.parametrize(("reached", "signing", "first"), [(7, 4, 14), (7, 30, 19), (95, 30, 98), (101, 30, 100)])
def test_members_sign_for_a_tenth_of_the_rounds_that_are_left_at_most(reached: int, signing: int, first: int) -> None:
    assert first_round(MEMBERS.chain(), reached_round=reached, lead_rounds_max=2, signing_rounds=signing) == first


def test_a_new_round_key_is_opened_by_each_member() -> None:
    chain = MEMBERS.chain()
    proposal = proposed(drawn(chain, key=1, expel=OCEANIA), "africa", "asia")
    assert open_round_key(chain, GENESIS, proposal, identity("asia")) == round_key(1)
    with pytest.raises(AmendmentRefused, match="no copy of it for europe"):
        open_round_key(chain, GENESIS, proposal, identity("europe"))
    wrong = proposed(drawn(chain, key=1, expel=OCEANIA), "asia", key=2)
    with pytest.raises(AmendmentRefused, match="sealed"):
        open_round_key(chain, GENESIS, wrong, identity("asia"))
    assert open_round_key(chain, GENESIS, proposed(drawn(chain, hold=True)), identity("asia")) is None


def test_nobody_approves_an_expulsion_with_a_round_key_that_the_expelled_may_have() -> None:
    chain = MEMBERS.chain()
    with pytest.raises(AmendmentRefused, match="a round key that oceania may have"):
        open_round_key(chain, GENESIS, proposed(drawn(chain, key=0, expel=OCEANIA), "asia", key=0), identity("asia"))
    for key, change in ((1, {"add": (newcomer("america"),)}), (2, {"add": (newcomer("arctica"),)})):
        chain = MEMBERS.extend(chain, ("africa", "asia", "europe", "oceania"), key=key, **change)
    with pytest.raises(AmendmentRefused, match="a round key that oceania may have"):
        open_round_key(chain, GENESIS, proposed(drawn(chain, key=1, expel=OCEANIA), "asia"), identity("asia"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"mhfl_proposal": 2}',
        b'{"mhfl_proposal": 1, "keys": {}}',
        b'{"mhfl_proposal": 1, "amendment": {"body": "{}", "by": []}, "keys": {"Asia": ""}}',
        b'{"mhfl_proposal": 1, "amendment": {"body": "{}", "by": []}, "keys": {"asia": "!"}}',
        b" " * (PROPOSAL_BYTES_MAX + 1),
    ],
)
def test_a_file_that_is_no_proposal_is_refused(content: bytes) -> None:
    with pytest.raises(AmendmentRefused, match="the proposal cannot be read"):
        Proposal.decode(content)


def test_people_can_read_what_they_sign() -> None:
    proposal = proposed(drawn(MEMBERS.chain(), key=1, expel=OCEANIA), "asia")
    assert '"expel":"oceania"' in json.loads(proposal.encode())["amendment"]["body"]


def test_an_expulsion_brings_a_round_key_that_the_remaining_members_open() -> None:
    chain, europe = MEMBERS.chain(), identity("europe")
    recipients = {SiteName(name): identity(name).key.public_key() for name in ("asia", "oceania")}
    place = {"from_round": 10, "reached_round": 5, "issued": 1}
    proposal = make(chain, GENESIS, europe, recipients, {"expel": OCEANIA}, **place)
    assert set(proposal.keys) == {"asia", "europe"}
    key = open_round_key(chain, GENESIS, proposal, identity("asia"))
    assert key not in (None, europe.round_key)
    assert key == open_round_key(chain, GENESIS, proposal, europe)
    assert not make(chain, GENESIS, europe, recipients, {"hold": True}, **place).keys
    with pytest.raises(AmendmentRefused, match="round 5 is past"):
        make(chain, GENESIS, europe, {}, {"hold": True}, from_round=5, reached_round=5, issued=1)
