"""`evidence`, as an operator and an auditor type it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fakes.cli import refused, run
from peer.core import rows
from peer.core.roster import Sha256
from peer.documents.commands import DOCUMENTS
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import decode_manifest, encode_manifest, sign_manifest, to_base64

ONE, OTHER = Sha256("ab" * 32), Sha256("cd" * 32)


@pytest.fixture
def proven(books: Any) -> LocalFederation:
    """Europe's journal has a proof against asia."""
    template = decode_manifest(books.send("asia", "europe", round=5).body)
    manifests = [replace(template, artifact=replace(template.artifact, sha256=sha256)) for sha256 in (ONE, OTHER)]
    signed = [sign_manifest(books.identity("asia"), encode_manifest(manifest)) for manifest in manifests]
    proof = {"sha256": (ONE, OTHER), "manifests": tuple(map(to_base64, signed))}
    with contextlib.closing(books.journal("europe")) as journal:
        journal.write(rows.EquivocatedRow(5, origin=template.origin, **proof))
    loopback: LocalFederation = books.loopback
    return loopback


def call(loopback: LocalFederation, *words: Any) -> Result:
    return run("--home", loopback.home, "evidence", *words)


def test_the_proofs_of_a_site_are_listed_exported_and_verified(proven: LocalFederation, tmp_path: Path) -> None:
    out = tmp_path / "proofs.json"
    document = json.loads(call(proven, "--site", "europe", "--out", out, "--json").stdout)
    assert set(document) == set(DOCUMENTS["evidence"].__annotations__)
    (proof,) = document["proofs"]
    assert (proof["site"], proof["round"], proof["sha256"]) == ("asia", 5, [ONE, OTHER])
    federation = proven.folder("asia").federation_toml
    verified = json.loads(call(proven, "--verify", out, "--federation", federation, "--json").stdout)
    assert verified["proofs"] == document["proofs"]
    assert "asia" in call(proven, "--site", "asia", "--verify", out).stdout
    again = call(proven, "--site", "europe", "--export", out)
    assert again.exit_code, "no file is overwritten"


def test_a_site_without_proofs_says_so(proven: LocalFederation) -> None:
    assert "no site is known" in call(proven, "--site", "asia").stdout


def test_a_file_that_proves_nothing_has_an_exit_code_of_its_own(proven: LocalFederation, tmp_path: Path) -> None:
    out = tmp_path / "proofs.json"
    call(proven, "--site", "europe", "--export", out)
    document = json.loads(out.read_text())
    document["proofs"][0][1] = document["proofs"][0][0]
    out.write_text(json.dumps(document))
    evidence = ("--home", proven.home, "evidence")
    assert "proves nothing" in refused("PeerMisbehaved", *evidence, "--site", "asia", "--verify", out)
    assert "--federation goes with --verify" in refused("UsageError", *evidence, "--federation", out)
