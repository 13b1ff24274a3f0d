"""The federation as a site sees it: its turns, holders and quorums."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core.schedule import order

FOUR = ("africa", "america", "asia", "europe")


def test_the_order_is_the_schedules(rules: Any) -> None:
    own = rules("asia", FOUR, schedule_kind="ring")
    drawn = order(round_key=own.round_key, federation_digest=own.federation, round=3, sites=4, kind="ring")
    assert own.order(3) == drawn
    assert own.turn(3) == FOUR[drawn[2]]


def test_a_slot_is_where_it_was_trained_in_the_round_before(rules: Any) -> None:
    own = rules("asia", FOUR, method="fedcross")
    for slot in FOUR:
        assert own.holder(1, slot) == slot
        for round in range(2, 9):
            (host,) = [name for name in FOUR if rules(name, FOUR, method="fedcross").turn(round - 1) == slot]
            assert own.holder(round, slot) == host


@pytest.mark.parametrize(
    ("method", "share", "rounds", "last"),
    [
        ("fedskd", 0.0, 10, 0),
        ("fedskd", 0.25, 10, 2),
        ("fedskd", 1.0, 10, 10),
        ("fedskd", 0.29, 10, 2),
        ("fedskd", 0.29, 100, 29),  # the product of these floats is less
        ("fedcross", 0.0, 10, 10),
        ("fedcross_ft", 0.0, 10, 9),
    ],
)
def test_models_circulate_before_the_activation_round(
    rules: Any, method: str, share: float, rounds: int, last: int
) -> None:
    own = rules("asia", FOUR, method=method, rounds=rounds, parameters={"activation": share})
    assert own.circulating == last
    every = range(1, rounds + 1)
    assert [own.pattern(round) == "circulate" for round in every] == [round <= last for round in every]


@pytest.mark.parametrize("method", ["fedavg_ft", "fedcross_ft"])
def test_the_last_round_of_fine_tuning_exchanges_nothing(rules: Any, method: str) -> None:
    own = rules("asia", FOUR, method=method, rounds=3)
    assert [own.pattern(round) == "none" for round in (1, 2, 3)] == [False, False, True]
    assert [own.phases(round) for round in (1, 2, 3)] == [own.plan.phases, own.plan.phases, ("train:finetune",)]


@pytest.mark.parametrize("method", ["local", "dflmoe", "feddal", "mh_pflid"])
def test_a_method_without_activation_never_circulates(rules: Any, method: str) -> None:
    own = rules("asia", FOUR, method=method, parameters={"activation": 1.0})
    assert own.circulating == 0
    assert own.pattern(1) == ("none" if method == "local" else "all_to_all")


def test_who_is_named_absent_takes_no_part(rules: Any) -> None:
    own = rules("asia", FOUR, without=frozenset({"africa"}))
    assert own.others == ("america", "europe")
    assert own.others_count == 2
    assert [name for name in (*FOUR, "stranger") if own.has_peer(name)] == ["america", "europe"]
    assert own.members(1).index("asia") == 2, "indices count the whole roster"


@pytest.mark.parametrize(("every", "rounds"), [(0, [7]), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7])])
def test_the_model_is_measured_at_the_end_and_every_so_often(rules: Any, every: int, rounds: list[int]) -> None:
    own = rules("asia", FOUR, rounds=7, evaluation_every=every)
    assert [round for round in range(1, 8) if own.evaluates(round)] == rounds


def test_the_round_key_is_never_shown(rules: Any) -> None:
    own = rules("asia", FOUR)
    assert own.round_key.hex() not in repr(own)
    assert repr(own.round_key) not in repr(own)
