"""The journal: acknowledged rows stay, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.databases import edit, write_as_0_3_0
from peer import errors
from peer.core.rows import BeganRow, decode
from peer.core.site_memory import REMEMBERED, recover
from peer.site.records.journal import SCHEMA, SCHEMA_VERSION, Journal, open_database

ROWS = (
    ("began", 0, {"generation": 1}),
    ("initialised", 0, {"state": "s", "artifact": None, "samples": {}, "threads": 1, "device": "cpu", "publish": None}),
    ("opened", 1, {"sources": []}),
)
WRITER = """
import sys
from pathlib import Path
from peer.site.records.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = 0
while True:
    journal.append("row", number, {"text": "x" * 200})
    print(number, flush=True)
    number += 1
"""
FILLER = """
import resource, sys
from pathlib import Path
from peer import errors
from peer.site.records.journal import Journal
journal = Journal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
written = 0
try:
    while written < 10_000:
        journal.append("row", written, {"text": "x" * 200})
        written += 1
except errors.DiskError as error:
    print(written, error.message, error.remedy, sep="|")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def run(source: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", source, str(path)], stdout=subprocess.PIPE, text=True)


def test_rows_come_back_in_order_with_their_bodies(path: Path) -> None:
    journal = Journal(path)
    assert journal.empty()
    journal.append("began", 0, {"generation": 1})
    journal.append("committed", 1, {"sources": [], "metrics": {"dice": 0.5}, "wer": "Zürich"})
    assert list(journal.rows()) == [
        ("began", 0, {"generation": 1}),
        ("committed", 1, {"sources": [], "metrics": {"dice": 0.5}, "wer": "Zürich"}),
    ]
    assert not journal.empty()
    journal.close()
    assert len(list(Journal(path).rows())) == 2


def test_records_can_be_narrowed(path: Path) -> None:
    journal = Journal(path)
    for number in range(6):
        journal.append("even" if number % 2 == 0 else "odd", number, {})
    assert [row["round"] for row in journal.records()] == [0, 1, 2, 3, 4, 5]
    assert [row["round"] for row in journal.records(("odd",))] == [1, 3, 5]
    assert [row["round"] for row in journal.records(without=("odd",))] == [0, 2, 4]
    assert [row["round"] for row in journal.records(("odd", "even"), last=2)] == [4, 5]
    assert list(journal.newest(("even", "odd", "never"))) == [("even", 4, {}), ("odd", 5, {})]
    assert [row["seq"] for row in journal.records(last=1)] == [6]
    assert journal.records(last=1)[0]["time"] > 1_700_000_000
    assert [round for _, round, _ in journal.rows(("even",))] == [0, 2, 4]


def test_who_counts_along_gets_each_row_of_its_kinds_once(path: Path) -> None:
    journal = Journal(path)
    for number in range(4):
        journal.append("even" if number % 2 == 0 else "odd", number, {"n": number})
    first = next(journal.since(0, ("odd", "none")))
    assert (first["kind"], first["round"], first["body"]) == ("odd", 1, {"n": 1})
    assert first["time"] > 0
    assert [row["round"] for row in journal.since(first["seq"], ("odd",))] == [3]
    assert list(journal.since(4, ("even", "odd"))) == []
    journal.close()


def test_only_its_user_may_read_it(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:  # open, so that the write-ahead log is there
        journal.append("began", 0, {})
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_every_acknowledged_row_survives_a_kill(path: Path) -> None:
    for _ in range(3):
        with run(WRITER, path) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(25)]
            writer.kill()
            acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        journal = Journal(path)
        rounds = [round for _, round, _ in journal.rows()]
        journal.close()
        last = rounds[-1]
        assert last in (acknowledged[-1], acknowledged[-1] + 1), "at most one row more than was acknowledged"
        assert rounds[-last - 1 :] == list(range(last + 1))


def test_a_reader_sees_whole_rows_while_another_process_writes(path: Path) -> None:
    with run(WRITER, path) as writer:
        assert writer.stdout is not None
        seen = []
        for _ in range(20):
            acknowledged = int(writer.stdout.readline())
            reader = Journal(path, read_only=True)
            rounds = [round for _, round, _ in reader.rows()]
            reader.close()
            assert rounds == list(range(len(rounds)))
            assert len(rounds) > acknowledged
            seen.append(len(rounds))
        assert seen == sorted(seen)
        writer.kill()
    reader = Journal(path, read_only=True)
    assert len(list(reader.rows())) >= seen[-1], "the writer is dead, and its log was not folded in"


def test_a_reader_writes_nothing(path: Path) -> None:
    writer = Journal(path)  # open to the end: the last one who closes folds the log into the file
    writer.append("began", 0, {})
    before = path.read_bytes()
    reader = Journal(path, read_only=True)
    with pytest.raises(errors.DiskError, match="readonly"):
        reader.append("began", 0, {})
    reader.close()
    assert path.read_bytes() == before
    writer.close()


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    Journal(path).close()
    edit(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for read_only in (False, True):
        with pytest.raises(errors.StateError, match=rf"newer mhfl-peer \(schema {SCHEMA_VERSION + 1}.*; update"):
            Journal(path, read_only=read_only)


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    stored: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return stored


def write(path: Path) -> None:
    """Write a journal of the present schema; its rows are in the write-ahead log."""
    with contextlib.closing(Journal(path)) as journal:
        for row in ROWS:
            journal.append(*row)


NEXT: dict[str, Any] = {
    "version": SCHEMA_VERSION + 1,
    "migrations": {SCHEMA_VERSION: "ALTER TABLE row ADD COLUMN mood TEXT;"},
}
"""How the next program would open a journal."""


def test_a_database_is_migrated_in_one_step_after_a_copy(path: Path) -> None:
    write(path)
    backup = path.with_name(f"journal.db.before-{SCHEMA_VERSION + 1}")
    part = backup.with_name(f"{backup.name}.part")
    part.write_bytes(b"of a backup that was killed")
    with contextlib.closing(open_database(path, SCHEMA, read_only=True, **NEXT)) as reader:
        assert reader.execute("SELECT count(*) FROM row").fetchone() == (len(ROWS),)
    assert (version(path), backup.exists()) == (SCHEMA_VERSION, False), "a reader changes nothing"
    with contextlib.closing(open_database(path, SCHEMA, **NEXT)) as connection:
        assert connection.execute("SELECT mood FROM row").fetchall() == [(None,)] * len(ROWS)
    assert version(path) == SCHEMA_VERSION + 1
    assert (stat.S_IMODE(backup.stat().st_mode), version(backup), part.exists()) == (0o600, SCHEMA_VERSION, False)
    assert list(Journal(backup, read_only=True).rows()) == list(ROWS)


def test_a_database_is_migrated_only_with_a_copy_and_wholly(path: Path) -> None:
    write(path)
    fault = {**NEXT, "migrations": {SCHEMA_VERSION: f"{NEXT['migrations'][SCHEMA_VERSION]} ALTER TABLE none ADD x;"}}
    with pytest.raises(errors.PeerError, match=r"journal\.db"):
        open_database(path, SCHEMA, **fault)
    assert version(path) == SCHEMA_VERSION
    with contextlib.closing(Journal(path)) as journal:
        journal.verify()
        assert list(journal.rows()) == list(ROWS)
    backup = path.with_name(f"journal.db.before-{SCHEMA_VERSION + 1}")
    backup.unlink()
    backup.mkdir()
    with pytest.raises(errors.DiskError, match=r"journal\.db"):
        open_database(path, SCHEMA, **NEXT)
    assert version(path) == SCHEMA_VERSION


@pytest.mark.parametrize("read_only", [False, True])
def test_a_journal_of_an_older_release_is_refused_and_left_alone(path: Path, read_only: bool) -> None:
    write(path)
    edit(path, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    with pytest.raises(errors.StateError, match=r"before release 0\.3\.0 \(schema 2, .* with release 0\.3\.0"):
        Journal(path, read_only=read_only)
    assert version(path) == SCHEMA_VERSION - 1


def test_rows_of_the_release_before_are_read_without_the_lists_of_tensors_and_stay_as_they_are(path: Path) -> None:
    model = {"kind": "model", "owner": "asia", "sha256": "ab" * 32, "bytes": 9, "steps": 0, "training_samples": None}
    model["spec"] = {"name": "net", "hyper": {"tensors": 3}}
    source = {"origin": "asia", "round": 1, "artifact": model, "fallback": ""}
    trained = {"position": 1, "stage": "train", "state": "s", "artifact": None, "metrics": {}, "threads": 1}
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        ("published", {"artifact": model}),
        ("opened", {"sources": [source, source]}),
        ("arrived", {"source": source, "origin_generation": 1}),
        ("trained", {**trained, "duration_s": 1.0, "publish": None, "returned": [model]}),
    )
    with contextlib.closing(Journal(path)) as journal:
        for kind, body in bodies:
            journal.append(kind, 1, body)
    write_as_0_3_0(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        stored = connection.execute("SELECT body, version, hash FROM row").fetchall()
    assert [text.count('"dtype":"F32"') for text, _, _ in stored] == [1, 2, 1, 1]
    assert {number for _, number, _ in stored} == {1}
    with contextlib.closing(Journal(path)) as journal:
        journal.verify()
        assert [(kind, body) for kind, _, body in journal.rows()] == list(bodies)
        assert [decode(*row).body() for row in journal.rows()] == [body for _, body in bodies]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT body, version, hash FROM row").fetchall() == stored


def test_a_row_of_a_newer_program_is_refused_by_name(path: Path) -> None:
    journal = Journal(path)
    journal.write(BeganRow(0, generation=1))
    edit(path, "UPDATE row SET version = 9")
    with pytest.raises(errors.StateError, match="'began' is of version 9, this mhfl-peer knows 1"):
        list(journal.rows())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_refused_by_name(path: Path, read_only: bool) -> None:
    path.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    with pytest.raises(errors.StateError, match=r"journal\.db is damaged: .*; restore it from a backup"):
        Journal(path, read_only=read_only)


def test_a_row_that_is_no_json_is_named_as_damage(path: Path) -> None:
    journal = Journal(path)
    journal.append("began", 0, {})
    edit(path, "UPDATE row SET body = '{\"generation\": '")
    for read in (lambda: list(journal.rows()), journal.records, lambda: list(journal.newest(("began",)))):
        with pytest.raises(errors.StateError, match=r"journal\.db is damaged: row 1: Expecting value"):
            read()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM row WHERE seq = 2", "row 2 is missing: row 3 stands in its place"),
        ("DELETE FROM row WHERE seq = 1", "row 1 is missing"),
        ("UPDATE row SET body = replace(body, 'Z', 'z') WHERE seq = 2", "row 2 was changed"),
        ("UPDATE row SET time_s = time_s + 1 WHERE seq = 3", "row 3 was changed"),
        ("UPDATE row SET cause = '{}' WHERE seq = 1", "row 1 was changed"),
        ("UPDATE row SET hash = NULL WHERE seq = 3", "row 3 was changed"),
        ("UPDATE row SET seq = 4 - seq + 10; UPDATE row SET seq = seq - 10", "row 1 was changed"),
    ],
)
def test_a_row_that_was_changed_or_removed_is_named(path: Path, statement: str, problem: str) -> None:
    journal = Journal(path)
    for round in range(3):
        journal.append("began", round, {"where": "Zürich"})
    journal.verify()
    journal.close()
    edit(path, statement)
    for read_only in (True, False):
        with (
            contextlib.closing(Journal(path, read_only=read_only)) as journal,
            pytest.raises(errors.StateError) as named,
        ):
            journal.verify()
        assert f"journal.db is damaged: {problem}" in named.value.message
        assert f"move {path.parent} away and begin anew with `mhfl-peer start --resume fresh`" in named.value.remedy


@pytest.mark.parametrize("body", ["[]", "1", "null", "{}", '{"generation": "one"}', "[" * 100_000, "1" * 5000])
def test_a_row_of_another_form_is_damage_that_names_it(path: Path, body: str) -> None:
    journal = Journal(path)
    journal.append("left", 0, {})
    journal.append("began", 0, {"generation": 1})
    edit(path, f"UPDATE row SET body = '{body}' WHERE seq = 2")
    with pytest.raises(errors.StateError, match=r"journal\.db is damaged: row 2"):
        journal.fold(recover, REMEMBERED)
    journal.close()


def test_a_key_that_is_missing_names_its_row_wherever_it_is_read(path: Path) -> None:
    journal = Journal(path)
    journal.append("regenerated", 0, {"their_round": 1})
    (record,) = journal.records()
    with pytest.raises(
        errors.StateError, match=r"journal\.db is damaged: row 1 \('regenerated'\): 'generation' is miss"
    ):
        record["body"]["generation"]
    journal.close()


@pytest.mark.parametrize("bits", [100, pytest.param(500, marks=pytest.mark.nightly)])
def test_a_flipped_bit_anywhere_is_damage_or_changes_nothing(path: Path, bits: int) -> None:
    """Half of the bits lie in pages' free space, which nothing reads."""
    journal = Journal(path)
    for round in range(60):
        journal.append("opened", round, {"sources": []}, {"event_number": round, "event": "Ticked", "peer": ""})
        journal.append("refused", round, {"origin": "europe", "reason": "x" * 90})
    expected = read_everything(journal)
    journal.close()
    whole = path.read_bytes()
    draw, noticed = random.Random(11), 0
    header = [(place, draw.randrange(8)) for place in range(108) for _ in range(2)]
    for place, bit in [*header, *((draw.randrange(len(whole)), draw.randrange(8)) for _ in range(bits))]:
        content = bytearray(whole)
        content[place] ^= 1 << bit
        path.write_bytes(content)
        for leftover in path.parent.glob("journal.db?*"):
            leftover.unlink()
        try:
            with contextlib.closing(Journal(path)) as journal:
                journal.verify()
                assert read_everything(journal) == expected, (place, bit)
        except errors.StateError:
            noticed += 1
    assert noticed > (200 if bits == 500 else 80)


def read_everything(journal: Journal) -> list[object]:
    """What a start and the documents read, by table and by index."""
    memory = journal.fold(recover, REMEMBERED)
    return [memory, journal.records(), list(journal.newest(("opened", "refused"))), journal.records(("refused",))]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.DiskError, match=r"nowhere/journal\.db: unable to open database file"):
        Journal(tmp_path / "nowhere" / "journal.db")


