"""The audit of one site: its commands are in a safe order, and its rows alone give its memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from peer.core import commands
from peer.core.journal_row import JournalRow
from peer.core.machine import SiteMachine
from peer.core.phases import NEXT, Phase
from peer.core.rows import decode
from peer.core.site_memory import Memory, Row
from peer.core.worker_protocol import to_json


def as_stored(row: Row) -> Row:
    """The row after a trip through the journal's JSON."""
    return row[0], row[1], json.loads(json.dumps(row[2]))


class Audit:
    """Checks the invariants after every event, with a second memory that it builds from the rows.

    Args:
        rows: the journal when the site started.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: list[Row] = []
        self.memory = Memory()
        self.phase = Phase.NEW
        self.published: dict[tuple[int, int, str], str] = {}
        for row in rows:
            self._persisted(row, decode(*row))

    def check(self, site: SiteMachine, out: Sequence[commands.Command], now_s: float) -> None:
        """Assert that the commands are in a safe order, and that a restart would have the same memory."""
        announced = False
        for command in out:
            if isinstance(command, commands.Persist):
                assert not announced, f"{command.kind} is written after peers were told"
                row = as_stored((command.kind, command.round, command.body))
                decoded = decode(*row)
                assert decoded.body() == row[2], "a row changes on its way through the journal"
                self._persisted(row, decoded)
            elif isinstance(command, commands.Announce):
                announced = True
            else:
                self._check(site, command, now_s)
        assert self.memory == site.memory, "a restart would remember something else"
        for before, after in site.steps:
            assert after in NEXT[before], f"{after} may not follow {before}"
        assert site.phase == (site.steps[-1][1] if site.steps else self.phase), (
            "a phase was entered without an announcement"
        )
        self.phase = site.phase
        assert sum(isinstance(command, commands.WakeAt) for command in out) <= 1

    def _persisted(self, row: Row, decoded: JournalRow) -> None:
        kind, round, body = row
        if kind == "published":
            sha256 = body["artifact"]["sha256"]
            key = (self.memory.generation, round, body["artifact"]["owner"])
            assert self.published.setdefault(key, sha256) == sha256, "two artifacts of one round would be a forgery"
        if kind == "committed":
            assert round > max((number for known, number, _ in self.rows if known == "committed"), default=0)
            assert round <= max(number for known, number, _ in self.rows if known == "opened")
        self.rows.append(row)
        self.memory.apply(decoded)

    def _check(self, site: SiteMachine, command: commands.Command, now_s: float) -> None:
        memory = self.memory
        match command:
            case commands.Publish(round, artifact, True):
                assert memory.evaluation.lent[round].artifact == artifact
            case commands.Measure(_, round, _, source):
                assert source in [model.source for model in memory.evaluation.borrowed.values()]
                assert source.round == round
            case commands.SendReport(_, name, report):
                borrowed = memory.evaluation.borrowed
                assert borrowed[(name, report.generation, report.round)].report == report, "told before it is written"
            case commands.Publish(round, artifact):
                assert memory.published[(round, artifact.owner)] == artifact
                assert ("published", round, {"artifact": to_json(artifact)}) in self.rows
            case commands.Train(_, round, _, _, base, sources):
                opened = memory.open
                assert opened is not None
                assert (opened.number, opened.state, opened.sources) == (round, base, sources)
                assert memory.committed < round
                kinds = {kind for kind, number, _ in self.rows if number == round}
                assert "chosen" in kinds or site.lived_rules.phases(round)[0] != "exchange"
                assert "opened" in kinds
            case commands.Aggregate(_, round, _, base, sources):
                opened = memory.open
                assert opened is not None
                assert (opened.number, opened.state, site.sources_in_use()) == (round, base, sources)
            case commands.Evaluate(_, round, _, base):
                assert base == (memory.open.state if memory.open is not None else memory.state)
                assert round == (memory.open.number if memory.open is not None else memory.committed)
            case commands.Exit():
                assert self.rows[-1][0] == "left"
            case commands.Discard(sha256):
                assert sha256 not in site.memory.needed_digests(), "a file is deleted that a row still names"
            case commands.WakeAt(at_s):
                assert at_s > now_s, "a wake-up in the past would spin"
            case commands.Fetch(_, round, _, origin, _, _, owner):
                assert origin != site.rules.site
                assert {origin, owner} <= site.rules.epochs.names
