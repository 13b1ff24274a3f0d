"""The people's account: nothing is charged twice, nothing is forgotten, and only what was charged leaves."""

import json
import math
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from peer.core.privacy import MU_MAX, NoisySteps
from peer.privacy_budget import PrivacyBudget

PEOPLE = ("ann", "bob")


def standing(budget: PrivacyBudget, member: str, people: Iterable[str]) -> tuple[float, bool]:
    """Return the mu of what has left, and whether more may; what it is the sum of is always the same."""
    known = budget.standing(member, people)
    assert sum(each.steps / each.sigma**2 for each in known.steps) == pytest.approx(known.mu**2)
    return known.mu, known.is_within


def test_a_stage_is_charged_once_however_often_it_begins(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path / ".privacy")
    for _ in range(3):
        assert budget.charge("round 1", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    assert budget.charge("round 2", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert standing(PrivacyBudget(tmp_path / ".privacy"), "one/asia", PEOPLE) == (2.0, True)
    assert stat.S_IMODE((tmp_path / ".privacy" / "budget.json").stat().st_mode) == 0o600


def test_a_new_federation_begins_at_what_its_people_have_lost(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    assert budget.charge("a", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    assert budget.charge("b", "two/asia", 3.0, ["bob", "cy"], mu_max=2.0)
    assert standing(budget, "two/asia", ["cy"]) == (2.0, True), "its networks know bob"
    assert standing(budget, "one/asia", ["ann"]) == (2.0, True)
    assert standing(budget, "three/asia", ["cy"]) == (pytest.approx(3**0.5), True)
    assert standing(budget, "three/asia", ["dan"]) == (0.0, True)
    assert not budget.charge("c", "three/asia", 0.5, ["bob", "dan"], mu_max=2.0)
    assert not budget.charge("d", "three/asia", 0.5, ["dan"], mu_max=2.0), "the networks know what they learnt from bob"
    assert budget.charge("d", "four/asia", 0.5, ["dan"], mu_max=2.0)
    assert standing(budget, "three/asia", ["dan"]) == (2.0, False)


def test_an_account_that_was_lost_begins_at_what_the_ledger_knows(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    for _ in range(2):
        budget.restore("one/asia", 1.5, PEOPLE)
    assert standing(budget, "one/asia", PEOPLE) == (1.5, True)
    assert budget.charge("5", "one/asia", 1.0, PEOPLE, mu_max=2.0)
    budget.restore("one/asia", 1.5, PEOPLE)
    assert standing(budget, "one/asia", PEOPLE) == (pytest.approx(3.25**0.5), True)
    assert not budget.charge("6", "one/asia", 1.0, PEOPLE, mu_max=2.0)


def test_steps_with_the_same_noise_are_counted_together(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    for round in (1, 2):
        assert budget.charge(f"{round}", "one/asia", 6 / 2.5**2, PEOPLE, mu_max=9.0, steps=6)
    assert budget.charge("a", "two/asia", 1 / 7.0**2, ["bob", "cy"], mu_max=9.0)
    known = budget.standing("one/asia", PEOPLE)
    assert known.steps == (NoisySteps(2.5, 12), NoisySteps(7.0, 1))
    assert known.mu == pytest.approx((12 / 2.5**2 + 1 / 49) ** 0.5)
    assert known.federation_mu == pytest.approx(12**0.5 / 2.5)


def test_what_a_site_tells_others_depends_on_no_person(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    for number, person in enumerate(PEOPLE):
        budget.charge(str(number), "one/asia", 2.0, [person], mu_max=9.0)
    assert budget.standing("one/asia", PEOPLE).federation_mu == 2.0
    assert standing(budget, "one/asia", PEOPLE)[0] == pytest.approx(2**0.5)
    budget.charge("large", "one/asia", 398.0, ["cy"], mu_max=MU_MAX)
    assert budget.standing("one/asia", PEOPLE).federation_mu == MU_MAX, "others would refuse more"


def test_a_manifest_tells_a_restored_account_what_it_lacks_whenever_a_peer_shows_it(tmp_path: Path) -> None:
    """Generation 7 was lost after its fourth unit; the restored generation 9 has the first two of it."""
    early, late = PrivacyBudget(tmp_path / "early"), PrivacyBudget(tmp_path / "late")
    for budget in (early, late):
        assert budget.charge("old", "one/asia", 2.0, PEOPLE, mu_max=9.0, generation=7)
    assert early.claim("one/asia", 7, 2.0) == pytest.approx(2**0.5)
    for budget in (early, late):
        for step in ("new", "newer"):
            assert budget.charge(step, "one/asia", 1.5, PEOPLE, mu_max=9.0, generation=9)
    assert late.claim("one/asia", 7, 2.0) == pytest.approx(2**0.5)
    for budget in (early, late):
        assert budget.claim("one/asia", 7, 2.0) == 0.0, "each peer shows it, and again at each start"
        assert standing(budget, "one/asia", PEOPLE) == (pytest.approx(7**0.5), True)
        known = budget.standing("one/asia", PEOPLE)
        assert known.federation_mu == known.mu
        assert budget.claim("one/asia", 9, known.federation_mu) == 0.0, "it lacks nothing of its own manifest"
    assert json.loads((tmp_path / "late" / "budget.json").read_text())["claims"] == []


def test_an_older_manifest_tells_nothing_new(tmp_path: Path) -> None:
    """A peer that was away since generation 5 shows what the manifest of generation 7 has counted."""
    budget = PrivacyBudget(tmp_path)
    assert budget.claim("one/asia", 7, 2.0) == 2.0
    assert standing(budget, "one/asia", PEOPLE) == (2.0, True)
    assert budget.claim("one/asia", 5, 1.9) == 0.0


def test_a_manifest_can_end_what_a_site_sends_even_within_a_stage(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    assert budget.charge("new", "one/asia", 1.0, PEOPLE, mu_max=2.0, generation=9)
    budget.claim("one/asia", 7, 1.9)
    assert not budget.standing("one/asia", PEOPLE, mu_max=2.0).is_within
    assert not budget.charge("newer", "one/asia", 0.1, PEOPLE, mu_max=2.0, generation=9)
    assert budget.standing("two/asia", ["cy"], mu_max=2.0).is_within, "another site's people"


def test_what_was_not_charged_counts_before_anything_later_leaves(tmp_path: Path) -> None:
    """A later result tells what the earlier stage has learnt: raising the bound by a little sends neither."""
    budget = PrivacyBudget(tmp_path)
    assert budget.charge("1", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert not budget.charge("2", "one/asia", 3.0, PEOPLE, mu_max=2.0)
    assert standing(budget, "one/asia", PEOPLE) == (pytest.approx(3**0.5), False)
    assert budget.standing("one/asia", PEOPLE).federation_mu == pytest.approx(3**0.5)
    assert not budget.charge("3", "one/asia", 1.0, PEOPLE, mu_max=2.5)
    assert budget.charge("3", "one/asia", 1.0, PEOPLE, mu_max=2.7)
    assert standing(budget, "one/asia", PEOPLE) == (pytest.approx(7**0.5), True)


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


def test_a_sum_holds_against_the_fewest_colluders_of_its_parts(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path)
    budget.charge("1", "shared", 0.1, ["ann"], mu_max=2.0, colluders=2)
    assert budget.standing("shared", ["ann"]).colluders == 2
    budget.charge("2", "bare", 0.1, ["ann"], mu_max=2.0)
    budget.charge("3", "other", 0.1, ["bob"], mu_max=2.0, colluders=1)
    assert budget.standing("bare", ["ann"]).colluders == 2, "ann's part of the other federation holds against two"
    assert budget.standing("bare", ["ann"]).mu == pytest.approx(math.sqrt(0.2))
    assert budget.standing("none", ["eve"]).colluders is None


def test_spending_that_exceeds_the_bound_is_known_with_and_without_its_people(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path / "account")
    assert not budget.exceeds("a", 1.0), "there is no account"
    budget.charge("1", "a", 0.5, ["ann"], mu_max=1.0)
    assert not budget.exceeds("a", 1.0)
    budget.claim("a", 0, 1.2)
    assert budget.exceeds("a", 1.0)
    budget.standing("a", ["ann"])
    assert budget.exceeds("a", 1.0)
    assert not budget.exceeds("a", 1.3)
    assert not budget.exceeds("b", 1.0)
