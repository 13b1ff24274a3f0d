"""What a held site says: which amendment holds it and what ends that, or how many members are heard."""

from typing import Any

import pytest

from fakes.chains import GENESIS_KEY, AmendedFederation, newcomer
from peer.core.machine import SiteMachine
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.daemon.hold_status import why_held
from peer.site.config.rules import make_rules
from peer.site.membership.amendment import Requirements
from peer.site.membership.chain import Chain
from peer.site.membership.epoch_rules import epochs_of

NAMES = ("africa", "asia", "europe")
EUROPE = SiteName("europe")
FEDERATION = AmendedFederation(*NAMES)


def held(federation: AmendedFederation, chain: Chain) -> SiteMachine:
    """A site that waits with its first round, and has heard nobody."""
    rules = make_rules(federation.config, EUROPE, GENESIS_KEY)
    machine = SiteMachine(rules.amended(epochs_of(chain, federation.toml, round_key=GENESIS_KEY, keys={})))
    machine.phase = Phase.HELD
    return machine


def amended(federation: AmendedFederation, *changes: dict[str, Any], by: tuple[str, ...] = ()) -> Chain:
    chain = federation.chain()
    for each in changes:
        chain = federation.extend(chain, by, from_round=1, **each)
    return chain


def test_the_amendment_that_began_the_hold_is_named_and_what_ends_it() -> None:
    chain = amended(FEDERATION, {"settings": {"rounds": 50}}, {"hold": True}, {"add": (newcomer("america"),)})
    assert why_held(held(FEDERATION, chain), chain, is_added=True, now_s=0.0) == (
        "amendment 2 of 2026-06-01 00:00 UTC, signed by the founder, holds the federation from round 1 on: "
        "`mhfl-peer federation resume` ends it"
    )


def test_members_who_signed_a_hold_are_named() -> None:
    federation = AmendedFederation(*NAMES, members=2)
    chain = amended(federation, {"hold": True}, by=("africa", "asia"))
    reason = why_held(held(federation, chain), chain, is_added=True, now_s=0.0)
    assert "signed by africa, asia, holds" in reason
    assert "`mhfl-peer federation propose --resume` ends it" in reason


def test_an_amendment_that_asks_for_another_version_is_told_apart_from_a_hold() -> None:
    chain = amended(FEDERATION, {"requires": Requirements(features=("telepathy",))})
    assert "cannot apply amendment 1" in why_held(held(FEDERATION, chain), chain, is_added=True, now_s=0.0)


@pytest.mark.parametrize(("heard", "silent"), [((), "africa, asia"), (("asia",), "africa")])
def test_too_few_members_are_counted_and_the_silent_ones_named(heard: tuple[str, ...], silent: str) -> None:
    federation = AmendedFederation(*NAMES, pace={"members_min": 3})
    machine = held(federation, federation.chain())
    for name in heard:
        machine.peers.hear(SiteName(name), None, 0.0)
    assert why_held(machine, federation.chain(), is_added=True, now_s=1.0) == (
        f"{1 + len(heard)} of 3 members are heard, and [pace] members_min asks for 3: it goes on once more of "
        f"{silent} are heard"
    )


def test_a_site_that_is_not_held_says_nothing() -> None:
    chain = amended(FEDERATION, {"hold": True})
    machine = held(FEDERATION, chain)
    machine.phase = Phase.TRAIN
    assert why_held(machine, chain, is_added=True, now_s=0.0) == ""


def test_a_newcomer_is_told_that_its_amendment_has_not_arrived() -> None:
    machine = held(FEDERATION, FEDERATION.chain())
    machine.phase = Phase.NEW
    reason = why_held(machine, FEDERATION.chain(), is_added=False, now_s=0.0)
    assert "the amendment that adds this site has not arrived: wait for it, or ask the founder" in reason
