"""What people have lost is never forgotten, whoever asks; nothing leaves of a federation that has spent it."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peer.privacy_budget import FILE, PrivacyBudget

PEOPLE = ("ada", "grace", "emmy")


@pytest.fixture
def budget(tmp_path: Path) -> PrivacyBudget:
    return PrivacyBudget(tmp_path / ".privacy")


def charge(budget: PrivacyBudget, work: str, people: tuple[str, ...] = PEOPLE, federation: str = "one") -> bool:
    """Charge a stage of mu 1 against a bound of mu 2: four of them fit."""
    return budget.charge(work, federation, 1.0, people, mu_max=2.0)


def test_stages_add_up_until_the_bound_and_then_nothing_leaves(budget: PrivacyBudget) -> None:
    assert budget.standing("one", PEOPLE) == (0.0, True)
    assert [charge(budget, f"stage {number}") for number in range(5)] == [True] * 4 + [False]
    assert budget.standing("one", PEOPLE) == (2.0, False)


def test_a_stage_that_is_repeated_is_charged_once(budget: PrivacyBudget) -> None:
    assert all(charge(budget, "the same") for _ in range(9))
    assert budget.standing("one", PEOPLE) == (1.0, True)


def test_it_is_the_person_who_loses_not_the_federation(budget: PrivacyBudget) -> None:
    for federation in ("one", "two", "three", "four"):
        assert charge(budget, federation, ("ada", federation), federation)
    assert budget.standing("one", ("ada",)) == (2.0, True)
    assert budget.standing("one", ("one",)) == (1.0, True)
    assert budget.standing("one", ("nobody",)) == (0.0, True)
    assert not charge(budget, "a fifth", ("ada", "new"), "five")
    assert charge(budget, "a sixth", ("new",), "six")


def test_what_did_not_leave_costs_no_other_federation_anything(budget: PrivacyBudget) -> None:
    assert not budget.charge("large", "one", 9.0, PEOPLE, mu_max=2.0)
    assert budget.standing("one", PEOPLE) == (0.0, False)
    assert charge(budget, "small", federation="two")
    assert budget.standing("two", PEOPLE) == (1.0, True)


def test_another_process_goes_on_from_the_same_account(budget: PrivacyBudget, tmp_path: Path) -> None:
    assert charge(budget, "here")
    script = (
        "import sys; from pathlib import Path; from peer.privacy_budget import PrivacyBudget\n"
        f"print(PrivacyBudget(Path(sys.argv[1])).charge('there', 'one', 3.5, {PEOPLE!r}, mu_max=2.0))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / ".privacy")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    assert budget.standing("one", PEOPLE) == (1.0, False)


def test_the_file_names_nobody_and_is_the_user_s_alone(budget: PrivacyBudget, tmp_path: Path) -> None:
    charge(budget, "a stage")
    file = tmp_path / ".privacy" / FILE
    assert not any(person in file.read_text() for person in PEOPLE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["", "{}", "people"])
def test_a_damaged_account_is_an_error_and_never_an_empty_one(
    budget: PrivacyBudget, tmp_path: Path, damage: str
) -> None:
    charge(budget, "a stage")
    file = tmp_path / ".privacy" / FILE
    text = json.dumps({**json.loads(file.read_text()), "people": {}}) if damage == "people" else damage
    file.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        budget.standing("one", PEOPLE)
