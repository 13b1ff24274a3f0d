"""Members come and go: one site by hand, and federations in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fakes.core_site import amend, discarded, of
from peer.core import commands, events
from peer.core.access import answer, denial
from peer.core.epochs import Epochs, PaceRules
from peer.core.exchange import scheduled
from peer.core.messages import ChainHead, Heartbeat, Unavailable
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.site_memory import Memory

FOUR = ("africa", "america", "asia", "europe")


# A round and its epoch.


def test_the_exchange_begins_again_with_the_members_of_the_new_epoch(fetching: Any) -> None:
    fetching.deliver("asia")
    out = fetching.learn(1, members="africa asia europe oceania")
    fetched = {command.origin for command in of(out, commands.Fetch)}
    assert fetched == {"africa", "oceania"}, "asia's artifact is here, and america is no member any more"
    assert fetching.body("amended")["reopened"]
    for name in ("africa", "oceania"):
        fetching.deliver(name)
    fetching.finish()
    assert fetching.body("committed")["contributors"] == ["africa", "asia", "europe", "oceania"]


def test_a_round_that_has_chosen_its_sources_stays_as_it_is(fetching: Any) -> None:
    fetching.deliver_all()
    assert fetching.site.phase == Phase.AGGREGATE
    out = fetching.learn(1, members="africa asia europe oceania")
    assert {(command.origin, command.round) for command in of(out, commands.Fetch)} == {
        ("africa", 2),
        ("asia", 2),
        ("oceania", 2),
    }, "the fetches for round 2, which began early, follow the amendment at once"
    assert "america" in {command.origin for command in of(out, commands.CancelFetch)}
    fetching.finish()
    assert fetching.body("committed")["contributors"] == ["africa", "america", "asia", "europe"]
    epochs = [body.get("epoch") for kind, _, body in fetching.audit.rows if kind == "opened"]
    assert epochs == [None, fetching.site.rules.epochs.head.digest]
    fetching.finish()
    assert set(fetching.fetches) == {"africa", "asia", "oceania"}, "round 2 follows the amendment"


def test_a_round_after_the_new_last_one_is_not_asked_of_those_who_have_none(fetching: Any) -> None:
    fetching.deliver_all()
    fetching.finish()
    fetching.finish()
    assert (fetching.site.phase, fetching.site.number) == (Phase.EXCHANGE, 2)
    out = fetching.learn(2, rounds=1)
    assert not of(out, commands.Fetch)
    assert not fetching.body("amended")["reopened"]
    fetching.deliver_all()
    fetching.finish()
    assert "finished" in fetching.kinds


@pytest.mark.parametrize(("changes", "phase"), [({"members": "europe"}, Phase.TRAIN), ({"rounds": 1}, Phase.DONE)])
def test_an_isolated_site_goes_on_where_an_amendment_leaves_nobody_to_wait_for(
    fetching: Any, changes: dict[str, Any], phase: Phase
) -> None:
    fetching.deliver_all()
    fetching.wait(100.0)
    fetching.finish()
    assert fetching.site.phase == Phase.ISOLATED
    fetching.learn(2, **changes)
    fetching.wait(1.0)
    assert fetching.site.phase == phase


def test_a_site_that_had_finished_trains_the_rounds_that_an_amendment_adds(solo: Any) -> None:
    site = solo("europe", FOUR, method="fedavg", rounds=1)
    for _ in range(2):
        site.finish()
        site.greet()
        site.finish()
        for name in ("africa", "america", "asia"):
            site.deliver(name)
        site.finish()
        site.finish()
        assert site.site.phase == Phase.DONE
        site.beat("asia", 1)
        site.learn(1, rounds=2)
    assert site.kinds.count("finished") == 2


def test_the_epoch_of_a_round_is_in_its_opened_row_and_survives_a_restart(solo: Any) -> None:
    site = solo("europe", FOUR, method="fedavg")
    site.learn(1, members="africa asia europe")
    site.finish()
    site.greet()
    assert site.body("opened")["epoch"] == site.site.rules.epochs.head.digest
    site.finish()
    site.restart()
    assert set(site.fetches) == {"africa", "asia"}


def test_a_paused_site_follows_an_amendment_once_it_goes_on(fetching: Any) -> None:
    fetching.feed(events.PauseRequested())
    out = fetching.learn(1, members="africa asia europe")
    assert (fetching.site.phase, of(out, commands.Fetch)) == (Phase.PAUSED, [])
    fetching.feed(events.ResumeRequested())
    assert set(fetching.fetches) == {"africa", "asia"}


def test_a_start_reopens_a_round_whose_epoch_changed_while_the_site_was_down(fetching: Any) -> None:
    fetching.rules = fetching.rules.amended(amend(fetching.rules.epochs, 1, members="asia europe"))
    fetching.restart()
    assert set(fetching.fetches) == {"asia"}
    assert fetching.body("amended")["epoch"] == fetching.rules.epochs.head.digest


# Gone at once.


def test_an_expelled_site_is_waited_for_no_more_and_its_unused_artifact_is_dropped(fetching: Any) -> None:
    fetching.deliver("asia")
    artifact = next(iter(fetching.site.memory.received))
    out = fetching.learn(3, members="africa america europe", expelled="asia")
    assert commands.Discard(artifact) in out
    for name in ("africa", "america"):
        fetching.deliver(name)
    fetching.finish()
    assert fetching.body("committed")["contributors"] == ["africa", "america", "europe"]
    assert fetching.body("committed")["missing"] == {"asia": "gone"}


def test_a_leaving_site_is_waited_for_no_more_and_what_it_sent_is_used(fetching: Any) -> None:
    fetching.deliver("asia")
    out = fetching.learn(leaving="asia america")
    assert [command.origin for command in of(out, commands.CancelFetch)] == ["america"]
    fetching.deliver("africa")
    fetching.finish()
    assert fetching.body("committed")["contributors"] == ["africa", "asia", "europe"]


@pytest.mark.parametrize("method", ["fedavg", "dflmoe"])
def test_an_artifact_in_use_stays_until_the_round_is_over_and_replaces_nothing_later(solo: Any, method: str) -> None:
    """Also where a round uses the newest head of every peer."""
    site = solo("europe", FOUR, method=method).begin()
    site.finish()
    site.deliver_all()
    site.learn(3, members="africa america europe", expelled="asia")
    (used,) = [source.artifact.sha256 for source in site.order.sources if source.origin == "asia"]
    assert used in discarded(site.finish())
    assert "asia" in site.body("committed")["contributors"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"members": "africa america asia", "expelled": "europe"},
            "this site was expelled from the federation by amendment 1: ask the members why",
        ),
        ({"leaving": "europe"}, "this site left the federation"),
    ],
)
def test_a_site_that_is_no_member_any_more_ends_in_order(fetching: Any, change: dict[str, str], reason: str) -> None:
    out = fetching.learn(3, **change)
    assert of(out, commands.Exit)[0].reason == reason
    fetching.restart()
    assert fetching.site.phase == Phase.GONE


# Holding.


def test_nobody_opens_a_round_of_an_epoch_that_holds(solo: Any) -> None:
    site = solo("europe", FOUR, method="fedavg")
    site.learn(2, hold=True)
    site.finish()
    site.greet()
    site.finish()
    site.deliver_all()
    site.finish()
    assert (site.site.phase, site.site.memory.committed) == (Phase.HELD, 1)
    site.restart()
    site.beat("asia", 1, "held")
    assert site.site.phase == Phase.HELD
    site.learn(2, hold=False)
    assert (site.site.phase, site.site.number) == (Phase.TRAIN, 2)


def test_a_site_holds_while_fewer_members_are_heard_than_the_federation_asks_for(solo: Any) -> None:
    site = solo("europe", FOUR, method="fedavg", pace=PaceRules(members_min=3, gather_s=10)).begin("asia")
    site.wait(11)
    assert site.site.phase == Phase.HELD
    site.beat("asia")
    assert site.site.phase == Phase.HELD
    site.beat("africa")
    assert site.site.phase == Phase.TRAIN


@pytest.mark.parametrize(("method", "phase"), [("fedskd", Phase.HELD), ("fedavg", Phase.TRAIN)])
def test_a_site_without_the_key_of_an_epoch_opens_none_of_its_rounds_that_has_an_order(
    solo: Any, method: str, phase: Phase
) -> None:
    site = solo("europe", FOUR, method=method)
    site.learn(1, round_key=None)
    site.finish()
    site.greet()
    assert site.site.phase == phase


@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
def test_an_open_round_waits_for_the_key_of_its_new_epoch_and_goes_on_with_it(solo: Any, again: bool) -> None:
    site = solo("europe", FOUR, method="fedcross", schedule_kind="ring").begin()
    while site.site.phase != Phase.EXCHANGE:
        site.finish()
    round, key = site.site.number, site.rules.round_key
    site.learn(round, members="africa asia europe", expelled="america", round_key=None)
    assert (site.site.phase, site.site.number) == (Phase.HELD, round)
    if again:
        site.restart()
        assert (site.site.phase, site.site.number) == (Phase.HELD, round)
    for name in ("africa", "asia"):
        site.beat(name, round)
    assert site.site.phase == Phase.HELD
    epochs = site.rules.epochs
    known = dataclasses.replace(epochs, all=(epochs.genesis, dataclasses.replace(epochs.head, round_key=key)))
    out = site.feed(events.EpochsLearned(known))
    assert (site.site.phase, site.site.number) == (Phase.EXCHANGE, round)
    assert [(fetch.origin, fetch.owner) for fetch in of(out, commands.Fetch)] == scheduled(
        site.site.rules, site.site.memory.published, round
    )


# Joining.


def newcomer(solo: Any, method: str, *, reached: int = 0, **rules: Any) -> Any:
    """Oceania, a member from round 5 on, with its initial model; all others have committed a round."""
    site = solo("oceania", FOUR, method=method, rounds=9, **rules)
    site.rules = site.rules.amended(amend(site.rules.epochs, 5, members=" ".join((*FOUR, "oceania"))))
    site.restart()
    site.finish()
    if reached:
        hear_all(site, reached)
    return site


def hear_all(site: Any, round: int) -> None:
    """All others greet, and say which round they have committed."""
    site.greet()
    for name in FOUR:
        site.beat(name, round)


def test_a_newcomer_waits_for_its_first_round_and_begins_with_its_own_model(solo: Any) -> None:
    site = newcomer(solo, "fedskd", schedule_kind="derangement")
    assert (site.site.memory.committed, site.body("joined")["publish"]) == (4, 5)
    hear_all(site, 1)
    assert site.site.phase == Phase.PACING
    assert not site.fetches
    hear_all(site, 4)
    assert site.site.number == 5
    assert list(site.fetches) == [site.rules.turn(5)]


def test_where_all_receive_from_all_a_newcomer_begins_from_the_mean_of_the_round_before(solo: Any) -> None:
    site = newcomer(solo, "fedavg", reached=4)
    assert (site.site.number, set(site.fetches)) == (4, set(FOUR))
    site.deliver_all()
    assert site.order.shadow
    site.finish()
    assert (site.site.number, site.site.phase) == (5, Phase.TRAIN)
    assert site.body("committed")["contributors"] == list(FOUR)
    assert not site.site.memory.published, "a shadow publishes nothing"


def test_a_shadow_that_receives_nothing_begins_from_its_own_model(solo: Any) -> None:
    site = newcomer(solo, "fedavg", reached=4)
    for name in FOUR:
        site.unavailable(name, Unavailable.RETIRED)
    assert (site.site.number, site.site.phase) == (5, Phase.TRAIN)


def test_who_caches_heads_has_those_of_the_round_before(solo: Any) -> None:
    site = newcomer(solo, "dflmoe", reached=4)
    site.deliver_all()
    assert (site.site.number, site.order.stage) == (5, "local")
    assert [source.origin for source in site.order.sources] == list(FOUR)


def test_a_newcomer_after_the_circulating_rounds_waits_for_no_hand_back(solo: Any) -> None:
    site = newcomer(solo, "fedskd", parameters={"activation": 0.5})
    assert site.rules.circulating == 4
    assert site.site.memory.model_is_home
    assert site.site.phase == Phase.PACING


# Slots of circulating models.


def circulating(rules: Any, site: str, from_round: int, members: str, **changes: Any) -> Rules:
    own: Rules = rules(site, FOUR, rounds=9, parameters={"activation": 1.0}, schedule_kind="ring")
    return own.amended(amend(own.epochs, from_round, members=members, **changes))


def test_the_owner_serves_its_copy_where_the_holder_is_no_member_any_more(rules: Any, artifact: Any) -> None:
    own = circulating(rules, "africa", 3, "africa america europe")
    orphan = next(slot for slot in own.members(3) if own.trained_at(3, slot) == "asia")
    assert own.holder(3, orphan) == orphan
    owner = circulating(rules, orphan, 3, "africa america europe")
    caller = next(name for name in owner.members(3) if owner.turn(3, name) == orphan)
    request: Any = {"for_round": 3, "owner": orphan, "purpose": "train"}
    if caller != orphan:
        assert denial(owner, caller=caller, kind="model", **request) is None
    copy = artifact(orphan, "first")
    known = Memory(state="s", committed=2, published={(1, SiteName(orphan)): copy})
    assert answer(owner, known, **request) == (1, copy)


def test_a_newcomer_s_slot_is_its_own_in_its_first_round(rules: Any) -> None:
    own = circulating(rules, "africa", 3, " ".join((*FOUR, "oceania")))
    assert own.holder(3, SiteName("oceania")) == "oceania"
    assert {own.turn(3, name) for name in own.members(3)} == set(own.members(3))


def test_the_newest_member_of_a_round_counts_from_its_first_one(rules: Any) -> None:
    own = circulating(rules, "africa", 3, " ".join((*FOUR, "oceania")))
    assert [own.newest_member(round) for round in (1, 2, 3, 4)] == [1, 1, 3, 3]


def test_a_newcomer_without_the_key_of_the_round_before_asks_the_slot_s_owner(rules: Any) -> None:
    own = circulating(rules, "africa", 3, " ".join((*FOUR, "oceania")))
    genesis, added = own.epochs.all
    unkeyed = Epochs((dataclasses.replace(genesis, round_key=None), added))
    newcomer = dataclasses.replace(own, site=SiteName("oceania"), chain=unkeyed)
    slot = newcomer.turn(3)
    assert scheduled(newcomer, {}, 3) == [(slot, slot)]


@pytest.mark.parametrize(("purpose", "round"), [("train", 3), ("train", 4), ("handback", 10)])
def test_a_site_without_a_key_answers_that_it_knows_nothing_yet(
    rules: Any, artifact: Any, purpose: Any, round: int
) -> None:
    """In round 4 and at the hand-back it lacks the order of the round before."""
    own = circulating(rules, "africa", 3 if round < 10 else 9, "africa america europe", round_key=None)
    if round == 4:
        own = own.amended(amend(own.epochs, 4, round_key=own.round_key))
    for slot in (SiteName("america"), SiteName("africa")):
        caller = SiteName("america" if purpose == "handback" else "europe")
        owner = caller if purpose == "handback" else slot
        request: Any = {"for_round": round, "owner": owner, "purpose": purpose}
        assert denial(own, caller=caller, kind="model", **request) is None
        has = Memory(state="s", committed=round - 1, published={(round, owner): artifact(owner, "copy")})
        assert answer(own, has, **request) == Unavailable.NOT_YET


def test_who_hands_a_model_back_by_an_order_whose_key_is_missing_is_not_accused(solo: Any) -> None:
    site = solo("europe", FOUR, rounds=1, schedule_kind="ring", parameters={"activation": 1.0}).begin()
    while site.site.phase != Phase.TRAIN:
        site.deliver(site.site.rules.turn(1))
    site.learn(1, round_key=None)
    site.finish()
    assert (site.site.phase, set(site.fetches)) == (Phase.HANDBACK, {"africa", "america", "asia"})
    site.deliver_all()
    assert not site.site.refusals
    assert site.site.phase == Phase.ADOPT


def test_a_copy_that_a_site_trained_out_of_turn_is_not_served(rules: Any, artifact: Any) -> None:
    own = circulating(rules, "africa", 2, "africa america europe")
    slot = next(slot for slot in own.members(3) if own.trained_at(3, slot) not in ("africa", None) and slot != "africa")
    known = Memory(state="s", committed=2, published={(3, SiteName(slot)): artifact(slot, "late")})
    assert answer(own, known, for_round=3, owner=slot, purpose="train") == Unavailable.SKIPPED


# Who may ask for what.


@pytest.mark.parametrize(
    ("caller", "round", "permitted"),
    [("oceania", 3, False), ("oceania", 4, True), ("oceania", 5, True), ("asia", 4, True), ("asia", 5, False)],
)
def test_members_of_a_round_and_those_of_the_next_may_have_its_artifacts(
    rules: Any, caller: str, round: int, permitted: bool
) -> None:
    own = rules("africa", FOUR, rounds=9, method="fedavg")
    own = own.amended(amend(own.epochs, 5, members="africa america europe oceania"))
    request: Any = {"kind": "model", "for_round": round, "owner": "africa", "purpose": "train"}
    assert (denial(own, caller=caller, **request) is None) == permitted


def test_an_expelled_site_is_refused_for_every_round(rules: Any) -> None:
    own = rules("africa", FOUR, rounds=9, method="fedavg")
    own = own.amended(amend(own.epochs, 5, members="africa america europe", expelled="asia"))
    reason = denial(own, caller="asia", kind="model", for_round=2, owner="africa", purpose="train")
    assert reason == "'asia' was expelled from this federation by amendment 1"


# Federations in memory.

METHODS = ("fedavg", "fedskd", "fedcross", "dflmoe", "fedvisit", "feddal", "proxyfl", "fedmd")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_sites_come_and_go_while_the_federation_runs(simulation: Any, method: str, seed: int) -> None:
    """One site joins, one is expelled, one leaves by a notice; all others reach the last round."""
    world = simulation(
        (*FOUR, "oceania", "arctica"), seed=seed, newcomers=("oceania", "arctica"), method=method, rounds=12
    )
    world.run(until=lambda: world.machines["europe"].round.number >= 2)
    world.amend(5, members="africa america asia europe oceania")
    world.run(until=lambda: world.machines["europe"].round.number >= 6)
    world.amend(9, members="africa america arctica europe oceania", expelled="asia")
    world.amend(0, leaving="america")
    world.run_to_end()
    stayed = ("africa", "europe", "oceania", "arctica")
    for name in stayed:
        assert "finished" in world.kinds(name), name
        assert not [body for kind, _, body in world.machines[name].rows if kind == "refused"], name
    joined = {name: min(round for round, _ in world.committed(name)) for name in ("oceania", "arctica")}
    shadow = 1 if world.machines["africa"].rules.pattern(9) == "all_to_all" else 0
    assert joined == {"oceania": 5 - shadow, "arctica": 9 - shadow}
    assert all("finished" not in world.kinds(name) for name in ("asia", "america"))


@pytest.mark.parametrize("method", ["fedskd", "fedavg", "fedcross", "fedvisit"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_who_learns_late_of_an_amendment_only_falls_back(simulation: Any, method: str, seed: int) -> None:
    """The amendment's round is past when the last site learns of it: nobody is accused, all finish."""
    world = simulation((*FOUR, "oceania"), seed=seed, newcomers=("oceania",), method=method, rounds=10)
    world.run(until=lambda: world.machines["europe"].round.number >= 3)
    world.amend(4, members="africa america asia europe oceania", late_s=30.0)
    world.run_to_end()
    for name, machine in world.machines.items():
        assert "finished" in world.kinds(name), name
        assert not [body for kind, _, body in machine.rows if kind == "refused"], name


