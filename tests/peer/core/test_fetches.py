"""The fetches for an exchange begin with the work before it, and change nothing but how long a site waits."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core import commands, events
from peer.core.messages import Unavailable
from peer.core.phases import Phase

TWO = {"sites": ("asia", "europe"), "schedule_kind": "derangement"}


def fetched(out: list[commands.Command]) -> list[tuple[str, int, str]]:
    return [(order.origin, order.round, order.purpose) for order in out if isinstance(order, commands.Fetch)]


def cancelled(out: list[commands.Command]) -> list[str]:
    return [order.origin for order in out if isinstance(order, commands.CancelFetch)]


def training(solo: Any, method: str = "fedskd", **changes: Any) -> Any:
    """A site of two whose worker trains in round 1, and whose next exchange is that of round 2."""
    site = solo(**TWO, method=method, rounds=4, **changes).begin()
    if method != "fedskd":
        site.finish()
    site.deliver("asia")
    return site


@pytest.mark.parametrize(
    ("method", "parameters", "worked", "asked"),
    [
        ("fedskd", {}, 1, [("asia", 2, "train")]),
        ("fedcross", {}, 1, []),  # of two sites, each trains the other's model in every round
        ("fedavg", {}, 0, [("asia", 1, "train")]),
        ("dflmoe", {}, 0, [("asia", 1, "train")]),
        ("fedvisit", {"visits": 1}, 1, [("asia", 1, "return"), ("asia", 2, "train")]),
        ("local", {}, 0, []),
    ],
)
def test_the_next_artifacts_are_fetched_while_the_worker_trains(
    solo: Any, method: str, parameters: dict[str, Any], worked: int, asked: list[Any]
) -> None:
    site = solo(**TWO, method=method, rounds=4, parameters=parameters)
    site.finish()
    out = site.greet()
    if worked:
        out = site.deliver("asia")
    assert site.site.phase == Phase.TRAIN
    assert fetched(out) == asked
    order = [type(command) for command in out]
    if asked:
        assert order.index(commands.Train) < order.index(commands.Fetch), "the worker must not wait for a request"


def test_what_arrived_while_the_worker_trained_is_not_waited_for(solo: Any) -> None:
    site = training(solo)
    site.deliver("asia")
    assert site.site.phase == Phase.TRAIN
    out = site.finish()
    assert site.site.phase == Phase.TRAIN, "the worker has its next order at once"
    assert fetched(out) == [("asia", 3, "train")]
    assert (site.order.round, [source.round for source in site.order.sources]) == (2, [2])
    assert (site.body("chosen")["waited_s"], site.body("chosen")["missing"]) == (0.0, {})


def test_a_transfer_under_way_goes_on_in_the_exchange(solo: Any) -> None:
    site = training(solo)
    began_s = site.now_s
    site.now_s += 40.0
    site.beat("asia", 1)
    out = site.finish()
    assert (site.site.phase, fetched(out), cancelled(out)) == (Phase.EXCHANGE, [], [])
    assert site.site.exchange.wants["asia"].since_s == site.now_s > began_s, "the time before costs no patience"
    site.now_s += 3.0
    site.deliver("asia")
    assert [source.round for source in site.order.sources] == [2]
    assert site.body("chosen")["waited_s"] == 3.0


def test_a_head_of_the_next_round_is_not_used_before_it(solo: Any) -> None:
    site = training(solo, "dflmoe")
    assert (site.order.stage, next(iter(site.fetches.values())).round) == ("decide", 2)
    site.deliver("asia")
    site.finish()
    assert site.order.stage == "local"
    assert [(source.round, source.fallback) for source in site.order.sources] == [(1, "stale")]
    site.finish()
    assert site.order.stage == "decide"
    assert [(source.round, source.fallback) for source in site.order.sources] == [(2, "")]


def test_the_copy_before_stays_until_the_newer_one_is_used(solo: Any) -> None:
    site = training(solo, "fedcross")
    before = {digest for digest, source in site.site.memory.received.items() if source.artifact.owner == "asia"}
    other = next(iter(before), None)
    assert other is not None
    site.finish()
    assert other in site.site.memory.received, "the next copy is compared with it"


def test_a_restart_remembers_what_arrived_early(solo: Any) -> None:
    site = training(solo)
    site.deliver("asia")
    out = site.restart()
    site.greet()
    assert fetched(out) == []
    assert fetched(site.finish()) == [("asia", 3, "train")]
    assert [source.round for source in site.order.sources] == [2]


def test_a_restart_asks_again_for_what_had_not_arrived(solo: Any) -> None:
    site = training(solo)
    assert fetched(site.restart()) == [("asia", 2, "train")]


def test_a_paused_site_fetches_nothing(solo: Any) -> None:
    site = training(solo)
    assert cancelled(site.feed(events.PauseRequested())) == ["asia"]
    assert fetched(site.feed(events.ResumeRequested())) == [("asia", 2, "train")]


def test_an_answer_that_came_early_counts_in_the_exchange(solo: Any) -> None:
    site = training(solo)
    site.unavailable("asia", Unavailable.SKIPPED)
    out = site.finish()
    assert ("asia", 2, "train") not in fetched(out)
    assert site.body("chosen")["missing"] == {"asia": "skipped"}


def test_an_early_artifact_of_another_round_is_refused_once(solo: Any) -> None:
    site = training(solo)
    out = site.deliver("asia", true_round=3)
    assert isinstance(out[-1], commands.Discard)
    assert site.body("refused")["reason"] == "sent the artifact of round 3 for round 2"
    site.finish()
    assert (site.order.round, site.order.sources, site.body("chosen")["missing"]) == (2, (), {"asia": "refused"})
    assert site.kinds.count("refused") == 1


def test_the_own_model_comes_home_while_the_last_visitor_is_trained(solo: Any) -> None:
    site = solo(**TWO, rounds=4, parameters={"activation": 0.25}).begin()
    out = site.deliver("asia")
    assert fetched(out) == [("asia", 2, "handback")]
    site.deliver("asia")
    site.finish()
    assert (site.site.phase, site.order.source.round) == (Phase.ADOPT, 2)


def test_the_next_visitor_comes_while_the_site_trains_or_its_model_is_on_its_way_home(solo: Any) -> None:
    """A site that trains long finds the return and the next visitor; none of them is fetched a second time."""
    site = solo(**TWO, method="fedvisit", rounds=4, parameters={"visits": 1}).begin()
    site.deliver("asia")
    assert fetched(site.finish()) == []
    assert site.site.phase == Phase.RETURNS
    site.deliver("asia")
    assert site.site.phase == Phase.AGGREGATE, "the return was the answer to the older order"
    assert fetched(site.finish()) == []
    assert site.site.phase == Phase.EXCHANGE
    site.deliver("asia")
    assert site.site.phase == Phase.TRAIN, "the visitor was the answer to the order of the round before"
    assert site.order.round == 2
