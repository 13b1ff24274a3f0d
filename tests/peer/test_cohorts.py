"""Cohorts say who was trained on to who has the key, and to nobody else."""

import json
from pathlib import Path

import pytest

from peer.cohorts import KEY, Cohorts, listed_people, person_of

PEOPLE = {"training": ["p1", "p2", "p2", "/scan.png"], "validation": ["p3"], "test": []}


@pytest.fixture
def cohorts(tmp_path: Path) -> Cohorts:
    cohorts = Cohorts(tmp_path / "gen-0001")
    cohorts.create()
    return cohorts


def test_without_a_key_nothing_is_recorded(tmp_path: Path) -> None:
    assert Cohorts(tmp_path).write(PEOPLE) is None
    assert not any(tmp_path.iterdir())
    assert Cohorts(tmp_path).read("ab" * 32) is None


def test_people_are_read_back_by_the_set_s_digest_in_whatever_order_they_came(cohorts: Cohorts) -> None:
    cohort = cohorts.write(PEOPLE)
    assert cohorts.write({"test": [], "validation": ["p3"], "training": ["/scan.png", "p2", "p1"]}) == cohort
    splits = Cohorts(cohorts.folder.parent).read(cohort)
    assert splits is not None
    assert splits["training"] == {cohorts.pseudonym(person) for person in ("p1", "p2", "/scan.png")}
    assert splits["validation"] == {cohorts.pseudonym("p3")}
    assert cohorts.write({**PEOPLE, "test": ["p4"]}) != cohort


def test_neither_the_digest_nor_the_file_tells_a_name_without_the_key(cohorts: Cohorts, tmp_path: Path) -> None:
    other = Cohorts(tmp_path / "gen-0002")
    other.create()
    cohort = cohorts.write(PEOPLE)
    assert other.write(PEOPLE) != cohort
    path = cohorts.folder / f"{cohort}.json"
    assert "p1" not in path.read_text()
    assert "scan" not in path.read_text()
    assert {file.stat().st_mode & 0o777 for file in cohorts.folder.iterdir()} == {0o600}


def test_a_second_start_keeps_the_key(cohorts: Cohorts) -> None:
    key = (cohorts.folder / KEY).read_bytes()
    Cohorts(cohorts.folder.parent).create()
    assert (cohorts.folder / KEY).read_bytes() == key


def test_a_damaged_or_missing_file_is_not_known(cohorts: Cohorts) -> None:
    cohort = cohorts.write(PEOPLE)
    path = cohorts.folder / f"{cohort}.json"
    path.write_text(path.read_text().replace("[", "[ ", 1))
    assert cohorts.read(cohort) is None
    path.unlink()
    assert cohorts.read(cohort) is None
    assert cohorts.read(None) is None


def test_people_who_left_the_datalist_are_counted(cohorts: Cohorts, tmp_path: Path) -> None:
    datalist = tmp_path / "datalist.json"

    def write(*subjects: str) -> None:
        entries = [{"image": f"{each}.png", "label": 0, "subject": each} for each in subjects]
        datalist.write_text(json.dumps({"training": entries, "test": [{"image": "scan.png", "label": 1}]}))

    cohort = cohorts.write(PEOPLE)
    assert cohorts.missing_from(datalist, cohort) is None
    write("p1", "p2", "p3", "p5")
    assert cohorts.missing_from(datalist, cohort) == 0
    write("p1")
    assert cohorts.missing_from(datalist, cohort) == 2
    assert cohorts.missing_from(datalist, "ab" * 32) is None


def test_the_people_of_a_datalist_are_those_that_the_trainer_counts(tmp_path: Path) -> None:
    datalist = tmp_path / "datalist.json"
    training = [{"image": ["a.npy", "b.npy"], "label": 0}, {"image": "c.npy", "label": 1, "subject": 7}]
    datalist.write_text(json.dumps({"training": training, "test": ["d.npy", {"image": "e.npy", "subject": "p9"}]}))
    assert listed_people(datalist) == {"/a.npy", "7", "/d.npy", "p9"}
    assert person_of("c.npy", "7") == "7"
    assert person_of("a.npy", None) == "/a.npy"
    for content in ("[]", "{", '{"training": 3}'):
        datalist.write_text(content)
        assert listed_people(datalist) is None
