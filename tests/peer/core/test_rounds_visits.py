"""Rounds in which models visit other sites and come home: who waits for what, what is refused, what survives."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fakes.core_site import amend, of
from peer.core import access, commands
from peer.core.messages import Unavailable
from peer.core.phases import Phase
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.core.rules import PaceRules
from peer.core.schedule import order, visiting_orders
from peer.core.site_memory import Memory, recover
from peer.core.status import plan_of, waiting_for

VECTORS = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "visits.json").read_text())
FOUR = ("africa", "america", "asia", "europe")
VISIT: dict[str, Any] = {"method": "fedvisit", "parameters": {"visits": 2}}


def circle(ring: tuple[int, ...]) -> list[int]:
    """The list p of a ring, whose site p[k] receives from p[k - 1]; from site 0 on."""
    places = [0]
    while len(places) < len(ring):
        places.append(ring.index(places[-1]))
    return places


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['sites']}-sites-{v['visits']}-visits")
def test_known_answers(vector: dict[str, Any]) -> None:
    ring = order(
        round_key=RoundKey(bytes.fromhex(vector["round_key"])),
        federation_digest=Sha256(vector["federation_digest"]),
        round=vector["round"],
        sites=vector["sites"],
        kind="ring",
    )
    assert [list(each) for each in visiting_orders(ring, vector["visits"])] == vector["orders"]


@pytest.mark.parametrize(("sites", "visits"), [(1, 0), (2, 1), (5, 1), (5, 3), (7, 6)])
def test_every_visit_is_one_more_place_along_the_ring(sites: int, visits: int) -> None:
    key = RoundKey(bytes(range(32)))
    ring = order(round_key=key, federation_digest=Sha256("ab" * 32), round=3, sites=sites, kind="ring")
    p, orders = circle(ring), visiting_orders(ring, visits)
    assert len(orders) == visits
    for visit, each in enumerate(orders, start=1):
        assert all(each[p[k]] == p[(k - visit) % sites] for k in range(sites))
    for site in range(sites):
        visitors = [each[site] for each in orders]
        assert len({*visitors, site}) == visits + 1, "nobody visits twice, or himself"


def test_visits_are_at_most_the_other_sites(rules: Any) -> None:
    assert rules("asia", FOUR, **VISIT).visits == 2
    assert rules("asia", FOUR[1:3], **VISIT).visits == 1
    assert rules("asia", ("asia",), **VISIT).visits == 0
    assert rules("asia", FOUR, **(VISIT | {"parameters": {"visits": 3}})).visits == 3
    assert rules("asia", FOUR).visits == 0
    grows = rules("asia", FOUR[1:3], **VISIT)
    assert grows.amended(amend(grows.epochs, 3, members=" ".join(FOUR))).visits == 2


def test_hosts_and_visitors_are_each_other_s(rules: Any) -> None:
    sites = {name: rules(name, FOUR, **VISIT) for name in FOUR}
    for round in range(1, 9):
        for name, own in sites.items():
            assert all(name in sites[host].visitors(round) for host in own.hosts(round))
            assert all(name in sites[visitor].hosts(round) for visitor in own.visitors(round))
            assert own.visitors(round, SiteName("asia")) == sites["asia"].visitors(round)


def test_the_plan_shows_every_visit(rules: Any) -> None:
    own = rules("asia", FOUR, **VISIT)
    document = plan_of(own, rounds=2)
    assert document["schedule"] == "ring"
    for shown in document["rounds"]:
        assert shown["receives_from"]["asia"] == list(own.visitors(shown["round"]))
        assert len(shown["visits"]) == 2


def to_exchange(site: Any) -> Any:
    """A new site up to the wait for its first visitors."""
    site.begin()
    for name in site.rules.others:
        site.beat(name, round=1, phase="exchange", published=1)
    return site


def to_train(site: Any) -> Any:
    site.deliver_all()
    assert site.site.phase == Phase.TRAIN
    return site


def to_returns(site: Any) -> Any:
    to_train(to_exchange(site))
    site.finish()
    assert site.site.phase == Phase.RETURNS
    return site


def test_a_site_waits_for_its_model_at_each_host_and_merges_with_what_it_sent(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    hosts = sorted(site.rules.hosts(1))
    shown = waiting_for(site.site, now_s=site.now_s)
    assert [(wait["site"], wait["kind"], wait["artifact"]) for wait in shown] == [
        (name, "return", "europe's return") for name in hosts
    ]
    site.deliver_all()
    assert [source.origin for source in site.order.sources] == hosts
    assert site.order.sent.artifact == site.site.memory.published[1, "europe"]
    site.finish()
    assert site.body("committed")["aggregate_sha256"] is None


def test_without_any_return_the_own_model_is_published(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    for name in site.rules.hosts(1):
        site.unavailable(name, Unavailable.SKIPPED)
    assert site.site.phase == Phase.AGGREGATE
    assert site.order.sources == ()
    site.finish()
    assert site.body("committed")["publish"] == 2


def test_a_silent_host_is_given_up_and_a_paused_one_at_once(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    paused, silent = site.rules.hosts(1)
    site.beat(paused, phase="paused", published=1)
    assert not site.site.exchange.wants[paused].open
    other = next(name for name in site.rules.others if name not in (paused, silent))
    for _ in range(6):
        site.wait(3.0)
        site.beat(paused, phase="paused", published=1)
        site.beat(other, round=1, published=1)
    assert site.site.phase == Phase.AGGREGATE
    assert site.body("chosen")["missing"] == {paused: "paused", silent: "silent"}
    assert site.body("chosen")["purpose"] == "return"


def test_the_wait_for_returns_has_a_deadline_of_its_own(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    site.now_s += 7.0
    site.deliver_all()
    memory = site.site.memory
    assert memory.return_waits_s == [7.0]
    assert memory.waits_s == [0.0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"true_round": 2}, "sent the artifact of round 2 for round 1"),
        ({"true_round": 0}, "sent the artifact of round 0 for round 1"),
        ({"owner": "asia"}, "sent asia's return where europe's return was due"),
        ({"kind": "model"}, "sent europe's model where europe's return was due"),
    ],
)
def test_a_return_that_is_none_is_refused_and_its_host_named(
    solo: Any, artifact: Any, changes: dict[str, Any], reason: str
) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    liar, honest = site.rules.hosts(1)
    sent = artifact(changes.pop("owner", "europe"), "what the liar sends", kind=changes.pop("kind", "return"))
    site.deliver(liar, artifact=sent, **changes)
    assert site.body("refused") == {"origin": liar, "reason": reason}
    site.deliver(honest)
    assert [source.origin for source in site.order.sources] == [honest]
    site.finish()
    assert site.body("committed")["missing_returns"] == {liar: "refused"}


def test_a_second_return_for_the_round_is_a_forgery(solo: Any, artifact: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    liar, honest = site.rules.hosts(1)
    site.deliver(liar)
    (received,) = [digest for digest, source in site.site.memory.received.items() if source.artifact.kind == "return"]
    site.restart([*site.audit.rows, ("discarded", 1, {"sha256": received})])  # it is fetched again
    site.deliver(liar, artifact=artifact("europe", "another one", kind="return"))
    assert site.body("refused")["reason"].startswith("sent another artifact for round 1 than before")
    site.deliver(honest)
    assert [source.origin for source in site.order.sources] == [honest]


def test_a_return_that_the_worker_rejects_is_left_out(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    site.deliver_all()
    bad, good = site.order.sources
    site.reject(bad.artifact.sha256, origin=bad.origin, reason="it is scaled")
    assert site.site.phase == Phase.AGGREGATE
    assert [source.origin for source in site.order.sources] == [good.origin]
    assert site.body("refused") == {"origin": bad.origin, "reason": "it is scaled"}
    site.finish()
    committed = site.body("committed")
    assert committed["missing_returns"] == {bad.origin: "refused"}
    assert committed["missing"] == {}
    assert {source["site"] for source in committed["sources"]} == set(site.rules.visitors(1))


def test_a_return_whose_file_is_gone_is_fetched_again(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    site.deliver_all()
    lost, kept = site.order.sources
    site.reject(lost.artifact.sha256, origin=lost.origin, lost=True)
    assert (site.site.phase, list(site.fetches)) == (Phase.RETURNS, [lost.origin])
    site.deliver(lost.origin)
    assert {source.origin for source in site.order.sources} == {lost.origin, kept.origin}
    site.finish()
    assert site.body("committed")["missing_returns"] == {}
    assert site.kinds.count("refused") == 0


def test_a_visitor_that_the_worker_rejects_gets_no_return(solo: Any) -> None:
    site = to_train(to_exchange(solo("europe", FOUR, **VISIT)))
    bad, good = site.order.sources
    site.reject(bad.artifact.sha256, origin=bad.origin)
    asked: dict[str, Any] = {"for_round": 1, "purpose": "return"}
    assert access.answer(site.rules, site.site.memory, owner=bad.origin, **asked) == Unavailable.SKIPPED
    assert access.answer(site.rules, site.site.memory, owner=good.origin, **asked) == Unavailable.NOT_YET
    published = of(site.finish(), commands.Publish)
    assert [each.artifact.owner for each in published] == [good.origin]


def test_only_returns_of_visitors_are_published(solo: Any, artifact: Any) -> None:
    site = to_train(to_exchange(solo("europe", FOUR, **VISIT)))
    stranger = next(name for name in FOUR if name != "europe" and name not in site.rules.visitors(1))
    trained = site.result()
    forged = dataclasses.replace(
        trained, returned=(*trained.returned, artifact(stranger, "never asked for", kind="return"))
    )
    published = of(site.feed(forged), commands.Publish)
    assert {each.artifact.owner for each in published} == set(site.rules.visitors(1))


def test_who_may_have_a_return(rules: Any) -> None:
    own = rules("europe", FOUR, **VISIT)
    for name in own.others:
        request: dict[str, Any] = {"caller": name, "for_round": 1}
        visits = name in own.visitors(1)
        denied = access.denial(own, kind="return", owner=name, purpose="return", **request)
        assert (denied is None) == visits
        assert access.denial(own, kind="return", owner=SiteName("europe"), purpose="return", **request) is not None
        assert access.denial(own, kind="model", owner=name, purpose="return", **request) is not None
        assert access.denial(own, kind="return", owner=name, purpose="train", **request) is not None
        assert access.denial(own, kind="return", owner=name, purpose="evaluate", **request) is not None
        hosts = name in own.hosts(1)
        model = access.denial(own, kind="model", owner=SiteName("europe"), purpose="train", **request)
        assert (model is None) == hosts
        assert access.denial(own, kind="model", owner=name, purpose="train", **request) is not None
    skd = rules("europe", FOUR)
    asked: dict[str, Any] = {"caller": SiteName("asia"), "for_round": 1, "owner": SiteName("asia")}
    assert "sends no return" in (access.denial(skd, kind="return", purpose="return", **asked) or "")


def test_answers_for_a_return_before_during_and_after_its_round(rules: Any, artifact: Any) -> None:
    own = rules("europe", FOUR, **VISIT)
    asked: dict[str, Any] = {"for_round": 3, "owner": SiteName("asia"), "purpose": "return"}
    assert access.answer(own, Memory(state="s", committed=1), **asked) == Unavailable.NOT_YET
    assert access.answer(own, Memory(state="s", committed=3), **asked) == Unavailable.SKIPPED
    assert access.answer(own, Memory(state="s", committed=9), **asked) == Unavailable.RETIRED
    given = artifact("asia", "a return", kind="return")
    due = Memory(state="s", committed=3, publications_due={(3, SiteName("asia")): given})
    assert access.answer(own, due, **asked) == Unavailable.NOT_YET
    there = Memory(state="s", committed=3, published={(3, SiteName("asia")): given})
    assert access.answer(own, there, **asked) == (3, given)


def test_a_kill_between_two_publications_publishes_the_rest(solo: Any) -> None:
    for crash_after in range(12):
        site = to_train(to_exchange(solo("europe", FOUR, **VISIT)))
        site.finish(crash_after=crash_after)
        if site.site.phase == Phase.TRAIN:
            site.finish()
        assert site.site.phase == Phase.RETURNS
        published = [body["artifact"]["owner"] for kind, _, body in site.audit.rows if kind == "published"]
        assert Counter(published) == Counter(["europe", *site.rules.visitors(1)])


def test_a_lost_result_after_returns_left_takes_a_new_generation(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT, evaluation_every=1))
    site.deliver_all()
    site.finish()
    assert site.site.phase == Phase.EVALUATE
    memory = site.site.memory
    merged = memory.open.artifact.sha256
    whole = recover(site.audit.rows, present=memory.needed_digests())
    assert whole.generation == 1
    lost = recover(site.audit.rows, present=memory.needed_digests() - {merged})
    assert lost.generation == 2
    assert lost.open is None


def test_a_lost_result_of_a_round_in_which_no_return_left_takes_no_new_generation(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT, evaluation_every=1))
    site.deliver_all()
    site.finish()
    site.finish()
    for name in list(site.fetches):
        site.unavailable(name, Unavailable.SKIPPED)
    site.finish()
    site.deliver_all()
    site.finish()
    memory = site.site.memory
    assert (site.site.phase, memory.open.number) == (Phase.EVALUATE, 2)
    assert {artifact.kind for (round, _), artifact in memory.published.items() if round == 1} == {"model", "return"}
    lost = recover(site.audit.rows, present=memory.needed_digests() - {memory.open.artifact.sha256})
    assert (lost.generation, lost.open) == (1, None)


def test_a_return_that_is_gone_is_fetched_again_and_nothing_is_trained_twice(solo: Any) -> None:
    site = to_returns(solo("europe", FOUR, **VISIT))
    site.deliver_all()
    (first, _), needed = site.order.sources, site.site.memory.needed_digests()
    memory = recover(site.audit.rows, present=needed - {first.artifact.sha256})
    assert memory.open.position == 2
    assert memory.open.returned == ()
    assert {source.origin for source in memory.open.sources} == set(site.rules.visitors(1))


@pytest.mark.parametrize("visits", [1, 2, 3])
def test_a_federation_finishes_and_every_model_comes_home(simulation: Any, visits: int) -> None:
    federation = simulation(FOUR, **(VISIT | {"parameters": {"visits": visits}}), rounds=4)
    federation.run_to_end()
    assert federation.finished()
    for name in FOUR:
        for _, body in federation.committed(name):
            assert len(body["returned"]) == len(body["sources"]) == visits
            assert body["missing"] == body["missing_returns"] == {}


def test_kills_at_any_command_change_no_bit(simulation: Any) -> None:
    patient = PaceRules(linger_s=60.0, silence_s=60.0)
    calm = simulation(FOUR, **VISIT, rounds=3, pace=patient)
    calm.run_to_end()
    for seed in range(1, 9):
        killed = simulation(FOUR, **VISIT, rounds=3, seed=seed, pace=patient)
        killed.machines["asia"].fuses = list(range(seed, 120, 11))
        killed.machines["europe"].fuses = list(range(5 + seed, 120, 17))
        killed.run_to_end()
        assert killed.final_states() == calm.final_states()


def test_a_site_that_is_away_for_a_while_costs_the_others_its_returns_only(simulation: Any) -> None:
    federation = simulation(FOUR, **VISIT, rounds=6)
    federation.at(15.0, lambda: federation.kill_for("africa", 60.0))
    federation.run_to_end()
    assert federation.finished()
    missing = [body["missing_returns"] for name in FOUR[1:] for _, body in federation.committed(name)]
    assert any("africa" in each for each in missing)
    assert all(set(each) <= {"africa"} for each in missing)
