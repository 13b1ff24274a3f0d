"""Models that circulate: lost, late, suspicious and forged copies, and the way home."""

from __future__ import annotations

from typing import Any

from fakes.core_site import discarded
from peer.core import commands, copies, events, exchange
from peer.core.artifacts import Source
from peer.core.limits import LOST_FILES_MAX, WORKER_RESTARTS_MAX
from peer.core.messages import Unavailable
from peer.core.phases import Phase

TWO = {"sites": ("asia", "europe"), "schedule_kind": "derangement"}
RING = {"sites": ("africa", "america", "asia", "europe"), "schedule_kind": "ring"}
# The ring of these tests gives europe the slots america, asia, america, asia; asia's slot is at america in round 2.


def test_an_owner_that_is_silent_too_is_given_up_in_the_same_moment(solo: Any) -> None:
    site = solo(**RING, method="fedcross", rounds=6).begin()
    site.deliver("america")
    site.now_s += 14
    site.beat("africa", 1)
    site.finish()
    out = site.wait(1.0)
    given_up = [command.origin for command in out if isinstance(command, commands.CancelFetch)]
    assert given_up[:2] == ["america", "asia"]
    assert [
        (body["missing"], body["sources"]) for kind, round, body in site.audit.rows if (kind, round) == ("chosen", 2)
    ] == [({"america": "silent", "asia": "silent"}, [])]


def test_a_later_round_is_no_older_copy(solo: Any) -> None:
    site = solo(**RING, method="fedcross", rounds=6).begin()
    site.deliver("america", true_round=5)
    assert site.site.refusals[-1]["reason"] == "sent the artifact of round 5 for round 1"


def test_a_site_without_a_copy_never_trains_its_own_model_under_anothers_name(solo: Any) -> None:
    site = solo(**TWO, method="fedcross", rounds=3).begin()
    site.unavailable("asia", Unavailable.SKIPPED)
    assert site.body("chosen")["sources"] == []
    assert site.site.memory.committed == 1, "it had nothing to train in round 1"
    (order,) = site.fetches.values()
    assert (order.round, order.origin, order.owner) == (2, "asia", "asia"), (
        "it should hold the slot itself, but has none"
    )
    site.deliver("asia", true_round=1)
    assert [source.artifact.owner for source in site.order.sources] == ["asia"]


def suspected(solo: Any, artifact: Any) -> tuple[Any, Any]:
    """A site whose worker suspects the copy of asia's slot that america trained; it waits for asia's own."""
    site = solo(**RING, method="fedcross", rounds=6).begin()
    site.deliver("america")
    site.finish()
    bad = artifact("asia", "bad")
    site.deliver("america", artifact=bad)
    assert (site.order.earlier, site.order.final) == (None, False)
    site.reject(bad.sha256, origin="america")
    assert site.site.phase == Phase.EXCHANGE
    assert [(order.origin, order.owner) for order in site.fetches.values()] == [("asia", "asia")]
    return site, bad


def test_a_suspicious_copy_is_compared_with_the_one_that_it_was_trained_from(solo: Any, artifact: Any) -> None:
    site, bad = suspected(solo, artifact)
    site.deliver("asia", true_round=1, artifact=artifact("asia", "first"))
    (source,) = site.order.sources
    assert (source.artifact, site.order.final) == (bad, True)
    assert (site.order.earlier.origin, site.order.earlier.round) == ("asia", 1)
    assert "refused" not in site.kinds
    site.finish()
    assert site.site.memory.committed == 2, "the worker found no fault, and the copy was trained"


def test_the_copy_before_replaces_one_that_no_training_made_and_its_last_host_is_named(
    solo: Any, artifact: Any
) -> None:
    site, bad = suspected(solo, artifact)
    site.deliver("asia", true_round=1, artifact=artifact("asia", "first"))
    out = site.reject(bad.sha256, origin="america")
    assert site.site.refusals[-1]["site"] == "america"
    (source,) = site.order.sources
    assert (source.artifact, source.fallback, site.order.final) == (artifact("asia", "first"), "stale", True)
    assert discarded(out) == [bad.sha256]


def test_a_refused_copy_s_rounds_are_made_up(solo: Any, artifact: Any) -> None:
    site, bad = suspected(solo, artifact)
    site.deliver("asia", true_round=1, artifact=artifact("asia", "first"))
    assert site.order.rounds == 1
    site.reject(bad.sha256, origin="america")
    assert site.order.rounds == 2


def test_a_suspicious_copy_is_judged_without_the_copy_before_where_nobody_has_that(solo: Any, artifact: Any) -> None:
    site, bad = suspected(solo, artifact)
    site.unavailable("asia", Unavailable.RETIRED)
    (source,) = site.order.sources
    assert (source.artifact, site.order.earlier, site.order.final) == (bad, None, True)


