"""`withdraw` as an operator calls it: the person's name is on the command line alone."""

from pathlib import Path

import pytest

from fakes.cli import refused, run, run_json
from fakes.trained_site import TrainedSite
from peer.cli.withdraw import spans


@pytest.fixture
def site(tmp_path: Path) -> TrainedSite:
    site = TrainedSite(tmp_path / "sites")
    site.list("patient-17", "patient-18")
    site.send(site.train(1, ["patient-17"]), "europe", round=1)
    site.send(site.train(2, ["patient-17", "patient-18"]), "africa", round=2)
    return site


def test_a_table_a_letter_and_a_document_name_nobody(site: TrainedSite, tmp_path: Path) -> None:
    home, letter = site.folder.home, tmp_path / "letter.txt"
    options = ("--home", home, "withdraw", "--site", "asia")
    result = run(*options, "--subject", "patient-18", "--letter", letter)
    assert result.exit_code == 0, result.stderr
    assert "may hold something of them since round 2; so may what left for africa." in " ".join(result.stdout.split())
    assert "after round 1, the last without them" in result.stdout
    document = run_json(*options, "--file", "-", answer="patient-18\n\npatient-17\n")
    assert (document["people"], document["in_datalist"], document["letter"]) == (2, 2, None)
    assert [copy["receiver"] for copy in document["sent"]] == ["europe", "africa"]
    for text in (result.stdout, letter.read_text(), str(document)):
        assert "patient" not in text
    assert letter.stat().st_mode & 0o777 == 0o600
    assert "exists" in refused("StateError", *options, "--subject", "patient-18", "--out", letter)


def test_someone_who_was_never_trained_on_is_cleared(site: TrainedSite) -> None:
    site.list("patient-17", "patient-19")
    options = ("--home", site.folder.home, "withdraw", "--subject", "patient-19")
    assert "no recorded round trained on them" in run(*options).stdout
    assert run_json(*options)["again"] == []


def test_a_subject_is_needed(site: TrainedSite) -> None:
    assert "--subject" in refused("UsageError", "--home", site.folder.home, "withdraw")
    line = refused("UsageError", "--home", site.folder.home, "withdraw", "--subject", "patient-117")
    assert "did you mean 'patient-17'?" in line


def test_rounds_are_written_as_spans() -> None:
    assert spans([1, 2, 3, 5, 7, 8]) == "1 to 3, 5, 7 to 8"
    assert spans([]) is None


def test_status_says_that_the_datalist_has_fewer_people(site: TrainedSite) -> None:
    site.list("patient-17")
    document = run_json("--home", site.folder.home, "status")
    assert document["datalist"] == "the datalist changed since round 2: 1 subject fewer"
    shown = " ".join(run("--home", site.folder.home, "status").stdout.split())
    assert "1 subject fewer; see `mhfl-peer withdraw`" in shown
