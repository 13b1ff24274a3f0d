"""The epochs that the state machine takes, from a genesis and its chain."""

from dataclasses import replace
from typing import Any

import pytest

from peer.core.epochs import Epochs
from peer.core.messages import FEATURES
from peer.core.roster import RoundKey, SiteName
from peer.site.config.rules import make_rules
from peer.site.membership.amendment import AmendmentRefused, Requirements
from peer.site.membership.chain import Chain
from peer.site.membership.epoch_rules import Genesis, epochs_of
from peer.site.membership.round_keys import amendment_tag
from tests.fakes.chains import GENESIS_KEY, AmendedFederation, newcomer, round_key
from tests.fakes.drafts import task

FEDERATION = AmendedFederation("africa", "asia", "europe", quorum=2)


def built(chain: Chain, *keys: RoundKey, own: RoundKey | None = GENESIS_KEY) -> Any:
    ring = {amendment_tag(key, FEDERATION.config.digest): key for key in keys}
    return epochs_of(chain, FEDERATION.toml, round_key=own, keys=ring)


def test_the_genesis_has_the_settings_of_federation_toml() -> None:
    epoch = built(FEDERATION.chain()).at(1)
    assert (epoch.number, epoch.digest, epoch.from_round) == (0, None, 1)
    assert epoch.members == ("africa", "asia", "europe")
    assert (epoch.rounds, epoch.quorum, epoch.round_key, epoch.hold) == (100, 2, GENESIS_KEY, False)
    assert epoch.parameters == FEDERATION.config.parameters


def test_settings_and_members_change_from_a_round_on() -> None:
    settings = {"rounds": 200, "pace": {"silence_s": 60.0}, "quorum": 1}
    chain = FEDERATION.extend(FEDERATION.chain(), from_round=10, add=(newcomer("america"),), settings=settings)
    epochs = built(chain)
    assert [len(epochs.at(round).members) for round in (9, 10)] == [3, 4]
    epoch = epochs.at(10)
    assert (epoch.rounds, epoch.pace.silence_s, epoch.quorum) == (200, 60.0, 1)
    assert epoch.digest == chain.head.digest
    assert epoch.newcomers == {"america"}
    assert epochs.at(9).rounds == 100


def test_an_expulsion_brings_the_key_of_its_tag() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), key=1, expel=SiteName("asia"))
    epoch = built(chain, round_key(1), round_key(2)).at(10)
    assert (epoch.round_key, epoch.expelled) == (round_key(1), {"asia"})
    assert built(chain).at(10).round_key is None


def test_the_round_key_that_an_expelled_site_has_gives_no_order_after_its_expulsion() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), key=1, expel=SiteName("asia"))
    config = FEDERATION.config
    asia = make_rules(config, SiteName("asia"), GENESIS_KEY).amended(built(chain))
    europe = make_rules(config, SiteName("europe"), GENESIS_KEY).amended(built(chain, round_key(1)))
    assert asia.order(9) == europe.order(9)
    assert [len(europe.order(round)) for round in (9, 10)] == [3, 2]
    with pytest.raises(ValueError, match="asia has no round key for round 10"):
        asia.order(10)
    guessed = asia.amended(Epochs((asia.epochs.genesis, replace(asia.epochs.head, round_key=GENESIS_KEY))))
    assert [guessed.order(round) for round in range(10, 40)] != [europe.order(round) for round in range(10, 40)]


def test_an_amendment_that_keeps_the_round_key_keeps_that_of_the_genesis() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), hold=True)
    assert built(chain).at(10).round_key == GENESIS_KEY
    assert built(chain, own=None).at(10).round_key is None


def test_a_quorum_that_too_few_are_left_for_is_lowered() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), key=1, expel=SiteName("asia"))
    assert built(chain).at(10).quorum == 1


