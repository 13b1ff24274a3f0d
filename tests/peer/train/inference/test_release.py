"""An export: the other sites' consent, the row of the ledger, and no trace of a failed one."""

import base64
import contextlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import INITIALISED, TRANSFER, append_rows, begin_generation, committed, replace_module
from peer.core.artifacts import Artifact, Source, TensorSpec
from peer.core.messages import Manifest
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import to_json
from peer.errors import DiskError, StateError, UsageError, WorkerFailed
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import encode_manifest
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records import folder_documents
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.train.inference.model_state import read_newest
from peer.train.inference.release import collect_consent, export_model

STATE = "round-000002/train"
CARD = {"network": {"network": {"name": "resnet10"}}, "parameters": 7, "checks": []}


def source(origin: str, number: int) -> Source:
    """A head of a site."""
    spec = {"name": "resnet10", "spatial_dims": 1, "in_channels": 1, "classes": 2, "hyper": {}}
    artifact = Artifact("head", SiteName(origin), Sha256(f"{number:02x}" * 32), 90, 1, spec)
    return Source(SiteName(origin), 1, artifact)


def received(source: Source, **manifest: Any) -> tuple[str, int, dict[str, Any]]:
    """The row of an artifact that came, with its manifest."""
    about = ("dflmoe", source.origin, source.round, source.artifact)
    signed = Manifest(Sha256("cd" * 32), 1, *about, (TensorSpec("fc.weight", "F32", (2,)),), **manifest)
    body = base64.b64encode(encode_manifest(signed)).decode()
    return "received", 1, {"peer": source.origin, "sha256": source.artifact.sha256, "body": body}


SAMPLES = {"training": 40, "validation": 10, "test": 20, "unreadable": 0}
ROWS = (
    ("initialised", 0, {**INITIALISED[2], "samples": SAMPLES}),
    committed(1, STATE),
    ("evaluated", 2, {"metrics": {"auc": 0.75}}),
    committed(2, STATE),
    ("evaluated", 3, {"metrics": {"auc": 0.25}}),
)


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    """Asia's folder after two rounds, in the middle of a third."""
    folder = enrolled.folder("asia")
    append_rows(folder, *ROWS)
    return folder


Answering = Callable[[str], Path]


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answering:
    """A stand-in for the process with torch: it stores the request and runs a script."""

    def stand_in(does: str) -> Path:
        request_file = tmp_path / "request.json"
        program = (
            f"import json, pathlib, sys\nrequest = json.load(sys.stdin)\nout = pathlib.Path(request['out'])\n{does}\n"
        )
        program += f"open({str(request_file)!r}, 'w').write(json.dumps(request))\n"
        replace_module("peer.train.inference.export.process", program, tmp_path, monkeypatch)
        return request_file

    return stand_in


WRITES = f"""
out.write_bytes(b"graph")
out.with_name(out.name + ".md").write_text("card")
print(json.dumps({{"card": {CARD!r}, "sha256": "ab" * 32, "bytes": 5}}))
"""


def exported(folder: SiteFolder, out: Path, form: str = "onnx") -> dict[str, Any]:
    federation = FederationConfig.load(folder.federation_toml)
    state = read_newest(folder, federation, SiteConfig.load(folder.site_toml))
    return export_model(folder, federation, state, form=form, out=out, licence="CC-BY-4.0")


def rows(folder: SiteFolder) -> list[dict[str, Any]]:
    with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
        assert ledger.verify() == []
        return ledger.transfers()


# --- the file and the ledger ----------------------------------------------------------------------------------------
def test_a_file_its_card_and_a_row_of_the_ledger(folder: SiteFolder, answering: Answering, tmp_path: Path) -> None:
    request_file, out = answering(WRITES), tmp_path / "taken" / "asia.onnx"
    folder.site_toml.write_text('contact = "radiology, ext. 12"\n' + folder.site_toml.read_text())
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        ledger.settle(ledger.intend(**TRANSFER, bytes=7), bytes=7, outcome="complete")
        head = ledger.head
    document = exported(folder, out)
    assert (out.read_bytes(), (tmp_path / "taken" / "asia.onnx.md").read_text()) == (b"graph", "card")
    assert out.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in out.parent.iterdir()) == ["asia.onnx", "asia.onnx.md"]
    assert document == {
        "site": "asia", "generation": 1, "round": 2, "task": "classification", "format": "onnx", "out": str(out),
        "card": f"{out}.md", "sha256": "ab" * 32, "bytes": 5, "network": "resnet10", "parameters": 7, "included": [],
        "left_out": {}, "checks": [], "licence": "CC-BY-4.0", "choice": "",
    }  # fmt: skip
    _, row = rows(folder)
    assert (row["purpose"], row["kind"], row["peer"], row["outcome"]) == ("export", "onnx", "", "complete")
    assert (row["sha256"], row["bytes"], row["sent_bytes"], row["round"], row["generation"]) == ("ab" * 32, 5, 5, 2, 1)
    facts = json.loads(request_file.read_text())["facts"]
    assert facts["metrics"] == {"round": 2, "site": {"auc": 0.75}}
    assert facts["contributors"][-1] == {"round": 2, "contributors": ["asia"], "missing": ["europe"]}
    assert facts["federation"]["digest"] == FederationConfig.load(folder.federation_toml).digest
    assert (facts["method"]["name"], facts["rounds"], facts["licence"]) == ("fedskd", 3, "CC-BY-4.0")
    assert facts["precision"] == "fp32"
    assert facts["contact"] == "radiology, ext. 12"
    assert facts["ledger"] == {"rows": head.count, "hash": head.hash}
    assert facts["samples"] == SAMPLES


