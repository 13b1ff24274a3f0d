"""The egress ledger: what left this site, to whom, when. An intent precedes the first byte, an outcome follows.

The rows form a hash chain: each row's hash covers the row and the hash before it, so that a changed, deleted or
reordered row shows. A cut-off tail shows only against a witness, the signed chain head that every manifest carries.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import StateError
from peer.records.journal import open_database, storage

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (
    seq INTEGER PRIMARY KEY,
    body TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ledger_round
    ON ledger (json_extract(body, '$.generation'), json_extract(body, '$.round')) WHERE json_valid(body);
CREATE INDEX IF NOT EXISTS ledger_intent ON ledger (json_extract(body, '$.intent')) WHERE json_valid(body);
"""
BYTES_IN_ROUND = """
SELECT coalesce(sum(CASE
    WHEN json_extract(outcome.body, '$.outcome') != :unknown THEN json_extract(outcome.body, '$.bytes')
    ELSE json_extract(intent.body, '$.bytes') END), 0)
FROM ledger AS intent LEFT JOIN ledger AS outcome
    ON json_valid(outcome.body) AND json_extract(outcome.body, '$.intent') = +intent.seq
WHERE json_valid(intent.body) AND json_extract(intent.body, '$.type') = 'intent'
    AND json_extract(intent.body, '$.generation') = :generation AND json_extract(intent.body, '$.round') = :round
    AND json_extract(intent.body, '$.purpose') IS NOT 'export'
"""
"""Both sides come from an index: the service asks before every transfer. `+` drops the affinity that would prevent it.
What the operator takes away as a file is none of the bytes that a round may send."""

NEWEST = "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1"
NEITHER = "row {} is neither an intent nor an outcome"
GENESIS = "0" * 64
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain: how many rows, and the hash of the last."""

    count: int
    hash: str


EMPTY = Head(0, GENESIS)
"""Where every chain begins."""


class Chain:
    """The proof of a chain, a row at a time: ``problems`` says in words what does not fit, ``hashes`` where it passed.

    Args:
        before: where the rows begin; a whole ledger begins with nothing.
    """

    def __init__(self, before: Head = EMPTY) -> None:
        self.before = self.head = before
        self.problems: list[str] = []
        self.hashes = {before.count: before.hash}
        self.left_out: list[int] = []
        self._ends: dict[int, str] = {}

    def add(self, number: int, text: str | None, found: str) -> None:
        """Look at the next row.

        Args:
            number: of the row.
            text: its canonical JSON; ``None`` where only its hash is told.
            found: the hash that stands beside it.
        """
        expected = self.head.count + 1
        if number < expected:
            self.problems.append(f"row {number} stands where row {expected} belongs")
        elif number > expected:
            self.problems.append(f"row {expected} is missing: row {number} follows row {self.head.count}")
        if text is None:
            self.left_out.append(number)
        elif chain_hash(self.head.hash, text) != found:
            self.problems.append(f"row {number} was changed, or a row before it was removed or moved")
        else:
            self._read(number, text)
        self.head = Head(number, found)
        self.hashes[number] = found

    @property
    def open(self) -> list[int]:
        """Intents whose outcome has not been written: transfers that go on, or that a crash ended."""
        return [number for number, end in self._ends.items() if not end]

    @property
    def intents(self) -> int:
        """How many transfers the rows speak of."""
        return len(self._ends)

    def against(self, witness: Head) -> str | None:
        """What a head that somebody has seen says against this chain; nothing if it is part of it.

        A head from before the first row here cannot be compared, and says nothing.
        """
        if witness.count < self.before.count:
            return None
        if witness.count > self.head.count:
            return f"the tail was cut: a witness has seen {witness.count} rows, here are {self.head.count}"
        if self.hashes.get(witness.count) != (witness.hash or GENESIS):
            return f"row {witness.count} is not the one that a witness has seen"
        return None

    def _read(self, number: int, text: str) -> None:
        """Whether the row means something: a program that writes wrong rows proves nothing with a right chain."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        if not _is_row(body):
            self.problems.append(NEITHER.format(number))
            return
        of = body.get("intent")
        if body["type"] == "intent":
            self._ends[number] = ""
        elif self._ends.get(of, "") not in ("", UNKNOWN):  # a start may close what another process then ends
            self.problems.append(f"row {number} settles row {of} a second time")
        elif of in self._ends:
            self._ends[of] = str(body.get("outcome"))
        elif not self.problems and not self.left_out and not self.before.count:
            self.problems.append(f"row {number} settles row {of}, which is no transfer")


