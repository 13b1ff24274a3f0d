"""Documents of a site's folder: keys, order, generations, beside a writer, from huge journals."""

import contextlib
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fakes.databases import edit
from fakes.sites import TRANSFER, append_rows
from peer.core.roster import SiteName
from peer.core.status_document import PeerStatus
from peer.core.sum_messages import SumCompleted, SumOpening
from peer.core.sum_rows import SumRow
from peer.documents.records import DOCUMENTS
from peer.errors import ConfigError, StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder, make_private
from peer.site.records import folder_documents
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

MANIFEST = {"body": "B" * 1500, "signature": "S" * 100, "certificate_der": "C" * 900}
ROUND = {
    "generation": 1, "sources": [], "contributors": ["asia"], "missing": {}, "below_quorum": False, "skipped": [],
    "artifact_sha256": None, "aggregate_sha256": None, "metrics": {"train_total": 0.5}, "threads": 1,
    "duration_s": 1.0, "state": "s", "publish": None, "visiting": False,
}  # fmt: skip
REGENERATED = ("regenerated", 3, {"generation": 4, "reported_by": "europe", "their_round": 3})


def documented(name: str) -> Any:
    """The keys of a document, or of each of its records."""
    kind = DOCUMENTS[name]
    return (typing.get_args(kind) or (kind,))[-1].__annotations__.keys()


class Disk:
    """A site's folder, with rows that a test writes in the daemon's place."""

    def __init__(self, folder: SiteFolder) -> None:
        self.folder = folder

    def journal(self, generation: int) -> Journal:
        make_private(self.folder.generation(generation))
        return Journal(self.folder.generation(generation) / "journal.db")

    def write(self, generation: int, *rows: tuple[str, int, dict[str, Any]]) -> None:
        append_rows(self.folder, *rows, generation=generation)

    def ledger(self) -> Ledger:
        return Ledger(self.folder.egress_db)

    def show(self, name: str, **arguments: Any) -> Any:
        return folder_documents.document(self.folder, name, arguments)


@pytest.fixture
def disk(enrolled: LocalFederation) -> Disk:
    return Disk(enrolled.folder("asia"))


def committed(round: int, generation: int = 1, **changes: Any) -> tuple[str, int, dict[str, Any]]:
    return ("committed", round, {**ROUND, "generation": generation, **changes})


def received(round: int, sha256: str) -> tuple[str, int, dict[str, Any]]:
    facts = {"peer": "europe", "purpose": "train", "kind": "model", "sha256": sha256, "bytes": 9, "seconds": 0.1}
    return ("received", round, {**facts, "outcome": "complete", **MANIFEST})


# --- a site that was never started -----------------------------------------------------------------------------------
def test_a_site_that_never_ran_has_documents_and_they_are_empty(disk: Disk) -> None:
    for name in ("rounds", "evaluation", "transfers", "egress", "events"):
        assert disk.show(name) == []
    status = folder_documents.status_when_down(disk.folder)
    assert (status["daemon"], status["phase"], status["committed"]) == ("down", "new", 0)
    assert re.fullmatch("[0-9a-f]{64}", status["digest"])


def test_an_unknown_document_is_refused(disk: Disk) -> None:
    with pytest.raises(ValueError, match="no document 'secrets'"):
        disk.show("secrets")


def test_a_start_that_was_killed_at_once_leaves_readable_files(disk: Disk) -> None:
    """Folders and files exist before their first row: they give empty documents, and no error."""
    folder = disk.folder.generation(1)
    make_private(folder / "artifacts")
    assert disk.show("events") == []
    for path in (folder / "journal.db", disk.folder.egress_db):
        path.touch()
    assert disk.show("events") == disk.show("transfers") == []
    edit(folder / "journal.db", "PRAGMA journal_mode = WAL")
    assert disk.show("rounds") == []
    assert folder_documents.status_when_down(disk.folder)["phase"] == "new"


