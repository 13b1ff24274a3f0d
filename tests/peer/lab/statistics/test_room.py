"""The share of the room by hand, and what is left out of its pairs."""

import pytest

from peer.lab.statistics.room import share_of_room

LOCAL = {0: {"a": 0.70, "b": 0.80}, 1: {"a": 0.72, "b": 0.78}, 2: {"a": 0.74, "b": 0.80}}
POOLED = {0: {"a": 0.90, "b": 0.90}, 1: {"a": 0.90, "b": 0.90}, 2: {"a": 0.90, "b": 0.92}}
HALF = {0: {"a": 0.80, "b": 0.84}, 1: {"a": 0.80, "b": 0.84}, 2: {"a": 0.82, "b": 0.84}}


def test_a_share_by_hand() -> None:
    share = share_of_room(HALF, LOCAL, POOLED)
    assert (share.gain.pairs, share.over_sites) == (3, False)
    assert share.room.difference == pytest.approx((0.15 + 0.15 + 0.14) / 3)
    assert share.gain.difference == pytest.approx((0.07 + 0.07 + 0.06) / 3)
    assert share.share.value == pytest.approx(0.2 / 0.44)
    assert share.has_room(0.01)
    assert not share.has_room(0.2)


def test_a_site_is_compared_with_itself_where_another_has_no_value() -> None:
    # Without pairs by site, method's mean 0.84 would stand against local's mean of both sites, 0.75.
    method = {**HALF, 0: {"a": None, "b": 0.84}}
    share = share_of_room(method, LOCAL, POOLED)
    assert share.gain.difference == pytest.approx((0.04 + 0.07 + 0.06) / 3)
    assert share.room.difference == pytest.approx((0.10 + 0.15 + 0.14) / 3)


def test_only_repetitions_of_all_three_count() -> None:
    share = share_of_room({key: HALF[key] for key in (1, 2)}, LOCAL, {key: POOLED[key] for key in (0, 1)})
    assert share.over_sites, "one repetition is left"
    assert share.gain.pairs == 2
    assert share.gain.difference == pytest.approx((0.08 + 0.06) / 2)


def test_one_repetition_is_tested_over_its_sites() -> None:
    share = share_of_room({0: HALF[0]}, {0: LOCAL[0]}, {0: POOLED[0]})
    assert (share.over_sites, share.room.pairs) == (True, 2)
    assert share.room.difference == pytest.approx(0.15)
    assert not share.has_room(0.01), "differences of 0.20 and 0.10 at two sites are not significant"


def test_a_room_that_is_not_significant_is_none() -> None:
    pooled = {0: {"a": 0.90, "b": 0.90}, 1: {"a": 0.60, "b": 0.80}, 2: {"a": 0.90, "b": 0.92}}
    share = share_of_room(HALF, LOCAL, pooled)
    assert share.room.difference > 0.01
    assert not share.has_room(0.01)
    assert (share.share.low, share.share.high) == (None, None)


def test_without_a_pair_there_is_nothing() -> None:
    share = share_of_room({0: {"a": None}}, LOCAL, POOLED)
    assert (share.gain.difference, share.room.difference, share.share.value) == (None, None, None)
    assert not share.has_room(0.01)