def test_a_site_asks_itself_for_no_copy_that_it_has_no_more(solo: Any, artifact: Any) -> None:
    site = solo(**RING, method="fedcross", rounds=6)
    source = Source(site.site.rules.holder(4, "asia"), 4, artifact("asia", "x"))
    assert exchange.holder_before(source, site.site.rules) == (3, "europe")
    assert copies.judges_finally(site.site, source)


def test_a_restarted_site_asks_again_for_the_copy_before(solo: Any, artifact: Any) -> None:
    site, bad = suspected(solo, artifact)
    site.restart()
    site.greet()
    (source,) = site.order.sources
    assert (source.artifact, site.order.final) == (bad, False)
    site.reject(bad.sha256, origin="america")
    assert [(order.origin, order.owner) for order in site.fetches.values()] == [("asia", "asia")]


def test_an_older_release_that_gives_no_copy_before_is_not_named(solo: Any, artifact: Any) -> None:
    site, _ = suspected(solo, artifact)
    order = site.fetches.pop("asia")
    site.feed(events.ArtifactRefused(1, 2, order.attempt, "asia", "train", "round 2 does not give it"))
    assert "refused" not in site.kinds
    assert site.order.final


def test_a_suspicious_copy_of_the_own_model_is_compared_before_it_is_adopted(solo: Any, artifact: Any) -> None:
    site = solo(**RING, method="fedcross", rounds=3).begin()
    for round in (1, 2, 3):
        (origin,) = site.fetches
        site.deliver(origin)
        site.beat("africa", round)
        site.beat("america", round)
        site.finish()
    assert site.site.phase == Phase.HANDBACK
    last, before = (site.site.rules.holder(round, "europe") for round in (4, 3))
    assert len({last, before, "europe"}) == 3
    bad = artifact("europe", "bad")
    site.deliver(last, artifact=bad)
    site.reject(bad.sha256, origin=last)
    ((asked, order),) = [(name, order) for name, order in site.fetches.items() if order.round == 3]
    assert (asked, order.purpose) == (before, "handback")
    site.deliver(before, artifact=artifact("europe", "before"))
    assert (site.order.source.artifact, site.order.earlier.artifact) == (bad, artifact("europe", "before"))
    out = site.reject(bad.sha256, origin=last)
    assert site.site.refusals[-1]["site"] == last
    assert site.order.source.artifact == artifact("europe", "before")
    assert discarded(out) == [bad.sha256]
    assert "slot_lost" not in site.kinds


def travelled(solo: Any, **rules: Any) -> Any:
    """A site whose model circulated for one of two rounds and is at asia now."""
    site = solo(**TWO, rounds=2, parameters={"activation": 0.5}, **rules).begin()
    site.deliver("asia")
    site.finish()
    assert site.site.phase == Phase.HANDBACK
    return site


def test_the_model_comes_home_with_the_steps_it_was_trained(solo: Any, artifact: Any) -> None:
    site = travelled(solo)
    out = site.deliver("asia", artifact=artifact("europe", "trained at asia", steps=20))
    own = site.site.artifacts_on_disk()[-1]
    base = site.site.memory.state
    assert site.order == commands.Adopt(1, 1, site.order.attempt, base, site.order.source, own, True)
    assert site.order.source.artifact.steps == 20
    assert discarded(out) == []
    out = site.finish()
    assert artifact("europe", "trained at asia").sha256 in discarded(out)
    assert "slot_lost" not in site.kinds
    assert site.site.memory.model_is_home
    assert ("published", 2) in [(kind, round) for kind, round, _ in site.audit.rows if kind == "published"]


def test_the_copy_of_an_expelled_site_is_whole_until_it_is_adopted(solo: Any, artifact: Any) -> None:
    site = travelled(solo)
    site.deliver("asia", artifact=artifact("europe", "trained at asia", steps=20))
    source = site.order.source
    assert source.origin == "asia"
    assert discarded(site.learn(2, members="europe", expelled="asia")) == []
    assert source.artifact.sha256 in discarded(site.finish())
    assert site.site.memory.model_is_home


def test_a_copy_that_is_unusable_at_home_is_replaced_by_the_own_one(solo: Any, artifact: Any) -> None:
    site = travelled(solo)
    bad = artifact("europe", "bad", steps=20)
    site.deliver("asia", artifact=bad)
    order = site.order
    out = site.feed(events.ArtifactRejected(1, 1, order.attempt, "asia", bad.sha256, "shapes differ"))
    assert bad.sha256 in discarded(out)
    assert site.site.phase == Phase.ADOPT
    assert site.order.source.origin == "europe"
    assert site.body("refused") == {"origin": "asia", "reason": "shapes differ"}
    assert "slot_lost" in site.kinds
    site.finish()
    assert site.site.memory.model_is_home