def test_an_evaluation_is_read_from_the_journal(disk: Disk) -> None:
    report = {
        "generation": 1, "round": 2, "sha256": "ab" * 32, "samples": 20, "metrics": {"auc": 0.7}, "unmeasured": "",
    }  # fmt: skip
    disk.write(
        1,
        ("evaluated", 1, {"metrics": {"auc": 0.5, "samples": 30.0}}),
        ("lapsed", 1, {"reasons": {"europe": "silent"}, "retired": False}),
        ("evaluated", 2, {"metrics": {"auc": 0.6, "samples": 30.0}}),
        ("report", 2, {"site": "europe", "report": report}),
    )
    first, second = disk.show("evaluation")
    assert (first["round"], first["cells"]["europe"], first["global_test"]) == (1, {"reason": "silent"}, None)
    assert second["cells"]["europe"] == {"metrics": {"auc": 0.7}, "counts": {"samples": 20}}
    assert second["global_test"] == {"auc": pytest.approx(0.65)}


def test_the_best_round_is_read_from_the_journal_beside_the_newest(disk: Disk) -> None:
    def evaluated(number: int, value: float, **best: str) -> tuple[str, int, dict[str, Any]]:
        return "evaluated", number, {"metrics": {"validation_auc": value, "samples": 30.0}, **best}

    assert folder_documents.status_when_down(disk.folder)["best_round"] is None
    better = {"best_by": "validation_auc"}
    disk.write(1, evaluated(1, 0.6, **better), evaluated(2, 0.75, **better), evaluated(3, 0.7))
    best = {"metric": "validation_auc", "round": 2, "value": 0.75}
    assert folder_documents.status_when_down(disk.folder)["best_round"] == {
        **best, "newest_round": 3, "newest_value": 0.7,
    }  # fmt: skip


# --- generations -----------------------------------------------------------------------------------------------------
def test_generations_follow_each_other_in_every_document(disk: Disk) -> None:
    disk.write(1, ("began", 0, {"generation": 1}), committed(1), received(2, "1a" * 32), committed(2))
    ledger = disk.ledger()
    transfer = {**TRANSFER, "generation": 2, "sha256": "2b" * 32, "bytes": 8}
    ledger.settle(ledger.intend(**transfer), bytes=8, outcome="complete")
    ledger.close()
    disk.write(2, ("began", 0, {"generation": 2}), received(1, "3c" * 32), committed(1, 2))
    assert [(row["generation"], row["round"]) for row in disk.show("rounds")] == [(1, 1), (1, 2), (2, 1)]
    transfers = [(row["direction"], row["sha256"][:2]) for row in disk.show("transfers")]
    assert transfers == [("in", "1a"), ("out", "2b"), ("in", "3c")]
    kinds = "began committed received committed began received committed"
    assert " ".join(row["kind"] for row in disk.show("events")) == kinds
    newest = [(row["kind"], row["round"]) for row in disk.show("events", last=4)]
    assert newest == [("committed", 2), ("began", 0), ("received", 1), ("committed", 1)]
    assert [row["kind"] for row in disk.show("events", last=1)] == ["committed"]
    status = folder_documents.status_when_down(disk.folder)
    assert (status["generation"], status["committed"]) == (2, 1)


def test_a_new_generation_without_a_row_does_not_hide_the_old_one(disk: Disk) -> None:
    disk.write(1, ("began", 0, {"generation": 1}), committed(1), committed(2))
    disk.journal(2).close()
    assert folder_documents.status_when_down(disk.folder)["committed"] == 2


# --- events ----------------------------------------------------------------------------------------------------------
def test_events_leave_out_bulk_and_what_hardly_matters_and_keep_digests(disk: Disk) -> None:
    artifact = {"sha256": "ab" * 32, "owner": "asia", "spec": {"name": "resnet10"}}
    source = {"origin": "europe", "artifact": artifact}
    disk.write(
        1,
        ("published", 1, {"artifact": artifact}),
        ("manifest", 1, {"artifact": "ab" * 32, **MANIFEST}),
        ("ignored", 1, {"event": "Trained"}),
        ("chosen", 1, {"sources": [source]}),
    )
    slim = {"sha256": "ab" * 32, "owner": "asia"}
    shown = disk.show("events")
    assert [(row["kind"], row["body"]) for row in shown] == [
        ("published", {"artifact": slim}),
        ("chosen", {"sources": [{"origin": "europe", "artifact": slim}]}),
    ]
    assert shown[0].keys() == documented("events")
    everything = disk.show("events", everything=True)
    assert [row["kind"] for row in everything] == ["published", "manifest", "ignored", "chosen"]
    assert everything[1]["body"] == {"artifact": "ab" * 32}


