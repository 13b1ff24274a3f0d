"""Exchanges that fail: refused, rejected, lost and late artifacts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fakes.core_site import discarded
from peer.core import commands, events
from peer.core.epochs import PaceRules
from peer.core.limits import LOST_FILES_MAX, WORKER_RESTARTS_MAX
from peer.core.messages import Unavailable
from peer.core.phases import Phase

TWO = {"sites": ("asia", "europe"), "schedule_kind": "derangement"}


# What comes is checked against what was due.


@pytest.mark.parametrize(
    ("true_round", "owner", "kind", "reason"),
    [
        (2, "asia", "model", "sent the artifact of round 2 for round 1"),
        (0, "asia", "model", "sent the artifact of round 0 for round 1"),
        (1, "europe", "model", "sent europe's model where asia's model was due"),
        (1, "asia", "head", "sent asia's head where asia's model was due"),
    ],
)
def test_another_artifact_than_the_due_one_is_refused(
    solo: Any, artifact: Any, true_round: int, owner: str, kind: str, reason: str
) -> None:
    site = solo(**TWO).begin()
    out = site.deliver("asia", true_round=true_round, artifact=artifact(owner, "x", kind=kind))
    assert site.site.refusals[-1] == {"site": "asia", "round": 1, "reason": reason, "declined": False}
    assert len(discarded(out)) == 1
    assert site.order.sources == ()
    assert site.body("chosen")["missing"] == {"asia": "refused"}


def test_a_new_generation_may_send_another_digest(solo: Any, artifact: Any) -> None:
    site = solo(**TWO).begin()
    first = artifact("asia", "first")
    site.deliver("asia", artifact=first)
    rows = [*(row for row in site.audit.rows if row[0] != "chosen"), ("discarded", 1, {"sha256": first.sha256})]
    site.restart(rows)
    site.greet()
    site.deliver("asia", artifact=artifact("asia", "second"), origin_generation=2)
    assert site.kinds.count("refused") == 0
    assert [source.artifact.sha256 for source in site.order.sources] == [artifact("asia", "second").sha256]


def test_who_is_silent_or_away_teaches_nothing_about_patience(solo: Any) -> None:
    site = solo(**TWO).begin()
    site.beat("asia", 1, "paused", published=0)
    assert site.site.phase == Phase.TRAIN
    assert site.body("chosen")["waited_s"] is None
    assert site.site.memory.waits_s == []


def test_a_wait_that_ended_as_slow_counts_double(solo: Any) -> None:
    site = solo(**TWO, pace=PaceRules(wait_max_s=100, silence_s=1000)).begin()
    site.wait(100)
    assert site.body("chosen")["missing"] == {"asia": "slow"}
    assert site.site.memory.waits_s == [200.0]


def test_an_absent_site_is_not_even_asked(solo: Any) -> None:
    site = solo(**TWO, without=frozenset({"asia"})).begin()
    assert site.site.phase == Phase.TRAIN
    assert site.body("chosen")["missing"] == {"asia": "absent"}


# What the worker finds unusable.


def test_a_rejected_artifact_is_left_out_and_its_origin_named(solo: Any, artifact: Any) -> None:
    site = solo(**TWO).begin()
    site.deliver("asia", artifact=artifact("asia", "bad"))
    bad = artifact("asia", "bad").sha256
    out = site.reject(bad, origin="nobody")
    assert discarded(out) == [bad]
    assert (site.order.round, site.order.sources) == (1, ())
    assert site.body("chosen")["missing"] == {"asia": "refused"}
    assert site.body("refused") == {"origin": "asia", "reason": "3 values are not finite"}
    site.finish()
    assert site.body("committed")["contributors"] == ["europe"]


def test_a_peer_that_sends_our_own_bytes_cannot_have_our_file_deleted(solo: Any, artifact: Any) -> None:
    site = solo(**TWO).begin()
    own = site.site.memory.published[(1, "europe")]
    site.deliver("asia", artifact=artifact("asia", "initial europe"))
    assert site.order.sources[0].artifact.sha256 == own.sha256
    assert discarded(site.reject(own.sha256)) == []
    assert site.site.memory.published[(1, "europe")] == own


def test_a_worker_that_rejects_what_nobody_sent_fails_like_one_that_crashes(solo: Any, artifact: Any) -> None:
    site = solo(**TWO).begin()
    site.deliver("asia")
    for _ in range(3):
        site.reject(artifact("asia", "never sent").sha256)
        assert site.site.phase == Phase.TRAIN
    site.reject(artifact("asia", "never sent").sha256)
    assert site.site.phase == Phase.FAILED
    assert site.kinds.count("refused") == 0


def test_a_received_artifact_whose_file_is_gone_is_fetched_again_and_nobody_is_named(solo: Any) -> None:
    site = solo(**TWO).begin()
    site.deliver("asia")
    (source,) = site.order.sources
    site.reject(source.artifact.sha256, lost=True)
    assert (site.site.phase, list(site.fetches)) == (Phase.EXCHANGE, ["asia"])
    assert site.body("discarded") == {"sha256": source.artifact.sha256, "lost": True}
    site.restart()  # the journal alone says the same
    assert site.site.phase == Phase.EXCHANGE
    site.greet()
    site.deliver("asia")
    assert site.order.sources == (source,)
    site.finish()
    assert site.kinds.count("refused") == 0


def test_an_artifact_that_is_lost_again_and_again_is_missing_and_nobody_is_named(solo: Any) -> None:
    site = solo(**TWO).begin()
    for _ in range(LOST_FILES_MAX + 1):
        site.deliver("asia")
        site.reject(site.order.sources[0].artifact.sha256, lost=True)
    assert site.site.phase == Phase.TRAIN
    assert site.order.sources == ()
    assert site.body("chosen")["missing"] == {"asia": "lost"}
    assert site.kinds.count("refused") == 0


def test_losses_are_no_crashes_of_the_worker(solo: Any) -> None:
    """A worker that then crashes once more is started again, and its crash costs no peer an artifact."""
    site = solo(**TWO).begin()
    for _ in range(LOST_FILES_MAX):
        site.deliver("asia")
        site.reject(site.order.sources[0].artifact.sha256, lost=True)
    site.deliver("asia")
    for _ in range(WORKER_RESTARTS_MAX):
        site.fail("crash")
        assert [source.origin for source in site.order.sources] == ["asia"]
    assert site.kinds.count("refused") == 0


def test_a_site_that_loses_what_it_makes_fails_by_itself_and_names_nobody(solo: Any) -> None:
    site = solo(**TWO).begin()
    site.deliver("asia")
    for _ in range(LOST_FILES_MAX):
        site.fail("disk", "its artifact is gone")
        assert site.site.phase == Phase.TRAIN
    site.fail("disk", "its artifact is gone")
    assert (site.site.phase, site.site.failure) == (Phase.FAILED, "disk: its artifact is gone")
    assert site.kinds.count("refused") == 0


def test_of_several_artifacts_only_the_lost_one_is_fetched_again(solo: Any) -> None:
    site = solo(method="feddal").begin()
    site.finish()
    site.deliver_all()
    lost = next(source for source in site.order.sources if source.origin == "asia")
    site.reject(lost.artifact.sha256, lost=True)
    assert list(site.fetches) == ["asia"]
    site.deliver("asia")
    assert {source.origin for source in site.order.sources} == {"africa", "america", "asia"}


@pytest.mark.parametrize(("fault", "failures"), [("memory", 1), ("crash", 4), ("hang", 2)])
def test_of_several_artifacts_the_largest_is_left_out_first(solo: Any, fault: str, failures: int) -> None:
    """All sources are in use when the worker dies; the site goes on until it fails without any."""
    site = solo(method="feddal").begin()
    site.finish()
    site.deliver_all()
    sizes = {source.origin: source.artifact.bytes for source in site.order.sources}
    assert len(set(sizes.values())) == 3
    for origin in sorted(sizes, key=sizes.__getitem__, reverse=True):
        assert origin in {source.origin for source in site.order.sources}
        for _ in range(failures):
            assert site.site.phase == Phase.AGGREGATE
            site.fail(fault)
        assert origin not in {source.origin for source in site.order.sources}
        assert site.body("chosen")["missing"][origin] == "unused"
    for _ in range(failures):
        site.fail(fault)
    assert site.site.phase == Phase.FAILED
    assert site.site.failure.startswith(f"{fault}: ")
    assert site.kinds.count("refused") == 0  # only a check tells whose fault it is


def test_what_this_site_cannot_read_for_want_of_memory_is_left_out_alone_and_names_nobody(solo: Any) -> None:
    """Not the largest one: a sender could have others' artifacts left out by one that takes memory."""
    site = solo(method="feddal", sites=("africa", "america", "asia", "europe")).begin()
    site.finish()
    site.deliver_all()
    smallest = min(site.order.sources, key=lambda source: source.artifact.bytes)
    rest = {source.origin for source in site.order.sources} - {smallest.origin}
    site.reject(smallest.artifact.sha256, origin=smallest.origin, short=True)
    assert {source.origin for source in site.order.sources} == rest
    assert site.body("chosen")["missing"] == {smallest.origin: "unused"}
    assert site.kinds.count("refused") == 0


