"""The egress ledger: its rows stay, and a change of one shows."""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.databases import edit
from peer import errors
from peer.site.records.journal import GENESIS, chain_hash
from peer.site.records.ledger import (
    EMPTY,
    NEWEST,
    ROUNDS_COUNTED_MAX,
    SENT_IN_ROUND,
    ChainVerifier,
    Head,
    Ledger,
    SentArtifact,
)

WRITER = """
import sys
from pathlib import Path
from peer.site.records.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
while True:
    print(ledger.intend(peer="asia", kind="model", round=1, generation=1, bytes=10), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "egress.db"


def intend(ledger: Ledger, peer: str = "asia", round: int = 1, *, size: int = 100, **changes: Any) -> int:
    facts: dict[str, Any] = {"purpose": "train", "kind": "model", "sha256": "ab" * 32, "generation": 1}
    return ledger.intend(**{**facts, "peer": peer, "round": round, "bytes": size, **changes})


def fill(path: Path, rows: int = 6) -> list[Head]:
    """A ledger with so many rows; returns its head after each."""
    ledger, heads = Ledger(path), []
    for number in range(rows):
        intend(ledger, round=number)
        heads.append(ledger.head)
    ledger.close()
    return heads


def test_an_empty_chain_begins_with_nothing(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.head == Head(0, GENESIS) == Head(0, "0" * 64)
    assert ledger.verify() == []
    assert ledger.verify([Head(0, GENESIS)]) == []


def test_the_chain_is_the_one_that_anybody_can_compute(path: Path) -> None:
    ledger = Ledger(path)
    intend(ledger)
    intend(ledger)
    ledger.close()
    connection = sqlite3.connect(path)
    before = "0" * 64
    for body, stored_hash in connection.execute("SELECT body, hash FROM ledger ORDER BY seq").fetchall():
        assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
        before = hashlib.sha256(before.encode() + b"\n" + body.encode()).hexdigest()
        assert stored_hash == before
    connection.close()
    assert Ledger(path).head == Head(2, before)


def test_the_head_goes_on_where_it_was(path: Path) -> None:
    heads = fill(path, 3)
    ledger = Ledger(path)
    assert ledger.head == heads[-1]
    assert intend(ledger) == 4
    assert ledger.verify(heads) == []


def test_two_processes_may_write_into_one_chain(path: Path) -> None:
    daemon, export = Ledger(path), Ledger(path)
    assert [intend(daemon), intend(export), intend(export), intend(daemon)] == [1, 2, 3, 4]
    assert daemon.verify() == []


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["UPDATE ledger SET body = replace(body, 'asia', 'mars') WHERE seq = 3"], "row 3 was changed"),
        (["UPDATE ledger SET hash = '00' WHERE seq = 3"], "row 4 was changed, or a row before it"),
        (["DELETE FROM ledger WHERE seq = 3"], "row 3 is missing: row 4 follows row 2"),
        (["DELETE FROM ledger WHERE seq = 1"], "row 1 is missing: row 2 follows row 0"),
        (["DELETE FROM ledger WHERE seq BETWEEN 2 AND 4"], "row 2 is missing: row 5 follows row 1"),
        (
            ["DELETE FROM ledger WHERE seq = 3", "UPDATE ledger SET seq = seq - 1 WHERE seq > 3"],
            "row 3 was changed, or a row before it was removed or moved",
        ),
        (
            [
                "UPDATE ledger SET seq = 99 WHERE seq = 2",
                "UPDATE ledger SET seq = 2 WHERE seq = 5",
                "UPDATE ledger SET seq = 5 WHERE seq = 99",
            ],
            "row 2 was changed, or a row before it was removed or moved",
        ),
        (["UPDATE ledger SET body = 'no json' WHERE seq = 2"], "row 2 was changed"),
    ],
)
def test_whatever_is_changed_within_the_chain_is_found(path: Path, statements: list[str], problem: str) -> None:
    fill(path)
    assert Ledger(path, read_only=True).verify() == []
    edit(path, *statements)
    problems = Ledger(path, read_only=True).verify()
    assert any(problem in sentence for sentence in problems), problems


def test_a_cut_tail_shows_only_against_a_witness(path: Path) -> None:
    heads = fill(path)
    edit(path, "DELETE FROM ledger WHERE seq > 4")
    ledger = Ledger(path, read_only=True)
    assert ledger.verify() == []
    assert ledger.verify(heads[:4]) == []
    assert ledger.verify([heads[5]]) == ["the tail was cut: a witness has seen 6 rows, here are 4"]


def test_a_chain_that_was_written_anew_shows_only_against_a_witness(path: Path) -> None:
    heads = fill(path)
    path.unlink()
    ledger = Ledger(path)
    for _ in range(6):
        intend(ledger, "mars")
    assert ledger.verify() == []
    assert ledger.verify([heads[3]]) == ["row 4 is not the one that a witness has seen"]


def test_rows_in_front_of_the_first_are_named(path: Path) -> None:
    fill(path, 2)
    edit(path, "INSERT INTO ledger SELECT -1, body, hash FROM ledger WHERE seq = 1")
    assert Ledger(path, read_only=True).verify()[0] == "row -1 stands where row 1 belongs"


def test_a_part_of_a_chain_is_proven_from_where_it_begins(path: Path) -> None:
    heads = fill(path)
    rows = Ledger(path, read_only=True).rows()
    chain = ChainVerifier(heads[2])
    for number, text, stored_hash in rows[3:]:
        chain.add(number, None if number == 5 else text, stored_hash)
    assert (chain.problems, chain.left_out, chain.intents, chain.open_intents) == ([], [5], 2, [4, 6])
    assert [chain.compare(head) for head in (EMPTY, *heads)] == [None] * 7, "of what is not there nothing is said"
    assert chain.compare(Head(5, "00" * 32)) == "row 5 is not the one that a witness has seen"
    assert chain.compare(Head(2, "00" * 32)) is None
    other = ChainVerifier(heads[1])
    other.add(*rows[3])
    assert other.problems == [
        "row 3 is missing: row 4 follows row 2",
        "row 4 was changed, or a row before it was removed or moved",
    ]


def test_a_row_is_found_by_its_number_and_the_newest_without_the_others(path: Path) -> None:
    heads = fill(path)
    ledger = Ledger(path)
    ledger.settle(6, bytes=100, outcome="complete")
    assert [ledger.hash_at(count) for count in (0, 1, 6, 8)] == [GENESIS, heads[0].hash, heads[5].hash, None]
    assert [body["round"] for body in ledger.newest_intents(3)] == [5, 4]
    assert ledger.verify_chain().open_intents == [1, 2, 3, 4, 5]


def test_an_end_that_a_start_did_not_know_may_still_be_told(path: Path) -> None:
    """An export writes beside the daemon; the daemon's start cannot know that it is not an end of the last run."""
    fill(path, 1)
    ledger = Ledger(path)
    ledger.close_open_intents()
    ledger.settle(1, bytes=100, outcome="complete")
    assert ledger.verify() == []
    ledger.settle(1, bytes=100, outcome="complete")
    assert ledger.verify() == ["row 4 settles row 1 a second time"]


