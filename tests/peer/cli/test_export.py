"""`export` as a person and a script see it: files, included sites, comparisons."""

import json
from pathlib import Path

from fakes.cli import drawn, refused
from fakes.sites import INITIALISED, append_rows
from peer.cli.export import _render
from peer.lab.demo.local_federation import LocalFederation

EXPORT = ("export", "--site", "asia")
DOCUMENT = {
    "site": "asia",
    "generation": 1,
    "round": 3,
    "task": "classification",
    "format": "onnx",
    "out": "asia.onnx",
    "card": "asia.onnx.md",
    "sha256": "ab" * 32,
    "bytes": 1234,
    "network": "resnet10",
    "parameters": 7,
    "included": ["europe"],
    "left_out": {"africa": "its manifest does not say reexport = true"},
    "checks": [
        {"what": "one beside another", "difference": 1.2e-7, "tolerance": 1e-4, "samples": 4, "source": "test samples"}
    ],
    "licence": "CC-BY-4.0",
    "choice": "",
}


def test_an_untrained_site_is_refused(at_home: LocalFederation, tmp_path: Path) -> None:
    append_rows(at_home.folder("asia"), INITIALISED)
    problem = refused("StateError", *EXPORT, "--format", "onnx", "--out", tmp_path / "asia.onnx", "--json")
    assert "the model of asia is untrained: no round is finished" in problem
    assert not (tmp_path / "asia.onnx").exists()


def test_an_unknown_format_and_an_empty_licence_are_refused(at_home: LocalFederation, tmp_path: Path) -> None:
    unknown = refused("UsageError", *EXPORT, "--format", "ts", "--out", tmp_path / "asia.ts")
    assert "'ts' is not one of 'bundle', 'pt2', 'onnx'" in unknown
    empty = refused("UsageError", *EXPORT, "--format", "onnx", "--out", tmp_path / "asia.onnx", "--licence", " ")
    assert "--licence is empty" in empty


def test_people_see_what_is_in_it_and_what_is_not() -> None:
    lines = [" ".join(line.split()) for line in drawn(_render(json.loads(json.dumps(DOCUMENT)))).splitlines()]
    assert "model resnet10 of asia, after round 3" in lines
    assert "networks of asia, europe" in lines
    best = {**DOCUMENT, "choice": "the best of its evaluated rounds by validation_auc, 0.7500"}
    text = " ".join(drawn(_render(best), width=160).split())
    assert "after round 3, the best of its evaluated rounds by validation_auc, 0.7500" in text
    assert "left out africa: its manifest does not say reexport = true" in lines
    assert "one beside another 1.2e-07 0.0001 4 test samples" in lines
