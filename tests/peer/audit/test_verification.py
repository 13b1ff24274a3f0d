"""Which faults of a ledger `egress verify` reports, with and without witnesses, and what it calls
unproven.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fakes.databases import edit
from peer.audit import evidence_files, verification
from peer.daemon.dispatch import now
from peer.documents.commands import LedgerVerified
from peer.errors import CertificateError, FederationMismatch, PeerMisbehaved, StateError, UsageError
from peer.net.transport.manifest import decode_manifest, from_base64, to_base64
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle
from peer.site.records.journal import chain_hash
from peer.site.records.ledger import Head, Ledger

KEYS = LedgerVerified.__annotations__.keys()


@pytest.fixture
def asia(books: Any) -> SiteFolder:
    """A site that sent its model to europe in four rounds."""
    for round in range(1, 5):
        books.send("asia", "europe", round=round)
    folder: SiteFolder = books.loopback.folder("asia")
    return folder


def rewrite_chain(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write a chain of changed rows whose hashes are right."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        bodies = [json.loads(body) for (body,) in connection.execute("SELECT body FROM ledger ORDER BY seq")]
        connection.execute("DELETE FROM ledger")
        head = Head(0, "0" * 64)
        for body in filter(None, map(change, bodies)):
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
            head = Head(head.count + 1, chain_hash(head.hash, text))
            connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (head.count, text, head.hash))
        connection.commit()


def forget(folder: SiteFolder) -> None:
    """Delete the site's own manifests from the journal."""
    edit(folder.generation(1) / "journal.db", "DELETE FROM row WHERE kind = 'manifest'")


@pytest.fixture
def witness(asia: SiteFolder, books: Any, tmp_path: Path) -> Path:
    """The witness file of europe about asia's ledger."""
    path = tmp_path / "from-europe.json"
    path.write_bytes(evidence_files.encode(verification.make_witness(books.loopback.folder("europe"), "asia")))
    return path


def test_a_whole_ledger_is_called_whole_and_what_is_open_is_said(asia: SiteFolder) -> None:
    document = verification.verify(asia)
    assert document.keys() == KEYS
    assert (document["site"], document["rows"], document["transfers"], document["own_manifests"]) == ("asia", 8, 4, 4)
    assert document["problems"] == document["open"] == document["witnesses"] == []
    assert document["vouched_rows"] is None
    assert len(document["unproven"]) == 1
    assert "another site's witness is needed" in document["unproven"][0]


def test_a_witness_vouches_for_the_rows_that_it_has_seen(asia: SiteFolder, witness: Path) -> None:
    document = verification.verify(asia, [witness])
    assert document["problems"] == []
    expected = {"file": str(witness), "by": "europe", "manifests": 1, "rows": 6, "generation": 1, "round": 4}
    assert (document["witnesses"], document["vouched_rows"]) == ([expected], 6)
    assert document["unproven"] == ["that rows 7 to 8 are all: they are newer than every witness"]


def test_a_site_without_a_ledger_has_nothing_to_prove(books: Any) -> None:
    document = verification.verify(books.loopback.folder("asia"))
    assert (document["rows"], document["head"], document["problems"]) == (0, {"count": 0, "hash": "0" * 64}, [])


def test_a_transfer_under_way_is_open_and_no_problem(asia: SiteFolder) -> None:
    with contextlib.closing(Ledger(asia.egress_db)) as ledger:
        facts = {"purpose": "train", "kind": "model", "sha256": "ab" * 32}
        ledger.intend(peer="europe", round=5, generation=1, bytes=64, **facts)
    document = verification.verify(asia)
    assert (document["open"], document["problems"]) == ([9], [])


def test_a_cut_tail_shows_against_the_site_s_own_manifests(asia: SiteFolder) -> None:
    edit(asia.egress_db, "DELETE FROM ledger WHERE seq > 4")
    problem = "the tail was cut: a witness has seen 6 rows, here are 4"
    where = "the site's own journal: the manifest of round 4 of generation 1"
    assert verification.verify(asia)["problems"] == [f"{problem} ({where})"]