def test_a_federation_that_holds_goes_on_where_it_was(simulation: Any) -> None:
    world = simulation(FOUR, method="fedskd", rounds=6)
    world.run(until=lambda: world.machines["europe"].round.number >= 2)
    world.amend(4, hold=True)
    world.run(until=lambda: all(machine.round.phase == Phase.HELD for machine in world.machines.values()))
    assert {machine.round.memory.committed for machine in world.machines.values()} == {3}
    world.amend(4, hold=False)
    world.run_to_end()
    assert world.finished()
    assert all([round for round, _ in world.committed(name)] == [1, 2, 3, 4, 5, 6] for name in FOUR)


# A site that leaves takes its own model home.


@pytest.fixture
def travelling(solo: Any) -> Any:
    """Europe is in round 2 of a federation whose models circulate."""
    site = solo("europe", FOUR, method="fedcross", rounds=5).begin()
    (origin,) = site.fetches
    site.deliver(origin)
    for name in ("africa", "america", "asia"):
        site.beat(name, 1)
    site.finish()
    assert site.site.memory.committed == 1
    return site


def test_a_leaving_site_fetches_its_own_model_from_where_it_was_trained_last(travelling: Any) -> None:
    holder = travelling.rules.trained_at(2, "europe")
    out = travelling.learn(leaving="europe")
    assert travelling.site.phase == Phase.HANDBACK
    fetched = [(command.origin, command.round, command.purpose, command.owner) for command in of(out, commands.Fetch)]
    assert fetched == [(holder, 2, "handback", "europe")]
    first, second = (name for name in travelling.rules.others if name != holder)
    assert of(travelling.learn(leaving=first), commands.Fetch, commands.CancelFetch) == []
    travelling.deliver(holder)
    assert of(travelling.learn(leaving=second), commands.Halt) == []
    assert travelling.site.phase == Phase.ADOPT
    travelling.finish()
    assert travelling.site.phase == Phase.LEAVING
    travelling.feed(events.Halted(1, travelling.site.ordered))
    assert travelling.site.phase == Phase.GONE
    assert travelling.site.memory.model_is_home
    assert "slot_lost" not in travelling.kinds


