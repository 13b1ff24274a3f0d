"""Sums over journals and ledger, read in pieces, each row once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import TRANSFER, round_body
from peer.core.roster import Roster, SiteName
from peer.errors import StateError
from peer.site.config.site_folder import SiteFolder
from peer.site.records.counts import OTHER, STRANGER, Counts, TransferLabels
from peer.site.records.journal import Journal
from peer.site.records.ledger import UNKNOWN, Ledger

EUROPE = SiteName("europe")
ROSTER = Roster(tuple(map(SiteName, ("africa", "asia", "europe"))))
SHA = "ab" * 32


class SiteRecords:
    """A site's journal and ledger, to write into."""

    def __init__(self, folder: SiteFolder) -> None:
        self.folder = folder
        self.journals: list[Journal] = []
        self.begin_generation()
        self.ledger = Ledger(folder.egress_db)

    def begin_generation(self) -> None:
        number = self.folder.create_generation()
        self.journals.append(Journal(self.folder.generation(number) / "journal.db"))

    def write(self, kind: str, round: int, /, **body: Any) -> None:
        self.journals[-1].append(kind, round, body)

    def commit(self, round: int, *sources: str, missing: Any = None, stale: tuple[str, ...] = (), **more: Any) -> None:
        used = [{"site": site, "round": round, "sha256": SHA, "fallback": ""} for site in sources]
        used += [{"site": site, "round": round - 1, "sha256": SHA, "fallback": "stale"} for site in stale]
        contributors = sorted({"europe", *sources, *stale})
        body = round_body(sources=used, missing=missing or {}, contributors=contributors, **more)
        self.write("committed", round, **body)

    def send(self, peer: str, outcome: str = "complete", *, sent: int = 9, **changes: Any) -> None:
        intent = self.ledger.intend(**{**TRANSFER, "peer": peer, "bytes": 9, **changes})
        if outcome:
            self.ledger.settle(intent, bytes=sent, outcome=outcome)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[SiteRecords]:
    folder = SiteFolder(tmp_path, "trial", SiteName("europe"))
    folder.path.mkdir(parents=True)
    records = SiteRecords(folder)
    yield records
    for journal in records.journals:
        journal.close()
    records.ledger.close()


@pytest.fixture
def counts(records: SiteRecords) -> Counts:
    return Counts(records.folder, ROSTER)


def test_a_newcomer_has_zeroes_and_is_counted_by_its_name(counts: Counts, records: SiteRecords) -> None:
    counts.add_members(frozenset({SiteName("asia"), SiteName("oslo")}))
    assert (counts.contributed["oslo"], counts.agreed["oslo", True], "oslo" in counts.refusals) == (0, 0, True)
    records.write("denied", 1, caller="oslo", call="model for round 1", reason="no")
    assert not counts.read_more()
    assert counts.denied["oslo"] == 1


def test_before_anything_happens_every_other_site_has_a_zero(counts: Counts) -> None:
    assert not counts.read_more()
    assert counts.last is None
    for count in (counts.contributed, counts.missed_last, counts.refusals):
        assert count == {"africa": 0, "asia": 0}
        assert set(count) == {"africa", "asia"}
    assert set(counts.denied) == {"africa", "asia", STRANGER}


def test_a_visiting_model_that_did_not_come_home_counts_as_missing(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, "africa", "asia", missing_returns={"asia": "slow"})
    counts.read_more()
    assert counts.last is not None
    assert counts.last.missing == {"asia": "slow"}
    assert counts.last.fresh(EUROPE) == {"africa"}
    assert counts.missed[("asia", "slow")] == 1


def test_who_contributed_and_who_was_missing_is_told_apart(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, "africa", "asia")
    records.commit(2, "africa", missing={"asia": "silent"}, stale=("asia",), below_quorum=True)
    records.commit(3, "africa", missing={"asia": "a reason of a newer program"})
    counts.read_more()
    assert (counts.last.row.round, len(counts.last.row.contributors)) == (3, 2)
    assert counts.last.fresh(EUROPE) == {"africa"}
    assert counts.contributed == {"africa": 3, "asia": 1}, "an old artifact in its place is no contribution"
    assert counts.missed == {("asia", "silent"): 1, ("asia", OTHER): 1}
    assert counts.missed_last == {"africa": 0, "asia": 2}
    assert counts.rounds == {"committed": 3, "below_quorum": 1, "skipped": 0}
    records.commit(4, "asia")
    counts.read_more()
    assert counts.missed_last["asia"] == 0
    assert counts.last.fresh(EUROPE) == {"asia"}


def test_an_evaluation_belongs_to_its_round_before_and_after_the_commit(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, "asia", metrics={"train_total": 0.5, "auc": 0.6})
    records.write("evaluated", 1, metrics={"auc": 0.75})
    records.write("evaluated", 2, metrics={"auc": 0.9})
    counts.read_more()
    assert counts.last.metrics == {"train_total": 0.5, "auc": 0.75}


def test_an_open_round_is_known_until_it_ends(records: SiteRecords, counts: Counts) -> None:
    records.write("opened", 1, sources=[])
    counts.read_more()
    assert counts.opened_s is not None
    records.commit(1)
    counts.read_more()
    assert counts.opened_s is None
    records.write("opened", 2, sources=[])
    records.write("skipped", 5, **{"from": 2, "publish": None})
    counts.read_more()
    assert counts.opened_s is None
    assert counts.rounds["skipped"] == 3


