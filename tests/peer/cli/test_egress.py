"""`egress` and its subcommands, as an operator and an auditor type them."""

import contextlib
import datetime
import json
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused_in_one_line, run, run_json
from fakes.sites import TRANSFER
from peer.documents.records import TransferRecord
from peer.errors import EXIT_CODES
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.site.records.ledger import Ledger

pytestmark = pytest.mark.usefixtures("at_home")


@pytest.fixture
def asia(books: Any) -> SiteFolder:
    """A site that sent three artifacts to europe, of which the last did not arrive whole."""
    for round in (1, 2):
        books.send("asia", "europe", round=round)
    folder: SiteFolder = books.loopback.folder("asia")
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        fields = {"purpose": "evaluate", "kind": "metrics", "sha256": "cd" * 32, "generation": 1}
        ledger.settle(ledger.intend(peer="africa", round=2, bytes=4096, **fields), bytes=1024, outcome="broken")
        ledger.intend(peer="europe", round=3, bytes=2048, **fields)
    return folder


def test_the_list_has_the_documented_keys_and_can_be_narrowed(asia: SiteFolder) -> None:
    transfers = run_json("egress", "--site", "asia")
    sent = [("europe", 1), ("europe", 2), ("africa", 2), ("europe", 3)]
    assert [(row["peer"], row["round"]) for row in transfers] == sent
    assert all(list(row) == list(TransferRecord.__annotations__) for row in transfers)

    def rounds(*words: str) -> list[int]:
        return [row["round"] for row in run_json("egress", "--site", "asia", *words)]

    assert rounds("--peer", "europe") == [1, 2, 3]
    assert rounds("--peer", "europe", "--peer", "asia", "--round", "2-3") == [2, 3]
    assert rounds("--round", "2") == [2, 2]
    assert rounds("--since", "2026-01-01") == [1, 2, 2, 3]
    tomorrow = datetime.datetime.now() + datetime.timedelta(days=1)
    assert rounds("--since", tomorrow.strftime("%Y-%m-%dT%H:%M")) == []