def test_a_leaving_site_keeps_its_own_copy_of_a_model_that_nobody_has(travelling: Any) -> None:
    holder = travelling.rules.trained_at(2, "europe")
    travelling.learn(leaving="europe")
    travelling.unavailable(holder, Unavailable.SKIPPED)
    assert "slot_lost" in travelling.kinds
    assert travelling.order.source.origin == "europe"


def test_a_leaving_site_that_was_killed_goes_on_to_fetch_its_model(travelling: Any) -> None:
    holder = travelling.rules.trained_at(2, "europe")
    travelling.learn(leaving="europe")
    travelling.restart()
    assert {origin: fetch.purpose for origin, fetch in travelling.fetches.items()} == {holder: "handback"}
    assert travelling.site.memory.open is None


def test_an_expelled_site_takes_nothing_home(travelling: Any) -> None:
    travelling.learn(2, members="africa america asia", expelled="europe")
    assert travelling.fetches == {}
    assert travelling.site.phase in (Phase.LEAVING, Phase.GONE)


def test_a_peer_past_an_old_end_is_accused_only_by_a_site_that_has_its_amendments(fetching: Any) -> None:
    ahead = Heartbeat(1, 99, "train", head=ChainHead(1, Sha256("ab" * 32)))
    fetching.feed(events.PeerHeard(SiteName("asia"), ahead))
    assert "refused" not in fetching.kinds
    fetching.feed(events.PeerHeard(SiteName("asia"), dataclasses.replace(ahead, head=None)))
    assert "claims a round after the last one" in fetching.body("refused")["reason"]
