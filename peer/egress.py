"""The egress ledger: what left this site, to whom, when. An intent precedes the first byte, an outcome follows.

The rows form a hash chain: each row's hash covers the row and the hash before it, so that a changed, deleted or
reordered row shows. A cut-off tail shows only against a witness, the signed chain head that every manifest carries.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.journal import open_database, storage

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
"""
"""Both sides come from an index: the desk asks before every transfer. `+` drops the affinity that would prevent it."""

NEWEST = "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1"
GENESIS = "0" * 64
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain: how many rows, and the hash of the last."""

    count: int
    hash: str


class Ledger:
    """The egress ledger of one site, across generations.

    Args:
        path: of ``egress.db``; it is made if it is not there.
        read_only: look only.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._connection = open_database(path, SCHEMA, version=SCHEMA_VERSION, read_only=read_only)
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
        rows = self._bodies()
        settled = {body["intent"] for _, body in rows if body["type"] == "outcome"}
        lost = [seq for seq, body in rows if body["type"] == "intent" and seq not in settled]
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
        problems, previous, hashes = [], GENESIS, {0: GENESIS}
        expected = 1
        for seq, text, found in self._connection.execute("SELECT seq, body, hash FROM ledger ORDER BY seq"):
            if seq != expected:
                problems.append(f"row {expected} is missing: row {seq} follows row {expected - 1}")
            if chain_hash(previous, text) != found:
                problems.append(f"row {seq} was changed, or a row before it was removed or moved")
            previous, expected = found, seq + 1
            hashes[seq] = found
        for witness in witnesses:
            if witness.count not in hashes:
                problems.append(f"the tail was cut: a witness has seen {witness.count} rows, here are {expected - 1}")
            elif hashes[witness.count] != witness.hash:
                problems.append(f"row {witness.count} is not the one that a witness has seen")
        return problems

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
        return Head(*last) if last is not None else Head(0, GENESIS)

    def _bodies(self) -> list[tuple[int, dict[str, Any]]]:
        with storage(self.path):
            found = self._connection.execute("SELECT seq, body FROM ledger ORDER BY seq").fetchall()
            return [(seq, json.loads(body)) for seq, body in found]

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def chain_hash(previous: str, text: str) -> str:
    """The hash of a row: SHA-256 over the hash before it, a line feed, and the row's canonical JSON."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()