def test_what_this_site_could_not_store_is_left_out_and_nobody_is_named(solo: Any) -> None:
    site = solo(**TWO).begin()
    order = site.fetches.pop("asia")
    fields = (order.generation, order.round, order.attempt, order.origin, order.purpose)
    site.feed(events.ArtifactRefused(*fields, "no room", blameless=True))
    assert site.body("chosen")["missing"] == {"asia": "unused"}
    assert "refused" not in site.kinds


def test_a_rejected_stale_artifact_does_not_come_again(solo: Any) -> None:
    site = solo(**TWO, fallback="stale", staleness_rounds_max=3).begin()
    site.deliver("asia")
    site.finish()
    site.unavailable("asia", Unavailable.SKIPPED)
    (stale,) = site.order.sources
    assert (stale.round, stale.fallback) == (1, "stale")
    site.reject(stale.artifact.sha256)
    assert site.order.sources == ()
    site.finish()
    site.unavailable("asia", Unavailable.SKIPPED)
    assert site.order.sources == ()


def test_too_few_usable_artifacts_are_recorded_as_below_quorum(solo: Any, artifact: Any) -> None:
    site = solo(method="feddal", quorum=2).begin()
    site.finish()
    site.deliver("africa")
    site.deliver("asia")
    site.unavailable("america", Unavailable.SKIPPED)
    assert site.site.phase == Phase.AGGREGATE
    assert site.body("chosen")["below_quorum"] is False
    site.reject(site.order.sources[0].artifact.sha256, origin="africa")
    assert [source.origin for source in site.order.sources] == ["asia"]
    site.finish()
    record = site.body("committed")
    assert record["below_quorum"] is True
    assert record["missing"] == {"africa": "refused", "america": "skipped"}
    assert record["contributors"] == ["asia", "europe"]


