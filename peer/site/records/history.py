"""Committed rounds and transfers of a site, from its journals and its egress ledger.

``HistoryReader`` reads each row once, over any number of calls, and only the parts that its
subclasses need: the signed manifest of a received artifact is thirty times as large as the rest of
its row. The daemon may write at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from peer.core import rows
from peer.core.site_memory import Row
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal, storage
from peer.site.records.ledger import UNKNOWN, Ledger

if TYPE_CHECKING:
    from peer.core.status import LastRound
    from peer.documents.records import RoundRecord, SourceRecord, TransferRecord

ROWS_MAX = 2000
"""Rows to read in one call, which takes some 20 ms; another thread gets the interpreter within 5 ms."""
ROUND_KINDS = ("committed", "compared", "evaluated", "equivocated")
BULK = ("$.artifact", "$.body", "$.signature", "$.certificate_der", "$.manifests")
"""Parts of a body that only the trainer and an auditor need: tensor lists and signed manifests."""
OPEN = "open"
"""The outcome of a transfer that has not ended."""
PACE_ROUNDS = 10
"""Rounds for the estimate of the time left; the deadlines use as many."""


class HistoryRow(NamedTuple):
    """A row of one generation's journal, without ``BULK``."""

    generation: int
    seq: int
    time_s: float
    kind: str
    round: int
    body: Mapping[str, Any]


@dataclass(slots=True)
class CommittedRound:
    """A round that the site has committed. Later rows may add to its metrics and to what peers say of it."""

    number: int
    time_s: float
    generation: int
    sources: list[SourceRecord]
    contributors: list[str]
    missing: dict[str, str]
    cut: dict[str, str]
    below_quorum: bool
    skipped: list[int]
    artifact_sha256: str | None
    aggregate_sha256: str | None
    metrics: dict[str, float]
    threads: int
    duration_s: float
    agrees: dict[str, bool] = field(default_factory=dict)
    equivocated: list[str] = field(default_factory=list)
    returned: list[SourceRecord] = field(default_factory=list)
    missing_returns: dict[str, str] = field(default_factory=dict)
    made_in: int | None = None

    @classmethod
    def of_row(cls, round: int, body: Mapping[str, Any], *, time_s: float) -> Self:
        """The round of a row ``committed``; ``RowError`` where a key is missing."""
        member = functools.partial(rows.member, rows.CommittedRow.kind, round, body)
        return cls(
            number=round,
            time_s=time_s,
            generation=member("generation"),
            sources=member("sources"),
            contributors=member("contributors"),
            missing=member("missing"),
            cut=dict(body.get("cut") or {}),
            below_quorum=bool(member("below_quorum")),
            skipped=member("skipped"),
            artifact_sha256=member("artifact_sha256"),
            aggregate_sha256=member("aggregate_sha256"),
            metrics=dict(member("metrics")),
            threads=member("threads"),
            duration_s=member("duration_s"),
            returned=list(body.get("returned") or []),
            missing_returns=dict(body.get("missing_returns") or {}),
            made_in=body.get("made_in"),
        )

    def document(self) -> RoundRecord:
        """The record of `rounds --json`."""
        return {
            "round": self.number,
            "generation": self.generation,
            "sources": self.sources,
            "contributors": self.contributors,
            "missing": self.missing,
            "cut": self.cut,
            "below_quorum": self.below_quorum,
            "skipped": self.skipped,
            "artifact_sha256": self.artifact_sha256,
            "aggregate_sha256": self.aggregate_sha256,
            "metrics": self.metrics,
            "threads": self.threads,
            "duration_s": self.duration_s,
            "agrees": self.agrees,
            "equivocated": self.equivocated,
            "returned": self.returned,
            "missing_returns": self.missing_returns,
            "made_in": self.made_in,
        }


@dataclass(frozen=True, slots=True)
class Transfer:
    """An artifact, figures or an export, received or sent; ``ended_s`` is its outcome's time."""

    time_s: float
    ended_s: float
    direction: Literal["in", "out"]
    peer: str
    purpose: str
    kind: str
    generation: int
    round: int
    sha256: str
    bytes: int
    outcome: str

    @classmethod
    def received(cls, generation: int, round: int, body: Mapping[str, Any], *, time_s: float) -> Self:
        """The transfer of a row ``received``."""
        return cls(
            time_s,
            time_s,
            "in",
            *_peer_purpose_kind(body),
            generation,
            round,
            body["sha256"],
            body["bytes"],
            body["outcome"],
        )

    @classmethod
    def intended(cls, intent: Mapping[str, Any]) -> Self:
        """The open transfer of an intent in the ledger."""
        time_s, size, sha256 = intent["time"], intent["bytes"], sys.intern(intent["sha256"])
        return cls(
            time_s,
            time_s,
            "out",
            *_peer_purpose_kind(intent),
            intent["generation"],
            intent["round"],
            sha256,
            size,
            OPEN,
        )

    def settled(self, outcome: Mapping[str, Any]) -> Self:
        """The transfer with its outcome; one that a crash ended counts with all its bytes."""
        word = outcome["outcome"]
        size = self.bytes if word == UNKNOWN else outcome["bytes"]
        return replace(self, ended_s=outcome["time"], bytes=size, outcome=sys.intern(word))

    def document(self) -> TransferRecord:
        """The record of `transfers --json`."""
        return {
            "time": self.time_s,
            "direction": self.direction,
            "peer": self.peer,
            "purpose": self.purpose,
            "kind": self.kind,
            "round": self.round,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "outcome": self.outcome,
        }


