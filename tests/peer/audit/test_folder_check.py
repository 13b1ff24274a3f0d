"""A folder whose parts are of different sites, or of different times, is refused by name; a restored whole is not."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from peer.audit.folder_check import check_folder
from peer.daemon import startup
from peer.daemon.dispatch import now
from peer.errors import CertificateError, StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import to_base64
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import enrolment
from peer.site.identity.bundle import Bundle
from peer.site.identity.certificates import Identity
from peer.site.identity.enrolment import Authority
from peer.site.records.ledger import Head, Ledger


@pytest.fixture
def asia(books: Any) -> SiteFolder:
    """A site that sent its model to europe in three rounds, and received one."""
    for round in range(1, 4):
        books.send("asia", "europe", round=round)
    books.send("europe", "asia", round=1)
    folder: SiteFolder = books.loopback.folder("asia")
    return folder


@pytest.fixture
def backup(asia: SiteFolder, tmp_path: Path) -> Callable[[], Path]:
    """Copies the site's folder."""

    def copy() -> Path:
        return Path(shutil.copytree(asia.path, tmp_path / "backup"))

    return copy


def check(folder: SiteFolder, *, fresh: bool = False) -> list[str]:
    federation = FederationConfig.load(folder.federation_toml)
    own = Identity.load(folder.pki, name=folder.site, ca_certificate=federation.ca_certificate, now=now())
    return check_folder(folder, federation, own, fresh=fresh)


def restore(source: Path, folder: SiteFolder, *names: str) -> None:
    """Replace these files or folders of the site by those of a backup."""
    for name in names:
        target = folder.path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        for leftover in folder.path.glob(f"{name}-*"):
            leftover.unlink()
        copied = source / name
        shutil.copytree(copied, target) if copied.is_dir() else shutil.copy2(copied, target)


def test_a_site_that_never_ran_is_consistent(enrolled: LocalFederation) -> None:
    assert check(enrolled.folder("asia")) == []


def test_what_a_daemon_left_is_consistent_also_over_generations(asia: SiteFolder, books: Any) -> None:
    assert check(asia) == []
    books.send("asia", "europe", round=1, generation=2)
    assert check(asia) == []


def test_a_whole_older_backup_may_be_restored(asia: SiteFolder, books: Any, backup: Callable[[], Path]) -> None:
    source = backup()
    books.send("asia", "europe", round=4)
    shutil.rmtree(asia.path)
    shutil.copytree(source, asia.path)
    assert check(asia) == []
    books.send("asia", "europe", round=4, generation=2)
    assert check(asia) == []


def test_an_older_ledger_under_a_newer_journal_is_refused(
    asia: SiteFolder, books: Any, backup: Callable[[], Path]
) -> None:
    source = backup()
    books.send("asia", "europe", round=4)
    books.send("asia", "europe", round=5)
    restore(source, asia, "egress.db")
    with pytest.raises(
        StateError, match=r"egress\.db has 6 rows, but .*journal\.db was written when it had 8: .*resto"
    ):
        check(asia)
    asia.egress_db.unlink()
    with pytest.raises(StateError, match=r"egress\.db has 0 rows"):
        check(asia)
    restore(source, asia, "gen-0001")
    restore(source, asia, "egress.db")
    assert check(asia) == []


def test_an_older_journal_under_a_newer_ledger_is_a_remark(
    asia: SiteFolder, books: Any, backup: Callable[[], Path]
) -> None:
    source = backup()
    books.send("asia", "europe", round=4)
    restore(source, asia, "gen-0001")
    (remark,) = check(asia)
    assert remark == (
        "egress.db knows of round 4 of generation 1, the journal only of round 3 of generation 1: "
        "an older journal was restored"
    )


def test_another_chain_of_the_same_length_is_refused(asia: SiteFolder, books: Any, tmp_path: Path) -> None:
    for round in range(2, 4):
        books.send("europe", "asia", round=round)
    restore(books.loopback.folder("europe").path, asia, "egress.db")
    with pytest.raises(StateError, match=r"row 4 of .*egress\.db is not the one that .*journal\.db was written after"):
        check(asia)


def test_another_site_s_ledger_shows_before_the_first_manifest(asia: SiteFolder, books: Any) -> None:
    shutil.rmtree(asia.generation(1))
    restore(books.loopback.folder("europe").path, asia, "egress.db")
    with pytest.raises(StateError, match=r"egress\.db says what was sent to asia: it is another site's; restore pki, "):
        check(asia)


def test_another_site_s_journal_is_named(asia: SiteFolder, books: Any) -> None:
    restore(books.loopback.folder("europe").path, asia, "gen-0001")
    with pytest.raises(StateError, match=r"journal\.db is the journal of europe, not of asia; restore pki, egress\.db"):
        check(asia)


def test_another_site_s_journal_is_named_before_its_first_manifest(enrolled: LocalFederation, books: Any) -> None:
    with contextlib.closing(books.journal("asia")) as journal:
        body = {"state": "s", "samples": {}, "publish": None}
        journal.append("initialised", 0, {**body, "artifact": None})
        assert check(enrolled.folder("asia")) == []
        journal.append("initialised", 0, {**body, "artifact": {"owner": "europe"}})
    with pytest.raises(StateError, match="is the journal of europe, not of asia"):
        check(enrolled.folder("asia"))


def test_another_site_s_keys_are_named(asia: SiteFolder, books: Any) -> None:
    restore(books.loopback.folder("europe").path, asia, "pki")
    with pytest.raises(CertificateError, match=r"cert\.pem: the certificate names europe, not asia; .*own backup"):
        check(asia)