def test_a_copy_whose_file_is_gone_at_home_is_fetched_again_and_nobody_is_named(solo: Any, artifact: Any) -> None:
    site = travelled(solo)
    copy = artifact("europe", "copy", steps=20)
    for _ in range(LOST_FILES_MAX):
        site.deliver("asia", artifact=copy)
        assert site.site.phase == Phase.ADOPT
        order = (1, 1, site.order.attempt)
        site.feed(events.ArtifactRejected(*order, "asia", copy.sha256, "its file is gone", lost=True))
        assert (site.site.phase, list(site.fetches)) == (Phase.HANDBACK, ["asia"])
    site.deliver("asia", artifact=copy)
    site.feed(events.ArtifactRejected(1, 1, site.order.attempt, "asia", copy.sha256, "its file is gone", lost=True))
    assert site.order.source.origin == "europe"
    assert site.kinds.count("refused") == 0
    site.finish()
    assert site.site.memory.model_is_home


def test_an_own_copy_that_is_unusable_leaves_the_model_as_it_is(solo: Any) -> None:
    site = travelled(solo)
    site.unavailable("asia", Unavailable.SKIPPED)
    own = site.order.source.artifact.sha256
    site.feed(events.ArtifactRejected(1, 1, site.order.attempt, "europe", own, "the file is cut short"))
    assert site.site.memory.model_is_home
    assert site.site.memory.state == site.body("initialised")["state"]
    assert site.kinds.count("refused") == 0


def test_a_model_of_which_no_copy_is_left_stays_as_it_is(solo: Any) -> None:
    site = travelled(solo)
    site.restart(lost=site.site.memory.published[1, "europe"].sha256)
    site.greet()
    site.unavailable("asia", Unavailable.SKIPPED)
    assert site.site.memory.model_is_home
    assert site.body("adopted")["state"] == ""
    assert "slot_lost" in site.kinds


def test_crashes_before_the_model_is_home_count_no_more_when_it_is(solo: Any) -> None:
    site = travelled(solo)
    site.deliver("asia")
    for _ in range(WORKER_RESTARTS_MAX):
        site.fail()
    assert site.site.phase == Phase.ADOPT
    site.finish()
    site.deliver("asia")
    site.fail()
    assert [source.origin for source in site.order.sources] == ["asia"], "one crash costs no peer its artifact"


def test_a_model_is_asked_home_from_its_holder_alone(solo: Any, artifact: Any) -> None:
    site = solo(**RING, rounds=2, parameters={"activation": 0.5}).begin()
    site.deliver("america")
    site.finish()
    assert site.site.phase == Phase.HANDBACK
    holder = site.rules.holder(2, "europe")
    assert set(site.fetches) == {holder}
    stranger = next(name for name in site.rules.others if name != holder)
    attempt = site.fetches[holder].attempt
    fork = artifact("europe", "a fork", steps=1 << 40)
    out = site.feed(events.ArtifactArrived(1, 2, attempt, stranger, 1, 2, "handback", fork))
    assert discarded(out) == [fork.sha256]
    assert site.site.phase == Phase.HANDBACK, "the holder's copy is still to come"
    site.deliver(holder, artifact=artifact("europe", "the real one", steps=2))
    assert site.order.source.origin == holder


def test_an_owner_s_copy_of_a_round_for_which_another_site_trained_it_is_refused(solo: Any, artifact: Any) -> None:
    site = solo(**RING, method="fedcross", rounds=3).begin()
    site.deliver("america")
    site.finish()
    assert {(order.origin, order.owner) for order in site.fetches.values()} == {("america", "asia")}
    site.unavailable("america", Unavailable.SKIPPED)
    site.deliver("asia", true_round=2, artifact=artifact("asia", "a fork"))
    reason = "sent asia's model for round 2, which only america can have"
    assert site.site.refusals[-1] == {"site": "asia", "round": 2, "reason": reason, "declined": False}


def test_no_circulating_model_has_more_steps_than_its_rounds_allow(solo: Any, artifact: Any) -> None:
    site = solo(**TWO, method="fedcross", rounds=3, round_steps=20).begin()
    site.deliver("asia", artifact=artifact("asia", "initial", steps=1))
    reason = "claims 1 steps of a model that can have 0 by then"
    assert site.site.refusals[-1] == {"site": "asia", "round": 1, "reason": reason, "declined": False}
    assert [source.artifact.steps for source in site.order.sources] == [0]