class HistoryReader:
    """Reads every row of a site's journals and ledger once, and passes it to the methods of a
    subclass.
    """

    def __init__(self, folder: SiteFolder, *, kinds: Iterable[str], ledger: bool) -> None:
        self.folder = folder
        self.rows_read = 0
        self.ledger_rows = 0
        self.ledger_seq = 0
        self._kinds, self._ledger = tuple(kinds), ledger
        self._journal_seq: dict[int, int] = {}

    def begin_generation(self, generation: int) -> None:
        """Called before the first row of each generation, oldest first."""

    def add_row(self, row: HistoryRow) -> None:
        """Called with each row of a journal."""

    def add_intent(self, seq: int, transfer: Transfer) -> None:
        """Called with each intent of the ledger."""

    def add_outcome(self, intent: int, outcome: Mapping[str, Any]) -> None:
        """Called with each outcome of the ledger.

        An intent that a start settled as unknown may have a second one.
        """

    def read_more(self, rows_max: int = ROWS_MAX) -> bool:
        """Read new rows, at most so many; returns whether there may be more.

        Each call opens the files again, so that any thread may make it.

        Raises:
            PeerError: a file cannot be read.
        """
        left = rows_max
        for number in self.folder.generations():
            if left and (self.folder.generation(number) / "journal.db").exists():
                left -= self._read_journal(number, left)
        if self._ledger and left and self.folder.egress_db.exists():
            left -= self._read_ledger(left)
        self.rows_read += rows_max - left
        return not left

    def read_all(self) -> Self:
        """Read all new rows."""
        while self.read_more():
            pass
        return self

    def _read_journal(self, number: int, rows_max: int) -> int:
        path, count = self.folder.generation(number) / "journal.db", 0
        if number not in self._journal_seq:
            self._journal_seq[number] = 0
            self.begin_generation(number)
        with contextlib.closing(Journal(path, read_only=True)) as journal, storage(path):
            newer = journal.since(self._journal_seq[number], self._kinds, leave_out=BULK)
            for row in itertools.islice(newer, rows_max):
                self.add_row(HistoryRow(number, row["seq"], row["time"], row["kind"], row["round"], row["body"]))
                self._journal_seq[number] = row["seq"]
                count += 1
        return count

    def _read_ledger(self, rows_max: int) -> int:
        count = 0
        with contextlib.closing(Ledger(self.folder.egress_db, read_only=True)) as ledger:
            for seq, body in itertools.islice(ledger.since(self.ledger_seq), rows_max):
                if body["type"] == "intent":
                    self.add_intent(seq, Transfer.intended(body))
                else:
                    self.add_outcome(body["intent"], body)
                self.ledger_seq = seq
                self.ledger_rows += 1  # together: after an unreadable row, both still cover the same rows
                count += 1
        return count


class History(HistoryReader):
    """All committed rounds and all transfers of a site, over its generations.

    Args:
        kinds: the kinds of journal rows to collect in ``rows_of``.
    """

    def __init__(
        self,
        folder: SiteFolder,
        *,
        rounds: bool = False,
        received: bool = False,
        sent: bool = False,
        kinds: Iterable[str] = (),
    ) -> None:
        self._collected_kinds = frozenset(kinds)
        kinds_to_read = {*self._collected_kinds, *(ROUND_KINDS if rounds else ()), *(("received",) if received else ())}
        super().__init__(folder, kinds=sorted(kinds_to_read), ledger=sent)
        self.rounds_of: dict[int, dict[int, CommittedRound]] = {}
        self.received_of: dict[int, list[Transfer]] = {}
        self.rows_of: dict[int, list[HistoryRow]] = {}
        self._sent: dict[int, Transfer] = {}

    @property
    def rounds(self) -> list[CommittedRound]:
        """The committed rounds, oldest first."""
        return [committed for rounds in self.rounds_of.values() for committed in rounds.values()]

    @property
    def received(self) -> list[Transfer]:
        """The received transfers, oldest first."""
        return [transfer for transfers in self.received_of.values() for transfer in transfers]

    @property
    def sent(self) -> list[Transfer]:
        """The sent transfers, also those that go on, by the time of the intent."""
        return list(self._sent.values())

    @property
    def transfers(self) -> list[Transfer]:
        """The received and sent transfers, by time."""
        return sorted([*self.received, *self._sent.values()], key=lambda transfer: transfer.time_s)

    def begin_generation(self, generation: int) -> None:
        self.rounds_of[generation], self.received_of[generation], self.rows_of[generation] = {}, [], []

    def add_row(self, row: HistoryRow) -> None:
        if row.kind == "received":
            transfer = Transfer.received(row.generation, row.round, row.body, time_s=row.time_s)
            self.received_of[row.generation].append(transfer)
        else:
            add_to_rounds(self.rounds_of[row.generation], row.kind, row.round, row.body, time_s=row.time_s)
        if row.kind in self._collected_kinds:
            self.rows_of[row.generation].append(row)

    def add_intent(self, seq: int, transfer: Transfer) -> None:
        self._sent[seq] = transfer

    def add_outcome(self, intent: int, outcome: Mapping[str, Any]) -> None:
        if intent in self._sent:
            self._sent[intent] = self._sent[intent].settled(outcome)