def test_an_export_is_among_what_left_and_no_part_of_a_rounds_bound(
    folder: SiteFolder, answering: Answering, tmp_path: Path
) -> None:
    answering(WRITES)
    exported(folder, tmp_path / "asia.onnx")
    for kind in ("egress", "transfers"):
        (row,) = folder_documents.document(folder, kind, {})
        assert (row["direction"], row["peer"], row["purpose"], row["kind"]) == ("out", "", "export", "onnx")
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        assert ledger.bytes_in_round(1, 2) == 0


@pytest.mark.parametrize("name", ["asia.onnx", "asia.onnx.md"])
def test_what_exists_is_not_written_over(folder: SiteFolder, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(StateError, match=f"{name} exists"):
        exported(folder, tmp_path / "asia.onnx")
    assert (tmp_path / name).read_text() == "mine"


def test_a_name_of_another_format_is_refused(folder: SiteFolder, tmp_path: Path) -> None:
    for form, name, ending in (("onnx", "a.pt2", ".onnx"), ("pt2", "a", ".pt2")):
        with pytest.raises(UsageError, match=f"{name}: a file of format {form} ends in {ending}"):
            exported(folder, tmp_path / name, form)
    with pytest.raises(UsageError, match=r"a\.onnx: a bundle is a folder, or ends in \.zip"):
        exported(folder, tmp_path / "a.onnx", "bundle")


def test_what_fails_leaves_nothing_and_no_row(folder: SiteFolder, answering: Answering, tmp_path: Path) -> None:
    answering("out.write_bytes(b'half'); sys.exit('rnn cannot be exported to onnx: no operator')")
    with pytest.raises(WorkerFailed, match="the export failed: rnn cannot be exported to onnx: no operator"):
        exported(folder, tmp_path / "taken" / "asia.onnx")
    assert list((tmp_path / "taken").iterdir()) == []
    assert not folder.egress_db.exists()


def test_what_came_to_its_place_meanwhile_is_not_written_over(
    folder: SiteFolder, answering: Answering, tmp_path: Path
) -> None:
    answering(WRITES + f"pathlib.Path({str(tmp_path)!r}, 'asia.onnx').mkdir()")  # somebody else's, meanwhile
    with pytest.raises(StateError, match=r"asia\.onnx exists"):
        exported(folder, tmp_path / "asia.onnx")
    assert rows(folder) == []
    assert not (tmp_path / "asia.onnx.md").exists()


def test_a_folder_that_cannot_be_written_is_named(folder: SiteFolder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="file"):
        exported(folder, tmp_path / "file" / "asia.onnx")


# --- consent --------------------------------------------------------------------------------------------------------
def test_only_what_its_manifest_allows_may_be_taken_along(tmp_path: Path) -> None:
    agrees, undecided, unknown, broken, own = (
        source(site, number) for number, site in enumerate(("africa", "europe", "oceania", "antarctica", "asia"))
    )
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        journal.append(*received(agrees, reexport=True))
        journal.append(*received(undecided))
        journal.append("received", 1, {**received(broken)[2], "body": base64.b64encode(b"\xff").decode()})
        consent = collect_consent(journal, (agrees, undecided, unknown, broken, own), own="asia")
    assert consent.sources == (agrees, own)
    reasons = dict(consent.left_out)
    assert reasons["europe"] == "its manifest does not say reexport = true"
    assert reasons["oceania"] == "no manifest of it is in the journal"
    assert reasons["antarctica"].startswith("its manifest cannot be read: ")


def test_the_newest_manifest_of_the_same_head_counts(tmp_path: Path) -> None:
    head = source("europe", 1)
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        journal.append(*received(head, reexport=True))
        journal.append(*received(head))
        assert collect_consent(journal, (head,), own="asia").sources == ()


def mixing(folder: SiteFolder, head: Source, **manifest: Any) -> None:
    """Make asia's federation one of dFLMoE, with a round in which europe's head was used."""
    federation_table = tomllib.loads(folder.federation_toml.read_text())
    head_keys = {key: value for key, value in federation_table.items() if isinstance(value, str | int)}
    roster = [{"name": site["name"]} for site in federation_table["site"]]
    document = {**head_keys, "task": federation_table["task"], "method": {"name": "dflmoe"}, "site": roster}
    folder.federation_toml.write_text(toml.text(document))
    chosen = {"sources": to_json((head,)), "missing": {}, "position": 1, "below_quorum": False, "waited_s": None}
    begin_generation(folder, ROWS[0], received(head, **manifest), ("chosen", 1, chosen), committed(1, STATE))


@pytest.mark.parametrize("agrees", [True, False])
def test_heads_of_sites_that_agree_are_asked_for_and_others_named(
    folder: SiteFolder, answering: Answering, tmp_path: Path, agrees: bool
) -> None:
    head = source("europe", 3)
    mixing(folder, head, reexport=agrees)
    request_file = answering(WRITES)
    document = exported(folder, tmp_path / "asia.onnx")
    request = json.loads(request_file.read_text())
    assert request["sources"] == (to_json((head,)) if agrees else [])
    left_out = {} if agrees else {"europe": "its manifest does not say reexport = true"}
    assert document["left_out"] == request["facts"]["left_out"] == left_out