def test_a_manifest_that_is_damaged_is_named(asia: SiteFolder, books: Any) -> None:
    with contextlib.closing(books.journal("asia")) as journal:
        journal.append("manifest", 4, {"artifact": "ab" * 32, "body": "?"})
    with pytest.raises(StateError, match=r"journal\.db is damaged: its newest manifest: it is no signed manifest"):
        check(asia)


def test_an_older_pki_under_a_newer_journal_is_refused(tmp_path: Path, books: Any) -> None:
    """The certificate was renewed with a new key, which others now refuse in its former form."""
    text = books.loopback.folder("asia").federation_toml.read_text()
    past = now() - timedelta(days=100)
    authority = Authority.create(tmp_path / "ca", text[text.index("name = ") :], "draft", now=past)
    old = LocalFederation(tmp_path / "old", authority.federation)
    folder = old.folder("asia")

    def enrol(when: Any, **options: Any) -> Identity:
        request = enrolment.request(folder, authority.federation, authority.federation_toml, now=when, **options)
        admission = authority.admit(request.pem, fingerprint=request.fingerprint, now=when, replace=True)
        return enrolment.join(folder, Bundle.decode(admission.bundle), now=when)

    enrol(past)
    shutil.copytree(folder.pki, tmp_path / "former")
    enrol(now() - timedelta(days=1), renew=True)
    old_books = type(books)(old)
    journal = old_books.journal("asia")
    signed = old_books.signed("asia", Ledger(folder.egress_db).head, round=1)
    journal.append("manifest", 1, {"artifact": "ab" * 32, **to_base64(signed)})
    journal.close()
    assert check(folder) == []
    shutil.rmtree(folder.pki)
    shutil.copytree(tmp_path / "former", folder.pki)
    with pytest.raises(
        StateError, match=r"cert\.pem is of .*, but .* was written with one of .*join the newest bundle"
    ):
        check(folder)


def test_a_start_reads_a_few_rows_of_a_long_ledger(asia: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"type": "outcome", "intent": 1, "bytes": 1, "outcome": "complete", "time": 0}'
    with contextlib.closing(sqlite3.connect(asia.egress_db)) as connection:
        rows = ((number, text, "ab" * 32) for number in range(7, 100_000))
        connection.executemany("INSERT INTO ledger VALUES (?, ?, ?)", rows)
        connection.commit()
    loads = mock.Mock(wraps=json.loads)
    monkeypatch.setattr(json, "loads", loads)
    assert check(asia) == []
    assert loads.call_count < 200


def test_a_model_that_is_lent_after_the_next_was_published_makes_no_journal_old(asia: SiteFolder, books: Any) -> None:
    """A start signs again the model that it publishes, and after it the one that it lends, of an
    earlier round.
    """
    journal = books.journal("asia")
    journal.append("published", 3, {"artifact": None})
    lent = books.signed("asia", Head(6, hash_at(asia, 6)), round=2)
    journal.append("manifest", 2, {"artifact": "ab" * 32, **to_base64(lent)})
    journal.close()
    assert check(asia) == []


def hash_at(folder: SiteFolder, count: int) -> str:
    with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
        return str(ledger.hash_at(count))


@pytest.mark.parametrize("state", ["empty", "missing", "without an initial model"])
def test_a_lost_journal_is_refused_where_the_ledger_knows_of_rounds(asia: SiteFolder, books: Any, state: str) -> None:
    lose_journal(asia, books, state)
    with pytest.raises(
        StateError,
        match=rf"journal\.db is {state}, but egress\.db knows of round 3 of generation 1: .* lost; .*--resume fresh",
    ):
        check(asia)
    assert check(asia, fresh=True)
    assert startup.next_generation(asia) == 2


@pytest.mark.parametrize("state", ["empty", "missing"])
@pytest.mark.parametrize("file", ["artifacts/ab.safetensors", "checkpoints/round-000000/initial/record.json"])
def test_a_lost_journal_is_refused_beside_a_model(enrolled: LocalFederation, books: Any, state: str, file: str) -> None:
    asia = enrolled.folder("asia")
    lose_journal(asia, books, state)
    assert check(asia) == []
    (asia.generation(1) / file).parent.mkdir(parents=True, exist_ok=True)
    (asia.generation(1) / file).touch()
    with pytest.raises(StateError, match=rf"journal\.db is {state}, but . artifacts and the checkpoints of . rounds"):
        check(asia)


def test_a_worker_that_was_killed_before_the_first_model_s_row_is_no_lost_journal(
    enrolled: LocalFederation, books: Any
) -> None:
    asia = enrolled.folder("asia")
    lose_journal(asia, books, "without an initial model")
    home = asia.generation(1)
    (home / "artifacts" / "ab.safetensors").touch()
    (home / "checkpoints" / "round-000000").mkdir()
    assert check(asia) == []
    (home / "checkpoints" / "round-000001").mkdir()
    with pytest.raises(StateError, match="without an initial model, but 1 artifacts and the checkpoints of 2 rounds"):
        check(asia)


def test_generations_put_aside_are_no_new_site_to_its_ledger(asia: SiteFolder, books: Any) -> None:
    books.send("asia", "europe", round=1, generation=7)
    for number in asia.generations():
        shutil.rmtree(asia.generation(number))
    with pytest.raises(StateError, match=r"missing, but egress\.db knows of round 1 of generation 7"):
        check(asia)
    assert startup.next_generation(asia) == 8


def lose_journal(folder: SiteFolder, books: Any, state: str) -> None:
    """Leave the first generation's journal in this state."""
    for file in folder.generation(1).glob("journal.db*"):
        file.unlink()
    with contextlib.closing(books.journal(folder.site)) as journal:
        if state == "without an initial model":
            journal.append("began", 0, {"generation": 1})
    if state == "missing":
        (folder.generation(1) / "journal.db").unlink()
