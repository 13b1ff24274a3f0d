"""The table of transitions: complete, and safe for any event in any order."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.core_site import amend
from peer.core import commands, events
from peer.core.artifacts import UNMEASURED, EvaluationResult, Purpose
from peer.core.epochs import Epochs
from peer.core.kinds import Kind
from peer.core.messages import Heartbeat, Hello, Seen, Unavailable
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rules import PaceRules
from peer.core.state import IllegalTransitionError
from peer.core.sum_messages import SumOpening, SumStatements
from peer.core.transitions import TRANSITIONS

FOUR = ("africa", "america", "asia", "europe")
STEPS = [*2 * ["work", "deliver", "any"], "greet", "beat", "wait", "crash", "lend", "examine", "answer", "report"]
METHODS = ("local", "fedskd", "fedcross", "dflmoe", "feddal", "mh_pflid", "fedavg")
FIXTURES = [HealthCheck.function_scoped_fixture]
EVENTS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]


def reach(phase: Phase, solo: Any) -> Any:
    """A site in this phase, by the shortest way."""
    alone = {"sites": ("asia", "europe"), "schedule_kind": "derangement"}
    if phase == Phase.INITIALISING:
        return solo()
    if phase in (Phase.ISOLATED, Phase.PACING):
        site = solo(**alone)
        site.finish()
        site = solo(**alone, rows=[*site.audit.rows, ("skipped", 2, {"from": 1})])
        if phase == Phase.ISOLATED:
            site.wait(20)
        return site
    if phase == Phase.HELD:
        return solo(**alone, pace=PaceRules(linger_s=60, members_min=3)).begin()
    parameters = {"activation": 0.5 if phase in (Phase.HANDBACK, Phase.ADOPT) else 0.0}
    method = {Phase.AGGREGATE: "feddal", Phase.RETURNS: "fedvisit"}.get(phase, "fedskd")
    site = solo(**alone, rounds=2, method=method, parameters=parameters, evaluation_every=1)
    site.finish()
    if phase != Phase.GATHERING:
        site.greet()
    if phase in (Phase.TRAIN, Phase.EVALUATE, Phase.LEAVING, Phase.FAILED, Phase.HANDBACK, Phase.ADOPT, Phase.DONE):
        site.deliver("asia")
    if phase == Phase.AGGREGATE:
        site.finish()
        site.deliver("asia")
    if phase == Phase.RETURNS:
        site.deliver("asia")
        site.finish()
    if phase in (Phase.EVALUATE, Phase.HANDBACK, Phase.ADOPT, Phase.DONE):
        site.finish()
    if phase == Phase.ADOPT:
        site.deliver("asia")
    if phase == Phase.DONE:
        site.finish()
        site.deliver("asia")
        site.finish()
        site.finish()
    if phase == Phase.PAUSED:
        site.feed(events.PauseRequested())
    if phase in (Phase.LEAVING, Phase.GONE):
        site.feed(events.StopRequested())
    if phase == Phase.FAILED:
        site.fail("data", "the images are gone")
    return site


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.NEW])
def test_every_event_has_a_row_in_every_phase(phase: Phase) -> None:
    assert {kind for known, kind in TRANSITIONS if known == phase} == set(EVENTS) - {events.Began}


def test_a_new_site_only_begins() -> None:
    assert [kind for phase, kind in TRANSITIONS if phase == Phase.NEW] == [events.Began]


def test_a_pair_without_a_row_raises_and_changes_nothing(solo: Any) -> None:
    site = solo()
    with pytest.raises(IllegalTransitionError, match="Began in phase initialising"):
        site.site.handle(events.Began(), now_s=site.now_s)
    assert site.site.phase == Phase.INITIALISING
    assert site.site.handle(events.Ticked(), now_s=site.now_s) == []


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.NEW])
def test_late_answers_change_nothing_in_any_phase(phase: Phase, solo: Any, artifact: Any) -> None:
    site = reach(phase, solo)
    assert site.site.phase == phase
    model = artifact("asia", "late")
    late = [
        events.ArtifactArrived(1, 1, 0, "asia", 1, 1, "train", model),
        events.ArtifactUnavailable(1, 1, 0, "asia", "train", Unavailable.RETIRED),
        events.Initialised(1, 0, "late", model, {}, 1, "cpu"),
        events.Queued(1, 0, 2),
        events.Progressed(1, 1, 0, "train", 1, 2, {}),
        events.Trained(1, 1, 0, "train", "late", model, {}, 1, 1.0),
        events.Aggregated(1, 1, 0, "late", model.sha256, ("asia",)),
        events.Adopted(1, 1, 0, "late", model),
        events.Evaluated(1, 1, 0, {"auc": 1.0}),
        events.Rehearsed(1, 0, "cpu", {"train": 1.0}, 1.0, 1, 1, 1),
        events.Halted(1, 0),
        events.ArtifactRejected(1, 1, 0, "asia", model.sha256, "late"),
        events.WorkFailed(1, 0, "crash", "late"),
        events.ArtifactArrived(1, 1, 0, "asia", 1, 1, "evaluate", model),
        events.ArtifactUnavailable(1, 1, 0, "asia", "evaluate", Unavailable.RETIRED),
        events.ArtifactRefused(1, 1, 0, "asia", "evaluate", "late"),
        events.ArtifactRefused(1, 1, 0, "asia", "evaluate", "late", blameless=True),
        events.Measured(1, 1, 0, {"samples": 20.0}),
        events.MeasurementFailed(1, 0, "crash", "late"),
        events.ReportArrived("asia", EvaluationResult(1, 1, model.sha256, 20, {"auc": 1.0})),
        events.ReportAnswered(0, "asia", "taken"),
    ]
    before = site.site.memory.needed_digests()
    for event in late:
        out = site.feed(event)
        kinds = [command.kind for command in out if isinstance(command, commands.Persist)]
        assert kinds in ([], ["ignored"])
        assert site.site.phase == phase
    assert site.site.memory.needed_digests() == before


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.NEW])
def test_beats_and_ticks_write_no_rows_for_ever(phase: Phase, solo: Any) -> None:
    site = reach(phase, solo)
    site.wait(1)
    site.beat("asia", 1)
    written = len(site.audit.rows)
    if site.site.phase == phase:
        for _ in range(50):
            site.beat("asia", 1)
            site.feed(events.Ticked())
        assert len(site.audit.rows) == written


def names(site: Any) -> st.SearchStrategy[Any]:
    """Peers, the site itself, and an unknown name."""
    return st.sampled_from([*site.rules.roster.names, "stranger"])


@st.composite
def any_artifact(draw: st.DrawFn, site: Any, make: Any) -> Any:
    """One of a few artifacts, so that a digest also occurs under other names."""
    text = draw(st.sampled_from(["a", "b", "c", "initial africa"]))
    kinds = st.just(site.rules.plan.artifact or "model") | st.sampled_from(get_args(Kind))
    return make(draw(names(site)), text, steps=draw(st.integers(0, 9)), kind=draw(kinds))


def any_report(machine: Any) -> st.SearchStrategy[EvaluationResult]:
    """A report on a model that the site may or may not have lent."""
    known = sorted(machine.memory.needed_digests())
    return st.builds(
        EvaluationResult,
        generation=st.integers(1, 2),
        round=st.integers(0, 3),
        sha256=st.none() | st.sampled_from(known) if known else st.none(),
        samples=st.integers(0, 30),
        metrics=st.dictionaries(st.sampled_from(["auc"]), st.floats(0, 1)),
        unmeasured=st.sampled_from(["", *UNMEASURED]),
    )


PULSES = st.builds(
    Heartbeat,
    generation=st.integers(0, 3),
    round=st.integers(-1, 9) | st.just(10**9),
    phase=st.sampled_from([*Phase, "unheard of"]).map(str),
    published_round=st.integers(0, 9),
    committed_round=st.integers(0, 4) | st.just(10**9),
)
GREETINGS = st.builds(
    Hello,
    protocol=st.just(1),
    federation=st.just("fe" * 32),
    roster=st.just("00" * 32),
    generation=st.integers(0, 3),
    clock_s=st.just(0.0),
    seen=st.none() | st.builds(Seen, st.integers(1, 3) | st.just(10**6), st.integers(1, 9), st.just("00" * 32)),
    evaluates=st.none() | st.booleans(),
)


@st.composite
def any_event(draw: st.DrawFn, site: Any, make: Any) -> events.Event:
    """An event of any type, whose fields now and then are those that the site waits for."""
    machine = site.site
    attempts = [
        machine.attempt,
        machine.attempt - 1,
        *(order.attempt for order in (*site.fetches.values(), *site.evaluation_fetches.values())),
    ]
    attempts += [order.attempt for order in (site.measure_order, *site.reports) if order is not None]
    if machine.sum_wait is not None:
        attempts += [machine.sum_wait.attempt, *[machine.sum_wait.order] * 3]
    rounds = st.sampled_from([machine.number, machine.number + 1, machine.number - 1, -1, 10**9])
    pools: dict[str, st.SearchStrategy[Any]] = {
        "generation": st.sampled_from([machine.memory.generation] * 3 + [0, 2, 999_999]),
        "origin_generation": st.integers(1, 2),
        "round": rounds,
        "true_round": rounds,
        "attempt": st.sampled_from(attempts),
        "site": names(site),
        "origin": names(site),
        "purpose": st.sampled_from(get_args(Purpose)),
        "answer": st.sampled_from([*Unavailable, "taken", "refused", "none"]),
        "refused": st.sampled_from(["", "not a network"]),
        "report": any_report(machine),
        "artifact": st.none() | any_artifact(site, make),
        "returned": st.lists(any_artifact(site, make), max_size=2).map(tuple),
        "stage": st.sampled_from([*site.rules.plan.stages, "elsewhere"]),
        "state": st.sampled_from(["", "s1", "s2"]),
        "samples": st.just({"train": 3}),
        "losses": st.just({"ce": 0.5}),
        "metrics": st.dictionaries(st.sampled_from(["auc", "samples"]), st.floats(allow_nan=False)),
        "threads": st.integers(0, 2),
        "duration_s": st.floats(0, 10),
        "step_s": st.just({"train": 0.5}),
        "round_s": st.floats(0, 10),
        "memory_bytes": st.integers(0, 9),
        "available_bytes": st.integers(0, 9),
        "artifact_bytes": st.integers(0, 9),
        "padding_share": st.floats(0, 1),
        "weights": st.none() | st.just("3 of 4 tensors fit"),
        "device": st.just("cpu"),
        "step": st.integers(-1, 3),
        "ahead": st.integers(-1, 2),
        "steps": st.integers(0, 2),
        "sha256": st.sampled_from([make("x", text).sha256 for text in ("a", "b", "initial africa")]),
        "contributors": st.lists(names(site), max_size=2).map(tuple),
        "cut": st.dictionaries(names(site), st.just("too far"), max_size=2),
        "fault": st.sampled_from(events.FAULTS),
        "reason": st.sampled_from(["because", "for another reason"]),
        "lost": st.booleans(),
        "short": st.booleans(),
        "blameless": st.booleans(),
        "declined": st.booleans(),
        "detail": st.just(""),
        "cohort": st.none() | st.just(make("x", "people").sha256),
        "pulse": st.none() | PULSES,
        "greeting": GREETINGS,
        "epochs": grown(site),
        "key": st.just(bytes(32)),
        "clipped": st.integers(0, 2),
        "over": st.booleans(),
        "statements": any_statements(site, make),
    }
    kind = draw(st.sampled_from([kind for kind in EVENTS if kind != events.Began]))
    fields = {name: draw(pools[name]) for name in kind.__dataclass_fields__}
    on_disk = (events.ArtifactArrived, events.ArtifactMasked, events.MaskedAdded)
    if kind in on_disk and fields["artifact"] is None:
        fields["artifact"] = draw(any_artifact(site, make))
    return kind(**fields)


@st.composite
def any_statements(draw: Any, site: Any, make: Any) -> SumStatements:
    """Statements on a sum, whose sets are now and then those that this site shows."""
    waited = site.site.sum_wait
    held = [] if waited is None else [waited.machine.held]
    sets = st.none() | st.sampled_from([{}, *held]) | st.dictionaries(names(site), st.just(make("x", "a").sha256))
    opening = st.builds(SumOpening, st.just(bytes(32)), st.just({}))
    return SumStatements(
        draw(st.none() | st.sampled_from([bytes(32), bytes([1] * 32)])),
        draw(sets),
        draw(sets),
        draw(st.none() | opening),
    )


@st.composite
def grown(draw: Any, site: Any) -> Epochs:
    """The site's epochs with one more amendment, or a notice."""
    epochs = site.site.rules.epochs
    if draw(st.booleans()):
        return amend(epochs, leaving=draw(names(site)))
    expelled = draw(names(site)) if draw(st.booleans()) else ""
    joined = {*epochs.head.members, SiteName(f"new-{epochs.head.number + 1}")}
    return amend(
        epochs,
        draw(st.integers(epochs.head.from_round, epochs.head.from_round + 2)),
        members=" ".join(sorted(joined - epochs.head.expelled - {expelled})),
        expelled=expelled,
        hold=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[*FIXTURES, HealthCheck.too_slow])
