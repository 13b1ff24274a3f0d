"""Remote evaluation: what a site lends and measures, and that neither delays a round."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.core_site import discarded, of, persisted
from peer.core import commands, cross_evaluation, events, limits, status
from peer.core.cross_evaluation_memory import NO_ANSWER, evaluation_records
from peer.core.messages import Heartbeat, Unavailable
from peer.core.phases import Phase
from peer.core.rules import PaceRules

FOUR = ("africa", "america", "asia", "europe")
LENDING = {"global_test": True, "evaluation_permitted": True, "evaluation_every": 1}
TWO = {"sites": ("asia", "europe"), "schedule_kind": "derangement", "rounds": 1, **LENDING}


@pytest.fixture
def europe(solo: Any) -> Any:
    """One of two sites, in round 1 of 1, waiting for asia's model; asia has committed its round."""
    site = solo("europe", **TWO).begin()
    site.beat("asia", 1, "done")
    return site


@pytest.fixture
def done(europe: Any) -> Any:
    """The same site after its last round, its model lent, asia's on its way."""
    europe.deliver("asia")
    europe.finish()
    europe.finish()
    assert europe.site.phase == Phase.DONE
    return europe


def table(site: Any) -> dict[str, Any]:
    return evaluation_records(site.audit.rows, own=site.rules.site, sites=lambda _: site.rules.roster.names)[-1]


# --- the site whose model it is --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"evaluation_permitted": False}, "not permitted by europe: its [egress] evaluate is false"),
        ({"method": "feddal"}, "not permitted: the method lets no private model leave its site"),
        ({"method": "fedbn"}, "not permitted: each site's normalisation layers stay there"),
    ],
)
def test_what_is_kept_home_is_measured_by_the_site_alone_and_says_why(
    solo: Any, rules: dict[str, Any], reason: str
) -> None:
    site = solo("europe", **{**TWO, **rules})
    for _ in range(12):
        if site.site.phase == Phase.GATHERING:
            site.greet(evaluates=True)
            site.beat("asia", 1, "done")
        elif site.fetches:
            site.deliver("asia")
        elif site.site.phase != Phase.GONE:
            site.finish()
    assert site.site.phase == Phase.GONE, "nobody is waited for"
    assert site.site.memory.evaluation.lent == {}
    assert site.evaluation_fetches == {}
    assert table(site)["cells"]["asia"] == {"reason": reason}
    assert table(site)["cells"]["europe"]["metrics"] == {"auc": 0.5}


def test_without_the_federation_s_wish_no_row_and_no_order_differs(solo: Any) -> None:
    site = solo("europe", **{**TWO, "global_test": False}).begin(evaluates=True)
    site.beat("asia", 1, "done")
    site.deliver("asia")
    site.finish()
    assert not site.order.lent
    site.finish()
    assert site.body("evaluated") == {"metrics": {"auc": 0.5}}
    assert site.evaluation_fetches == {}


def test_the_first_figures_of_a_site_count(done: Any) -> None:
    model = done.site.memory.evaluation.lent[1].artifact
    assert persisted(done.report("asia", 1, model, metrics={"auc": 0.8})) == ["report"]
    assert persisted(done.report("asia", 1, model, metrics={"auc": 0.8})) == []
    for _ in range(3):
        done.report("asia", 1, model, metrics={"auc": 0.9})
    assert done.kinds.count("refused") == 1, "a peer that changes its story is named once"
    assert done.body("refused")["reason"] == "reports otherwise on the model of round 1 than before"
    assert table(done)["cells"]["asia"]["metrics"] == {"auc": 0.8}
    assert table(done)["global_test"] == {"auc": pytest.approx(0.65)}


def test_figures_may_follow_a_failure(done: Any) -> None:
    model = done.site.memory.evaluation.lent[1].artifact
    done.report("asia", 1, model, unmeasured="failed")
    assert table(done)["cells"]["asia"] == {"reason": "could not run the model"}
    done.report("asia", 1, model, metrics={"auc": 0.8})
    assert table(done)["cells"]["asia"]["metrics"] == {"auc": 0.8}
    assert persisted(done.report("asia", 1, model, unmeasured="failed")) == ["refused"]
    assert table(done)["cells"]["asia"]["metrics"] == {"auc": 0.8}