def test_a_cut_tail_shows_against_a_witness_when_the_journal_was_changed_as_well(
    asia: SiteFolder, witness: Path
) -> None:
    edit(asia.egress_db, "DELETE FROM ledger WHERE seq > 4")
    forget(asia)
    assert verification.verify(asia)["problems"] == []
    (problem,) = verification.verify(asia, [witness])["problems"]
    assert problem.startswith("the tail was cut: a witness has seen 6 rows, here are 4")
    assert f"({witness} of europe: the manifest of round 4" in problem


def test_a_chain_that_was_written_anew_shows_against_journal_and_witness(asia: SiteFolder, witness: Path) -> None:
    rewrite_chain(asia.egress_db, lambda body: {**body, "peer": "mars"} if body.get("peer") else body)
    (problem,) = verification.verify(asia)["problems"]
    assert problem.startswith("row 6 is not the one that a witness has seen (the site's own journal: ")
    assert problem.endswith(", and 2 more)")
    forget(asia)
    assert verification.verify(asia)["problems"] == []
    assert len(verification.verify(asia, [witness])["problems"]) == 1


def test_a_ledger_that_is_gone_is_a_cut_tail(asia: SiteFolder) -> None:
    asia.egress_db.unlink()
    assert "here are 0" in verification.verify(asia)["problems"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: {**body, "type": "gift"}, "row 1 is neither an intent nor an outcome"),
        (lambda body: [body], "row 1 is neither an intent nor an outcome"),
        (lambda body: {**body, "intent": [3]} if body["type"] == "outcome" else body, "row 2 is neither"),
        (
            lambda body: {**body, "intent": 1} if body["type"] == "outcome" else body,
            "row 4 settles row 1 a second time",
        ),
        (lambda body: None if body["type"] == "intent" else body, "row 1 settles row 1, which is no transfer"),
    ],
)
def test_rows_that_say_nothing_are_named_although_their_chain_holds(
    asia: SiteFolder, change: Callable[[Any], Any], words: str
) -> None:
    forget(asia)
    rewrite_chain(asia.egress_db, change)
    assert verification.verify(asia)["problems"][0].startswith(words)


def test_a_forged_manifest_in_the_journal_is_a_problem_and_no_witness(asia: SiteFolder, books: Any) -> None:
    with contextlib.closing(books.journal("asia")) as journal:
        forged = books.signed("europe", Head(99, "ab" * 32), round=9)
        journal.append("manifest", 9, {"artifact": "ab" * 32, **to_base64(forged)})
        journal.append("manifest", 10, {"artifact": "ab" * 32, "body": "?"})
    first, second = verification.verify(asia)["problems"]
    assert "the manifest of round 9 is not this site's: the certificate names europe, not asia" in first
    assert "the manifest of round 10 is not this site's: it is no signed manifest in base64" in second


def test_a_restored_backup_is_told_beside_what_was_lost_with_it(asia: SiteFolder, witness: Path, books: Any) -> None:
    edit(asia.egress_db, "DELETE FROM ledger WHERE seq > 2")
    edit(asia.generation(1) / "journal.db", "DELETE FROM row WHERE round > 2")
    with contextlib.closing(books.journal("asia")) as journal:
        journal.append("regenerated", 1, {"generation": 2, "reported_by": "europe", "their_round": 4})
    assert verification.verify(asia)["problems"] == []
    document = verification.verify(asia, [witness])
    (problem,) = document["problems"]
    assert f"; the journal says that an older backup was restored on {now():%Y-%m-%d}" in problem
    assert [(row["generation"], row["reported_by"]) for row in document["restored"]] == [(2, "europe")]