def test_strangers_names_are_not_taken_over(records: SiteRecords, counts: Counts) -> None:
    for name in ("asia", "asia", "Mallory", "unknown"):
        records.write("denied", 1, caller=name, call="model", reason="no")
    records.write("refused", 1, origin="africa", reason="no")
    records.write("compared", 1, site="asia", sha256=SHA, agrees=False)
    records.write("work_failed", 1, fault="memory", reason="no", count=1)
    counts.read_more()
    assert counts.denied == {"africa": 0, "asia": 2, STRANGER: 2}
    assert counts.refusals == {"africa": 1, "asia": 0}
    assert counts.agreed == {("africa", True): 0, ("africa", False): 0, ("asia", True): 0, ("asia", False): 1}
    assert counts.faults == {"memory": 1}


def test_transfers_count_when_their_end_is_known(records: SiteRecords, counts: Counts) -> None:
    records.send("asia")
    records.send("asia", "broken", sent=4)
    records.send("asia", UNKNOWN, sent=0)
    records.send("africa", "")
    records.send("", purpose="export", kind="onnx", sent=70)
    received = {"peer": "africa", "purpose": "train", "kind": "model", "sha256": SHA, "bytes": 5, "outcome": "complete"}
    records.write("received", 1, **received)
    counts.read_more()
    outcomes = ("complete", "broken", UNKNOWN)
    out = {outcome: TransferLabels("out", "asia", "model", "train", outcome) for outcome in outcomes}
    export = TransferLabels("out", "", "onnx", "export", "complete")
    incoming = TransferLabels("in", "africa", "model", "train", "complete")
    assert counts.transfers == dict.fromkeys([*out.values(), export, incoming], 1)
    assert counts.bytes == {out["complete"]: 9, out["broken"]: 4, out[UNKNOWN]: 9, export: 70, incoming: 5}
    assert counts.ledger_rows == counts.ledger_seq == 9


def test_every_row_is_read_once_in_pieces_of_any_size(records: SiteRecords, counts: Counts) -> None:
    for round in range(1, 6):
        records.commit(round, "asia")
        records.send("asia")
    pieces = 0
    while counts.read_more(rows_max=4):
        pieces += 1
    assert pieces == 3
    assert (counts.rounds["committed"], counts.ledger_rows) == (5, 10)
    assert not counts.read_more(rows_max=4)
    assert (counts.rounds["committed"], counts.ledger_rows) == (5, 10)


def test_sums_go_over_generations_and_the_last_round_does_not(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, "asia")
    records.begin_generation()
    counts.read_more()
    assert (counts.rounds["committed"], counts.last) == (1, None)
    records.commit(1, "asia")
    counts.read_more()
    assert counts.rounds["committed"] == 2
    assert counts.last is not None


def test_a_row_that_was_taken_out_shows_in_the_count(records: SiteRecords, counts: Counts) -> None:
    records.send("asia")
    records.send("asia")
    records.ledger._connection.execute("DELETE FROM ledger WHERE seq = 2")
    counts.read_more()
    assert (counts.ledger_rows, counts.ledger_seq) == (3, 4)


def test_a_damaged_file_is_named(records: SiteRecords, counts: Counts) -> None:
    records.journals[0]._connection.execute("INSERT INTO row (time_s, kind, round, body) VALUES (0, 'denied', 1, '{')")
    with pytest.raises(StateError, match=r"journal\.db is damaged"):
        counts.read_more()


def test_a_site_that_left_the_federation_is_not_missed_for_ever(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, "oceania", missing={"asia": "silent"})
    records.commit(2, missing={"asia": "silent", "oceania": "silent"})
    counts.read_more()
    assert counts.missed_last == {"africa": 0, "asia": 2}
    assert (counts.contributed, counts.missed) == ({"africa": 0, "asia": 0}, {("asia", "silent"): 2})


def test_rounds_that_a_peer_missed_in_a_row_are_those_of_the_generation(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, missing={"asia": "silent"})
    counts.read_more()
    records.begin_generation()
    records.write("began", 0)
    counts.read_more()
    assert counts.missed_last["asia"] == 0
    assert counts.missed == {("asia", "silent"): 1}


def test_whom_the_operator_named_absent_is_not_missed(records: SiteRecords, counts: Counts) -> None:
    records.commit(1, missing={"asia": "silent"})
    records.commit(2, missing={"asia": "absent"})
    counts.read_more()
    assert counts.missed_last["asia"] == 0
    assert counts.missed == {("asia", "silent"): 1, ("asia", "absent"): 1}


def test_a_row_that_cannot_be_read_makes_none_of_those_before_it_missing(records: SiteRecords, counts: Counts) -> None:
    records.send("asia")
    records.send("asia")
    records.ledger._connection.execute("UPDATE ledger SET body = '{' WHERE seq = 3")
    for _ in range(2):
        with pytest.raises(StateError, match=r"egress\.db is damaged"):
            counts.read_more()
        assert (counts.ledger_seq, counts.ledger_rows) == (2, 2)
