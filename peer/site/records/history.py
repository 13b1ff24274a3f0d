"""Committed rounds and transfers of a site, from its journals and its egress ledger.

``HistoryReader`` reads each row once, over any number of calls, and only the parts that its
subclasses need: the signed manifest of a received artifact is much larger than the rest of its row.
The daemon may write at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from peer.core import rows
from peer.core.json_codec import to_json
from peer.core.leak import LeakFacts
from peer.core.privacy import SpendingFacts
from peer.core.roster import SiteName
from peer.core.site_memory import Row
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal, damaged, storage
from peer.site.records.ledger import UNKNOWN, Ledger

if TYPE_CHECKING:
    from peer.core.status_document import LastRound, PeerContributions
    from peer.documents.records import RoundRecord, TransferRecord

ROWS_MAX = 2000
"""Rows to read in one call, which takes some 20 ms; another thread gets the interpreter within 5 ms."""
ROUND_KINDS = ("committed", "compared", "evaluated", "equivocated")
OPEN = "open"
"""The outcome of a transfer that has not ended."""
RECENT_ROUNDS = 50
"""Rounds in which contributions are counted: older refusals say little, and a status is read often."""
LOST_BY_REFUSAL = ("refused", "declined")
"""The reasons of a round for going on without a peer that has delivered, or could have."""
PACE_ROUNDS = 10
"""Rounds for the estimate of the time left; the deadlines use as many."""


class HistoryRow(NamedTuple):
    """A row of one generation's journal, without signed manifests."""

    generation: int
    seq: int
    time_s: float
    kind: str
    round: int
    body: Mapping[str, Any]


