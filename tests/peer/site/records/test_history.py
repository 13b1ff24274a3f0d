"""Committed rounds and transfers, and the estimate of the time left."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import append_paced_rounds, append_rows, round_body
from peer.core.roster import SiteName
from peer.errors import StateError
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import (
    PACE_ROUNDS,
    RECENT_ROUNDS,
    CommittedRound,
    History,
    HistoryReader,
    HistoryRow,
    RecentRounds,
    Transfer,
    committed_rounds,
    recent_rounds,
    recent_rounds_on_disk,
)
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

COMMITTED = round_body(missing={"europe": "silent"}, metrics={"loss": 0.1})


def row(number: int, time_s: float) -> CommittedRound:
    return CommittedRound.of_row(number, COMMITTED, time_s=time_s)


def test_metrics_measured_after_the_commit_belong_to_the_round() -> None:
    rows = [("committed", 2, COMMITTED), ("evaluated", 2, {"metrics": {"auc": 0.9}})]
    (committed,) = committed_rounds(rows)
    assert committed.metrics == {"loss": 0.1, "auc": 0.9}
    assert COMMITTED["metrics"] == {"loss": 0.1}


def test_nothing_is_known_before_two_rounds_are_over() -> None:
    recent = RecentRounds()
    assert recent.last is None
    assert recent.left_s(5, now_s=0.0) is None
    recent.add(row(1, 100.0))
    assert recent.left_s(4, now_s=100.0) is None


def test_the_last_round_says_who_contributed() -> None:
    recent = RecentRounds([row(1, 0.0), row(2, 10.0)])
    missing = {"missing": {"europe": "silent"}, "missing_returns": {}}
    assert recent.last == {"round": 2, "contributors": ["asia"], "duration_s": 2.5, **missing}


def test_refused_and_declined_contributions_are_counted_among_those_expected() -> None:
    used = {"site": "rome", "round": 1, "sha256": "ab" * 32}
    bodies = [
        round_body(sources=[used], missing={"europe": "refused", "africa": "absent"}),
        round_body(sources=[{**used, "fallback": "ab" * 32}], missing={"rome": "declined", "europe": "silent"}),
        round_body(returned=[used], missing_returns={"europe": "refused"}, cut={"africa": "far away"}),
    ]
    recent = RecentRounds(CommittedRound.of_row(number, body, time_s=0.0) for number, body in enumerate(bodies, 1))
    assert recent.contributions(["africa", "europe", "oslo", "rome"]) == {
        "africa": {"expected": 1, "refused": 1, "last_refused": 3},
        "europe": {"expected": 3, "refused": 2, "last_refused": 3},
        "rome": {"expected": 3, "refused": 1, "last_refused": 2},
    }
    for number in range(4, 4 + RECENT_ROUNDS):
        recent.add(row(number, 0.0))
    assert recent.contributions(["africa", "europe"]) == {
        "europe": {"expected": RECENT_ROUNDS, "refused": 0, "last_refused": None}
    }


@pytest.mark.parametrize(("now_s", "left_s"), [(30.0, 40.0), (36.0, 34.0), (1e6, 30.0)])
def test_the_round_in_hand_has_taken_its_part(now_s: float, left_s: float) -> None:
    recent = RecentRounds([row(1, 10.0), row(2, 20.0), row(3, 30.0)])
    assert recent.left_s(4, now_s=now_s) == left_s


def test_a_night_in_which_the_daemon_was_down_is_not_the_pace() -> None:
    recent = RecentRounds([row(1, 0.0), row(2, 10.0), row(3, 40_000.0), row(4, 40_010.0)])
    assert recent.left_s(1, now_s=40_010.0) == 10.0


def test_only_the_newest_rounds_count() -> None:
    slow = [row(index, 1000.0 * index) for index in range(5)]
    fast = [row(5 + index, 4000.0 + 10.0 * (1 + index)) for index in range(PACE_ROUNDS)]
    assert RecentRounds([*slow, *fast]).left_s(1, now_s=fast[-1].time_s) == 10.0


def test_after_the_last_round_nothing_is_left() -> None:
    assert RecentRounds([row(1, 0.0), row(2, 10.0)]).left_s(0, now_s=11.0) == 0.0


def test_the_pace_of_a_site_is_on_its_disk(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path, "trial", SiteName("asia"))
    assert recent_rounds_on_disk(folder).pace_s is None
    folder.path.mkdir(parents=True)
    append_paced_rounds(folder, 1, 1, pace_s=900.0)
    assert recent_rounds_on_disk(folder).pace_s is None
    append_paced_rounds(folder, 2, 4, pace_s=90.0)
    assert recent_rounds_on_disk(folder).pace_s == pytest.approx(90.0)


def test_a_clock_that_was_set_back_leaves_no_more_than_all_of_it() -> None:
    recent = RecentRounds([row(1, 90_000.0), row(2, 90_010.0)])
    assert recent.left_s(4, now_s=10.0) == 40.0


def test_a_row_that_lacks_a_key_is_damage_that_names_the_journal(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path, "trial", SiteName("asia"))
    folder.path.mkdir(parents=True)
    append_rows(folder, ("committed", 1, {"metrics": {}}))
    with pytest.raises(StateError, match=r"journal\.db is damaged: row 1: a row 'committed' .*: 'generation' is "):
        History(folder, rounds=True).read_all()
    with (
        contextlib.closing(Journal(folder.generation(1) / "journal.db", read_only=True)) as journal,
        pytest.raises(StateError, match=r"journal\.db is damaged"),
    ):
        recent_rounds(journal)


def test_a_later_row_that_lacks_a_key_is_damage_as_well(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path, "trial", SiteName("asia"))
    folder.path.mkdir(parents=True)
    append_rows(folder, ("committed", 1, round_body()), ("compared", 1, {"site": "europe"}))
    with pytest.raises(StateError, match=r"journal\.db is damaged: row 2 \('compared'\): 'agrees'"):
        History(folder, rounds=True).read_all()


def test_rows_are_read_a_few_at_a_time_one_generation_after_the_other_and_then_the_ledger(books: Any) -> None:
    class Reader(HistoryReader):
        def begin_generation(self, generation: int) -> None:
            read.append(f"generation {generation}")

        def add_row(self, row: HistoryRow) -> None:
            read.append(f"{row.generation}: {row.kind}")

        def add_intent(self, seq: int, transfer: Transfer) -> None:
            read.append("intent")

    folder, read = books.loopback.folder("asia"), list[str]()
    for generation in (1, 2):
        append_rows(folder, *[("paused", round, {}) for round in (1, 2, 3)], generation=generation)
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        facts = {"purpose": "train", "kind": "model", "sha256": "ab" * 32}
        for round in (1, 2, 3):
            ledger.intend(peer=SiteName("europe"), round=round, generation=1, bytes=64, **facts)
    reader = Reader(folder, kinds=["paused"], ledger=True)
    for rows, more in (
        (["generation 1", *["1: paused"] * 3], True),
        (["generation 2", *["2: paused"] * 3], True),
        (["intent"] * 3, True),
        ([], False),
    ):
        read.clear()
        assert (reader.read_more(3), read) == (more, rows)
    assert reader.rows_read == 9