class RecentRounds:
    """The newest committed rounds: the contributors to the last one, and an estimate of the time
    left.

    Args:
        rounds: committed rounds, oldest first.
    """

    def __init__(self, rounds: Iterable[CommittedRound] = ()) -> None:
        self.last: LastRound | None = None
        self._times_s: deque[float] = deque(maxlen=PACE_ROUNDS + 1)
        for committed in rounds:
            self.add(committed)

    def add(self, committed: CommittedRound) -> None:
        """Add a round that was just committed."""
        self._times_s.append(committed.time_s)
        self.last = {
            "round": committed.number,
            "contributors": committed.contributors,
            "missing": committed.missing,
            "missing_returns": committed.missing_returns,
            "duration_s": committed.duration_s,
        }

    @property
    def pace_s(self) -> float | None:
        """The median time between two commits; ``None`` before two rounds are committed."""
        if len(self._times_s) < 2:
            return None
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(self._times_s))

    def left_s(self, rounds: int, *, now_s: float) -> float | None:
        """The estimated seconds for so many rounds, the current one included: by the median time
        between two commits.

        ``None`` before two rounds are committed. A pause, or the time in which the daemon was down,
        counts as one long round.
        """
        if (pace_s := self.pace_s) is None:
            return None
        spent_s = min(max(0.0, now_s - self._times_s[-1]), pace_s)
        return round(max(0.0, rounds * pace_s - spent_s), 1) if rounds else 0.0


def recent_rounds(journal: Journal, last: int = PACE_ROUNDS + 1) -> list[CommittedRound]:
    """The newest committed rounds of one generation, oldest first."""
    newest = journal.records(("committed",), last=last, leave_out=BULK)
    with storage(journal.path):
        return [CommittedRound.of_row(row["round"], row["body"], time_s=row["time"]) for row in newest]


def recent_rounds_on_disk(folder: SiteFolder) -> RecentRounds:
    """The newest committed rounds of a site's newest generation, whether its daemon runs or not."""
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        newest = next((journal for journal in reversed(journals) if not journal.empty()), None)
        return RecentRounds([] if newest is None else recent_rounds(newest))


def committed_rounds(stored: Iterable[Row]) -> list[CommittedRound]:
    """The committed rounds in journal rows of the simulator, which have no times."""
    rounds: dict[int, CommittedRound] = {}
    for kind, round, body in stored:
        add_to_rounds(rounds, kind, round, body, time_s=0.0)
    return list(rounds.values())


def add_to_rounds(
    rounds: dict[int, CommittedRound], kind: str, round: int, body: Mapping[str, Any], *, time_s: float
) -> None:
    """Fold a row into its generation's committed rounds; other kinds change nothing."""
    if kind == "committed":
        rounds[round] = CommittedRound.of_row(round, body, time_s=time_s)
    elif kind == "compared" and round in rounds:
        rounds[round].agrees[rows.member(kind, round, body, "site")] = rows.member(kind, round, body, "agrees")
    elif kind == "equivocated" and round in rounds:
        rounds[round].equivocated.append(rows.member(kind, round, body, "origin"))
    elif kind == "evaluated" and round in rounds:
        rounds[round].metrics.update(rows.member(kind, round, body, "metrics"))


def open_journals(folder: SiteFolder) -> list[Journal]:
    """The journals of all generations, oldest first, opened for reading; the caller closes them."""
    paths = [folder.generation(number) / "journal.db" for number in folder.generations()]
    return [Journal(path, read_only=True) for path in paths if path.exists()]


def _peer_purpose_kind(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """Peer, purpose and kind, interned: each text is in memory once."""
    return sys.intern(body["peer"]), sys.intern(body["purpose"]), sys.intern(body["kind"])
