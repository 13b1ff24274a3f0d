"""The people's account: nothing is charged twice, nothing is forgotten, and only what was charged leaves."""

import stat
from pathlib import Path

import pytest

from peer.privacy_budget import PrivacyBudget

PEOPLE = ("ann", "bob")


def test_a_stage_is_charged_once_however_often_it_begins(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path / ".privacy")
    for _ in range(3):
        assert budget.charge("round 1", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    assert budget.charge("round 2", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert PrivacyBudget(tmp_path / ".privacy").standing("one/asia", PEOPLE) == (2.0, True)
    assert stat.S_IMODE((tmp_path / ".privacy" / "budget.json").stat().st_mode) == 0o600


def test_a_new_federation_begins_at_what_its_people_have_lost(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    assert budget.charge("a", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    assert budget.charge("b", "two/asia", 3.0, ["bob", "cy"], mu_max=2.0)
    assert budget.standing("two/asia", ["cy"]) == (2.0, True), "its networks know bob"
    assert budget.standing("one/asia", ["ann"]) == (2.0, True)
    assert budget.standing("three/asia", ["cy"]) == (pytest.approx(3**0.5), True)
    assert budget.standing("three/asia", ["dan"]) == (0.0, True)
    assert not budget.charge("c", "three/asia", 0.5, ["bob", "dan"], mu_max=2.0)
    assert not budget.charge("d", "three/asia", 0.5, ["dan"], mu_max=2.0), "the networks know what they learnt from bob"
    assert budget.charge("d", "four/asia", 0.5, ["dan"], mu_max=2.0)
    assert budget.standing("three/asia", ["dan"]) == (2.0, False)


def test_an_account_that_was_lost_begins_at_what_the_ledger_knows(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    for _ in range(2):
        budget.restore("one/asia", 1.5, PEOPLE)
    assert budget.standing("one/asia", PEOPLE) == (1.5, True)
    assert budget.charge("5", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    budget.restore("one/asia", 1.5, PEOPLE)
    assert budget.standing("one/asia", PEOPLE) == (pytest.approx(3.25**0.5), True)
    assert not budget.charge("6", "one/asia", 1.0, PEOPLE, mu_max=2.0)


def test_what_was_not_charged_counts_before_anything_later_leaves(tmp_path: Path) -> None:
    """A later result tells what the earlier stage has learnt: raising the bound by a little sends neither."""
    budget = PrivacyBudget(tmp_path)
    assert budget.charge("1", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert not budget.charge("2", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert budget.standing("one/asia", PEOPLE) == (pytest.approx(3**0.5), False)
    assert not budget.charge("3", "one/asia", 1.0, PEOPLE, mu_max=2.5)
    assert budget.charge("3", "one/asia", 1.0, PEOPLE, mu_max=2.7)
    assert budget.standing("one/asia", PEOPLE) == (pytest.approx(7**0.5), True)


def test_a_bound_is_reached_in_spite_of_rounding(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    assert all(budget.charge(str(step), "one/asia", 0.1, PEOPLE, mu_max=1.0) for step in range(10))
    assert not budget.charge("11", "one/asia", 1e-6, PEOPLE, mu_max=1.0)


def test_the_file_names_nobody(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    budget.charge("1", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    text = (tmp_path / "budget.json").read_text()
    assert not [person for person in PEOPLE if person in text]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"key": "00", "entries": {"1": {"member": "a", "people": "b", "mu_squared": 1.0}}, "people": {}}',
    ],
)
def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "budget.json").write_text(content)
    with pytest.raises(ValueError, match=r"."):
        PrivacyBudget(tmp_path).charge("1", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    assert (tmp_path / "budget.json").read_text() == content
