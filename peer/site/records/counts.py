"""Sums over a site's journals and its egress ledger, for its metrics.

The sums cover all generations, like `rounds` and `transfers`, and are the same after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from peer.core.exchange import MISSING_REASONS
from peer.core.roster import Roster, SiteName
from peer.core.rows import ABSENT
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import CommittedRound, HistoryReader, HistoryRow, Transfer

KINDS = ("opened", "committed", "evaluated", "compared", "skipped", "received", "refused", "denied", "work_failed")
"""The kinds of journal rows that are counted."""
NOBODY = ""
"""The receiver of an export."""
STRANGER = "unknown"
"""A caller that is no site of the roster: callers choose their names."""
OTHER = "other"
"""A reason that this program does not know, from a newer one or another site."""


class TransferLabels(NamedTuple):
    """The labels of a count of transfers. Sent ones end ``complete``, ``broken`` or ``unknown``."""

    direction: str
    peer: str
    kind: str
    purpose: str
    outcome: str


class Counts(HistoryReader):
    """The sums.

    Each count by peer has an entry for every peer of the roster, which is zero before the first
    event. ``last`` is the newest committed round of the newest generation.
    """

    def __init__(self, folder: SiteFolder, roster: Roster) -> None:
        super().__init__(folder, kinds=KINDS, ledger=True)
        self.roster = frozenset(roster)
        peers = roster.others(folder.site)
        self.transfers: Counter[TransferLabels] = Counter()
        self.bytes: Counter[TransferLabels] = Counter()
        self.rounds: Counter[str] = Counter(committed=0, skipped=0, below_quorum=0)
        self.contributed: Counter[str] = Counter(dict.fromkeys(peers, 0))
        self.missed: Counter[tuple[str, str]] = Counter()
        self.missed_last: Counter[str] = Counter(dict.fromkeys(peers, 0))
        self.refusals: Counter[str] = Counter(dict.fromkeys(peers, 0))
        self.denied: Counter[str] = Counter(dict.fromkeys((*peers, STRANGER), 0))
        self.agreed: Counter[tuple[str, bool]] = Counter({(name, same): 0 for name in peers for same in (True, False)})
        self.faults: Counter[str] = Counter()
        self.last: CommittedRound | None = None
        self.opened_s: float | None = None
        self._intents: dict[int, Transfer] = {}

    def add_members(self, names: frozenset[SiteName]) -> None:
        """Count by these sites as well, from the rows on that are not read yet."""
        for name in sorted(names - self.roster):
            for count in (self.contributed, self.missed_last, self.refusals, self.denied):
                count[name] += 0
            self.agreed.update({(name, same): 0 for same in (True, False)})
        self.roster |= names

    def begin_generation(self, generation: int) -> None:
        """Reset the last round, which is that of the newest generation."""
        self.last, self.opened_s = None, None
        for name in self.missed_last:
            self.missed_last[name] = 0

    def add_row(self, row: HistoryRow) -> None:
        body, round = row.body, row.round
        match row.kind:
            case "opened":
                self.opened_s = row.time_s
            case "committed":
                self._count_round(CommittedRound.of_row(round, body, time_s=row.time_s))
            case "evaluated":
                if self.last is not None and self.last.row.round == round:
                    self.last.metrics.update(body["metrics"])
            case "compared":
                self.agreed[(self._peer(body["site"]), body["agrees"])] += 1
            case "skipped":
                self.rounds["skipped"] += round - body["from"]
                self.opened_s = None
            case "received":
                self._count_transfer(Transfer.received(row.generation, round, body, time_s=row.time_s))
            case "refused" if not body.get("declined"):
                self.refusals[self._peer(body["origin"])] += 1
            case "denied":
                self.denied[self._peer(body["caller"])] += 1
            case "work_failed":
                self.faults[body["fault"]] += 1

    def add_intent(self, seq: int, transfer: Transfer) -> None:
        self._intents[seq] = transfer

    def add_outcome(self, intent: int, outcome: Mapping[str, Any]) -> None:
        """Count the transfer at its first outcome only."""
        if intent in self._intents:
            self._count_transfer(self._intents.pop(intent).settled(outcome))

    def _count_round(self, committed: CommittedRound) -> None:
        missing = committed.missing
        self.last, self.opened_s = committed, None
        self.rounds["committed"] += 1
        self.rounds["below_quorum"] += committed.row.below_quorum
        for site in committed.fresh(self.folder.site) & self.roster:  # others left with a former generation
            self.contributed[site] += 1
            self.missed_last[site] = 0
        for site in self.roster & missing.keys():
            self.missed[(site, known_or_other(missing[site], MISSING_REASONS))] += 1
            self.missed_last[site] = 0 if missing[site] == ABSENT else self.missed_last[site] + 1

    def _count_transfer(self, transfer: Transfer) -> None:
        peer = NOBODY if transfer.purpose == "export" else self._peer(transfer.peer)
        labels = TransferLabels(transfer.direction, peer, transfer.kind, transfer.purpose, transfer.outcome)
        self.transfers[labels] += 1
        self.bytes[labels] += transfer.bytes

    def _peer(self, name: str) -> str:
        return SiteName(name) if name in self.roster else STRANGER


def known_or_other(text: str, known: Collection[str]) -> str:
    """Return the text if it is known, else ``OTHER``: peers must not choose the value of a label."""
    return text if text in known else OTHER
