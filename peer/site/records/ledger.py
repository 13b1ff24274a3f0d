"""The egress ledger: what left this site, to whom and when.

An intent precedes the first byte, an outcome follows. The rows form a hash chain: each row's hash
covers the row and the hash before it. The chain alone therefore shows a changed, deleted or
reordered row. It does not show a tail that was cut off: that shows only against a witness, the
signed head of the chain that every manifest carries.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.core import limits
from peer.site.records.journal import GENESIS, chain_hash, damaged, open_database, storage

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
SENT_IN_ROUND = """
SELECT json_extract(intent.body, '$.peer'), json_extract(intent.body, '$.purpose'),
    json_extract(intent.body, '$.sha256'),
    sum(CASE
        WHEN json_extract(outcome.body, '$.outcome') != :unknown THEN json_extract(outcome.body, '$.bytes')
        ELSE json_extract(intent.body, '$.bytes') END),
    count(*), count(CASE WHEN json_extract(outcome.body, '$.outcome') = 'complete' THEN 1 END)
FROM ledger AS intent LEFT JOIN ledger AS outcome
    ON json_valid(outcome.body) AND json_extract(outcome.body, '$.intent') = +intent.seq
WHERE json_valid(intent.body) AND json_extract(intent.body, '$.type') = 'intent'
    AND json_extract(intent.body, '$.generation') = :generation AND json_extract(intent.body, '$.round') = :round
    AND json_extract(intent.body, '$.purpose') IS NOT :export
GROUP BY 1, 2, 3
"""
"""Both sides use an index; `+` drops the affinity that would prevent that. Files that the operator
exports do not count against a round's limit.
"""
ROUNDS_COUNTED_MAX = 2 * limits.ARTIFACT_ROUNDS_MAX
"""Rounds whose transfers are counted in memory: those whose artifacts stay, of training and of evaluation."""

NEWEST = "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1"
NEITHER = "row {} is neither an intent nor an outcome"
UNKNOWN = "unknown"
EXPORT = "export"
OPENING = "opening"
"""Kind of an intent: seeds that remove this site's masks from a sum."""


@dataclass(slots=True)
class SentArtifact:
    """How much of an artifact left for a peer in one round; an open or unknown transfer counts in full."""

    peer: str
    purpose: str
    sha256: str
    bytes: int = 0
    transfers: int = 0
    complete: int = 0


class SentInRound:
    """What left, or may have left, for one round; counting a transfer takes as long however many there are."""

    def __init__(self, artifacts: Iterable[SentArtifact]) -> None:
        self.artifacts = {(each.peer, each.purpose, each.sha256): each for each in artifacts}
        self.bytes = 0
        self.bytes_to: Counter[tuple[str, str]] = Counter()
        """By peer and purpose."""
        for each in self.artifacts.values():
            self._add(each, each.bytes)

    def artifact(self, peer: str, purpose: str, sha256: str) -> SentArtifact:
        """Return how much of an artifact left for a peer."""
        return self.artifacts.get((peer, purpose, sha256)) or SentArtifact(peer, purpose, sha256)

    def begin(self, peer: str, purpose: str, sha256: str, size: int) -> SentArtifact:
        """Count a transfer that begins, in full."""
        sent = self.artifacts.setdefault((peer, purpose, sha256), SentArtifact(peer, purpose, sha256))
        sent.transfers += 1
        sent.bytes += size
        self._add(sent, size)
        return sent

    def end(self, sent: SentArtifact, unsent: int, *, complete: bool) -> None:
        """Count a transfer that ended as what it sent."""
        sent.complete += complete
        sent.bytes -= unsent
        self._add(sent, -unsent)

    def _add(self, sent: SentArtifact, size: int) -> None:
        self.bytes += size
        self.bytes_to[sent.peer, sent.purpose] += size


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """A transfer that this process has begun: its generation and round, and the counts that have it in full."""

    round: tuple[int | None, int | None]
    bytes: int
    counts: SentInRound | None = None
    artifact: SentArtifact | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the chain: the number of rows, and the hash of the newest."""

    count: int
    hash: str


EMPTY = Head(0, GENESIS)
"""The head of a chain without rows."""


class ChainVerifier:
    """Checks the rows of a chain in order: ``problems`` has a sentence for each fault, ``hashes``
    each row's hash.

    Args:
        before: the head before the first row; that of a whole ledger is ``EMPTY``.
    """

    def __init__(self, before: Head = EMPTY) -> None:
        self.before = self.head = before
        self.problems: list[str] = []
        self.hashes = {before.count: before.hash}
        self.left_out: list[int] = []
        self._outcomes: dict[int, str] = {}

    def add(self, number: int, text: str | None, stored_hash: str) -> None:
        """Check the next row.

        Args:
            number: the row's number.
            text: its canonical JSON; ``None`` where an export shows only the hash.
            stored_hash: the hash in the row.
        """
        expected = self.head.count + 1
        if number < expected:
            self.problems.append(f"row {number} stands where row {expected} belongs")
        elif number > expected:
            self.problems.append(f"row {expected} is missing: row {number} follows row {self.head.count}")
        if text is None:
            self.left_out.append(number)
        elif chain_hash(self.head.hash, text) != stored_hash:
            self.problems.append(f"row {number} was changed, or a row before it was removed or moved")
        else:
            self._check_body(number, text)
        self.head = Head(number, stored_hash)
        self.hashes[number] = stored_hash

    @property
    def open_intents(self) -> list[int]:
        """The intents without an outcome: transfers that go on, or that a crash ended."""
        return [number for number, outcome in self._outcomes.items() if not outcome]

    @property
    def intents(self) -> int:
        """The number of transfers in the rows."""
        return len(self._outcomes)

    def compare(self, witness: Head) -> str | None:
        """Compare a witnessed head with this chain, and return the reason why they contradict each other.

        ``None`` if it is part of the chain.
        A head from before the first row cannot be compared, and gives ``None`` as well.
        """
        if witness.count < self.before.count:
            return None
        if witness.count > self.head.count:
            return f"the tail was cut: a witness has seen {witness.count} rows, here are {self.head.count}"
        if self.hashes.get(witness.count) != (witness.hash or GENESIS):
            return f"row {witness.count} is not the one that a witness has seen"
        return None

    def _check_body(self, number: int, text: str) -> None:
        """Check that the row is an intent or settles one: correct hashes over senseless rows prove
        nothing.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        if not _is_row(body):
            self.problems.append(NEITHER.format(number))
            return
        intent = body.get("intent")
        if body["type"] == "intent":
            self._outcomes[number] = ""
        elif self._outcomes.get(intent, "") not in ("", UNKNOWN):  # an export may settle what a start closed as unknown
            self.problems.append(f"row {number} settles row {intent} a second time")
        elif intent in self._outcomes:
            self._outcomes[intent] = str(body.get("outcome"))
        elif not self.problems and not self.left_out and not self.before.count:
            self.problems.append(f"row {number} settles row {intent}, which is no transfer")