def test_events_show_no_secret_of_a_sum(disk: Disk) -> None:
    """A journal has them, for a start after a crash; whoever is shown the rows, as in a bug report, needs none."""
    own, pair = "ab" * 32, "cd" * 32
    openings = {"europe": SumOpening(bytes.fromhex(own), {SiteName("africa"): bytes.fromhex(pair)})}
    row = SumRow.of(1, SumCompleted({SiteName(name): each for name, each in openings.items()}))
    disk.write(1, (row.kind, 1, row.body()))
    (shown,) = disk.show("events", everything=True)
    assert shown["body"]["step"] == "completed"
    stored = {"own": own, "shared": {"africa": pair}}
    assert shown["body"]["openings"] == {"europe": hashlib.sha256(json.dumps(stored).encode()).hexdigest()}
    assert own not in json.dumps(shown)
    assert pair not in json.dumps(shown)


# --- transfers -------------------------------------------------------------------------------------------------------
def test_egress_counts_what_left_and_what_may_have_left(disk: Disk) -> None:
    ledger = disk.ledger()
    for sent, outcome in ((100, "complete"), (30, "broken"), (None, ""), (None, "open")):
        intent = ledger.intend(**TRANSFER, bytes=100)
        if sent is not None:
            ledger.settle(intent, bytes=sent, outcome=outcome)
        if not outcome:
            ledger.close_open_intents()
    ledger.close()
    shown = disk.show("egress")
    sizes = [(row["bytes"], row["outcome"]) for row in shown]
    assert sizes == [(100, "complete"), (30, "broken"), (100, "unknown"), (100, "open")]
    assert shown == disk.show("transfers")
    assert all(list(row) == list(documented("transfers")) for row in shown)


def test_rounds_have_the_documented_keys_and_late_metrics(disk: Disk) -> None:
    disk.write(1, committed(1), ("evaluated", 1, {"metrics": {"auc": 0.75}}), committed(2))
    first, second = disk.show("rounds")
    assert first.keys() == documented("rounds")
    assert first["metrics"] == {"train_total": 0.5, "auc": 0.75}
    assert second["metrics"] == {"train_total": 0.5}


def test_rounds_say_whose_mean_is_the_same(disk: Disk) -> None:
    disk.write(1, committed(1), ("compared", 1, {"site": "europe", "sha256": "ab" * 32, "agrees": False}), committed(2))
    assert [record["agrees"] for record in disk.show("rounds")] == [{"europe": False}, {}]


# --- status ----------------------------------------------------------------------------------------------------------
def test_the_status_of_a_stopped_site_has_every_documented_key(disk: Disk) -> None:
    disk.write(1, ("began", 0, {"generation": 1}))
    status = folder_documents.status_when_down(disk.folder)
    assert status.keys() == documented("status")
    assert status["peers"].keys() == {"europe"}
    assert status["peers"]["europe"].keys() == PeerStatus.__annotations__.keys()
    assert 300 < status["certificate_days"] < 400
    json.dumps(status)


def test_the_status_of_a_stopped_site_tells_where_it_stood_and_why_it_stopped(disk: Disk) -> None:
    disk.write(
        1,
        ("configured", 0, {"federation": "ab" * 32}),
        ("began", 0, {"generation": 1}),
        ("refused", 0, {"origin": "europe", "reason": "of an earlier run"}),
        ("initialised", 0, {"state": "s", "samples": {"training": 4}, "weights": "2 of 3 tensors fit"}),
        ("began", 0, {"generation": 1}),
        ("opened", 1, {"sources": []}),
        committed(1),
        ("opened", 2, {"sources": []}),
        ("refused", 2, {"origin": "europe", "reason": "not its turn"}),
        ("left", 1, {"fault": "memory", "reason": "out of memory"}),
        ("spoken", 1, {}),
    )
    status = folder_documents.status_when_down(disk.folder)
    assert status["digest"] == "ab" * 32
    assert (status["round"], status["committed"], status["phase"]) == (2, 1, "down")
    assert (status["samples"], status["weights"]) == ({"training": 4}, "2 of 3 tensors fit")
    assert status["software"].startswith("mhfl-peer ")
    assert status["refusals"] == [{"site": "europe", "round": 2, "reason": "not its turn", "declined": False}]
    assert (status["failure"], status["departed"]) == ("memory: out of memory", "")


def test_the_status_of_a_site_that_was_expelled_says_so(disk: Disk) -> None:
    disk.write(1, ("began", 0, {"generation": 1}), ("left", 1, {"fault": "", "reason": "this site was expelled"}))
    status = folder_documents.status_when_down(disk.folder)
    assert (status["failure"], status["departed"]) == ("", "this site was expelled")