def test_a_ledger_that_is_damaged_is_named_when_it_is_proven(path: Path) -> None:
    fill(path, 200)
    edit(path, "PRAGMA journal_mode = DELETE")
    content = bytearray(path.read_bytes())
    content[8192:] = b"\x5a" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(errors.StateError, match=r"egress\.db is damaged"):
        Ledger(path, read_only=True).verify()


def test_a_transfer_is_one_record_from_intent_to_outcome(path: Path) -> None:
    ledger = Ledger(path)
    first, second = intend(ledger), intend(ledger, "africa", size=50)
    ledger.settle(second, bytes=20, outcome="broken")
    ledger.settle(first, bytes=100, outcome="complete")
    third = intend(ledger, "europe")
    complete, broken, still_open = ledger.transfers()
    keys = {"time", "direction", "peer", "purpose", "kind", "round", "sha256", "bytes", "outcome"}
    assert keys <= complete.keys()
    assert keys <= still_open.keys()
    whole = {"peer": "asia", "direction": "out", "bytes": 100, "sent_bytes": 100, "outcome": "complete"}
    assert complete.items() >= whole.items()
    assert (broken["bytes"], broken["sent_bytes"], broken["outcome"]) == (50, 20, "broken")
    assert (still_open["peer"], still_open["outcome"]) == ("europe", "open")
    assert complete["seconds"] >= 0
    assert third == 5


def test_a_start_closes_what_a_crash_left_open(path: Path) -> None:
    ledger = Ledger(path)
    done, lost = intend(ledger), intend(ledger, "africa")
    ledger.settle(done, bytes=100, outcome="complete")
    ledger.close()
    ledger = Ledger(path)
    assert ledger.close_open_intents() == 1
    assert [(record["peer"], record["outcome"]) for record in ledger.transfers()] == [
        ("asia", "complete"),
        ("africa", "unknown"),
    ]
    assert ledger.close_open_intents() == 0
    assert ledger.head.count == 4
    assert lost == 2
    assert ledger.verify() == []


def test_a_start_with_years_of_rows_takes_no_more_memory_than_with_one(path: Path) -> None:
    ledger = Ledger(path)
    for _ in range(1000):
        ledger.settle(intend(ledger), bytes=100, outcome="complete")
    tracemalloc.start()
    try:
        assert ledger.close_open_intents() == 0
        assert tracemalloc.get_traced_memory()[1] < 100_000, "1.3 kB a row is what all of them would take"
    finally:
        tracemalloc.stop()
    ledger.close()