# --- making a witness ------------------------------------------------------------------------------------------------
def test_a_witness_is_of_another_site_from_which_something_came(asia: SiteFolder, books: Any) -> None:
    europe = books.loopback.folder("europe")
    for name in ("europe", "mars", "asai"):
        with pytest.raises(UsageError, match=f"--of {name}: not another site of this federation"):
            verification.make_witness(europe, name)
    with pytest.raises(StateError, match="asia has received no manifest of europe yet"):
        verification.make_witness(asia, "europe")
    assert len(verification.make_witness(europe, "asia", everything=True).manifests) == 4


def test_a_witness_remembers_the_most_rows_of_each_generation(asia: SiteFolder, books: Any) -> None:
    """After a restored backup a site's newer manifests cover fewer rows than those of before, and
    later more.
    """
    edit(asia.egress_db, "DELETE FROM ledger WHERE seq > 2")
    europe = books.loopback.folder("europe")
    for round, expected in ((5, [6, 2]), (6, [6, 4]), (7, [6, 6]), (8, [6, 8])):
        books.send("asia", "europe", round=round, generation=2)
        newest = verification.make_witness(europe, "asia").manifests
        manifests = [decode_manifest(from_base64(manifest.model_dump()).body) for manifest in newest]
        assert [manifest.egress_count for manifest in manifests] == expected


# --- files -----------------------------------------------------------------------------------------------------------
def export(folder: SiteFolder, path: Path, **options: Any) -> Path:
    path.write_bytes(evidence_files.encode(verification.export(folder, **options)))
    return path


def test_an_export_is_proven_anywhere(asia: SiteFolder, witness: Path, tmp_path: Path) -> None:
    exported = export(asia, tmp_path / "asia.json")
    document = verification.verify_export(exported, asia.federation_toml, [witness])
    assert document.keys() == KEYS
    assert (document["rows"], document["problems"], document["vouched_rows"]) == (8, [], 6)
    assert document["unproven"] == ["that rows 7 to 8 are all: they are newer than every witness"]
    stranger = verification.verify_export(exported, None)
    assert "without --federation nobody vouches for the certificate" in stranger["unproven"][0]
    with pytest.raises(UsageError, match="--witness needs --federation"):
        verification.verify_export(exported, None, [witness])


def test_rounds_that_are_not_shown_leave_their_hashes(asia: SiteFolder, witness: Path, tmp_path: Path) -> None:
    exported = export(asia, tmp_path / "asia.json", rounds=(2, 3))
    rows = json.loads(exported.read_bytes())["rows"]
    assert [row["seq"] for row in rows] == [3, 4, 5, 6, 7, 8]
    assert [row["body"] is not None for row in rows] == [True] * 4 + [False] * 2
    document = verification.verify_export(exported, asia.federation_toml, [witness])
    assert (document["problems"], document["rows"], document["transfers"]) == ([], 4, 2)
    assert document["unproven"][:2] == [
        "rows 1 to 2, which are not in this file",
        "2 later rows, of which it holds nothing but the hash",
    ]


def test_an_export_since_a_time_begins_there(asia: SiteFolder, tmp_path: Path) -> None:
    with contextlib.closing(Ledger(asia.egress_db, read_only=True)) as ledger:
        since_s = ledger.transfers()[2]["time"]
    document = verification.verify_export(export(asia, tmp_path / "a", since_s=since_s), asia.federation_toml)
    assert (document["problems"], document["rows"], document["unproven"][0][:11]) == ([], 4, "rows 1 to 4")
    nothing = verification.verify_export(export(asia, tmp_path / "b", since_s=2e9), asia.federation_toml)
    assert (nothing["problems"], nothing["rows"], nothing["head"]["count"]) == ([], 0, 8)


