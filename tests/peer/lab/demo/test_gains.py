"""What joining gave each site, in figures and in a sentence."""

import pytest

from fakes.demonstration import demonstration


def test_the_share_of_the_room_is_the_gain_in_units_of_the_pooled_bounds() -> None:
    document = demonstration()
    gains = document["gains"]
    assert gains.keys() == {"local", "global"}
    for test in gains.values():
        assert test["fedvisit"] == pytest.approx({"gain": 0.1, "room": 0.2, "share": 0.5})
    assert document["conclusion"] == (
        "Joining by fedvisit gave africa +0.100, asia +0.100 of AUC on each site's own test data: on average 10.0 of "
        "the 20.0 points that pooling all data gives."
    )


def test_without_room_no_share_is_told() -> None:
    document = demonstration(pooled=0.605)
    assert document["gains"]["local"]["fedvisit"] == pytest.approx({"gain": 0.1, "room": 0.005, "share": None})
    assert document["conclusion"].endswith(
        "on average 10.0 points; pooling all data gives 0.5, so there is hardly any room."
    )


def test_without_the_pooled_bound_there_is_the_gain_alone() -> None:
    document = demonstration(pooled=None)
    assert document["gains"]["global"]["fedvisit"] == pytest.approx({"gain": 0.1})
    assert document["conclusion"].endswith("own test data: on average 10.0 points.")