def test_a_cached_head_that_is_rejected_before_the_exchange_is_no_lack_of_quorum(solo: Any) -> None:
    site = solo(**TWO, method="dflmoe").begin()
    site.finish()
    site.deliver("asia")
    site.finish()
    assert site.site.memory.committed == 1
    (head,) = site.order.sources
    assert (site.order.stage, head.fallback) == ("local", "stale")
    site.reject(head.artifact.sha256)
    assert site.order.sources == ()
    site.finish()
    site.deliver("asia")
    site.finish()
    assert site.body("committed")["below_quorum"] is False


def test_heads_of_silent_peers_stay_in_use(solo: Any) -> None:
    site = solo(**TWO, method="dflmoe", rounds=9).begin()
    site.finish()
    site.deliver("asia")
    site.finish()
    for _ in range(4):
        site.finish()
        site.unavailable("asia", Unavailable.SKIPPED)
        assert [(head.origin, head.round, head.fallback) for head in site.order.sources] == [("asia", 1, "stale")]
        site.finish()


# Averages leave contributions out.


def averaged(site: Any, contributors: tuple[str, ...], cut: dict[str, str]) -> None:
    """The worker averages, and leaves contributions out or weighs them less."""
    event = dataclasses.replace(site.result(), contributors=contributors, cut=cut)
    site.feed(event)