def test_after_a_restored_backup_what_is_reported_anew_is_no_contradiction(done: Any) -> None:
    model = done.site.memory.evaluation.lent[1].artifact
    done.report("asia", 1, model, metrics={"auc": 0.8})
    done.restart([*done.audit.rows, ("regenerated", 1, {"generation": 2, "reported_by": "asia", "their_round": 1})])
    assert persisted(done.report("asia", 1, model, generation=2, metrics={"auc": 0.7})) == ["report"]
    assert table(done)["cells"]["asia"]["metrics"] == {"auc": 0.7}


def test_a_model_is_lent_as_long_as_published_ones_are_and_no_received_one_is_kept(simulation: Any) -> None:
    run = simulation(FOUR, rounds=12, **LENDING)
    run.run_to_end()
    for machine in run.machines.values():
        assert machine.round.memory.received == {}
        assert {round for round, _ in machine.round.memory.published} == set(range(8, 13))
        assert set(machine.round.memory.evaluation.lent) == set(range(8, 13))
        assert len([kind for kind, _, body in machine.rows if kind == "lapsed" and body["retired"]]) == 7
        assert machine.files == machine.round.memory.needed_digests()


# --- the site that measures ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "figures", [{"samples": 9.0, "auc": 1.0}, {}, {"samples": float("nan")}, {"samples": float("inf"), "auc": 0.5}]
)
def test_of_too_few_samples_nothing_is_told_or_kept(europe: Any, figures: dict[str, float]) -> None:
    europe.lend("asia")
    order = europe.measure_order
    europe.feed(events.Measured(order.generation, order.round, order.attempt, figures))
    report = europe.reports[0].report
    assert (report.unmeasured, report.samples, report.metrics) == ("withheld", 0, {})
    assert "auc" not in str(europe.body("measured"))


def test_a_site_s_own_minimum_counts(solo: Any) -> None:
    site = solo("europe", **{**TWO, "evaluation_samples_min": 25}).begin()
    site.beat("asia", 1, "done")
    site.lend("asia")
    site.examine(samples=20.0, auc=0.5)
    assert site.reports[0].report.unmeasured == "withheld"


def test_figures_that_no_message_can_carry_are_left_out(europe: Any) -> None:
    europe.lend("asia")
    europe.examine(samples=20.0, auc=0.5, loss=float("nan"), psnr=float("inf"), dice=1e300)
    assert europe.reports[0].report.metrics == {"auc": 0.5}


def test_a_guest_that_the_worker_refuses_names_its_origin(europe: Any) -> None:
    europe.lend("asia")
    order = europe.measure_order
    europe.feed(events.Measured(order.generation, order.round, order.attempt, {}, "tensor 'w' holds a NaN"))
    assert europe.body("refused") == {"origin": "asia", "reason": "tensor 'w' holds a NaN"}
    assert europe.reports[0].report.unmeasured == "refused"


def test_a_measurement_that_fails_is_tried_once_more_and_hurts_no_training(europe: Any) -> None:
    failures = europe.site.failures
    for _ in range(2):
        europe.lend("asia")
        order = europe.measure_order
        europe.feed(events.MeasurementFailed(order.generation, order.attempt, "memory", "out of memory"))
    assert europe.evaluation_fetches == {}
    assert europe.reports[0].report.unmeasured == "failed"
    assert (europe.site.failures, europe.site.phase) == (failures, Phase.EXCHANGE)


def test_another_model_under_the_same_round_is_refused(europe: Any, artifact: Any) -> None:
    europe.lend("asia")
    order = europe.measure_order
    europe.feed(events.MeasurementFailed(order.generation, order.attempt, "crash", "killed"))
    europe.lend("asia", artifact=artifact("asia", "another"))
    assert europe.body("refused")["reason"] == "lent another model of round 1 than before"
    assert europe.reports[0].report.unmeasured == "not_received"


@pytest.mark.parametrize(
    "changes", [{"true_round": 2}, {"artifact": "head"}, {"artifact": "africa"}], ids=["round", "kind", "owner"]
)
def test_something_else_than_the_model_is_refused(europe: Any, artifact: Any, changes: dict[str, Any]) -> None:
    artifacts = {"head": artifact("asia", "head", kind="head"), "africa": artifact("africa", "theirs")}
    changes = {key: artifacts.get(value, value) for key, value in changes.items()}
    out = europe.lend("asia", **changes)
    assert europe.body("refused")["reason"].startswith("lent ")
    assert europe.measure_order is None
    assert "artifact" not in changes or of(out, commands.Discard)
    assert europe.reports[0].report.unmeasured == "not_received"