@pytest.mark.parametrize(
    ("rows", "generation", "committed_round", "phase"),
    [
        ([("skipped", 5, {"from": 2, "publish": None})], 1, 4, "down"),
        ([("skipped", 5, {"from": 2, "publish": None}), committed(5)], 1, 5, "down"),
        ([committed(3), REGENERATED, ("finished", 3, {})], 4, 3, "finished"),
    ],
)
def test_the_newest_rows_say_the_same_as_all_of_them(
    disk: Disk, rows: list[Any], generation: int, committed_round: int, phase: str
) -> None:
    disk.write(1, ("began", 0, {"generation": 1}), committed(1), *rows)
    status = folder_documents.status_when_down(disk.folder)
    assert (status["generation"], status["committed"], status["phase"]) == (generation, committed_round, phase)


@pytest.mark.parametrize("text", ["rounds = [", "rounds = 3", "\xff", '[method]\nname = "x"\n'])
def test_a_federation_toml_that_is_broken_is_named(disk: Disk, text: str) -> None:
    disk.folder.federation_toml.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"federation\.toml"):
        folder_documents.status_when_down(disk.folder)


def test_a_federation_toml_that_is_gone_is_named(disk: Disk) -> None:
    disk.folder.federation_toml.unlink()
    with pytest.raises(ConfigError, match=r"federation\.toml cannot be read: No such file"):
        folder_documents.status_when_down(disk.folder)


def test_a_certificate_that_is_gone_is_no_reason_not_to_answer(disk: Disk) -> None:
    (disk.folder.pki / "cert.pem").write_text("no certificate")
    assert folder_documents.status_when_down(disk.folder)["certificate_days"] is None


