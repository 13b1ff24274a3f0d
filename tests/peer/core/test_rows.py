"""Rows: one dataclass a kind, the same bytes on disk as before, and damage is refused by name."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from peer.core import rows
from peer.core.artifacts import EvaluationResult, Source
from peer.core.roster import Sha256
from peer.core.rows import KINDS, MIGRATIONS, Cause, JournalRow, RowError, decode, upgrade
from peer.core.worker_protocol import to_json

PEER = Path(rows.__file__).parents[1]
DIGEST = Sha256("ab" * 32)
MODEL = {
    "kind": "model",
    "owner": "asia",
    "sha256": DIGEST,
    "bytes": 9,
    "steps": 3,
    "spec": {"name": "net"},
    "training_samples": None,
}
SOURCE = {"origin": "asia", "round": 3, "artifact": MODEL, "fallback": ""}
USED = {"site": "asia", "round": 3, "sha256": DIGEST, "fallback": "stale"}
TOLD = {"generation": 1, "round": 3, "sha256": DIGEST, "samples": 20, "metrics": {"auc": 0.5}, "unmeasured": ""}
GUEST = {"origin": "asia", "origin_generation": 1}
SIGNED = {"body": "Ym9keQ==", "signature": "c2ln", "certificate_der": "ZGVy"}

WRITTEN: dict[str, list[dict[str, Any]]] = {
    "began": [{"generation": 2}],
    "initialised": [
        {"state": "s", "artifact": MODEL, "samples": {"training": 4}, "threads": 1, "device": "cpu", "publish": 1}
    ],
    "joined": [{"publish": 5, "home": False}],
    "amended": [
        {"number": 2, "digest": DIGEST, "from_round": 7, "gone": ["asia"], "reopened": False},
        {"number": 0, "digest": None, "from_round": 1, "gone": [], "reopened": True, "epoch": DIGEST},
        {"number": 0, "digest": None, "from_round": 1, "gone": ["asia"], "reopened": False, "departs": True},
    ],
    "opened": [{"sources": []}, {"sources": [SOURCE]}, {"sources": [], "epoch": DIGEST}],
    "arrived": [{"source": SOURCE, "origin_generation": 1}],
    "chosen": [
        {"position": 0, "sources": [SOURCE], "missing": {"europe": "slow"}, "waited_s": 1.5, "below_quorum": False},
        {"position": 2, "sources": [], "missing": {}, "waited_s": None, "below_quorum": True},
    ],
    "trained": [
        {"position": 1, "stage": "train", "state": "s", "artifact": None, "metrics": {"loss": 0.5}, "threads": 2,
         "duration_s": 60.0, "publish": None},
        {"position": 1, "stage": "train", "state": "s", "artifact": None, "metrics": {}, "threads": 2,
         "duration_s": 60.0, "publish": None, "cohort": DIGEST},
    ],
    "aggregated": [{"position": 1, "state": "s", "sha256": DIGEST, "contributors": ["asia", "europe"]}],
    "evaluated": [
        {"metrics": {"auc": 0.9}},
        {"metrics": {"auc": 0.9}, "artifact": MODEL},
        {"metrics": {}, "kept_home": "not permitted"},
        {"metrics": {}, "kept_home": ""},
    ],
    "committed": [
        {"generation": 1, "sources": [USED], "contributors": ["asia"], "missing": {"europe": "silent"},
         "below_quorum": False, "skipped": [2, 3], "artifact_sha256": DIGEST, "aggregate_sha256": None,
         "metrics": {"loss": 0.5}, "threads": 1, "duration_s": 2.5, "state": "s", "publish": 5, "visiting": False},
        {"generation": 1, "sources": [], "contributors": ["europe"], "missing": {}, "cut": {"asia": "too far"},
         "below_quorum": False, "skipped": [], "artifact_sha256": None, "aggregate_sha256": None,
         "metrics": {}, "threads": 1, "duration_s": 2.5, "state": "s", "publish": None, "visiting": False},
    ],
    "compared": [{"site": "asia", "sha256": DIGEST, "agrees": True}],
    "skipped": [{"from": 2, "publish": None}, {"from": 2, "publish": 9, "proven": {"asia": 9}}],
    "published": [{"artifact": MODEL}],
    "retired": [{"kept": None}, {"kept": [3, "asia"]}],
    "discarded": [{"sha256": DIGEST}, {"sha256": DIGEST, "lost": True}],
    "regenerated": [{"generation": 2, "reported_by": "asia", "their_round": 4}],
    "adopted": [{"state": "", "artifact": None, "publish": 3}],
    "slot_lost": [{}],
    "isolated": [{}],
    "finished": [{}],
    "paused": [{}],
    "resumed": [{}],
    "left": [{"fault": "", "reason": ""}],
    "work_failed": [{"fault": "crash", "reason": "signal 9", "count": 2}],
    "reverted": [{"position": 0, "state": "s", "origins": ["asia"], "reason": "nan"}],
    "refused": [{"origin": "asia", "reason": "digest"}],
    "ignored": [{"event": "Trained", "phase": "done"}, {"event": "Trained", "phase": "done", "reason": "late"}],
    "report": [{"site": "asia", "report": TOLD}],
    "lapsed": [{"reasons": {"asia": "silent"}, "retired": True}],
    "guest": [{**GUEST, "source": SOURCE}],
    "mislaid": [{**GUEST, "fault": "memory", "reason": "none left"}],
    "measured": [{**GUEST, "report": TOLD}],
    "settled": [{**GUEST, "reason": "taken"}],
    "configured": [{"federation": DIGEST, "model.name": "resnet18", "data.input_size": [32, 32]}],
    "manifest": [{"artifact": DIGEST, **SIGNED}],
    "received": [
        {"peer": "asia", "purpose": "train", "kind": "model", "sha256": DIGEST, "bytes": 9, "outcome": "complete"},
        {"peer": "asia", "purpose": "train", "kind": "model", "sha256": DIGEST, "bytes": 9, "outcome": "complete",
         "seconds": 0.5, "egress_count": 4, "egress_head": "cd", **SIGNED},
    ],
    "equivocated": [{"origin": "asia", "sha256": [DIGEST, DIGEST], "manifests": [SIGNED, SIGNED]}],
    "denied": [{"caller": "asia", "call": "model for round 3", "reason": "not its turn"}],
    "spoken": [{"asia": {"messages": 3, "bytes": 400}}, {}],
    "sum": [
        {"step": "keyed", "key": "00ff"},
        {"step": "masked", "keys": {"asia": "00ff"}, "artifact": DIGEST, "commitments": {"asia": DIGEST}, "clipped": 2},
        {"step": "committed", "contributions": {"asia": DIGEST}},
        {"step": "opened"},
        {"step": "completed", "openings": {"asia": {"own": "00ff", "shared": {"europe": "ff"}}}},
        {"step": "abandoned", "reason": "left out by asia"},
    ],
}  # fmt: skip
"""Bodies of every kind as the program before this registry wrote them."""


def test_every_kind_is_here() -> None:
    assert WRITTEN.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_on_disk_comes_back_as_it_was(kind: str) -> None:
    for body in WRITTEN[kind]:
        row = decode(kind, 4, json.loads(json.dumps(body)))
        assert type(row) is KINDS[kind]
        assert (row.round, row.kind) == (4, kind)
        assert list(row.body()) == list(body)
        assert row.body() == body


def test_domain_values_are_typed() -> None:
    row = decode("arrived", 3, WRITTEN["arrived"][0])
    assert isinstance(row, rows.ArrivedRow)
    assert isinstance(row.source, Source)
    report = decode("report", 3, WRITTEN["report"][0])
    assert isinstance(report, rows.ReportRow)
    assert report.report == EvaluationResult(1, 3, DIGEST, 20, {"auc": 0.5})


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("opened", {}, "a row 'opened' of round 7: 'sources' is missing"),
        ("opened", {"sources": 3}, "a row 'opened' of round 7: sources: expected a list"),
        ("began", {"generation": "one"}, "a row 'began' of round 7: generation: expected int, got str"),
        ("began", [], "a row 'began' of round 7: 'generation' is missing"),
        ("discarded", {"sha256": "x"}, "a row 'discarded' of round 7: sha256: 'x' is not a SHA-256 digest"),
        ("spoken", {"asia": {"messages": 1}}, "a row 'spoken' of round 7: by_peer.asia.bytes is missing"),
        ("sung", {}, "no row is of kind 'sung'"),
    ],
)
def test_a_damaged_body_is_named(kind: str, body: Any, message: str) -> None:
    with pytest.raises(RowError) as failure:
        decode(kind, 7, body)
    assert str(failure.value).startswith(message)


def test_a_key_of_another_program_is_skipped() -> None:
    assert decode("began", 0, {"generation": 2, "mood": "good"}) == rows.BeganRow(0, generation=2)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThirdRow(JournalRow):
    kind = "third"
    version: ClassVar[int] = 3
    names: tuple[str, ...]


STEPS = {
    ("third", 1): lambda body: {"name": body["label"]},
    ("third", 2): lambda body: {"names": [body["name"]]},
}


def test_a_body_of_an_earlier_version_is_rewritten_step_by_step() -> None:
    options: dict[str, Any] = {"kinds": {"third": ThirdRow}, "migrations": STEPS}
    assert upgrade("third", 1, {"label": "a"}, **options) == {"names": ["a"]}
    assert upgrade("third", 2, {"name": "b"}, **options) == {"names": ["b"]}
    assert upgrade("third", 3, {"names": []}, **options) == {"names": []}
    with pytest.raises(RowError, match=r"a row 'third' of version 1: KeyError\('label'\)"):
        upgrade("third", 1, {}, **options)
    with pytest.raises(RowError, match="'third' is of version 4, this mhfl-peer knows 3: update mhfl-peer"):
        upgrade("third", 4, {}, **options)


def test_a_body_of_release_0_3_0_loses_the_lists_of_tensors_and_nothing_else() -> None:
    model = {**MODEL, "spec": {"name": "net", "tensors": [1]}}
    now = {"sources": [{**SOURCE, "artifact": model}], "epoch": DIGEST}
    then = {"sources": [{**SOURCE, "artifact": {**model, "tensors": [{"name": "w"}]}}], "epoch": DIGEST}
    assert upgrade("opened", 1, then) == now
    assert upgrade("opened", 2, now) == now
    with pytest.raises(RowError, match="'opened' is of version 3, this mhfl-peer knows 2: update mhfl-peer"):
        upgrade("opened", 3, now)


def test_every_earlier_version_has_its_migration() -> None:
    assert {(kind, version) for kind, form in KINDS.items() for version in range(1, form.version)} == set(MIGRATIONS)


def test_a_cause_is_plain_json() -> None:
    assert to_json(Cause(3, "PeerHeard", "asia")) == {"event_number": 3, "event": "PeerHeard", "peer": "asia"}


def test_no_module_writes_a_kind_without_its_row() -> None:
    for path in PEER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                named = isinstance(first, ast.Constant) and first.value in KINDS
                assert not (named and node.func.attr in ("persist", "append", "write", "apply")), (
                    f"{path}:{node.lineno}"
                )
