"""The files for auditors: signed, readable without a site's folder, and refused when they are wrong."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from peer.audit import evidence_files, verification
from peer.audit.evidence_files import Export, Witness
from peer.errors import DiskError, FederationMismatch, PeerMisbehaved, UsageError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.identity import certificates


@pytest.fixture
def exported(books: Any, tmp_path: Path) -> Path:
    """The export of asia's ledger, after three rounds."""
    for round in (1, 2, 3):
        books.send("asia", "europe", round=round)
    path = tmp_path / "asia.json"
    path.write_bytes(evidence_files.encode(verification.export(books.loopback.folder("asia"))))
    return path


def authority(loopback: LocalFederation) -> x509.Certificate:
    return certificates.pinned_authority(loopback.federation.ca_certificate)


def rewrite(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_an_export_can_be_checked_with_nothing_but_a_library_for_signatures(exported: Path) -> None:
    """As an auditor would do it, without a function of this program."""
    document = json.loads(exported.read_bytes())
    signature = base64.b64decode(document.pop("signature"))
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
    key = x509.load_pem_x509_certificate(document["certificate"].encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(signature, b"mhfl/egress/v1\x00" + canonical, ec.ECDSA(hashes.SHA256()))
    before = document["before"]["hash"]
    assert before == "0" * 64
    for number, row in enumerate(document["rows"], start=1):
        before = hashlib.sha256(f"{before}\n{row['body']}".encode()).hexdigest()
        assert (row["seq"], row["hash"]) == (number, before)
    assert document["head"] == {"count": 6, "hash": before}
    assert (document["site"], document["federation"]) == ("asia", "trial")


@pytest.mark.parametrize(
    "change",
    [
        {"made": 1},
        {"site": "europe"},
        {"rows": []},
        {"restored": [{"time": 1, "generation": 2, "reported_by": "europe"}]},
        {"signature": ""},
        {"signature": "no base64"},
        {"certificate": "no certificate"},
        {"certificate": "é"},
    ],
)
def test_an_export_that_was_changed_is_refused_by_name(
    enrolled: LocalFederation, exported: Path, change: dict[str, Any]
) -> None:
    export = evidence_files.read(rewrite(exported, **change), Export)
    with pytest.raises(PeerMisbehaved, match=r"asia\.json is refused: .*; have .* export it again"):
        evidence_files.verify_export(export, "asia.json", authorities=[authority(enrolled)])


def test_an_export_under_another_site_s_certificate_is_refused(books: Any, exported: Path) -> None:
    europe = certificates.certificate_pem(books.identity("europe").certificate).decode()
    export = evidence_files.read(rewrite(exported, certificate=europe), Export)
    with pytest.raises(PeerMisbehaved, match="the certificate names europe, not asia"):
        evidence_files.verify_export(export, "asia.json", authorities=[authority(books.loopback)])
    with pytest.raises(PeerMisbehaved, match="the signature does not fit"):
        evidence_files.verify_export(export, "asia.json", authorities=[])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an egress export: Invalid JSON"),
        (b"\xff\xfe", "not an egress export: Invalid JSON"),
        (b"[" * 100_000, "not an egress export: Invalid JSON"),
        (b"[]", "not an egress export: Input should be an object"),
        (b"{}", "not an egress export: mhfl_egress: Field required"),
        (b'{"mhfl_egress": 2}', "not an egress export: mhfl_egress: Input should be 1"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(PeerMisbehaved, match=f"file.json is {words}"):
        evidence_files.read(path, Export)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seq", 0), ("seq", "1"), ("seq", 1.5), ("hash", "ab"), ("body", 3), ("more", 1)],
)
def test_a_row_of_another_form_is_named(exported: Path, key: str, value: Any) -> None:
    rows = json.loads(exported.read_bytes())["rows"]
    rows[1][key] = value
    with pytest.raises(PeerMisbehaved, match=rf"not an egress export: rows\.1\.{key}: "):
        evidence_files.read(rewrite(exported, rows=rows), Export)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"nowhere\.json cannot be read: No such file.*; name the right file"):
        evidence_files.read(tmp_path / "nowhere.json", Witness)


# --- witnesses -------------------------------------------------------------------------------------------------------
@pytest.fixture
def witness(books: Any, exported: Path, tmp_path: Path) -> Path:
    """The witness file of europe about asia's ledger."""
    path = tmp_path / "from-europe.json"
    path.write_bytes(
        evidence_files.encode(verification.make_witness(books.loopback.folder("europe"), "asia", everything=True))
    )
    return path


def read_witness(loopback: LocalFederation, path: Path, of: str = "asia") -> evidence_files.WitnessEvidence:
    return evidence_files.read_witness(
        path, of=of, federation=loopback.federation.digest, authorities=[authority(loopback)]
    )


def test_a_witness_says_how_many_rows_it_has_seen(enrolled: LocalFederation, witness: Path) -> None:
    evidence = read_witness(enrolled, witness)
    assert evidence.by == "europe"
    assert [(signed.head.count, signed.round) for signed in evidence.signed_heads] == [(0, 1), (2, 2), (4, 3)]
    assert evidence.newest.head.count == 4


def test_a_witness_of_another_site_or_federation_is_refused_by_name(enrolled: LocalFederation, witness: Path) -> None:
    with pytest.raises(UsageError, match=r"is a witness of asia's ledger, not of europe's; ask for one with `--of eur"):
        read_witness(enrolled, witness, of="europe")
    with pytest.raises(FederationMismatch, match=r"is a witness of federation abababababab, not of "):
        read_witness(enrolled, rewrite(witness, federation_digest="ab" * 32))


def test_who_relabels_a_witness_finds_that_the_site_did_not_sign_that(books: Any, witness: Path) -> None:
    with pytest.raises(PeerMisbehaved, match="manifest 1 is refused: the certificate names asia, not europe; ask eur"):
        read_witness(books.loopback, rewrite(witness, of="europe"), of="europe")


@pytest.mark.parametrize("part", ["body", "signature", "certificate_der"])
def test_a_witness_can_invent_nothing(enrolled: LocalFederation, witness: Path, part: str) -> None:
    manifests = json.loads(witness.read_bytes())["manifests"]
    changed = bytearray(base64.b64decode(manifests[2][part]))
    changed[len(changed) // 2] ^= 1
    manifests[2][part] = base64.b64encode(changed).decode()
    with pytest.raises(
        PeerMisbehaved, match=r"manifest 3 is refused: .*; ask europe to write it again; that is no proof"
    ):
        read_witness(enrolled, rewrite(witness, manifests=manifests))
    manifests[2][part] = "no base64"
    with pytest.raises(PeerMisbehaved, match="manifest 3 is refused: it is no signed manifest in base64"):
        read_witness(enrolled, rewrite(witness, manifests=manifests))


def test_a_manifest_of_another_federation_of_the_same_ca_is_no_witness(books: Any, witness: Path) -> None:
    signed, own = books.signed("asia", evidence_files.Head(4, "ab" * 32), round=9), books.identity("asia")
    with pytest.raises(ValueError, match=r"its federation is .*, not abab"):
        evidence_files.read_manifest(signed, of="asia", federation="ab" * 32, authorities=[own.ca])


def test_an_empty_witness_proves_nothing(enrolled: LocalFederation, witness: Path) -> None:
    with pytest.raises(PeerMisbehaved, match="holds no manifest"):
        read_witness(enrolled, rewrite(witness, manifests=[]))


def test_rows_that_begin_with_the_first_begin_with_nothing(exported: Path) -> None:
    """Or whoever signs would leave out the first rows without saying so."""
    document = json.loads(exported.read_bytes())
    end = {"count": 0, "hash": document["head"]["hash"]}
    export = evidence_files.read(rewrite(exported, rows=[], before=end, head=end), Export)
    assert export.verify_chain().problems == ["the rows begin after row 0 with a hash that no ledger begins with"]


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("made", {"made": 1 << 53}),
        ("restored.0.time", {"restored": [{"time": 1 << 53, "generation": 2, "reported_by": "europe"}]}),
    ],
)
def test_a_time_that_no_calendar_has_is_named(exported: Path, key: str, change: dict[str, Any]) -> None:
    with pytest.raises(PeerMisbehaved, match=f"not an egress export: {key}: Input should be less than"):
        evidence_files.read(rewrite(exported, **change), Export)