def test_what_a_site_signs_of_a_broken_ledger_is_broken(asia: SiteFolder, witness: Path, tmp_path: Path) -> None:
    edit(asia.egress_db, "UPDATE ledger SET body = 'no json' WHERE seq = 3", "DELETE FROM ledger WHERE seq = 6")
    problems = verification.verify_export(export(asia, tmp_path / "asia.json"), asia.federation_toml, [witness])[
        "problems"
    ]
    assert problems[0] == "row 3 was changed, or a row before it was removed or moved"
    assert "row 6 is missing: row 7 follows row 5" in problems
    assert problems[-1].startswith("row 6 is not the one that a witness has seen")


def test_an_export_s_end_is_the_end_of_its_rows(asia: SiteFolder, books: Any, tmp_path: Path) -> None:
    """A site that signs fewer rows than it says is document out by its own words."""
    own, whole = books.identity("asia"), verification.export(asia)
    short = whole.model_copy(update={"rows": whole.rows[:-2], "signature": ""})
    signature = evidence_files.base64.b64encode(certificates.sign(own.key, short.signed_bytes())).decode()
    path = tmp_path / "asia.json"
    path.write_bytes(evidence_files.encode(short.model_copy(update={"signature": signature})))
    assert verification.verify_export(path, None)["problems"] == ["the rows end with row 6, the file says row 8"]


def test_an_export_of_another_federation_is_refused(asia: SiteFolder, tmp_path: Path) -> None:
    exported = export(asia, tmp_path / "asia.json")
    other = tmp_path / "federation.toml"
    other.write_text(asia.federation_toml.read_text().replace("rounds = 3", "rounds = 4"))
    with pytest.raises(FederationMismatch, match=r"asia\.json is of federation .*federation\.toml is "):
        verification.verify_export(exported, other)
    with pytest.raises(PeerMisbehaved, match="not an egress export"):
        verification.verify_export(other, None)


def test_a_site_whose_certificate_has_expired_still_answers_to_its_auditor(books: Any, tmp_path: Path) -> None:
    past, draft = now() - timedelta(days=40), books.loopback.folder("asia").federation_toml.read_text()
    authority = enrolment.Authority.create(tmp_path / "ca", draft[draft.index("name = ") :], "draft", now=past)
    folder = SiteFolder(tmp_path / "old", "trial", books.loopback.folder("asia").site)
    request = enrolment.request(folder, authority.federation, authority.federation_toml, now=past)
    bundle = authority.admit(request.pem, fingerprint=request.fingerprint, now=past, days=30).bundle
    enrolment.join(folder, Bundle.decode(bundle), now=past)
    document = verification.verify_export(export(folder, tmp_path / "asia.json"), folder.federation_toml)
    assert document["problems"] == []
    assert any("its certificate was not valid on" in text for text in document["unproven"])


def test_a_site_that_the_genesis_does_not_have_signs_without_the_genesis_round_key(
    asia: SiteFolder, tmp_path: Path
) -> None:
    (asia.pki / certificates.ROUND_KEY_FILE).unlink()
    with pytest.raises(CertificateError, match=certificates.ROUND_KEY_FILE):
        verification.export(asia)
    genesis = asia.federation_toml.read_text()
    asia.federation_toml.write_text(genesis.replace('name = "asia"', 'name = "africa"'))
    assert verification.verify_export(export(asia, tmp_path / "asia.json"), None)["problems"] == []


def test_when_an_export_was_made_is_told(asia: SiteFolder, tmp_path: Path) -> None:
    """An old one that is exported over again must not pass for today's."""
    began_s = int(now().timestamp())
    document = verification.verify_export(export(asia, tmp_path / "asia.json"), asia.federation_toml)
    assert began_s <= document["made"] <= now().timestamp()
    assert verification.verify(asia)["made"] is None


def test_a_site_is_no_witness_of_itself(asia: SiteFolder, witness: Path) -> None:
    document = json.loads(witness.read_bytes())
    witness.write_text(json.dumps({**document, "by": "asia"}))
    with pytest.raises(PeerMisbehaved, match="by asia itself"):
        verification.verify(asia, [witness])