def test_people_see_to_whom_and_what_it_comes_to(asia: SiteFolder) -> None:
    text = run("egress", "--site", "asia").stdout
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["europe"] == ["europe", "3", "2", "128", "B", "2.0", "KiB"]
    assert rows["africa"] == ["africa", "1", "0", "1.0", "KiB", "-"]
    assert rows["all"] == ["all", "together", "4", "2", "1.1", "KiB", "2.0", "KiB"]
    assert "evaluate" in text
    assert "broken" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--peer", "eurpoe"), "--peer eurpoe: not a site of this federation (did you mean 'europe'?)"),
        (("--round", "3-2"), "'3-2' is neither a round nor two as in 3-7"),
        (("--round", "x"), "'x' is neither a round nor two as in 3-7"),
        (("--since", "yesterday"), "--since"),
        (("--json", "verify"), "options stand before 'verify'; write them after it"),
        (("--peer", "europe", "export", "--out", "x"), "options stand before 'export'"),
    ],
)
def test_a_wrong_word_is_named_and_not_taken_for_an_empty_list(
    asia: SiteFolder, words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in refused_in_one_line("UsageError", "egress", "--site", "asia", *words)


def test_a_ledger_is_verified_with_a_witness_from_another_site(asia: SiteFolder, tmp_path: Path) -> None:
    out = tmp_path / "from-europe.json"
    written = run_json("egress", "witness", "--site", "europe", "--of", "asia", "--out", out)
    assert written == {"of": "asia", "by": "europe", "file": str(out), "manifests": 1}
    verified = run_json("egress", "verify", "--site", "asia", "--witness", out)
    assert (verified["problems"], verified["open"], verified["vouched_rows"], verified["rows"]) == ([], [7], 2, 7)
    text = run("egress", "verify", "--site", "asia", "--witness", out).stdout
    assert "The ledger is whole." in text
    assert "europe has seen 2 rows" in text
    assert "that rows 3 to 7 are all" in " ".join(text.split())


def test_the_site_may_be_named_before_the_subcommand(asia: SiteFolder) -> None:
    assert run_json("egress", "--site", "asia", "verify")["site"] == "asia"
    assert run_json("egress", "--site", "europe", "verify", "--site", "asia")["site"] == "asia"
    assert "several sites live under" in refused_in_one_line("UsageError", "egress", "verify")


def test_a_ledger_that_is_not_whole_ends_with_its_own_code_after_the_document(asia: SiteFolder) -> None:
    with contextlib.closing(sqlite3.connect(asia.egress_db)) as connection:
        connection.execute("UPDATE ledger SET body = replace(body, 'africa', 'mars')")
        connection.commit()
    result = run("egress", "verify", "--site", "asia", "--json")
    assert EXIT_CODES[result.exit_code].name == "LedgerBroken"
    assert json.loads(result.stdout)["problems"] == ["row 5 was changed, or a row before it was removed or moved"]
    assert result.stderr == (
        f"mhfl-peer: {asia.egress_db}: row 5 was changed, or a row before it was removed or moved; "
        "leave the site's folder as it is, and tell its data protection officer\n"
    )
    assert "The ledger is not whole." in run("egress", "verify", "--site", "asia").stdout


def test_a_ledger_that_is_no_database_is_named(asia: SiteFolder) -> None:
    for leftover in asia.path.glob("egress.db*"):
        leftover.unlink()
    asia.egress_db.write_bytes(b"no database" * 1000)
    assert "egress.db is damaged" in refused_in_one_line("StateError", "egress", "verify", "--site", "asia")


def test_the_default_witness_shows_the_rows_that_a_restored_backup_lacks_also_rounds_later(
    enrolled: LocalFederation, books: Any, tmp_path: Path
) -> None:
    folder = enrolled.folder("asia")
    for round in range(1, 5):
        books.send("asia", "europe", round=round)
    shutil.copytree(folder.path, tmp_path / "backup")
    for round in range(5, 8):
        books.send("asia", "europe", round=round)
    shutil.rmtree(folder.path)
    shutil.copytree(tmp_path / "backup", folder.path)
    with contextlib.closing(books.journal("asia")) as journal:
        journal.append("regenerated", 4, {"generation": 2, "reported_by": "europe", "their_round": 7})
    for round in range(5, 13):  # until the new generation's manifests cover more rows than the former one's
        books.send("asia", "europe", round=round, generation=2)
    out = tmp_path / "from-europe.json"
    written = run_json("egress", "witness", "--site", "europe", "--of", "asia", "--out", out)
    assert written["manifests"] == 2
    result = run("egress", "verify", "--site", "asia", "--witness", out)
    assert EXIT_CODES[result.exit_code].name == "LedgerBroken"
    complaint = result.stderr
    assert "row 12 is not the one that a witness has seen" in complaint
    assert "the manifest of round 7 of generation 1" in complaint
    assert "the journal says that an older backup was restored on" in complaint


def test_an_export_is_proven_without_the_site_s_folder(asia: SiteFolder, tmp_path: Path) -> None:
    out, federation = tmp_path / "asia.json", tmp_path / "federation.toml"
    federation.write_text(asia.federation_toml.read_text())
    exported = run_json("egress", "export", "--site", "asia", "--out", out, "--rounds", "2-3")
    assert (exported["site"], exported["rows"], exported["left_out"], exported["head"]["count"]) == ("asia", 5, 2, 7)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    elsewhere = ("--home", tmp_path / "nowhere")
    verified = run_json(*elsewhere, "egress", "verify", "--file", out, "--federation", federation)
    assert (verified["site"], verified["problems"], verified["source"]) == ("asia", [], str(out))
    (unproven,) = run_json(*elsewhere, "egress", "verify", "--file", out)["unproven"][:1]
    assert "nobody vouches for the certificate" in unproven
    out.write_text(out.read_text().replace("africa", "mars"))
    words = ("egress", "verify", "--file", out, "--federation", federation)
    assert "asia.json is refused: the signature does not fit" in refused_in_one_line(
        "PeerMisbehaved", *elsewhere, *words
    )


def test_what_does_not_go_together_is_refused(asia: SiteFolder, tmp_path: Path) -> None:
    words = ("egress", "verify", "--site", "asia", "--federation", asia.federation_toml)
    assert "--federation goes with --file" in refused_in_one_line("UsageError", *words)


@pytest.mark.parametrize("words", [("export",), ("witness", "--of", "europe")])
def test_no_file_is_written_over(asia: SiteFolder, tmp_path: Path, words: tuple[str, ...]) -> None:
    out = tmp_path / "kept"
    out.write_text("kept")
    assert "kept exists" in refused_in_one_line("StateError", "egress", *words, "--site", "asia", "--out", out)
    assert out.read_text() == "kept"


def test_people_are_told_what_to_do_with_the_files(asia: SiteFolder, tmp_path: Path) -> None:
    text = run("egress", "export", "--site", "asia", "--out", tmp_path / "a").stdout
    assert "7 rows; 0 are left out" in text
    assert "egress verify --file" in text
    words = ("witness", "--site", "europe", "--of", "asia", "--out", tmp_path / "w", "--all")
    text = run("egress", *words).stdout
    assert "2 manifests of asia, as europe received it" in text
    assert "not through that site" in text


def test_the_officers_page_is_written_and_says_whether_the_ledger_is_whole(
    enrolled: LocalFederation, tmp_path: Path
) -> None:
    page = tmp_path / "asia.html"
    document = run_json("egress", "report", "--site", "asia", "--out", page)
    assert (document["file"], document["transfers"], document["problems"]) == (str(page), 0, [])
    assert "What left asia" in page.read_text()
    draft = page.with_suffix(".md")
    run_json("egress", "report", "--site", "asia", "--dpia", "--out", draft)
    assert draft.read_text("utf-8").startswith("# Impact assessment: ")
    again = ("egress", "report", "--site", "asia", "--dpia", "--out", draft)
    assert "exists" in refused_in_one_line("StateError", *again), "it may have answers by now"
    with contextlib.closing(Ledger(enrolled.folder("asia").egress_db)) as ledger:
        ledger.settle(ledger.intend(**TRANSFER, bytes=1), bytes=1, outcome="complete")
    with contextlib.closing(sqlite3.connect(enrolled.folder("asia").egress_db)) as connection, connection:
        connection.execute("DELETE FROM ledger WHERE seq = 1")
    answer = run("egress", "report", "--site", "asia", "--html", page)
    assert (answer.exit_code, "row 1 is missing" in page.read_text()) == (18, True)
    page.write_text("site.toml, mistaken for a page")
    assert "exists; remove it" in refused_in_one_line("StateError", "egress", "report", "--site", "asia", "--out", page)