@pytest.mark.parametrize("blameless", [False, True])
def test_a_guest_that_cannot_be_had_is_reported_as_such(europe: Any, blameless: bool) -> None:
    order = europe.evaluation_fetches.pop("asia")
    fields = (order.generation, order.round, order.attempt, order.origin, order.purpose)
    europe.feed(events.ArtifactRefused(*fields, "the digest is another", blameless))
    assert ("refused" in europe.kinds) != blameless
    assert (europe.reports[0].report.unmeasured, europe.reports[0].report.sha256) == ("not_received", None)


def test_what_is_not_lent_any_more_is_let_be(europe: Any) -> None:
    order = europe.evaluation_fetches.pop("asia")
    fields = (order.generation, order.round, order.attempt, order.origin, order.purpose)
    europe.feed(events.ArtifactUnavailable(*fields, Unavailable.RETIRED))
    assert europe.body("settled")["reason"] == "retired"
    europe.beat("asia", 1, "done")
    assert (europe.evaluation_fetches, europe.reports) == ({}, [])


def test_an_origin_of_a_new_generation_is_asked_under_it(europe: Any) -> None:
    europe.lend("asia", origin_generation=2)
    assert europe.measure_order is None
    assert europe.body("settled")["reason"] == "of generation 2"
    assert europe.evaluation_fetches == {}, "until its beat says so, too"


def test_an_origin_that_claims_ever_new_generations_costs_no_more_than_a_few(europe: Any) -> None:
    for generation in range(1, 50):
        europe.feed(events.PeerHeard("asia", Heartbeat(generation, 1, "done", committed_round=1)))
        if europe.evaluation_fetches:
            europe.lend("asia", origin_generation=generation)
            europe.examine()
            europe.answer()
    assert europe.kinds.count("guest") == limits.LENT_MODELS_PER_ROUND_MAX


@pytest.mark.parametrize("evaluates", [False, None])
def test_a_site_that_takes_no_part_is_not_asked_and_its_cell_says_why(solo: Any, evaluates: bool | None) -> None:
    site = solo("europe", **TWO)
    site.finish()
    greeting = {"evaluates": evaluates} if evaluates is not None else {}
    site.greet(**greeting)
    if evaluates is None:
        site.site.accepts_evaluation["asia"] = None  # as the greeting of an older program has it
    site.beat("asia", 1, "done")
    site.deliver("asia")
    site.finish()
    out = site.finish()
    assert site.evaluation_fetches == {}
    assert cross_evaluation.awaited(site.site) == []
    lapsed = next(command.body for command in of(out, commands.Persist) if command.kind == "lapsed")
    expected = "not permitted by asia" if evaluates is False else "its program does not support it"
    assert lapsed["reasons"] == {"asia": expected}
    assert site.site.phase == Phase.GONE, "asia is done, and nothing else is waited for"


def test_of_many_rounds_the_newest_is_fetched_and_no_more_than_are_kept(solo: Any) -> None:
    site = solo("europe", **{**TWO, "rounds": 20, "pace": PaceRules(artifact_rounds_max=3)}).begin()
    site.beat("asia", 9)
    asked = []
    while site.evaluation_fetches:
        asked.append(site.evaluation_fetches["asia"].round)
        site.lend("asia")
        assert site.evaluation_fetches == {}, "not before this one is measured"
        site.examine()
        site.answer()
    assert asked == [9, 8, 7]


def test_one_guest_is_measured_at_a_time_the_newest_round_first(solo: Any) -> None:
    site = solo("europe", FOUR, rounds=20, **LENDING).begin()
    for name, round in (("africa", 4), ("america", 6), ("asia", 5)):
        site.beat(name, round)
    for name in ("africa", "america", "asia"):
        site.lend(name)
    assert site.measure_order.source.origin == "africa", "it came first, and nothing is broken off"
    site.examine()
    assert site.measure_order.source.origin == "america"
    site.examine()
    assert site.measure_order.source.origin == "asia"