# Two origins of one artifact.


@pytest.mark.parametrize(("method", "kind"), [("dflmoe", "head"), ("fedvisit", "model"), ("dfml", "model")])
@pytest.mark.parametrize("steps", [0, 3])
def test_of_one_artifact_of_two_origins_one_counts_and_both_are_named(
    solo: Any, artifact: Any, method: str, kind: str, steps: int
) -> None:
    parameters = {"visits": 2} if method == "fedvisit" else {}
    site = solo(sites=("africa", "asia", "europe"), method=method, parameters=parameters).begin()
    if site.site.phase == Phase.TRAIN:
        site.finish()
    for origin in ("asia", "africa"):
        site.deliver(origin, artifact=artifact(origin, "the same", steps=steps, kind=kind))
    trained = steps > 0  # before its first step, networks of one seed may be equal
    assert [source.origin for source in site.order.sources] == (["africa"] if trained else ["africa", "asia"])
    assert site.body("chosen")["missing"] == ({"asia": "refused"} if trained else {})
    end = ": one of the two counts, and neither is shown to have copied"
    reasons = {each["site"]: each["reason"] for each in site.site.refusals}
    both = {"asia": f"sent the same artifact as africa{end}", "africa": f"sent the same artifact as asia{end}"}
    assert reasons == (both if trained else {})
    site.restart()
    assert [source.origin for source in site.order.sources] == (["africa"] if trained else ["africa", "asia"])


@pytest.mark.parametrize("method", ["fedskd", "proxyfl"])
def test_who_sends_a_site_its_own_artifact_has_sent_none(solo: Any, artifact: Any, method: str) -> None:
    site = solo(**TWO, method=method).begin()
    if site.site.phase == Phase.TRAIN:
        site.finish()
    (own,) = (each for (round, _), each in site.site.memory.published.items() if round == 1)
    fetch = site.fetches["asia"]
    copied = dataclasses.replace(own, owner=fetch.owner, kind=fetch.kind, steps=own.steps + 3)
    site.deliver("asia", artifact=copied)
    assert site.order.sources == ()
    assert [(each["site"], each["reason"].split(":")[0]) for each in site.site.refusals] == [
        ("asia", "sent the same artifact as europe")
    ]


def test_two_hosts_that_return_the_same_count_once(solo: Any, artifact: Any) -> None:
    site = solo(sites=("africa", "america", "asia", "europe"), method="fedvisit", parameters={"visits": 2}).begin()
    site.deliver_all()
    site.finish()
    assert site.site.phase == Phase.RETURNS
    for origin in site.rules.hosts(1):
        site.deliver(origin, artifact=artifact("europe", "the same", steps=3, kind="return"))
    first, second = sorted(site.rules.hosts(1))
    assert [source.origin for source in site.order.sources] == [first]
    assert {each["site"] for each in site.site.refusals} == {first, second}
    site.finish()
    assert site.body("committed")["missing_returns"] == {second: "refused"}


def averaging(solo: Any) -> Any:
    """A site that has received all models of a round of FedAvg, before their mean."""
    site = solo(sites=("africa", "asia", "europe"), method="fedavg").begin()
    site.finish()
    site.deliver_all()
    assert isinstance(site.order, commands.Aggregate)
    return site


def test_a_contribution_that_is_left_out_is_named_in_the_round_and_its_origin_refused(solo: Any) -> None:
    site = averaging(solo)
    averaged(site, ("africa", "europe"), {"asia": "conv is too far"})
    assert site.body("aggregated")["cut"] == {"asia": "conv is too far"}
    committed = site.body("committed")
    assert (committed["contributors"], committed["cut"]) == (["africa", "europe"], {"asia": "conv is too far"})
    assert site.site.refusals[-1] == {
        "site": "asia",
        "round": 1,
        "reason": "left out of the mean: conv is too far",
        "declined": False,
    }