def test_visits_that_too_few_are_left_for_are_lowered() -> None:
    federation = AmendedFederation("africa", "asia", "europe", method={"name": "fedvisit", "visits": 2})
    chain = federation.extend(federation.chain(), key=1, expel=SiteName("asia"))
    assert epochs_of(chain, federation.toml, round_key=GENESIS_KEY, keys={}).at(10).parameters["visits"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"hold": True},
        {"unknown": {"colour": "blue"}},
        {"requires": Requirements(99, ())},
        {"requires": Requirements(1, ("time-travel",))},
        {"settings": {"pace": {"tempo": 3}}},
        {"settings": {"method": {"lamda": 0.5}}},
    ],
)
def test_what_this_version_cannot_apply_holds(changes: dict[str, Any]) -> None:
    """The chain goes on, and the settings before stay: another version may know the key."""
    chain = FEDERATION.extend(FEDERATION.chain(), from_round=10, **changes)
    chain = FEDERATION.extend(chain, from_round=20, settings={"rounds": 200})
    epochs = built(chain)
    assert [epochs.at(round).hold for round in (9, 10, 20)] == [False, True, True]
    assert epochs.at(20).pace == epochs.at(9).pace


def test_the_end_of_a_hold_ends_it_for_the_rounds_before_it_too() -> None:
    """Nobody opened them, and nobody ever could: the next hold is another one."""
    chain = FEDERATION.extend(FEDERATION.chain(), from_round=10, hold=True)
    chain = FEDERATION.extend(chain, from_round=12, settings={"rounds": 200})
    assert [built(chain).at(round).hold for round in (9, 10, 12)] == [False, True, True]
    chain = FEDERATION.extend(chain, from_round=14, hold=False)
    assert not any(built(chain).at(round).hold for round in (10, 12, 14))
    chain = FEDERATION.extend(chain, from_round=20, hold=True)
    assert [built(chain).at(round).hold for round in (10, 14, 20)] == [False, False, True]


def test_what_this_version_knows_does_not_hold() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), requires=Requirements(1, FEATURES))
    assert not built(chain).at(10).hold


def test_a_setting_that_cannot_be_is_named_before_it_is_signed() -> None:
    genesis = Genesis.parse(FEDERATION.toml)
    chain = FEDERATION.extend(FEDERATION.chain(), settings={"pace": {"silence_s": 1.0}})
    with pytest.raises(AmendmentRefused, match=r"pace.silence_s: 1.0 leaves no room for 3 beats"):
        genesis.settings_after(chain.head)


def test_a_method_with_a_place_for_each_site_takes_no_other() -> None:
    shared = {"name": "unet", "width": 4}
    federation = AmendedFederation(
        "africa", "asia", method={"name": "lc_fed"}, task=task(kind="segmentation"), shared_model=shared
    )
    chain = federation.extend(federation.chain(), settings={"rounds": 120})
    assert Genesis.parse(federation.toml).settings_after(chain.head).rounds == 120
    chain = federation.extend(chain, add=(newcomer("europe"),))
    with pytest.raises(AmendmentRefused, match=r"add: lc_fed has no place for europe: its networks are built"):
        Genesis.parse(federation.toml).settings_after(chain.head)
    assert epochs_of(chain, federation.toml, round_key=GENESIS_KEY, keys={}).at(10).hold


@pytest.mark.parametrize(
    ("sites", "change", "reason"),
    [
        (64, {"add": (newcomer("europe"),)}, "a secure sum has 64 sites at most, and here are 65"),
        (3, {"key": 1, "expel": SiteName("s00")}, "colluders_max = 1 needs 3 sites at least, and here are 2"),
    ],
)
def test_a_secure_sum_takes_no_site_too_many_and_loses_none_that_it_needs(
    sites: int, change: dict[str, Any], reason: str
) -> None:
    names = [f"s{number:02}" for number in range(sites)]
    keys = {"aggregate": {"secure": True}, "shared_model": {"name": "resnet10"}, "global_test": False}
    federation = AmendedFederation(*names, method={"name": "fedavg"}, **keys)
    chain = federation.extend(federation.chain(), **change)
    with pytest.raises(AmendmentRefused, match=f"aggregate.secure: {reason}"):
        Genesis.parse(federation.toml).settings_after(chain.head)
    assert epochs_of(chain, federation.toml, round_key=GENESIS_KEY, keys={}).at(10).hold
