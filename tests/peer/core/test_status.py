"""What a site shows of itself, phase by phase."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peer.core import events
from peer.core.kinds import KINDS
from peer.core.messages import Unavailable
from peer.core.phases import Phase
from peer.core.rules import PaceRules
from peer.core.status import plan_of, status, waiting_for
from peer.core.status_document import WAIT_KINDS

FOUR = ("africa", "america", "asia", "europe")
DAEMON_ADDS = {"federation", "certificate_days"}
STATUS = {
    *("site", "federation", "digest", "method", "phase", "round", "rounds", "waiting_for", "peers", "training"),
    *("refusals", "certificate_days"),
}


def seen(site: Any) -> dict[str, Any]:
    shown = status(site.site, now_s=site.now_s)
    assert json.loads(json.dumps(shown)) == shown, "it is plain JSON data"
    return shown


def training(solo: Any, **rules: Any) -> Any:
    """A site in its first stage of round 1."""
    site = solo(**rules).begin()
    if site.fetches:
        site.deliver("asia")
    return site


def test_the_status_has_every_promised_key(solo: Any) -> None:
    site = solo()
    assert seen(site).keys() >= STATUS - DAEMON_ADDS
    assert seen(site)["phase"] == "initialising"
    assert set(seen(site)["peers"]) == {"africa", "america", "asia"}
    assert seen(site)["peers"]["asia"].keys() >= {"state", "round", "phase", "last_seen_s"}


def test_peers_are_heard_silent_absent_or_unknown(solo: Any) -> None:
    site = solo(without=frozenset({"africa"}))
    site.finish()
    site.beat("asia", 3, "train")
    site.now_s += 14.0
    peers = seen(site)["peers"]
    assert peers["asia"] == {"state": "heard", "round": 3, "phase": "train", "progress": 0.0, "last_seen_s": 14.0}
    assert peers["africa"]["state"] == "absent"
    assert peers["america"] == {"state": "unknown", "round": None, "phase": None, "progress": None, "last_seen_s": None}
    site.now_s += 1.0
    assert seen(site)["peers"]["asia"]["state"] == "silent"


def test_training_shows_the_newest_step(solo: Any) -> None:
    site = training(solo)
    assert seen(site)["training"] == {}
    site.feed(events.Progressed(1, 1, site.order.attempt, "train", 5, 20, {"ce": 0.5}))
    assert seen(site)["training"] == {"stage": "train", "step": 5, "steps": 20, "loss": {"ce": 0.5}}
    site.feed(events.Progressed(1, 1, site.order.attempt - 1, "train", 19, 20, {"ce": 0.1}))
    assert seen(site)["training"]["step"] == 5, "the report of an earlier order is not shown"
    site.finish()
    assert seen(site)["training"] == {}


def test_gathering_names_who_did_not_answer_hello(solo: Any) -> None:
    site = solo(pace=PaceRules(gather_s=60)).begin("asia")
    site.now_s += 5.0
    assert waiting_for(site.site, now_s=site.now_s) == [
        {"site": "africa", "kind": "hello", "artifact": "hello", "since_s": 5.0, "deadline_s": 55.0},
        {"site": "america", "kind": "hello", "artifact": "hello", "since_s": 5.0, "deadline_s": 55.0},
    ]
    assert waiting_for(solo().site, now_s=1000.0) == [], "an initialising site waits for nobody"


def test_an_exchange_names_whose_artifact_is_missing(solo: Any) -> None:
    site = solo(pace=PaceRules(wait_max_s=100)).begin()
    site.now_s += 10.0
    wait = {"site": "asia", "kind": "model", "artifact": "model", "since_s": 10.0, "deadline_s": 90.0}
    assert seen(site)["waiting_for"] == [wait]
    site.unavailable("asia", Unavailable.SKIPPED)
    assert seen(site)["waiting_for"] == []


def test_a_visiting_model_is_named_by_its_owner(solo: Any) -> None:
    site = solo(method="fedcross", schedule_kind="ring").begin()
    assert [(waited["site"], waited["artifact"]) for waited in seen(site)["waiting_for"]] == [("america", "model")]
    site.deliver("america")
    site.finish()
    (waited,) = seen(site)["waiting_for"]
    assert (waited["site"], waited["kind"], waited["artifact"]) == ("america", "model", "asia's model")


def test_a_site_waits_for_every_kind_of_artifact() -> None:
    assert set(KINDS) < set(WAIT_KINDS)


def test_without_a_quorum_the_deadline_shown_is_the_one_that_counts(solo: Any) -> None:
    waits = [("chosen", 9, {"waited_s": 70.0, "sources": [], "missing": {}, "position": 1, "below_quorum": False})] * 3
    site = solo(method="feddal", rows=waits, pace=PaceRules(wait_max_s=500, silence_s=900)).begin()
    site.finish()
    assert {waited["deadline_s"] for waited in seen(site)["waiting_for"]} == {70.0}
    site.wait(80.0)
    assert site.site.phase == Phase.EXCHANGE
    assert {waited["deadline_s"] for waited in seen(site)["waiting_for"]} == {420.0}


def test_pacing_names_who_is_behind(solo: Any) -> None:
    site = training(solo, pace=PaceRules(lead_rounds_max=0))
    assert site.site.phase == Phase.TRAIN
    for name, round in (("africa", 0), ("america", 0), ("asia", 1)):
        site.beat(name, round)
    site.finish()
    assert site.site.phase == Phase.PACING
    assert [(wait["site"], wait["artifact"]) for wait in seen(site)["waiting_for"]] == [
        ("africa", "progress"),
        ("america", "progress"),
    ]


@pytest.mark.parametrize(("stay", "deadline_s"), [(False, 30.0), (True, None)])
def test_a_site_that_is_done_names_who_is_not(solo: Any, stay: bool, deadline_s: float | None) -> None:
    site = training(solo, rounds=1, stay=stay)
    site.finish()
    site.finish()
    assert site.site.phase == Phase.DONE
    site.beat("asia", 1, "done")
    site.now_s += 30.0
    assert seen(site)["waiting_for"] == [
        {"site": name, "kind": "last_round", "artifact": "its last round", "since_s": 30.0, "deadline_s": deadline_s}
        for name in ("africa", "america")
    ]


def test_a_failure_says_why(solo: Any) -> None:
    site = training(solo)
    site.fail("memory", "CUDA out of memory")
    site.fail("memory", "CUDA out of memory")
    assert (seen(site)["phase"], seen(site)["failure"]) == ("failed", "memory: CUDA out of memory")
    site.feed(events.ResumeRequested())
    assert (seen(site)["phase"], seen(site)["failure"]) == ("train", "")


FIXED = {"visits": None, "members": list(FOUR), "made_in": None}


def test_the_plan_of_a_permutation(rules: Any) -> None:
    shown = plan_of(rules("asia", FOUR), rounds=2, first=2)
    assert shown.keys() >= {"digest", "schedule", "sites", "pattern", "artifact", "rounds"}
    assert (shown["sites"], shown["pattern"], shown["artifact"]) == (list(FOUR), "permutation", "model")
    assert shown["rounds"] == [
        {"round": 2, "order": [0, 1, 2, 3], "receives_from": {}, **FIXED},
        {
            "round": 3,
            "order": [3, 2, 0, 1],
            "receives_from": {"africa": ["europe"], "america": ["asia"], "asia": ["africa"], "europe": ["america"]},
            **FIXED,
        },
    ]


def test_the_plan_ends_with_the_last_round(rules: Any) -> None:
    assert [row["round"] for row in plan_of(rules("asia", FOUR), rounds=99, first=3)["rounds"]] == [3, 4]


def test_the_plan_names_the_round_of_older_artifacts(rules: Any) -> None:
    shown = plan_of(rules("asia", FOUR, staleness=1), rounds=4)["rounds"]
    assert [row["made_in"] for row in shown] == [0, 0, 1, 2]
    assert [row["made_in"] for row in plan_of(rules("asia", FOUR), rounds=2)["rounds"]] == [None, None]


def test_the_plan_of_the_other_patterns(rules: Any) -> None:
    everybody = plan_of(rules("asia", FOUR[:3], method="feddal"), rounds=1)["rounds"][0]
    others = {"africa": ["america", "asia"], "america": ["africa", "asia"], "asia": ["africa", "america"]}
    assert everybody == {"round": 1, "order": None, "receives_from": others, **FIXED, "members": list(FOUR[:3])}
    nobody = plan_of(rules("asia", FOUR, method="local"), rounds=1)["rounds"][0]
    assert nobody == {"round": 1, "order": None, "receives_from": {}, **FIXED}