def test_a_guest_that_takes_for_ever_is_given_up(europe: Any) -> None:
    europe.lend("asia")
    for _ in range(int(limits.MEASURE_S_MAX / 10) + 1):
        europe.beat("asia", 1, "done")
        out = europe.wait(10)
        if europe.reports:
            break
    assert of(out, commands.Dismiss)
    assert europe.reports[0].report.unmeasured == "failed"


@pytest.mark.parametrize("request_", [events.PauseRequested(), events.StopRequested()])
def test_pause_and_stop_break_off_what_is_under_way(europe: Any, request_: events.Event) -> None:
    europe.lend("asia")
    late = europe.measure_order
    out = europe.feed(request_)
    assert bool(of(out, commands.Dismiss)) == (europe.site.phase == Phase.PAUSED)
    if europe.site.phase == Phase.PAUSED:
        europe.feed(events.Measured(late.generation, late.round, late.attempt, {"samples": 20.0}))
        assert europe.body("ignored")["reason"] == "this lent model is not being measured"
        europe.feed(events.ResumeRequested())
        assert europe.measure_order is not None, "from the file that is still here"


def test_a_pause_cancels_the_fetch_of_a_lent_model(europe: Any) -> None:
    assert commands.CancelFetch("asia", "evaluate") in europe.feed(events.PauseRequested())


def test_a_report_without_an_answer_is_sent_again_but_not_for_ever(europe: Any) -> None:
    europe.lend("asia")
    europe.examine()
    for _ in range(limits.REPORT_TRIES_MAX):
        europe.answer("none", "the line is busy")
        europe.beat("asia", 1, "done")
    assert europe.reports == []
    europe.restart()
    europe.greet()
    europe.beat("asia", 1, "done")
    assert europe.reports, "a restart tries again"


def test_a_report_that_is_refused_is_not_sent_again(europe: Any) -> None:
    europe.lend("asia")
    europe.examine()
    europe.answer("refused", "no model of round 1 is lent")
    assert europe.body("settled")["reason"] == "no model of round 1 is lent"
    europe.beat("asia", 1, "done")
    assert europe.reports == []


def test_guests_are_deleted_once_the_policy_forbids_them(europe: Any, solo: Any) -> None:
    europe.lend("asia")
    sha256 = europe.measure_order.source.artifact.sha256
    strict = solo("europe", **{**TWO, "evaluation_permitted": False}, rows=europe.audit.rows)
    assert strict.body("settled")["reason"].startswith("not permitted by europe")
    assert sha256 not in strict.site.memory.needed_digests()


def test_of_sites_that_are_gone_nothing_is_fetched_or_kept_but_what_is_being_measured(solo: Any, artifact: Any) -> None:
    site = solo("europe", (*FOUR, "oceania"), rounds=20, **LENDING).begin()
    for name in site.rules.others:
        site.beat(name, 4)
    for name in ("africa", "america", "oceania"):
        site.lend(name)
    out = site.learn(leaving="africa america asia")
    assert commands.CancelFetch("asia", "evaluate") in out
    settled = {body["origin"]: body["reason"] for kind, _, body in site.audit.rows if kind == "settled"}
    assert settled == {"america": "gone", "asia": "gone"}
    assert discarded(out) == [artifact("america", "america after 4").sha256]
    site.examine()
    assert site.body("measured")["origin"] == "africa"
    assert site.measure_order.source.origin == "oceania"


# --- the end ---------------------------------------------------------------------------------------------------------
def test_a_finished_site_stays_for_evaluations_of_peers_that_are_there(done: Any) -> None:
    assert cross_evaluation.awaited(done.site) == ["asia"]
    assert [wait["artifact"] for wait in status.waiting_for(done.site, now_s=done.now_s)] == ["evaluation"]
    done.lend("asia")
    done.examine()
    done.answer()
    assert done.site.phase == Phase.DONE, "asia has not said how this site's model did"
    done.report("asia", 1, done.site.memory.evaluation.lent[1].artifact)
    out = done.beat("asia", 1, "done")
    assert done.site.phase == Phase.GONE
    assert "lapsed" not in persisted(out)