@given(data=st.data())
def test_no_event_breaks_anything_in_any_phase(solo: Any, artifact: Any, data: st.DataObject) -> None:
    draw = data.draw
    size = draw(st.integers(1, 4), label="sites")
    site = solo(
        FOUR[0],
        FOUR[:size],
        method=draw(st.sampled_from(METHODS)),
        rounds=draw(st.integers(1, 3)),
        parameters={"activation": draw(st.sampled_from([0.0, 0.5, 1.0]))},
        fallback=draw(st.sampled_from(["self", "stale"])),
        evaluation_every=draw(st.integers(0, 1)),
        global_test=draw(st.booleans()),
        secure=draw(st.booleans()),
        evaluation_permitted=draw(st.booleans()),
        pace=PaceRules(linger_s=60, artifact_rounds_max=draw(st.integers(1, 5)), wait_max_s=100, isolated_s=100),
        without=draw(st.sampled_from([frozenset(), frozenset(FOUR[1:2])])),
    )
    for _ in range(draw(st.integers(1, 40))):
        step = draw(st.sampled_from(STEPS))
        if site.site.phase == Phase.GONE and step != "any":
            site.restart()
        elif step == "work" and site.order is not None:
            site.finish()
        elif step == "deliver" and site.fetches:
            site.deliver(draw(st.sampled_from(sorted(site.fetches))))
        elif step == "lend" and site.evaluation_fetches:
            site.lend(draw(st.sampled_from(sorted(site.evaluation_fetches))))
        elif step == "examine" and site.measure_order is not None:
            site.examine(auc=0.5, samples=draw(st.sampled_from([3.0, 20.0])))
        elif step == "answer" and site.reports:
            site.answer(draw(st.sampled_from(["taken", "refused", "none"])))
        elif step == "report" and site.site.memory.evaluation.lent:
            round = draw(st.sampled_from(sorted(site.site.memory.evaluation.lent)))
            lent = site.site.memory.evaluation.lent[round].artifact
            site.report(draw(names(site)), round, lent, unmeasured=draw(st.sampled_from(["", "failed"])))
        elif step == "greet":
            site.greet(evaluates=draw(st.sampled_from([True, True, True, False, None])))
        elif step == "beat" and site.rules.others:
            site.beat(draw(st.sampled_from(site.rules.others)), draw(st.integers(0, 4)), published=4)
        elif step == "wait":
            site.wait(draw(st.sampled_from([0.1, 3.0, 16.0, 200.0])))
        elif step == "crash":
            event = site.result() if site.order is not None else draw(any_event(site, artifact))
            site.feed(event, crash_after=draw(st.integers(0, 8)))
        elif step == "any":
            site.feed(draw(any_event(site, artifact)))