def test_a_full_disk_is_an_error_that_names_the_file_and_loses_nothing(path: Path) -> None:
    with run(FILLER, path) as filler:
        written, message, remedy = filler.communicate()[0].strip().split("|")
    assert filler.returncode == 0
    assert str(path) in message
    assert "space" in remedy
    assert int(written) > 10
    journal = Journal(path)
    assert [round for _, round, _ in journal.rows()] == list(range(int(written)))
    journal.append("row", int(written), {})


def test_the_received_rows_of_a_round_cost_the_same_in_a_journal_of_any_length(tmp_path: Path) -> None:
    """Also in a journal of an earlier program, after its next start."""

    def instructions(journal: Journal) -> int:
        count = itertools.count()
        journal._connection.set_progress_handler(lambda: next(count) < 0, 10)
        assert [body["peer"] for body in journal.received_in_round(1, peer="asia")] == ["asia"]
        journal._connection.set_progress_handler(None, 0)
        return next(count)

    path, costs = tmp_path / "journal.db", []
    for rounds in (range(1, 3), range(3, 300)):
        with contextlib.closing(Journal(path)) as journal:
            with journal._connection:
                journal._connection.execute("BEGIN")
                journal._connection.executemany(
                    "INSERT INTO row (time_s, kind, round, body) VALUES (0, 'received', ?, ?)",
                    [(round, json.dumps({"peer": peer})) for round in rounds for peer in ("asia", "africa")],
                )
            costs.append(instructions(journal))
            journal._connection.execute("DROP INDEX IF EXISTS row_received")
    assert costs[0] == costs[1]


