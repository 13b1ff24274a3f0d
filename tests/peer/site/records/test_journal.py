"""The journal: acknowledged rows stay, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.databases import edit
from peer import errors
from peer.core.rows import BeganRow
from peer.core.site_memory import REMEMBERED, recover
from peer.site.records.journal import SCHEMA_VERSION, Journal

FIRST_SCHEMA = """
CREATE TABLE row (
    seq INTEGER PRIMARY KEY,
    time_s REAL NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX row_kind ON row (kind, seq);
"""
"""Of a journal that 0.1 wrote."""
FIRST_ROWS = (
    ("configured", 0, {"federation": "ab" * 32, "model.name": "resnet18"}),
    ("began", 0, {"generation": 1}),
    ("initialised", 0, {"state": "s", "artifact": None, "samples": {}, "threads": 1, "device": "cpu", "publish": None}),
    ("opened", 1, {"sources": []}),
    ("refused", 1, {"origin": "europe", "reason": "digest"}),
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


def write_first_schema(path: Path, *, number: int = 1) -> None:
    """A journal as 0.1 left it after a kill: its rows are in the write-ahead log."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"{FIRST_SCHEMA} PRAGMA user_version = {number};")
    for kind, round, body in FIRST_ROWS:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        connection.execute("INSERT INTO row (time_s, kind, round, body) VALUES (5.0, ?, ?, ?)", (kind, round, text))
    connection.close()


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    stored: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return stored


@pytest.mark.parametrize("number", [0, 1])  # 0: killed between the tables and the number
def test_a_journal_of_the_first_schema_is_taken_over_with_a_backup(path: Path, number: int) -> None:
    write_first_schema(path, number=number)
    path.with_name("journal.db.before-3.part").write_bytes(b"of a backup that was killed")
    before = [(row["seq"], row["time"]) for row in Journal(path, read_only=True).records()]
    journal = Journal(path)
    assert list(journal.rows()) == list(FIRST_ROWS)
    assert [(row["seq"], row["time"]) for row in journal.records()] == before
    memory = journal.fold(recover, REMEMBERED)
    assert memory.open is not None
    assert (memory.open.number, memory.state) == (1, "s")
    journal.append("began", 0, {"generation": 1}, {"event_number": 1, "event": "Began", "peer": ""})
    journal.verify()
    assert [row["cause"] and row["cause"]["event"] for row in journal.of_round(1)] == [*[None] * 5, "Began"]
    journal.close()
    assert version(path) == SCHEMA_VERSION == 3

    backup = path.with_name("journal.db.before-3")
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert version(backup) == number
    assert list(Journal(backup, read_only=True).rows()) == list(FIRST_ROWS)
    assert not path.with_name("journal.db.before-3.part").exists()


def test_a_journal_of_the_first_schema_is_read_and_left_alone(path: Path) -> None:
    write_first_schema(path)
    reader = Journal(path, read_only=True)
    assert list(reader.rows()) == list(FIRST_ROWS)
    assert [row["round"] for row in reader.since(3, ("opened", "refused"))] == [1, 1]
    assert [row["cause"] for row in reader.of_round(1)] == [None] * 5
    reader.close()
    assert version(path) == 1
    assert not path.with_name("journal.db.before-3").exists()


def test_a_journal_is_taken_over_only_with_a_backup(path: Path) -> None:
    write_first_schema(path)
    path.with_name("journal.db.before-3").mkdir()
    with pytest.raises(errors.DiskError, match=r"journal\.db"):
        Journal(path)
    assert version(path) == 1


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


def test_rows_of_an_earlier_schema_are_chained_once(path: Path) -> None:
    write_first_schema(path)
    reader = Journal(path, read_only=True)
    reader.verify()
    reader.close()
    Journal(path).close()
    edit(path, "UPDATE row SET round = 7 WHERE seq = 2")
    with (
        contextlib.closing(Journal(path)) as journal,
        pytest.raises(errors.StateError, match="row 2 was changed"),
    ):
        journal.verify()


def test_a_journal_of_the_second_schema_is_taken_over(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:
        journal.append("began", 0, {"generation": 1}, {"event_number": 1, "event": "Began", "peer": ""})
        before = journal.records()
    edit(path, "ALTER TABLE row DROP COLUMN hash; PRAGMA user_version = 2;")
    with contextlib.closing(Journal(path)) as journal:
        journal.append("left", 0, {"fault": "", "reason": ""})
        journal.verify()
        assert journal.records()[:1] == before
    assert version(path.with_name("journal.db.before-3")) == 2


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