class Ledger:
    """The egress ledger of one site, across generations.

    Args:
        path: of ``egress.db``; it is made if it is not there.
        read_only: look only.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._connection = open_database(path, SCHEMA, version=SCHEMA_VERSION, read_only=read_only)
        self._connection.text_factory = _text
        with storage(path):
            self.head = self._newest()

    def intend(self, **what: Any) -> int:
        """Write down that bytes are about to leave; returns the row's number.

        Args:
            what: ``peer, purpose, kind, round, generation, sha256, bytes`` and whatever else describes it.
        """
        return self._append({"type": "intent", "time": time.time(), **what})

    def settle(self, intent: int, *, bytes: int, outcome: str) -> None:
        """Write down how it ended: bytes sent, and ``complete``, ``broken`` or ``unknown``."""
        self._append({"type": "outcome", "time": time.time(), "intent": intent, "bytes": bytes, "outcome": outcome})

    def close_open_intents(self) -> int:
        """After a crash nobody knows how the open transfers ended, so say that; returns how many there were."""
        lost: dict[int, None] = {}
        for seq, body in self.since(0):  # a row at a time: a start with years of them must not need their size
            if body["type"] == "intent":
                lost[seq] = None
            else:
                lost.pop(body["intent"], None)
        for seq in lost:
            self.settle(seq, bytes=0, outcome=UNKNOWN)
        return len(lost)

    def transfers(self) -> list[dict[str, Any]]:
        """One record an intent, with its outcome; the keys are those of `transfers --json`."""
        records: dict[int, dict[str, Any]] = {}
        for seq, body in self._bodies():
            if body["type"] == "intent":
                kept = {key: value for key, value in body.items() if key != "type"}
                records[seq] = {**kept, "direction": "out", "outcome": "open"}
            elif body["intent"] in records:
                record = records[body["intent"]]
                seconds = round(body["time"] - record["time"], 3)
                record.update(sent_bytes=body["bytes"], outcome=body["outcome"], seconds=seconds)
        return list(records.values())

    def since(self, seq: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows beyond a number, oldest first, read as they are asked for: who counts along reads each row once."""
        query = "SELECT seq, body FROM ledger WHERE seq > ? ORDER BY seq"
        with storage(self.path):
            for found, body in self._connection.execute(query, (seq,)):
                yield found, self._body(found, body)

    def bytes_in_round(self, generation: int, round: int) -> int:
        """Bytes that left, or may have left, for one round: all that were meant where nobody knows how it ended."""
        of_round = {"generation": generation, "round": round, "unknown": UNKNOWN}
        with storage(self.path):
            found: int = self._connection.execute(BYTES_IN_ROUND, of_round).fetchone()[0]
        return found

    def verify(self, witnesses: Iterable[Head] = ()) -> list[str]:
        """What is wrong with the chain, in words; nothing if it is whole.

        Args:
            witnesses: heads that others have seen (from this site's signed manifests): each must be part of the chain.
        """
        chain = self.chain()
        return [*chain.problems, *filter(None, map(chain.against, witnesses))]

    def chain(self) -> Chain:
        """The proof of every row, as they are at this moment; the daemon may go on writing."""
        chain = Chain()
        with storage(self.path):
            for row in self._connection.execute("SELECT seq, body, hash FROM ledger ORDER BY seq"):
                chain.add(*row)
        return chain

    def rows(self) -> list[tuple[int, str, str]]:
        """Every row as it stands there: number, canonical JSON, hash."""
        with storage(self.path):
            return self._connection.execute("SELECT seq, body, hash FROM ledger ORDER BY seq").fetchall()

    def hash_at(self, count: int) -> str | None:
        """The chain's hash after so many rows; nothing when there are fewer."""
        if not count:
            return GENESIS
        with storage(self.path):
            found = self._connection.execute("SELECT hash FROM ledger WHERE seq = ?", (count,)).fetchone()
        return str(found[0]) if found is not None else None

    def newest_intents(self, last: int) -> list[dict[str, Any]]:
        """The intents among so many of the newest rows, newest first."""
        newest = "SELECT seq, body FROM ledger WHERE json_valid(body) ORDER BY seq DESC LIMIT ?"
        with storage(self.path):
            bodies = [self._body(*row) for row in self._connection.execute(newest, (last,))]
        return [body for body in bodies if body["type"] == "intent"]

    def _append(self, body: Mapping[str, Any]) -> int:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        with storage(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")  # another process may add rows, too: an export is one
            before = self._newest()
            head = Head(before.count + 1, chain_hash(before.hash, text))
            self._connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (head.count, text, head.hash))
        self.head = head
        return head.count

    def _newest(self) -> Head:
        last = self._connection.execute(NEWEST).fetchone()
        return Head(*last) if last is not None else EMPTY

    def _bodies(self) -> list[tuple[int, dict[str, Any]]]:
        with storage(self.path):
            found = self._connection.execute("SELECT seq, body FROM ledger ORDER BY seq").fetchall()
            return [(seq, self._body(seq, body)) for seq, body in found]

    def _body(self, seq: int, text: str) -> dict[str, Any]:
        """What a row says; ``StateError`` when that is nothing that a ledger says."""
        body = json.loads(text)
        if not _is_row(body):
            raise StateError(f"{self.path} is damaged: {NEITHER.format(seq)}", "restore it from a backup")
        found: dict[str, Any] = body
        return found

    def close(self) -> None:
        self._connection.close()


def chain_hash(previous: str, text: str) -> str:
    """The hash of a row: SHA-256 over the hash before it, a line feed, and the row's canonical JSON."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _is_row(body: Any) -> bool:
    """Whether a row is an intent, or an outcome with the number of one; ``true`` is no number, although it equals 1."""
    if not isinstance(body, dict):
        return False
    return body.get("type") == "intent" or (body.get("type") == "outcome" and type(body.get("intent")) is int)


def _text(content: bytes) -> str:
    """A text as it is stored; whoever put other bytes there keeps no other row from being proven."""
    return content.decode("utf-8", "replace")