def test_bytes_are_counted_as_sent_and_where_nobody_knows_as_meant(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.bytes_in_round(1, 3) == 0
    complete, broken, unknown = (intend(ledger, round=3, size=size) for size in (1000, 500, 70))
    intend(ledger, round=3, size=4)
    ledger.settle(complete, bytes=1000, outcome="complete")
    ledger.settle(broken, bytes=200, outcome="broken")
    ledger.settle(unknown, bytes=0, outcome="unknown")
    intend(ledger, round=4, size=9)
    intend(ledger, round=3, size=90_000, generation=2)
    ledger.intend(peer="file", purpose="export", bytes=7)
    assert ledger.bytes_in_round(1, 3) == 1000 + 200 + 70 + 4
    assert ledger.bytes_in_round(1, 4) == 9
    assert ledger.bytes_in_round(2, 3) == 90_000


def test_what_left_is_counted_for_each_peer_purpose_and_artifact(path: Path) -> None:
    ledger = Ledger(path)
    for peer, purpose, outcome in (
        ("asia", "train", "complete"),
        ("asia", "train", "broken"),
        ("asia", "evaluate", "complete"),
        ("africa", "train", "unknown"),
    ):
        ledger.settle(intend(ledger, peer, 3, purpose=purpose, sha256="ab"), bytes=40, outcome=outcome)
    assert list(ledger.sent_in_round(1, 3).artifacts.values()) == [
        SentArtifact("africa", "train", "ab", 100, transfers=1, complete=0),
        SentArtifact("asia", "evaluate", "ab", 40, transfers=1, complete=1),
        SentArtifact("asia", "train", "ab", 80, transfers=2, complete=1),
    ]


def test_counting_bytes_reads_no_more_than_the_round(path: Path) -> None:
    ledger = Ledger(path)
    ledger._connection.execute("PRAGMA synchronous = OFF")
    for number in range(1500):
        ledger.settle(intend(ledger, round=number // 3), bytes=1, outcome="complete")
    hundreds = itertools.count()
    ledger._connection.set_progress_handler(lambda: next(hundreds) and 0, 100)
    assert ledger.bytes_in_round(1, 77) == 3
    assert next(hundreds) < 20, "hundreds of instructions, where a scan of 3000 rows takes ten thousands"


def test_a_round_is_counted_with_indexes(path: Path) -> None:
    ledger = Ledger(path)
    of_round = {"generation": 1, "round": 77, "unknown": "unknown", "export": "export"}
    plans = {
        query: [step[3] for step in ledger._connection.execute(f"EXPLAIN QUERY PLAN {query}", of_round)]
        for query in (SENT_IN_ROUND, NEWEST)
    }
    assert plans[SENT_IN_ROUND][:2] == [
        "SEARCH intent USING INDEX ledger_round (<expr>=? AND <expr>=?)",
        "SEARCH outcome USING INDEX ledger_intent (<expr>=?) LEFT-JOIN",
    ]
    assert plans[NEWEST] == ["SCAN ledger"], "from the end of the rows' own order, and LIMIT ends it at one"


def test_a_transfer_reads_no_more_after_a_thousand_of_its_round(path: Path) -> None:
    ledger = Ledger(path)
    ledger._connection.execute("PRAGMA synchronous = OFF")
    steps = itertools.count()

    def take(number: int) -> int:
        before = next(steps)
        assert ledger.sent_in_round(1, 3).artifact(f"site-{number}", "train", "ab").transfers == 0
        ledger.settle(intend(ledger, f"site-{number}", 3, sha256="ab"), bytes=40, outcome="complete")
        return next(steps) - before

    take(0)
    ledger._connection.set_progress_handler(lambda: next(steps) and 0, 10)
    first, *_, last = [take(number) for number in range(1, 1001)]
    assert last <= 2 * first
    assert ledger.bytes_in_round(1, 3) == 40 * 1001


def test_counts_stay_right_beside_another_process_and_after_a_restart(path: Path) -> None:
    def sent(ledger: Ledger) -> tuple[int, int, int]:
        counts = ledger.sent_in_round(1, 3)
        of_artifact = counts.artifact("asia", "train", "ab")
        return counts.bytes, of_artifact.transfers, of_artifact.complete

    def begin(ledger: Ledger, round: int = 3) -> int:
        return intend(ledger, "asia", round, sha256="ab")

    ledger, other = Ledger(path), Ledger(path)
    uncounted = begin(ledger)
    assert sent(ledger) == (100, 1, 0)
    ledger.settle(uncounted, bytes=10, outcome="broken")
    assert sent(ledger) == (10, 1, 0), "it began before the first question"
    counted = begin(ledger)
    assert sent(ledger) == (110, 2, 0)
    ledger.settle(counted, bytes=100, outcome="complete")
    assert sent(ledger) == sent(other) == (110, 2, 1)
    foreign = begin(other)
    assert sent(ledger) == (210, 3, 1), "another process appended"
    ledger.settle(begin(ledger), bytes=100, outcome="complete")
    ledger.settle(foreign, bytes=0, outcome="unknown")
    assert sent(ledger) == (310, 4, 2)
    long = begin(ledger)
    for round in range(4, 4 + ROUNDS_COUNTED_MAX):
        ledger.settle(begin(ledger, round), bytes=1, outcome="complete")
        assert ledger.bytes_in_round(1, round) == 1
    assert sent(ledger) == (410, 5, 2), "the round was counted anew"
    ledger.settle(long, bytes=7, outcome="broken")
    assert sent(ledger) == sent(Ledger(path)) == (317, 5, 2)


@pytest.mark.parametrize("read", [Ledger.transfers, Ledger.close_open_intents], ids=lambda read: str(read.__name__))
def test_a_row_that_is_no_json_is_named_as_damage(path: Path, read: Callable[[Ledger], Any]) -> None:
    fill(path)
    edit(path, "UPDATE ledger SET body = '{' WHERE seq = 2")
    with pytest.raises(errors.StateError, match=r"egress\.db is damaged"):
        read(Ledger(path))


def test_the_chain_of_a_killed_process_is_whole(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(30)]
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    ledger = Ledger(path)
    assert ledger.head.count in (acknowledged[-1], acknowledged[-1] + 1)
    assert ledger.verify() == []
    assert ledger.close_open_intents() == ledger.head.count / 2


def test_a_reader_changes_nothing(path: Path) -> None:
    heads = fill(path)
    reader = Ledger(path, read_only=True)
    with pytest.raises(errors.DiskError, match=r"egress\.db: attempt to write a readonly database"):
        intend(reader)
    assert reader.head == heads[-1]
    assert Ledger(path).verify(heads) == []


def test_who_counts_along_gets_each_row_once(path: Path) -> None:
    fill(path, rows=3)
    ledger = Ledger(path, read_only=True)
    assert [(number, body["round"]) for number, body in ledger.since(1)] == [(2, 1), (3, 2)]
    assert list(ledger.since(3)) == []
    ledger.close()


def test_a_row_is_settled_by_its_number_and_by_nothing_that_equals_it() -> None:
    chain = ChainVerifier()
    for number, body in enumerate(({"type": "intent"}, {"type": "outcome", "intent": True, "outcome": "complete"})):
        text = json.dumps(body)
        chain.add(number + 1, text, chain_hash(chain.head.hash, text))
    assert chain.problems == ["row 2 is neither an intent nor an outcome"]
    assert chain.open_intents == [1]


def test_a_row_that_is_no_text_is_found_and_keeps_nothing_else_from_being_proven(path: Path) -> None:
    fill(path, rows=4)
    edit(path, "UPDATE ledger SET body = CAST(x'ff' AS TEXT) WHERE seq = 2")
    ledger = Ledger(path, read_only=True)
    assert ledger.verify() == ["row 2 was changed, or a row before it was removed or moved"]
    assert [number for number, _, _ in ledger.rows()] == [1, 2, 3, 4]
    ledger.close()


@pytest.mark.parametrize("body", ["[]", "{}", '{"type": "outcome"}', "7"])
@pytest.mark.parametrize(
    "read",
    [
        Ledger.close_open_intents,
        Ledger.transfers,
        lambda ledger: ledger.newest_intents(5),
        lambda ledger: list(ledger.since(0)),
    ],
)
def test_a_row_that_is_neither_intent_nor_outcome_is_named_as_damage(
    path: Path, read: Callable[[Ledger], Any], body: str
) -> None:
    fill(path, rows=2)
    edit(path, f"UPDATE ledger SET body = '{body}' WHERE seq = 2")
    ledger = Ledger(path)
    with pytest.raises(errors.StateError, match=r"egress\.db is damaged: row 2 is neither an intent nor an outcome"):
        read(ledger)
    ledger.close()


def test_the_largest_mu_that_left_is_known(path: Path) -> None:
    ledger = Ledger(path)
    row: dict[str, Any] = {"peer": "asia", "kind": "model", "round": 1, "generation": 1, "bytes": 10}
    ledger.intend(**row)
    assert ledger.spent() == 0
    for mu in (0.5, 0.75, 0.25):
        ledger.intend(**row, spent={"mu": mu})
    assert ledger.spent() == 0.75
