"""`withdraw` says where information about a person may be, assumes the worst where nothing is known, names nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fakes.trained_site import TrainedSite
from peer.audit.backup import back_up, restore
from peer.audit.withdrawal import withdraw, write_letter
from peer.cohorts import FOLDER
from peer.errors import UsageError


@pytest.fixture
def site(tmp_path: Path) -> TrainedSite:
    """P3 came in round 3 and left in round 5; round 1 sent to europe, 3 to africa, 5 to both."""
    site = TrainedSite(tmp_path / "sites")
    digests = {}
    for round in range(1, 7):
        digests[round] = site.train(round, ["p1", "p2", *(["p3"] if 3 <= round < 5 else [])], test="p4")
    for round, receivers in {1: ["europe"], 3: ["africa"], 5: ["europe", "africa"]}.items():
        for receiver in receivers:
            site.send(digests[round], receiver, round=round)
    site.list("p1", "p2", test=["p4"])
    return site


def test_rounds_receivers_and_costs_follow_from_when_the_person_came_in(site: TrainedSite) -> None:
    document = withdraw(site.folder, ["p3"])
    (use,) = document["uses"]
    assert (use["training"], use["unknown"], use["first_round"]) == ([3, 4], [], 3)
    assert (document["people"], document["in_datalist"], document["committed"]) == (1, 0, 6)
    sent = [(copy["receiver"], copy["round"]) for copy in document["sent"]]
    assert sent == [("africa", 3), ("europe", 5), ("africa", 5)]  # round 5 goes on from the weights of round 4
    again = {way["way"]: way for way in document["again"]}
    assert (again["from_round"]["round"], again["from_round"]["rounds"]) == (2, 4)
    assert (again["from_start"]["rounds"], again["from_start"]["training_s"]) == (6, 360.0)


def test_a_person_of_the_test_split_alone_is_in_no_weights(site: TrainedSite) -> None:
    site.send("ab" * 32, "africa", round=6, purpose="evaluate", kind="metrics")
    document = withdraw(site.folder, ["p4"])
    (use,) = document["uses"]
    assert (use["training"], use["test"], use["first_round"]) == ([], [1, 2, 3, 4, 5, 6], None)
    assert (document["sent"], document["again"], document["figures_to"]) == ([], [], ["africa"])
    assert withdraw(site.folder, ["p3"])["figures_to"] == []


def test_an_opening_holds_nobody(site: TrainedSite) -> None:
    before = withdraw(site.folder, ["p3"])["sent"]
    site.send("ab" * 32, "africa", round=5, kind="opening")
    assert withdraw(site.folder, ["p3"])["sent"] == before
    site.send("ab" * 32, "africa", round=5)
    assert withdraw(site.folder, ["p3"])["sent"] != before


def test_the_rounds_of_several_people_are_those_of_any(site: TrainedSite) -> None:
    (use,) = withdraw(site.folder, ["p3", "p1"])["uses"]
    assert use["training"] == [1, 2, 3, 4, 5, 6]


def test_a_round_of_which_nothing_is_recorded_counts_as_one_with_the_person(site: TrainedSite) -> None:
    site.begin()
    sha256 = site.train(1, None)
    site.train(2, ["p1"])
    site.send(sha256, "europe", round=1)
    former, newest = withdraw(site.folder, ["p3"])["uses"]
    assert (former["first_round"], newest["unknown"], newest["first_round"]) == (3, [1], 1)
    assert withdraw(site.folder, ["nobody"])["uses"][1]["first_round"] == 1
    shutil.rmtree(site.folder.generation(1) / FOLDER)
    assert withdraw(site.folder, ["p3"])["uses"][0]["unknown"] == [1, 2, 3, 4, 5, 6]


def test_what_left_and_no_journal_names_may_hold_the_person_and_a_broken_transfer_does_not(site: TrainedSite) -> None:
    site.send("cd" * 32, "europe", round=9)
    site.send("ef" * 32, "europe", round=9, outcome="broken")
    sent = withdraw(site.folder, ["p3"])["sent"]
    assert [copy["sha256"][:2] for copy in sent if copy["round"] == 9] == ["cd"]


def test_an_export_counts_from_the_end_of_the_first_stage_with_the_person(site: TrainedSite) -> None:
    site.send("ab" * 32, "", round=6, purpose="export", kind="onnx")
    assert withdraw(site.folder, ["p3"])["sent"][-1]["receiver"] == "export"
    assert "export" not in write_letter(withdraw(site.folder, ["p3"]))


def test_a_misspelt_subject_is_refused_and_not_cleared(site: TrainedSite) -> None:
    with pytest.raises(UsageError, match="'p33' is neither in the datalist nor in a recorded round"):
        withdraw(site.folder, ["p33"])
    entries = [{"image": "scan.npy", "label": 0}]
    site.datalist.write_text(json.dumps({"training": entries}))
    assert withdraw(site.folder, ["scan.npy"])["uses"][0]["first_round"] is None
    assert withdraw(site.folder, ["p3"])["in_datalist"] == 0
    site.datalist.unlink()
    with pytest.raises(UsageError, match="'p33' is neither"):
        withdraw(site.folder, ["p33"])


def test_a_sample_without_a_subject_is_named_by_its_image(site: TrainedSite) -> None:
    site.train(7, ["p1", "/scan.npy"])
    assert withdraw(site.folder, ["scan.npy"])["uses"][0]["training"] == [7]


def test_the_letter_has_rounds_and_digests_and_no_person(site: TrainedSite) -> None:
    document = withdraw(site.folder, ["p3"])
    letter = write_letter(document)
    assert "europe" in letter
    assert "since round 3" in letter
    for copy in document["sent"]:
        assert copy["sha256"] in letter
    for text in (letter, json.dumps(document)):
        assert "p3" not in text


def test_it_says_what_lies_on_this_machine_with_a_command(site: TrainedSite) -> None:
    (site.home / "cache").mkdir()
    (site.home / "cache" / "a.safetensors").write_bytes(b"image")
    former = site.folder.path.with_name("asia.before-20260101T000000.000000Z")
    former.mkdir()
    (former / "journal.db").write_bytes(b"rows")
    local = {copy["path"]: copy for copy in withdraw(site.folder, ["p3"])["local"] if copy["path"]}
    assert local[str(site.home / "cache")]["bytes"] == 5
    assert "--older-than 0d" in local[str(site.home / "cache")]["delete"]
    assert "--resume fresh" in local[str(site.home / "checkpoints")]["delete"]
    assert local[str(former)]["delete"] == f"rm -r {former}"
    assert str(site.home / FOLDER) in local


def test_a_restored_site_still_knows_whom_it_was_trained_on(site: TrainedSite, tmp_path: Path) -> None:
    for name, with_key in (("without.tar", False), ("with.tar", True)):
        back_up(site.folder, tmp_path / name, with_key=with_key)
    restored = restore(tmp_path / "with.tar", tmp_path / "elsewhere").folder
    assert withdraw(restored, ["p3"])["uses"][0]["training"] == [3, 4]
    restored = restore(tmp_path / "without.tar", tmp_path / "third").folder
    assert withdraw(restored, ["p3"])["uses"][0]["unknown"] == [1, 2, 3, 4, 5, 6]
    restore(tmp_path / "without.tar", site.folder.home, force=True)
    assert withdraw(site.folder, ["p3"])["uses"][0]["training"] == [3, 4]