def test_one_that_weighs_less_still_contributes_and_the_site_never_refuses_itself(solo: Any) -> None:
    site = averaging(solo)
    averaged(site, ("africa", "asia"), {"africa": "claims too much", "europe": "conv is too far"})
    assert site.body("committed")["contributors"] == ["africa", "asia"]
    assert not site.site.refusals


# Bounds on the size of what comes.


@pytest.mark.parametrize(
    ("own_bytes", "ratio", "bytes_max"),
    [(1000, 64.0, 256 << 20), (100 << 20, 64.0, 6400 << 20), (1 << 30, 64.0, 8 << 30), (1000, 0.0, 8 << 30)],
)
def test_an_artifact_may_have_a_multiple_of_the_own_one_s_bytes(
    solo: Any, own_bytes: int, ratio: float, bytes_max: int
) -> None:
    site = solo(**TWO, received_ratio_max=ratio)
    initialised = site.result()
    own = dataclasses.replace(initialised.artifact, bytes=own_bytes)
    site.feed(dataclasses.replace(initialised, artifact=own))
    site.greet()
    assert site.fetches["asia"].bytes_max == bytes_max


def test_a_visiting_model_that_was_trained_here_and_is_unusable_costs_its_round_only(solo: Any) -> None:
    site = solo(**TWO, method="fedcross", rounds=3).begin()
    site.deliver("asia")
    site.finish()
    (source,) = site.order.sources
    assert (site.order.round, source.origin, source.artifact.owner) == (2, "europe", "asia")
    site.reject(source.artifact.sha256, origin="europe")
    assert site.site.memory.committed == 2
    assert site.site.phase != Phase.FAILED
    assert not site.site.refusals


def test_whatever_a_site_goes_back_to_is_kept(solo: Any) -> None:
    """The second stage diverges in every round, since one peer poisons every mean."""
    site = solo(**TWO, method="mh_pflid", rounds=6).begin()
    kept, diverged = {site.order.base}, 1
    for _ in range(100):
        order = site.order
        if site.site.phase == Phase.EXCHANGE:
            site.deliver("asia")
        elif site.site.phase in (Phase.TRAIN, Phase.AGGREGATE):
            assert order.base in kept, order
            if isinstance(order, commands.Train) and order.stage == "distill" and order.round > diverged:
                diverged = order.round
                site.fail("divergence", "the loss is nan")
            else:
                kept = (kept & {*order.kept, order.base}) | {site.result().state}  # the worker may delete all others
                site.finish()
        elif site.site.phase == Phase.EVALUATE:
            site.finish()
        else:
            site.beat("asia", site.site.memory.committed + 1)
    reverted = [(round, body["origins"]) for kind, round, body in site.audit.rows if kind == "reverted"]
    assert [round for round, _ in reverted] == [2, 3, 4, 5, 6]
    assert {name for _, names in reverted for name in names} >= {"asia"}, "who took part is on record"
    refused = [body["reason"] for kind, _, body in site.audit.rows if kind == "refused"]
    assert refused == ["claims a round after the last one (6)"], "none is refused for a divergence"


def test_an_artifact_that_no_receiver_may_ask_for_any_more_is_served_no_more(solo: Any) -> None:
    site = solo(**TWO, method="fedavg_ft", rounds=3, pace=PaceRules(artifact_rounds_max=1)).begin()
    for round in (1, 2):
        site.finish()
        site.deliver("asia")
        site.finish()
        site.beat("asia", round)
    assert list(site.site.memory.published) == [(2, "europe")]
    site.finish()
    site.finish()
    assert site.site.memory.committed == 3
    assert not site.site.memory.published


def test_a_worker_that_names_another_stage_publishes_nothing_early(solo: Any, artifact: Any) -> None:
    site = solo(**TWO, method="mh_pflid", rounds=6).begin()
    assert site.order.stage == "inject"
    answer = dataclasses.replace(site.result(), stage="distill", artifact=artifact("asia", "early", kind="messenger"))
    site.feed(answer)
    assert site.order.stage == "distill"
    assert "published" not in [kind for kind, _, _ in site.audit.rows]