@dataclass(slots=True)
class CommittedRound:
    """A round that the site has committed: its row, and what later rows add.

    ``metrics`` are those of the row and of later evaluations, ``agrees`` says of each peer whether
    its mean has the same bits, and ``equivocated`` names the sites that signed two artifacts.
    """

    row: rows.CommittedRow
    time_s: float
    metrics: dict[str, float]
    agrees: dict[SiteName, bool] = field(default_factory=dict)
    equivocated: list[SiteName] = field(default_factory=list)

    @classmethod
    def of_row(cls, round: int, body: Mapping[str, Any], *, time_s: float) -> Self:
        """Decode a row ``committed``; raise ``RowError`` if it is damaged."""
        row: Any = rows.decode(rows.CommittedRow.kind, round, body)
        return cls(row, time_s, dict(row.metrics))

    @property
    def missing(self) -> dict[str, str]:
        """The peers that did not contribute, or return the own model, each with the reason."""
        return {**(self.row.missing_returns or {}), **self.row.missing}

    def fresh(self, own: SiteName) -> set[SiteName]:
        """Return the peers whose artifacts of this round arrived; none of those is missing."""
        sources = {source.site for source in self.row.sources if not source.fallback}
        return sources - {own} - self.missing.keys()

    def document(self) -> RoundRecord:
        """Return the record of `rounds --json`."""
        row = {key: value for key, value in to_json(self.row).items() if key not in ("state", "publish", "visiting")}
        returned, missing_returns, made_in = (row.pop(key) for key in ("returned", "missing_returns", "made_in"))
        record = {
            **row,
            "cut": row["cut"] or {},
            "metrics": self.metrics,
            "agrees": self.agrees,
            "equivocated": self.equivocated,
            "returned": returned or [],
            "missing_returns": missing_returns or {},
            "made_in": made_in,
        }
        return cast("RoundRecord", record)


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
    leak: LeakFacts | None = None
    spent: SpendingFacts | None = None
    masked: bool = False

    @classmethod
    def received(cls, generation: int, round: int, body: Mapping[str, Any], *, time_s: float) -> Self:
        """Return the transfer of a row ``received``."""
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
        """Return the open transfer of an intent in the ledger."""
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
            intent.get("leak"),
            intent.get("spent"),
            intent.get("masked", False),
        )

    def settled(self, outcome: Mapping[str, Any]) -> Self:
        """Return the transfer with its outcome; one that a crash ended counts with all its bytes."""
        word = outcome["outcome"]
        size = self.bytes if word == UNKNOWN else outcome["bytes"]
        return replace(self, ended_s=outcome["time"], bytes=size, outcome=sys.intern(word))

    def document(self) -> TransferRecord:
        """Return the record of `transfers --json`."""
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
            "leak": self.leak,
            "spent": self.spent,
            "masked": self.masked if self.direction == "out" else None,
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
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            newer = journal.since(self._journal_seq[number], self._kinds)
            for row in itertools.islice(newer, rows_max):
                try:
                    self.add_row(HistoryRow(number, row["seq"], row["time"], row["kind"], row["round"], row["body"]))
                except rows.RowError as error:
                    raise damaged(path, f"row {row['seq']}: {error}") from error
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
        self._rounds: deque[rows.CommittedRow] = deque(maxlen=RECENT_ROUNDS)
        self._times_s: deque[float] = deque(maxlen=PACE_ROUNDS + 1)
        for committed in rounds:
            self.add(committed)

    def add(self, committed: CommittedRound) -> None:
        """Add a round that was just committed."""
        row = committed.row
        self._times_s.append(committed.time_s)
        self.last = {
            "round": row.round,
            "contributors": list(row.contributors),
            "missing": dict(row.missing),
            "missing_returns": dict(row.missing_returns or {}),
            "duration_s": row.duration_s,
        }
        self._rounds.append(row)

    def contributions(self, peers: Iterable[str]) -> dict[str, PeerContributions]:
        """Return what the ``RECENT_ROUNDS`` expected of each of these peers, as far as they expected something."""
        counts: dict[str, PeerContributions] = {}
        for row in self._rounds:
            left_out = {str(site): "refused" for site in row.cut or {} if site not in row.contributors}
            exchanges = (row.sources, {**row.missing, **left_out}), (row.returned or (), row.missing_returns or {})
            for sources, missing in exchanges:
                fresh = {source.site for source in sources if not source.fallback}
                for peer in fresh | {peer for peer, reason in missing.items() if reason != rows.ABSENT}:
                    count = counts.setdefault(peer, {"expected": 0, "refused": 0, "last_refused": None})
                    count["expected"] += 1
                    if missing.get(peer) in LOST_BY_REFUSAL:
                        count |= {"refused": count["refused"] + 1, "last_refused": row.round}
        return {peer: counts[peer] for peer in peers if peer in counts}

    @property
    def pace_s(self) -> float | None:
        """The median time between two commits; ``None`` before two rounds are committed."""
        if len(self._times_s) < 2:
            return None
        import statistics  # here, since the import takes time, and a site without rounds does not need it

        return statistics.median(later - earlier for earlier, later in itertools.pairwise(self._times_s))

    def left_s(self, rounds: int, *, now_s: float) -> float | None:
        """Return the estimated seconds for so many rounds, the current one included: by the median time
        between two commits.

        ``None`` before two rounds are committed. A pause, or the time in which the daemon was down,
        counts as one long round.
        """
        if (pace_s := self.pace_s) is None:
            return None
        spent_s = min(max(0.0, now_s - self._times_s[-1]), pace_s)
        return round(max(0.0, rounds * pace_s - spent_s), 1) if rounds else 0.0


def recent_rounds(journal: Journal, last: int = PACE_ROUNDS + 1) -> list[CommittedRound]:
    """Return the newest committed rounds of one generation, oldest first."""
    newest = journal.records(("committed",), last=last)
    with storage(journal.path):
        return [CommittedRound.of_row(row["round"], row["body"], time_s=row["time"]) for row in newest]


def recent_rounds_on_disk(folder: SiteFolder) -> RecentRounds:
    """Return the newest committed rounds of a site's newest generation, whether its daemon runs or not."""
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        newest = next((journal for journal in reversed(journals) if not journal.empty()), None)
        return RecentRounds([] if newest is None else recent_rounds(newest))


def committed_rounds(stored: Iterable[Row]) -> list[CommittedRound]:
    """Return the committed rounds in journal rows of the simulator, which have no times."""
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
        rounds[round].agrees[body["site"]] = body["agrees"]
    elif kind == "equivocated" and round in rounds:
        rounds[round].equivocated.append(body["origin"])
    elif kind == "evaluated" and round in rounds:
        rounds[round].metrics.update(body["metrics"])


def open_journals(folder: SiteFolder) -> list[Journal]:
    """Open the journals of all generations for reading, oldest first. The caller closes them."""
    paths = [folder.generation(number) / "journal.db" for number in folder.generations()]
    return [Journal(path, read_only=True) for path in paths if path.exists()]


def _peer_purpose_kind(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """Peer, purpose and kind, interned: each text is in memory once."""
    return sys.intern(body["peer"]), sys.intern(body["purpose"]), sys.intern(body["kind"])
