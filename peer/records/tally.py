"""What a site's journals and its egress ledger add up to, counted along: each row is read once, however many there are.

The sums go over all generations, like `rounds` and `transfers`, and are the same after a restart.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from peer.config.site_folder import SiteFolder
from peer.core.roster import Roster, SiteName
from peer.records.journal import Journal
from peer.records.ledger import UNKNOWN, Ledger

ROWS_MAX = 2000
"""Read in one go: some 20 ms, in which another thread that wants the interpreter has it within 5."""
KINDS = ("opened", "committed", "evaluated", "compared", "skipped", "received", "refused", "denied", "work_failed")
"""Rows of the journal that something is counted of."""
ABSENT = "absent"
"""Whom the operator named with `start --without`: nobody misses it."""
REASONS = (ABSENT, "silent", "slow", "paused", "leaving", "failed", "gone", "retired", "skipped", "refused")
"""Why a site did not contribute to a round, as the state machine words it."""
NOBODY, STRANGER, OTHER = "", "unknown", "other"
"""What stands for the receiver of an export, for a caller that is no site, and for a word that is not in a list."""


class Transfer(NamedTuple):
    """What transfers are told apart by. Outgoing ones end ``complete``, ``broken`` or ``unknown``."""

    direction: str
    peer: str
    kind: str
    purpose: str
    outcome: str


@dataclass(slots=True)
class Finished:
    """The round that was committed last: ``fresh`` sites' artifacts came for it, others are ``missing``."""

    time_s: float
    number: int
    duration_s: float
    contributors: int
    fresh: frozenset[str]
    missing: Mapping[str, str]
    metrics: dict[str, float]


@dataclass(slots=True)
class Tally:
    """The sums. Of the roster's others there is an entry in each count by peer, zero where nothing happened.

    Args:
        folder: the site's.
        roster: all sites of the federation.
    """

    folder: SiteFolder
    roster: Roster
    transfers: Counter[Transfer] = field(default_factory=Counter)
    bytes: Counter[Transfer] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    contributed: Counter[str] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed_last: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)
    agreed: Counter[tuple[str, bool]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    last: Finished | None = None
    opened_s: float | None = None
    egress_rows: int = 0
    egress_head: int = 0
    _read: dict[int, int] = field(default_factory=dict)
    _intents: dict[int, tuple[Transfer, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.roster.others(self.folder.site):
            for count in (self.contributed, self.missed_last, self.refusals, self.denied):
                count[name] = 0
            self.agreed[(name, True)] = self.agreed[(name, False)] = 0
        self.denied[STRANGER] = 0
        self.rounds.update(committed=0, skipped=0, below_quorum=0)

    def read_on(self, rows_max: int = ROWS_MAX) -> bool:
        """Take in what was written since, at most so many rows; whether there may be more.

        It opens the files anew, and may therefore run in any thread.

        Raises:
            PeerError: a file cannot be read.
        """
        left = rows_max
        for number in self.folder.generations():
            if left and (self.folder.generation(number) / "journal.db").exists():
                left -= self._read_journal(number, left)
        if left and self.folder.egress_db.exists():
            left -= self._read_ledger(left)
        return not left

    def _read_journal(self, number: int, rows_max: int) -> int:
        path, count = self.folder.generation(number) / "journal.db", 0
        if number not in self._read:
            self._read[number], self.last, self.opened_s = 0, None, None  # of an older generation
            for name in self.missed_last:
                self.missed_last[name] = 0
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            for row in itertools.islice(journal.since(self._read[number], KINDS), rows_max):
                self._take(row)
                self._read[number] = row["seq"]
                count += 1
        return count

    def _read_ledger(self, rows_max: int) -> int:
        count = 0
        with contextlib.closing(Ledger(self.folder.egress_db, read_only=True)) as ledger:
            for number, body in itertools.islice(ledger.since(self.egress_head), rows_max):
                self._account(number, body)
                self.egress_head = number
                self.egress_rows += 1  # with the head: what cannot be read later on makes no row missing
                count += 1
        return count

    def _take(self, row: Mapping[str, Any]) -> None:
        """Count one row of a journal."""
        body, round = row["body"], row["round"]
        match row["kind"]:
            case "opened":
                self.opened_s = row["time"]
            case "committed":
                self._finish(row["time"], round, body)
            case "evaluated":
                if self.last is not None and self.last.number == round:
                    self.last.metrics.update(body["metrics"])
            case "compared":
                self.agreed[(self._peer(body["site"]), body["agrees"])] += 1
            case "skipped":
                self.rounds["skipped"] += round - body["from"]
                self.opened_s = None
            case "received":
                what = Transfer("in", self._peer(body["peer"]), body["kind"], body["purpose"], body["outcome"])
                self.transfers[what] += 1
                self.bytes[what] += body["bytes"]
            case "refused":
                self.refusals[self._peer(body["origin"])] += 1
            case "denied":
                self.denied[self._peer(body["caller"])] += 1
            case "work_failed":
                self.faults[body["fault"]] += 1

    def _finish(self, time_s: float, round: int, body: Mapping[str, Any]) -> None:
        fresh = {source["site"] for source in body["sources"] if not source["fallback"]} - {self.folder.site}
        missing = {site: reason if reason in REASONS else OTHER for site, reason in body["missing"].items()}
        fresh -= missing.keys()
        self.last = Finished(
            time_s=time_s,
            number=round,
            duration_s=body["duration_s"],
            contributors=len(body["contributors"]),
            fresh=frozenset(fresh),
            missing=missing,
            metrics=dict(body["metrics"]),
        )
        self.opened_s = None
        self.rounds["committed"] += 1
        self.rounds["below_quorum"] += bool(body["below_quorum"])
        for site in fresh & set(self.roster):  # a former generation may know of sites that have left the federation
            self.contributed[site] += 1
            self.missed_last[site] = 0
        for site in missing.keys() & set(self.roster):
            self.missed[(site, missing[site])] += 1
            self.missed_last[site] = 0 if missing[site] == ABSENT else self.missed_last[site] + 1

    def _account(self, number: int, body: Mapping[str, Any]) -> None:
        """Count a transfer when its outcome is known; nobody knows how much left of one that a crash ended."""
        if body["type"] == "intent":
            peer = NOBODY if body["purpose"] == "export" else self._peer(body["peer"])
            self._intents[number] = (Transfer("out", peer, body["kind"], body["purpose"], ""), body["bytes"])
        elif body["intent"] in self._intents:
            what, meant = self._intents.pop(body["intent"])
            what = what._replace(outcome=body["outcome"])
            self.transfers[what] += 1
            self.bytes[what] += meant if body["outcome"] == UNKNOWN else body["bytes"]

    def _peer(self, name: str) -> str:
        """A site of the roster, or what stands for anybody else: callers name themselves."""
        return SiteName(name) if name in self.roster else STRANGER