# --- trouble ---------------------------------------------------------------------------------------------------------
def test_everything_can_be_read_while_the_daemon_writes(disk: Disk) -> None:
    journal, ledger = disk.journal(1), disk.ledger()
    for round in range(1, 4):
        journal.append(*committed(round))
        ledger.intend(**{**TRANSFER, "round": round, "bytes": 1})
        assert [row["round"] for row in disk.show("rounds")] == list(range(1, round + 1))
        assert [row["round"] for row in disk.show("egress")] == list(range(1, round + 1))
        assert folder_documents.status_when_down(disk.folder)["committed"] == round
    other = sqlite3.connect(disk.folder.generation(1) / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # a writer in the middle of a row
    other.execute("INSERT INTO row (time_s, kind, round, body) VALUES (0, 'finished', 3, '{}')")
    assert folder_documents.status_when_down(disk.folder)["phase"] == "down"
    other.execute("ROLLBACK")
    for database in (other, journal, ledger):
        database.close()


def test_a_journal_that_is_damaged_is_named(disk: Disk) -> None:
    disk.write(1, *(committed(round) for round in range(1, 200)))
    path = disk.folder.generation(1) / "journal.db"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    for name in ("rounds", "events"):
        with pytest.raises(StateError, match=r"journal\.db is damaged"):
            disk.show(name)
    with pytest.raises(StateError, match=r"journal\.db is damaged"):
        folder_documents.status_when_down(disk.folder)


def test_a_home_of_any_name_can_be_read(tmp_path: Path) -> None:
    for name in ("per%20cent", "question?mode=memory", "hash#tag"):
        folder = tmp_path / name
        folder.mkdir()
        with contextlib.closing(Journal(folder / "journal.db")) as journal:
            journal.append("began", 0, {})
        with contextlib.closing(Journal(folder / "journal.db", read_only=True)) as again:
            assert not again.empty()


INSERT_ROW = "INSERT INTO row (time_s, kind, round, body) VALUES (?, ?, ?, ?)"


def insert(path: Path, statement: str, rows: Iterable[Any]) -> None:
    """Insert many rows without a sync for each."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(statement, rows)
        connection.commit()


# --- size ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def huge(disk: Disk) -> Disk:
    """100,000 rows of 11,000 rounds, of a federation with tiny models."""
    path = disk.folder.generation(1) / "journal.db"
    disk.journal(1).close()
    artifact = {"kind": "model", "owner": "asia", "bytes": 9, "steps": 1, "spec": {}}
    source = {"origin": "europe", "round": 1, "fallback": "", "artifact": {**artifact, "sha256": "ab" * 32}}
    bodies = {
        "opened": {"sources": []},
        "received": received(1, "ab" * 32)[2],
        "arrived": {"source": source, "origin_generation": 1},
        "chosen": {"position": 0, "sources": [source], "missing": {}, "waited_s": 1.0, "below_quorum": False},
        "trained": {"position": 1, "state": "s", "artifact": source["artifact"], "metrics": {}},
        "committed": ROUND,
        "published": {"artifact": source["artifact"]},
        "manifest": {"artifact": "ab" * 32, **MANIFEST},
        "discarded": {"sha256": "ab" * 32},
    }
    texts = {kind: json.dumps(body) for kind, body in bodies.items()}
    insert(path, INSERT_ROW, ((0.0, kind, round, text) for round in range(1, 11_112) for kind, text in texts.items()))
    return disk


def cost(action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """The action's result, and how many documents of JSON it reads."""
    loads = mock.Mock(wraps=json.loads)
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", loads)
        return action(), loads.call_count


def test_a_huge_journal_is_read_as_far_as_is_asked(huge: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    status, status_rows = cost(lambda: folder_documents.status_when_down(huge.folder), monkeypatch)
    assert status["committed"] == 11_111
    assert status_rows < 100
    shown, events_rows = cost(lambda: huge.show("events", last=50), monkeypatch)
    assert len(shown) == 50
    assert events_rows < 1000
    assert len(huge.show("rounds")) == 11_111
    assert len(huge.show("transfers")) == 11_111


# --- what a document costs inside the daemon --------------------------------------------------------------------------
ROUNDS, PEERS, MANIFEST_BYTES = 300, 9, 14 << 10
COST = """
import re, sys
from pathlib import Path

from peer.core.roster import SiteName
from peer.site.config.site_folder import SiteFolder
from peer.site.records.folder_documents import document
from peer.daemon import control_server

folder = SiteFolder(Path(sys.argv[1]), sys.argv[2], SiteName(sys.argv[3]))


def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])


Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before_kib = peak_kib()
records = document(folder, sys.argv[4], {})
control_server._line(records)
print(len(records), peak_kib() - before_kib)
"""


@pytest.fixture
def large_manifests(disk: Disk) -> Disk:
    """300 rounds with 9 peers; each sent and received an artifact with a manifest of 14 KiB."""
    disk.journal(1).close()
    disk.ledger().close()
    peers = [f"peer{index}" for index in range(PEERS)]
    manifest = {**MANIFEST, "body": "B" * (MANIFEST_BYTES * 4 // 3)}
    journal: list[tuple[float, str, int, str]] = []
    ledger: list[dict[str, Any]] = []
    for round in range(1, ROUNDS + 1):
        for peer in peers:
            facts = {"peer": peer, "purpose": "train", "kind": "model", "sha256": f"{round:064x}", "bytes": 9}
            row = {**facts, "seconds": 0.1, "outcome": "complete", **manifest}
            journal.append((float(round), "received", round, json.dumps(row)))
            ledger.append({"type": "intent", "time": float(round), "generation": 1, "round": round, **facts})
            outcome = {"intent": len(ledger), "bytes": 9, "outcome": "complete"}
            ledger.append({"type": "outcome", "time": float(round), **outcome})
        sources = [{"site": peer, "round": round, "sha256": "ab" * 32, "fallback": ""} for peer in peers]
        body = {**ROUND, "sources": sources}
        journal.append((float(round), "committed", round, json.dumps(body)))
    insert(disk.folder.generation(1) / "journal.db", INSERT_ROW, journal)
    insert(
        disk.folder.egress_db, "INSERT INTO ledger (body, hash) VALUES (?, '')", [(json.dumps(row),) for row in ledger]
    )
    return disk


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from /proc")
def test_documents_cost_the_daemon_little_memory(large_manifests: Disk) -> None:
    folder = large_manifests.folder
    for name, count in (("transfers", 2 * ROUNDS * PEERS), ("rounds", ROUNDS)):
        where = (str(folder.home), folder.federation, folder.site, name)
        finished = subprocess.run([sys.executable, "-c", COST, *where], capture_output=True, text=True, timeout=60)
        assert finished.returncode == 0, finished.stderr
        records, kib = map(int, finished.stdout.split())
        assert records == count
        assert kib < 15 << 10, name