def test_it_does_not_stay_for_a_silent_one_and_says_so(done: Any) -> None:
    out = done.wait(20)
    assert done.site.phase == Phase.GONE
    lapsed = next(command.body for command in of(out, commands.Persist) if command.kind == "lapsed")
    assert lapsed == {"reasons": {"asia": "silent"}, "retired": False}


def test_it_does_not_stay_longer_than_it_lingers(done: Any) -> None:
    for _ in range(7):
        done.beat("asia", 1, "done")
        done.wait(10)
    assert done.site.phase == Phase.GONE
    assert done.body("lapsed")["reasons"] == {"asia": NO_ANSWER}


def test_what_is_missing_is_told_while_the_site_runs(done: Any) -> None:
    assert status.unreported(done.site) == {1: {"asia": NO_ANSWER}}
    done.beat("asia", 1, "failed")
    assert status.unreported(done.site) == {1: {"asia": "failed"}}


# --- a federation ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedskd", "fedcross", "fedavg"])
def test_every_site_ends_with_a_whole_row(simulation: Any, method: str) -> None:
    run = simulation(FOUR, rounds=4, method=method, **{**LENDING, "evaluation_every": 2})
    run.run_to_end()
    rounds = [4] if method == "fedcross" else [2, 4]
    for name, machine in run.machines.items():
        records = evaluation_records(machine.rows, own=name, sites=lambda _: FOUR)
        assert [record["round"] for record in records] == rounds
        for record in records:
            cells = {site: cell["metrics"]["auc"] for site, cell in record["cells"].items()}
            assert cells == {site: 0.5 if site == name else len(site) / 10 for site in FOUR}
            assert record["global_test"] is not None
        memory = machine.round.memory
        seen = {guest.sha256 for guest in memory.evaluation.borrowed.values()}
        assert len(seen) >= len(rounds) * 3
        assert seen & machine.files <= memory.needed_digests(), "no guest is left on disk"


def test_rounds_take_no_longer_for_it(simulation: Any) -> None:
    """Measurements a hundred times as long as a training stage do not delay a single commit."""

    def commits(**changes: Any) -> dict[str, list[Any]]:
        run = simulation(FOUR, rounds=4, method="fedavg", **changes)
        run.measure_s = 500.0
        run.run(until=lambda: all(len(run.committed(name)) == 4 for name in FOUR))
        assert run.now_s < 1000 + 4 * 30
        return {name: [body["contributors"] for _, body in run.committed(name)] for name in FOUR}

    assert commits() == commits(**{**LENDING, "evaluation_every": 1})


def test_a_site_that_is_dead_leaves_a_reason_and_no_hole(simulation: Any) -> None:
    run = simulation(FOUR, rounds=2, **LENDING)
    run.run(until=lambda: len(run.committed("asia")) == 1)
    run.kill("asia")
    run.run_to_end()
    for name in ("africa", "america", "europe"):
        last = evaluation_records(run.machines[name].rows, own=name, sites=lambda _: FOUR)[-1]
        assert last["cells"]["asia"] == {"reason": "silent"}
        assert last["mean"]["auc"]["sites"] == 3
        assert last["global_test"] is None


@pytest.mark.nightly
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_kills_anywhere_lose_and_repeat_nothing(simulation: Any, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(["fedskd", "fedcross", "fedavg"]))
    run = simulation(
        FOUR[1:],
        seed=data.draw(st.integers(0, 99)),
        rounds=3,
        method=method,
        **LENDING,
        pace=PaceRules(linger_s=120.0, isolated_s=60.0),
    )
    for machine in run.machines.values():
        machine.fuses = data.draw(st.lists(st.integers(5, 90), max_size=3))
    run.run(until=run.finished)
    for name, machine in run.machines.items():
        reports = [(round, body["site"]) for kind, round, body in machine.rows if kind == "report"]
        assert len(reports) == len(set(reports)), "a report was taken twice"
        reported = [
            (body["origin"], body["origin_generation"], round)
            for kind, round, body in machine.rows
            if kind == "measured"
        ]
        assert len(reported) == len(set(reported)), "a guest was measured to the end twice"
        assert [round for round, _ in run.committed(name)] == [1, 2, 3]
        last = evaluation_records(machine.rows, own=name, sites=lambda _: FOUR[1:])[-1]
        assert last["round"] == 3
        assert "metrics" in last["cells"][name]
        assert machine.files >= machine.round.memory.needed_digests()