class Ledger:
    """The egress ledger of one site, across generations.

    Args:
        path: of ``egress.db``, which is made if it does not exist.
        read_only: only read.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._sent: dict[tuple[int | None, int | None], SentInRound] = {}
        self._open: dict[int, OpenTransfer] = {}
        self._connection = open_database(path, SCHEMA, version=SCHEMA_VERSION, read_only=read_only)
        self._connection.text_factory = _text
        with storage(path):
            self.head = self._newest()

    def intend(self, **facts: Any) -> int:
        """Record that bytes are about to leave; returns the row's number.

        Args:
            facts: ``peer, purpose, kind, round, generation, sha256, bytes``, and further keys of
                the transfer.
        """
        intent = self._append({"type": "intent", "time": time.time(), **facts})
        round, size = (facts.get("generation"), facts.get("round")), facts["bytes"]
        counts = self._sent.get(round) if facts.get("purpose") != EXPORT else None
        artifact = None if counts is None else counts.begin(facts["peer"], facts["purpose"], facts["sha256"], size)
        self._open[intent] = OpenTransfer(round, size, counts, artifact)
        return intent

    def settle(self, intent: int, *, bytes: int, outcome: str) -> None:
        """Record how a transfer ended: the bytes sent, and ``complete``, ``broken`` or ``unknown``."""
        self._append({"type": "outcome", "time": time.time(), "intent": intent, "bytes": bytes, "outcome": outcome})
        transfer = self._open.pop(intent, None)
        if transfer is None:
            self._sent.clear()  # of an earlier process: nobody knows its round
        elif transfer.artifact is None or self._sent.get(transfer.round) is not transfer.counts:
            self._sent.pop(transfer.round, None)
        elif transfer.counts is not None and outcome != UNKNOWN:
            transfer.counts.end(transfer.artifact, transfer.bytes - bytes, complete=outcome == "complete")

    def close_open_intents(self) -> int:
        """Settle the transfers that a crash left open as ``unknown``; returns their number."""
        open_intents: dict[int, None] = {}
        for seq, body in self.since(0):  # row by row: years of rows do not fit into the daemon's memory
            if body["type"] == "intent":
                open_intents[seq] = None
            else:
                open_intents.pop(body["intent"], None)
        for seq in open_intents:
            self.settle(seq, bytes=0, outcome=UNKNOWN)
        return len(open_intents)

    def transfers(self) -> list[dict[str, Any]]:
        """One record for each intent, with its outcome and the keys of `transfers --json`."""
        records: dict[int, dict[str, Any]] = {}
        for seq, body in self._bodies():
            if body["type"] == "intent":
                facts = {key: value for key, value in body.items() if key != "type"}
                records[seq] = {**facts, "direction": "out", "outcome": "open"}
            elif body["intent"] in records:
                record = records[body["intent"]]
                seconds = round(body["time"] - record["time"], 3)
                record.update(sent_bytes=body["bytes"], outcome=body["outcome"], seconds=seconds)
        return list(records.values())

    def spent(self) -> float:
        """Return the largest mu that a transfer had spent, of Gaussian differential privacy; 0 without noise."""
        return max((body["spent"]["mu"] for _, body in self._bodies() if body.get("spent")), default=0.0)

    def since(self, seq: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the rows after a number, oldest first, read lazily: a reader that remembers its last row
        reads each one once.
        """
        query = "SELECT seq, body FROM ledger WHERE seq > ? ORDER BY seq"
        with storage(self.path):
            for number, body in self._connection.execute(query, (seq,)):
                yield number, self._body(number, body)

    def sent_in_round(self, generation: int, round: int) -> SentInRound:
        """Return what left, or may have left, for one round.

        The first question about a round reads its rows; later ones read the counts, since the service
        asks before each transfer. Where another process appended a row, they read the rows again.
        """
        with storage(self.path):
            self._follow(self._newest())
            counts = self._sent.pop((generation, round), None)
            if counts is None:
                of_round = {"generation": generation, "round": round, "unknown": UNKNOWN, "export": EXPORT}
                rows = self._connection.execute(SENT_IN_ROUND, of_round)
                counts = SentInRound(SentArtifact(*row) for row in rows)
        self._sent[generation, round] = counts  # as the newest
        if len(self._sent) > ROUNDS_COUNTED_MAX:
            del self._sent[next(iter(self._sent))]
        return counts

    def bytes_in_round(self, generation: int, round: int) -> int:
        """Return all bytes that left, or may have left, for one round."""
        return self.sent_in_round(generation, round).bytes

    def verify(self, witnesses: Iterable[Head] = ()) -> list[str]:
        """Verify the chain, and return its faults as sentences.

        Args:
            witnesses: heads that other sites received in this site's signed manifests: each must be
                part of the chain.
        """
        chain = self.verify_chain()
        return [*chain.problems, *filter(None, map(chain.compare, witnesses))]

    def verify_chain(self) -> ChainVerifier:
        """Return a verifier of all rows as they are at this moment. The daemon may go on writing."""
        chain = ChainVerifier()
        with storage(self.path):
            for row in self._connection.execute("SELECT seq, body, hash FROM ledger ORDER BY seq"):
                chain.add(*row)
        return chain

    def rows(self) -> list[tuple[int, str, str]]:
        """Return every row as it is stored: number, canonical JSON, hash."""
        with storage(self.path):
            return self._connection.execute("SELECT seq, body, hash FROM ledger ORDER BY seq").fetchall()

    def hash_at(self, count: int) -> str | None:
        """Return the chain's hash after so many rows; ``None`` when there are fewer."""
        if not count:
            return GENESIS
        with storage(self.path):
            row = self._connection.execute("SELECT hash FROM ledger WHERE seq = ?", (count,)).fetchone()
        return str(row[0]) if row is not None else None

    def newest_intents(self, last: int) -> list[dict[str, Any]]:
        """Return the intents among the newest ``last`` rows, newest first."""
        newest = "SELECT seq, body FROM ledger WHERE json_valid(body) ORDER BY seq DESC LIMIT ?"
        with storage(self.path):
            bodies = [self._body(*row) for row in self._connection.execute(newest, (last,))]
        return [body for body in bodies if body["type"] == "intent"]

    def _append(self, body: Mapping[str, Any]) -> int:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        with storage(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")  # another process may append as well, as `export` does
            before = self._newest()
            self._follow(before)
            head = Head(before.count + 1, chain_hash(before.hash, text))
            self._connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (head.count, text, head.hash))
        self.head = head
        return head.count

    def _follow(self, newest: Head) -> None:
        """Count anew where another process has appended rows."""
        if newest != self.head:
            self._sent.clear()
            self.head = newest

    def _newest(self) -> Head:
        last = self._connection.execute(NEWEST).fetchone()
        return Head(*last) if last is not None else EMPTY

    def _bodies(self) -> list[tuple[int, dict[str, Any]]]:
        with storage(self.path):
            stored = self._connection.execute("SELECT seq, body FROM ledger ORDER BY seq").fetchall()
            return [(seq, self._body(seq, body)) for seq, body in stored]

    def _body(self, seq: int, text: str) -> dict[str, Any]:
        """Return the body of a row. Raises ``StateError`` if it is neither an intent nor an outcome."""
        body: dict[str, Any] = json.loads(text)
        if not _is_row(body):
            raise damaged(self.path, NEITHER.format(seq))
        return body

    def close(self) -> None:
        self._connection.close()


def _is_row(body: Any) -> bool:
    """Return whether a row is an intent, or an outcome with an intent's number.

    ``true`` is no number, although it equals 1.
    """
    if not isinstance(body, dict):
        return False
    return body.get("type") == "intent" or (body.get("type") == "outcome" and type(body.get("intent")) is int)


def _text(content: bytes) -> str:
    """Return the stored text.

    Bytes that are no UTF-8 are replaced, so that the other rows can still be verified.
    """
    return content.decode("utf-8", "replace")