def test_rows_that_belong_together_are_all_there_or_none(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        with contextlib.suppress(ZeroDivisionError), journal.together():
            journal.append("trained", 1, {})
            raise ZeroDivisionError
        assert list(journal.rows()) == []
        with journal.together():
            journal.append("trained", 1, {})
            with contextlib.closing(Journal(journal.path, read_only=True)) as reader:
                assert reader.empty(), "another process would see half of an event"
            journal.append("committed", 1, {})
        journal.append("opened", 2, {})
        assert [kind for kind, _, _ in journal.rows()] == ["trained", "committed", "opened"]
        journal.verify()


@contextlib.contextmanager
def without_writing(folder: Path) -> Iterator[None]:
    """A folder in which this process can write nothing, whoever runs the tests."""
    folder.chmod(0o555)
    for file in folder.iterdir():
        file.chmod(0o444)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        folder.chmod(0o755)


def test_a_journal_is_read_where_nothing_can_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders let no other user in
        path = Path(name) / "journal.db"
        with contextlib.closing(Journal(path)) as journal:
            journal.append("began", 0, {"generation": 1})
        with without_writing(path.parent), contextlib.closing(Journal(path, read_only=True)) as journal:
            assert len(list(journal.rows())) == 1
        (path.parent / "journal.db-wal").write_bytes(bytes(40))
        with (
            without_writing(path.parent),
            pytest.raises(errors.DiskError, match=r"its log journal.db-wal must be read in first.*copy the folder"),
        ):
            Journal(path, read_only=True)
