"""Authorisation: every reason to deny a peer, and every answer."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from typing import Any, get_args

import pytest

from peer.core.access import CHANGE_NO_ANSWER, answer, denial, unasked
from peer.core.artifacts import EvaluationResult, Purpose, Source
from peer.core.epochs import Epochs, PaceRules
from peer.core.messages import Unavailable
from peer.core.roster import SiteName
from peer.core.rows import ArrivedRow, ComparedRow, DiscardedRow, EvaluatedRow
from peer.core.site_memory import Memory

FOUR = ("africa", "america", "asia", "europe")
# The key of these tests gives: round 1 america, europe, africa, asia; round 2 everybody itself; round 3 europe, asia,
# africa, america; round 4 asia, europe, africa, america (whose artifact africa, america, asia, europe receive).


def asked(rules: Any, **changes: Any) -> str | None:
    request = {"caller": "europe", "kind": "model", "for_round": 1, "owner": "asia", "purpose": "train"}
    return denial(rules, **{**request, **changes})


@pytest.fixture
def asia(rules: Any) -> Any:
    return rules("asia", FOUR)


def test_the_schedule_of_these_tests(asia: Any) -> None:
    named = [[FOUR[index] for index in asia.order(round)] for round in (1, 2, 3, 4)]
    assert named == [
        ["america", "europe", "africa", "asia"],
        ["africa", "america", "asia", "europe"],
        ["europe", "asia", "africa", "america"],
        ["asia", "europe", "africa", "america"],
    ]


def test_whose_turn_it_is_may_have_it(asia: Any) -> None:
    assert asked(asia) is None
    assert asked(asia, caller="america", for_round=3) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"caller": "atlantis"}, "'atlantis' is not a peer of this federation"),
        ({"caller": "asia"}, "'asia' is not a peer of this federation"),
        ({"kind": "head"}, "method 'fedskd' sends no head"),
        ({"kind": "messenger"}, "method 'fedskd' sends no messenger"),
        ({"for_round": 0}, "round 0 is outside this federation's 1 to 4"),
        ({"for_round": -3}, "round -3 is outside"),
        ({"for_round": 5}, "round 5 is outside"),
        ({"caller": "africa"}, "round 1 does not give asia's model to africa"),
        ({"for_round": 2}, "round 2 does not give asia's model to europe"),
        ({"owner": "america"}, "round 1 does not give america's model to europe"),
        ({"for_round": 3, "owner": "america"}, "asia is not where europe takes america's model in round 3"),
        ({"purpose": "handback"}, "no model circulates in this federation"),
        ({"purpose": "evaluate"}, "federation.toml does not have global_test = true"),
    ],
)
def test_everybody_else_may_not(asia: Any, changes: dict[str, Any], reason: str) -> None:
    assert reason in (asked(asia, **changes) or "allowed")


def test_what_never_leaves_is_denied_before_the_schedule_is_asked(rules: Any) -> None:
    assert asked(rules("asia", FOUR, method="local")) == "method 'local' sends no model"
    assert asked(rules("asia", FOUR, method="dflmoe")) == "method 'dflmoe' sends no model"


def test_all_to_all_serves_every_peer_its_own_artifact_only(rules: Any) -> None:
    own = rules("asia", FOUR, method="feddal")
    for caller in ("africa", "america", "europe"):
        assert asked(own, caller=caller, kind="proxy") is None
    assert asked(own, kind="proxy", owner="africa") == "a site serves only its own artifact"


def test_a_circulating_model_is_served_by_its_holder_and_by_its_owner(rules: Any) -> None:
    first = rules("asia", FOUR, method="fedcross")
    assert first.holder(1, "asia") == "asia"
    assert asked(first) is None
    # Round 3 gives america's slot to europe; in round 1 africa trained it, in round 2 america itself did.
    holder = rules("america", FOUR, method="fedcross")
    assert holder.holder(2, "america") == "africa"
    assert holder.holder(3, "america") == "america"
    assert asked(holder, for_round=3, owner="america") is None
    assert asked(rules("africa", FOUR, method="fedcross"), caller="america", for_round=2, owner="america") is None
    assert "asia is not where" in (asked(first, for_round=3, owner="america") or "")
    pace = PaceRules(artifact_rounds_max=1)
    for name in FOUR:
        own = rules(name, FOUR, method="fedcross", rounds=9, pace=pace)
        for round, caller in itertools.product(range(3, 10), own.others):
            slot = own.turn(round, caller)
            held = name in {slot, *(own.holder(round - age, slot) for age in (0, 1, 2))}
            assert (asked(own, caller=caller, for_round=round, owner=slot) is None) == held


def test_a_copy_that_was_trained_into_another_one_is_served_to_compare_both(rules: Any, artifact: Any) -> None:
    before = rules("africa", FOUR, method="fedcross")
    assert before.holder(2, "america") == "africa"
    assert asked(before, for_round=3, owner="america") is None
    copy = artifact("america", "trained at africa")
    known = Memory(state="s", published={(2, "america"): copy}, committed=2)
    query: dict[str, Any] = {"for_round": 3, "owner": "america", "purpose": "train"}
    assert answer(before, known, **query) == (2, copy)
    assert answer(before, Memory(state="s", committed=2), **query) == Unavailable.SKIPPED


def test_a_model_comes_home_to_its_owner_only(rules: Any) -> None:
    own = rules("asia", FOUR, parameters={"activation": 0.5})
    assert own.circulating == 2
    home = {"purpose": "handback", "for_round": 3, "owner": "europe"}
    assert asked(own, **home) is None
    reason = "only its owner may take a model home, and only for rounds 2 to 3"
    assert asked(own, **{**home, "for_round": 2}) is None
    assert asked(own, **{**home, "for_round": 1}) == reason
    assert asked(own, **{**home, "for_round": 4}) == reason
    assert asked(own, **{**home, "owner": "africa"}) == reason
    assert asked(own, **{**home, "caller": "atlantis"}) == "'atlantis' is not a peer of this federation"


def test_the_round_after_the_last_is_for_the_hand_back_only(rules: Any) -> None:
    own = rules("asia", FOUR, parameters={"activation": 1.0})
    assert asked(own, purpose="handback", for_round=5, owner="europe") is None
    callers = [(caller, owner) for caller in ("africa", "america", "europe") for owner in FOUR]
    assert all(asked(own, caller=caller, owner=owner, for_round=5) for caller, owner in callers)


def test_no_artifact_serves_the_round_of_fine_tuning(rules: Any) -> None:
    for method in ("fedavg_ft", "fedcross_ft"):
        own = rules("asia", FOUR, method=method, rounds=3)
        callers = [(caller, owner) for caller in ("africa", "america", "europe") for owner in FOUR]
        reasons = {asked(own, caller=caller, owner=owner, for_round=3) for caller, owner in callers}
        assert reasons == {"every site trains at home in round 3"}
    assert asked(own, purpose="handback", for_round=3, owner="europe") is None


def memory(artifact: Any, *published: int, **fields: Any) -> Memory:
    """The memory of asia, which has published for these rounds."""
    artifacts = {(round, "asia"): artifact("asia", f"for {round}") for round in published}
    return Memory(state="s", published=artifacts, **fields)


def test_what_is_published_is_answered_with_its_round(asia: Any, artifact: Any) -> None:
    known = memory(artifact, 3, 4, committed=3)
    assert answer(asia, known, for_round=3, owner="asia", purpose="train") == (3, artifact("asia", "for 3"))


@pytest.mark.parametrize(
    ("method", "for_round", "committed", "said"),
    [
        ("fedskd", 4, 2, Unavailable.NOT_YET),  # round 3 has to be committed first
        ("fedskd", 4, 3, Unavailable.SKIPPED),  # it was, and nothing was published
        ("fedskd", 9, 3, Unavailable.NOT_YET),
        ("fedskd", 3, 7, Unavailable.SKIPPED),
        ("fedskd", 3, 8, Unavailable.RETIRED),  # five rounds are kept
        ("feddal", 4, 3, Unavailable.NOT_YET),
        ("feddal", 4, 4, Unavailable.SKIPPED),
        ("feddal", 4, 8, Unavailable.SKIPPED),
        ("feddal", 4, 9, Unavailable.RETIRED),
    ],
)
def test_why_there_is_nothing(rules: Any, method: str, for_round: int, committed: int, said: str) -> None:
    own, known = rules("asia", FOUR, rounds=20, method=method), Memory(state="s", committed=committed)
    assert answer(own, known, for_round=for_round, owner="asia", purpose="train") == said


def test_a_site_without_a_state_has_nothing_yet(asia: Any) -> None:
    assert answer(asia, Memory(), for_round=1, owner="asia", purpose="train") == Unavailable.NOT_YET


def test_what_is_due_but_not_published_is_not_skipped(asia: Any, artifact: Any) -> None:
    due = memory(artifact, committed=2, publications_due={(3, "asia"): artifact("asia", "due")})
    assert answer(asia, due, for_round=3, owner="asia", purpose="train") == Unavailable.NOT_YET


def test_the_owner_answers_for_a_silent_holder_with_its_newest_copy(rules: Any, artifact: Any) -> None:
    own = rules("america", FOUR, method="fedcross", rounds=20)
    assert own.holder(2, "america") == "africa"
    copies = {(1, "america"): artifact("america", "first"), (3, "america"): artifact("america", "third")}
    known = Memory(state="s", committed=3, published=copies)
    answered = answer(own, known, for_round=2, owner="america", purpose="train")
    assert answered == (1, artifact("america", "first"))
    nothing = Memory(state="s", committed=3)
    assert answer(own, nothing, for_round=2, owner="america", purpose="train") == Unavailable.SKIPPED


def test_the_first_round_after_circulating_waits_for_the_model_to_be_home(rules: Any, artifact: Any) -> None:
    own = rules("asia", FOUR, rounds=4, parameters={"activation": 0.5})
    abroad = memory(artifact, committed=2)
    assert answer(own, abroad, for_round=3, owner="asia", purpose="train") == Unavailable.NOT_YET
    home = memory(artifact, 3, committed=2, model_is_home=True)
    assert answer(own, home, for_round=3, owner="asia", purpose="train") == (3, artifact("asia", "for 3"))


def test_a_holder_hands_back_what_it_trained_last(rules: Any, artifact: Any) -> None:
    own = rules("asia", FOUR, rounds=4, parameters={"activation": 0.5})
    trained = artifact("europe", "last", steps=2)
    holder = Memory(state="s", committed=2, published={(3, "europe"): trained})
    assert answer(own, holder, for_round=3, owner="europe", purpose="handback") == (3, trained)
    assert answer(own, holder, for_round=3, owner="africa", purpose="handback") == Unavailable.SKIPPED
    early = Memory(state="s", committed=1)
    assert answer(own, early, for_round=3, owner="europe", purpose="handback") == Unavailable.NOT_YET


@pytest.mark.parametrize(("kind", "purpose", "owner"), [("model", "train", "asia"), ("return", "return", "europe")])
def test_a_site_that_is_gone_denies_what_a_round_of_visits_without_it_asks(
    rules: Any, kind: str, purpose: str, owner: str
) -> None:
    """The caller may not have the amendment yet."""
    own = rules("asia", FOUR, method="fedvisit", rounds=6)
    left = dataclasses.replace(own.genesis, number=1, digest="ab" * 32, from_round=3, members=(*FOUR[:2], FOUR[3]))
    gone = own.amended(Epochs((own.genesis, left)))
    reason = asked(gone, kind=kind, purpose=purpose, owner=owner, for_round=4)
    assert reason == "'asia' is no member of round 4"


LENDING = {"global_test": True, "evaluation_permitted": True, "evaluation_every": 2, "rounds": 5}


def borrowed(rules: Any, **changes: Any) -> str | None:
    request = {"caller": "europe", "kind": "model", "for_round": 4, "owner": "asia", "purpose": "evaluate"}
    return denial(rules, **{**request, **changes})


def test_every_peer_may_borrow_the_model_of_an_evaluated_round(rules: Any) -> None:
    own = rules("asia", FOUR, **LENDING)
    assert [
        borrowed(own, caller=caller, for_round=round) for caller in ("africa", "europe") for round in (2, 4, 5)
    ] == [None] * 6


@pytest.mark.parametrize(
    ("rule", "asked_for", "reason"),
    [
        ({}, {"for_round": 3}, "no model is lent after round 3"),
        ({}, {"for_round": 6}, "no model is lent after round 6"),
        ({}, {"owner": "africa"}, "no model is lent"),
        ({}, {"caller": "atlantis"}, "'atlantis' is not a peer"),
        ({}, {"caller": "asia"}, "'asia' is not a peer"),
        ({}, {"kind": "head"}, "sends no head"),
        ({"global_test": False}, {}, "federation.toml does not have global_test"),
        ({"evaluation_permitted": False}, {}, r"not permitted by asia: its \[egress\] evaluate is false"),
        ({"method": "feddal"}, {}, "method 'feddal' sends no model"),
        ({"method": "feddal"}, {"kind": "proxy"}, "the method lets no private model leave its site"),
        ({"method": "dflmoe_models"}, {}, "a site predicts with a mixture"),
        ({"method": "fedbn"}, {}, "each site's normalisation layers stay there"),
        ({"parameters": {"activation": 0.8}}, {"for_round": 2}, "no model is lent after round 2"),
    ],
)
def test_nobody_borrows_what_is_kept_home(
    rules: Any, rule: dict[str, Any], asked_for: dict[str, Any], reason: str
) -> None:
    answered = borrowed(rules("asia", FOUR, **{**LENDING, **rule}), **asked_for)
    assert answered is not None
    assert re.search(reason, answered)


@pytest.mark.parametrize(
    ("committed", "said"),
    [(3, Unavailable.NOT_YET), (4, Unavailable.SKIPPED), (8, Unavailable.SKIPPED), (9, Unavailable.RETIRED)],
)
def test_why_there_is_nothing_to_borrow(rules: Any, committed: int, said: Unavailable) -> None:
    own = rules("asia", FOUR, **{**LENDING, "rounds": 20})
    assert answer(own, Memory(state="s", committed=committed), for_round=4, owner="asia", purpose="evaluate") == said


def test_a_model_that_is_away_is_borrowed_when_it_is_home(rules: Any, artifact: Any) -> None:
    own = rules("asia", FOUR, method="fedcross", global_test=True, evaluation_permitted=True)
    known = Memory(state="s", committed=4)
    assert answer(own, known, for_round=4, owner="asia", purpose="evaluate") == Unavailable.NOT_YET
    home = artifact("asia", "home")
    known.apply(EvaluatedRow(4, metrics={}, artifact=home))
    assert answer(own, known, for_round=4, owner="asia", purpose="evaluate") == (4, home)


@pytest.mark.parametrize(
    ("caller", "changes", "reason"),
    [
        ("europe", {}, None),
        ("europe", {"unmeasured": "refused"}, None),
        ("europe", {"unmeasured": "not_received", "sha256": None}, None),
        ("europe", {"sha256": None}, "the model that was lent after round 4 is another one"),
        ("europe", {"sha256": "ab" * 32}, "the model that was lent after round 4 is another one"),
        ("europe", {"round": 2}, "no model of round 2 is lent"),
        ("europe", {"generation": 2}, "generation 2 is not this site's 1"),
        ("asia", {}, "'asia' takes no part"),
        ("atlantis", {}, "'atlantis' takes no part"),
        ("america", {}, "'america' takes no part"),
    ],
)
def test_only_what_was_lent_may_be_reported_on(
    rules: Any, artifact: Any, caller: str, changes: dict[str, Any], reason: str | None
) -> None:
    own = rules("asia", FOUR, **LENDING, without=frozenset({"america"}))
    known, model = Memory(state="s", committed=4), artifact("asia", "after 4")
    known.apply(EvaluatedRow(4, metrics={}, artifact=model))
    report = EvaluationResult(**{"generation": 1, "round": 4, "sha256": model.sha256, **changes})
    refusal = unasked(own, known, caller=caller, report=report)
    assert refusal == reason if reason is None else refusal is not None and reason in refusal


def test_a_site_that_takes_no_part_takes_no_report(rules: Any) -> None:
    own = rules("asia", FOUR, **{**LENDING, "evaluation_permitted": False})
    report = EvaluationResult(1, 4, None, unmeasured="not_received")
    assert unasked(own, Memory(), caller="europe", report=report) == own.evaluation_denied


def test_rows_that_wake_no_waiting_call_change_nothing_that_an_answer_depends_on(rules: Any, artifact: Any) -> None:
    """Once for each field of the memory that such a row changes: an answer that reads it fails."""
    europe, sent = SiteName("europe"), artifact("europe", "model")
    changes = [
        ArrivedRow(1, source=Source(europe, 1, sent), origin_generation=1),
        ComparedRow(1, site=europe, sha256=sent.sha256, agrees=True),
        DiscardedRow(1, sha256=sent.sha256),
    ]
    assert {row.kind for row in changes} == CHANGE_NO_ANSWER
    changed, known = set[str](), Memory(state="s", committed=1)
    for row in changes:
        before = copy.deepcopy(known)
        known.apply(row)
        fields = [field.name for field in dataclasses.fields(known)]
        changed |= {name for name in fields if getattr(before, name) != getattr(known, name)}
    assert changed

    class Watched(Memory):
        def __getattribute__(self, name: str) -> Any:
            assert name not in changed
            return super().__getattribute__(name)

    for method in ("fedskd", "feddal", "fedvisit", "fedcross"):
        own = rules("asia", FOUR, method=method)
        for purpose, for_round in itertools.product(get_args(Purpose), range(1, 5)):
            answer(own, Watched(state="s", committed=1), for_round=for_round, owner="asia", purpose=purpose)
