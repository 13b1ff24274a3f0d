"""Documents as people see them: every fact, no Python expression, no control character."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from fakes.cli import drawn
from peer.cli import rendering
from peer.core.leak import Leak, leak_facts
from peer.core.limits import ISSUED_MAX
from peer.core.privacy import Spending, mu_of, spending_facts

STATUS = {
    "daemon": "running", "site": "asia", "federation": "trial", "digest": "ab" * 32, "method": "fedskd",
    "generation": 2, "phase": "train", "phase_s": 1.0, "round": 4, "rounds": 10, "committed": 3, "waiting_for": [],
    "peers": {}, "training": {}, "samples": {}, "refusals": [], "failure": "", "departed": "", "held": "",
    "contributions": {}, "last_round": None, "left_s": None, "best_round": None,
    "certificate_days": 364, "transfers": [], "pid": 7, "worker_pid": 8, "started": 0.0,
}  # fmt: skip
PEER = {
    "state": "heard", "round": 3, "phase": "exchange", "progress": 0.5, "last_seen_s": 2.4, "clock_skew_s": 0.1,
    "spoken": {"messages": 3, "bytes": 99}, "artifact_bytes": {"in": 1 << 20, "out": 512}, "address": "10.0.0.7:7443",
    "route": "direct", "problem": "",
    "software": "mhfl-peer 0.2.0", "protocol": 1, "features": [],
    "epoch": 4,
    "called_s": 1.0,
}  # fmt: skip
UNKNOWN = {**dict.fromkeys(PEER), "state": "unknown"}
ROUND = {
    "round": 1,
    "generation": 1,
    "sources": [{"site": "europe", "round": 1, "sha256": "cd" * 32, "fallback": ""}],
    "contributors": ["asia", "europe"],
    "missing": {},
    "cut": {},
    "below_quorum": False,
    "skipped": [],
    "artifact_sha256": "ef" * 32,
    "aggregate_sha256": None,
    "agrees": {},
    "equivocated": [],
    "metrics": {"train_total": 0.123456, "train_total_last": 9.0, "samples": 4.0, "auc": 0.75},
    "threads": 1,
    "duration_s": 61.26,
}

TRANSFER = {
    "time": 0.0, "direction": "out", "peer": "europe", "purpose": "train", "kind": "model", "round": 3,
    "sha256": "ab" * 32, "bytes": 3 << 30, "outcome": "complete",
}  # fmt: skip


def lines_of(table: Any) -> list[list[str]]:
    """The rows of a table, a list of cells each; the first is the head."""
    lines = [line for line in drawn(table).splitlines() if line.strip() and "──" not in line]
    return [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in lines]


def status(**changes: Any) -> str:
    return drawn(rendering.status({**STATUS, **changes}))


def test_a_status_says_who_where_and_how_far() -> None:
    text = status()
    assert "asia in trial abababababab  fedskd  generation 2" in text
    assert "round 4/10" in text
    assert "train" in text
    assert "valid for 364 more days" in text
    assert "down" not in text
    assert "Pretrained" not in text
    fitted = "2 of 3 tensors fit; random: fc.weight"
    assert f"Pretrained weights: {fitted}." in status(weights=fitted)


def test_a_certificate_that_has_expired_is_said_to_have() -> None:
    text = status(certificate_days=-2)
    assert "The certificate has expired: this site can call no peer until you renew it." in text
    assert "-2" not in text
    assert "valid for 0 more days" in status(certificate_days=0)


@pytest.mark.parametrize(
    ("phase", "words"), [("new", "nothing was begun yet"), ("down", "what the journal says"), ("finished", "journal")]
)
def test_a_status_of_a_stopped_site_says_so(phase: str, words: str) -> None:
    text = status(daemon="down", phase=phase, certificate_days=None)
    assert "The daemon is down" in text
    assert words in text
    assert "certificate" not in text


def test_a_status_says_whom_it_waits_for_and_for_how_long() -> None:
    waits = [
        {"site": "europe", "artifact": "model", "since_s": 3.2, "deadline_s": 56.8},
        {"site": "africa", "artifact": "hello", "since_s": 1.0, "deadline_s": None},
    ]
    text = status(waiting_for=waits)
    assert "Waiting for europe: model, for 3 s, at most 57 s more\n" in text
    assert "Waiting for africa: hello, for 1 s\n" in text


@pytest.mark.parametrize(
    ("contributors", "missing", "sentence"),
    [
        (["asia", "europe"], {"africa": "silent"}, "Round 3 was trained with europe, without africa (silent)."),
        (["asia"], {}, "Round 3 was trained alone, as planned."),
        (["asia"], {"europe": "slow"}, "trained alone, without europe (slow)."),
    ],
)
def test_a_status_tells_the_time_left_and_who_took_part(
    contributors: list[str], missing: Mapping[str, str], sentence: str
) -> None:
    last = {"round": 3, "contributors": contributors, "missing": missing, "duration_s": 2.0}
    shown = status(left_s=8000.0, last_round=last)
    assert "train, about 2 h 13 min left" in shown
    assert sentence in shown


def test_a_status_tells_what_the_newest_artifact_leaks() -> None:
    leak = {"kind": "model", "owner": "asia", **leak_facts(Leak("loss", 0.54, 150, 100, 20, 0.54, 0.54, bound=0.65))}
    sentence = "Newest model, tried here with this artifact: AUC 0.54, interval 0.47 to 0.61, 150 + 100 people; within"
    assert sentence in " ".join(status(leak=leak).split())
    assert "tried here" not in status(leak=None)


def test_a_status_tells_what_was_spent_and_what_contradicts_it() -> None:
    spent = spending_facts(Spending(mu_of(1.7, 1e-4), 1e-4, epsilon_max=3.0))
    line = "Privacy: ε 1.70 of 3.00 (δ 1e-4); no attack on a person beyond AUC 0.64."
    for auc, contradicted in ((0.54, False), (0.95, True)):
        leak = {"kind": "model", "owner": "asia", **leak_facts(Leak("loss", auc, 150, 100, 20, auc, auc))}
        shown = " ".join(status(leak=leak, spent=spent).split())
        assert line in shown
        assert ("Of the newest model, an attack here reached AUC 0.95" in shown) is contradicted
    assert "Privacy" not in status(spent=None)


def test_a_status_tells_the_best_round_beside_the_newest() -> None:
    best = {"metric": "validation_auc", "round": 2, "value": 0.75, "newest_round": 3, "newest_value": 0.7}
    text = status(best_round=best)
    assert "Best is round 2: validation AUC 0.7500, 0.7000 after round 3. `predict` and `export` take it" in text
    assert "Round 3 is the best so far: validation AUC 0.7000." in status(best_round={**best, "round": 3, "value": 0.7})
    assert "validation C-index 0.7500" in status(best_round={**best, "metric": "validation_c_index"})
    assert "best" not in status()


def test_a_remedy_of_several_addresses_is_shown_once() -> None:
    remedy = "start that site, or the relay there; or correct its address"
    problem = f"nothing answers at a:1: refused; {remedy}; nothing answers at b:2: refused; {remedy}"
    shown = " ".join(drawn(rendering.peers({"asia": {**PEER, "problem": problem}})).split())
    assert f"asia: nothing answers at a:1: refused; nothing answers at b:2: refused; {remedy}" in shown


def test_equal_refusals_are_one_line_with_a_count() -> None:
    reasons = [("europe", 2, "too large"), ("africa", 3, "late"), ("europe", 4, "too large"), ("europe", 4, "late")]
    refusals = [{"site": site, "round": round, "reason": reason, "declined": False} for site, round, reason in reasons]
    text = status(refusals=refusals)
    assert [line.rstrip() for line in text.splitlines() if "Refused" in line] == [
        "Refused in round 3: africa: late",
        "Refused in rounds 2 to 4, 2 times: europe: too large",
        "Refused in round 4: europe: late",
    ]


def test_old_refusals_are_counted_in_one_line() -> None:
    reasons = [(1, "too large"), (3, "late"), (8, "late"), (9, "late")]
    refusals = [{"site": "africa", "round": round, "reason": reason, "declined": False} for round, reason in reasons]
    text = status(refusals=refusals, round=12)
    assert [line.rstrip() for line in text.splitlines() if "Refused" in line] == [
        "Refused or declined up to round 3: 2 times; see `mhfl-peer events`",
        "Refused in rounds 8 to 9, 2 times: africa: late",
    ]


@pytest.mark.parametrize(("round", "when"), [(9, "the last in"), (10, "none since")])
def test_a_status_says_what_the_site_lost_by_refusals(round: int, when: str) -> None:
    counts = {"africa": (48, 4, 8), "europe": (48, 2, 3), "rome": (10, 0, None)}
    lost = {
        site: dict(zip(("expected", "refused", "last_refused"), count, strict=True)) for site, count in counts.items()
    }
    text = " ".join(status(contributions=lost, round=round).split())
    words = f"By refusals, asia went on without 6 of 106 contributions, {when} round 8: africa 4 of 48, europe 2 of 48."
    assert words in text
    assert "By refusals" not in status(contributions={"rome": lost["rome"]})


def test_what_a_site_declined_is_no_refusal() -> None:
    refusals = [{"site": "rome", "round": 4, "reason": "rome's policy sends no model to asia", "declined": True}]
    assert "Declined in round 4: by rome: rome's policy sends no model to asia" in status(refusals=refusals)


def test_a_status_fits_a_terminal_of_80_columns() -> None:
    busy = {
        **STATUS,
        "left_s": 13000.0,
        "phase": "aggregate",
        "training": {"stage": "mutual", "step": 120, "steps": 480, "loss": {"ce": 0.6931, "distillation": 0.01234}},
        "transfers": [{"direction": "in", "peer": "europe", "kind": "messenger", "bytes": 3 << 30, "received": 9}],
        "waiting_for": [{"site": "europe", "artifact": "africa's messenger", "since_s": 4321, "deadline_s": 7100.0}],
        "last_round": {"round": 3, "contributors": ["asia", "europe"], "missing": {"africa": "slow"}},
        "peers": {"a" * 20: {**PEER, "phase": "initialising", "last_seen_s": 98765.4}},
    }
    lines = drawn(rendering.status(busy), width=80).splitlines()
    assert [line.rstrip() for line in lines] == [
        line.rstrip() for line in drawn(rendering.status(busy), width=160).splitlines()
    ]


def test_a_narrow_terminal_splits_no_date() -> None:
    transfer = {**TRANSFER, "direction": "sent", "purpose": "handback", "kind": "messenger", "round": 12}
    assert rendering.clock(0.0) in drawn(rendering.transfers([transfer]), width=80)


def test_a_bar_shows_without_colours_how_far_it_is() -> None:
    assert "━━━━━───────────────" in drawn(rendering.progress_line("round", 1, 4, ""))
    assert "━" * 20 in drawn(rendering.progress_line("round", 9, 4, ""))


def test_a_daemon_that_does_not_answer_is_not_called_down() -> None:
    text = status(daemon="unresponsive", phase="down", pid=7)
    assert "Process 7 holds this site and does not answer" in text
    assert "is down" not in text


def test_a_status_shows_training_transfers_failures_and_refusals() -> None:
    text = status(
        training={"stage": "train", "step": 5, "steps": 20, "loss": {"total": 1.23456, "ce": float("nan")}},
        transfers=[
            {"direction": "in", "peer": "europe", "kind": "model", "bytes": 3 << 20, "received": 1 << 20},
            {"direction": "out", "peer": "africa", "kind": "model", "bytes": 512, "purpose": "train", "round": 1},
        ],
        failure="memory: out of\n\x1b[2Jmemory",
        refusals=[{"site": "europe", "round": 2, "reason": "not\x1b[2J its turn", "declined": False}],
    )
    assert "train 5/20" in text
    assert "  training loss: 1.235\n  cross-entropy: nan\n" in text
    assert "model from europe" in text
    assert "3.0 MiB" in text
    assert "model to africa" in text
    assert "512 B" in text
    assert "Failed: memory: out of  [2Jmemory\n" in text
    assert "Refused in round 2: europe: not [2J its turn" in text
    assert "\x1b" not in text


def test_what_keeps_peers_out_of_reach_stands_below_their_table() -> None:
    away = {f"site{number}": {**UNKNOWN, "problem": "no way\x1b[2J; find one"} for number in range(7)}
    text = drawn(rendering.peers({"europe": PEER, **away}))
    assert text.count("\nsite") == 7
    assert "\nsite6: no way [2J; find one\n" in text
    assert "europe:" not in text
    assert drawn(rendering.peers(away, brief=True)).count(": no way") == rendering.PROBLEMS_SHOWN_MAX


def test_peers_are_a_table_in_which_what_is_unknown_is_a_dash() -> None:
    assert lines_of(rendering.peers({"europe": PEER, "mars": UNKNOWN})) == [
        ["peer", "state", "round", "phase", "done", "last seen", "received", "sent"],
        ["europe", "heard", "3", "exchange", "50%", "2 s ago", "1.0 MiB", "512 B"],
        ["mars", "unknown", *["-"] * 6],
        ["peer", "at", "route", "program", "epoch"],
        ["europe", "10.0.0.7:7443", "direct", "mhfl-peer 0.2.0", "4"],
        ["mars", *["-"] * 4],
    ]


def test_rounds_say_from_whom_and_who_was_missing() -> None:
    stale = {**ROUND, "round": 2, "sources": [{**ROUND["sources"][0], "fallback": "stale"}]}  # type: ignore[index]
    alone = {**ROUND, "round": 3, "sources": [], "missing": {"europe": "silent"}, "artifact_sha256": None}
    head, *rows = lines_of(rendering.rounds([ROUND, stale, alone]))
    assert "nobody missing" in drawn(rendering.rounds([{**ROUND, "sources": []}]))
    assert head == ["round", "from", "missing", "train s", "artifact", "metrics"]
    assert rows == [
        ["1", "europe", "61.3", "efefefefefef", "total 0.1235  auc 0.75"],
        ["2", "europe (stale)", "61.3", "efefefefefef", "total 0.1235  auc 0.75"],
        ["3", "itself", "europe (silent)", "61.3", "-", "total 0.1235  auc 0.75"],
    ]


def test_rounds_say_what_came_home_from_visits() -> None:
    home = {**ROUND, "returned": [{"site": "asia"}], "missing_returns": {"africa": "silent"}}
    lost = {**ROUND, "round": 2, "returned": [], "missing_returns": {"asia": "refused", "africa": "slow"}}
    head, first, second = lines_of(rendering.rounds([home, lost]))
    assert head[5] == "came home"
    assert first[4] == "asia; not africa (silent)"
    assert second[4] == "-; not asia (refused), africa (slow)"


def test_rounds_say_of_which_round_older_artifacts_are() -> None:
    initial, later, alone = {**ROUND, "made_in": 0}, {**ROUND, "made_in": 3}, {**ROUND, "made_in": 3, "sources": []}
    _, *rows = lines_of(rendering.rounds([initial, later, alone]))
    assert [row[1] for row in rows[:3]] == ["europe (of the initial models)", "europe (of round 3)", "itself"]


def test_rounds_say_whose_contribution_was_cut_and_how() -> None:
    cut = {**ROUND, "cut": {"asia": "claims 9 samples", "africa": "conv is too far"}}
    _, row = lines_of(rendering.rounds([cut]))
    assert row[2] == "asia (weighs less: claims 9 samples), africa (left out: conv is too far)"


def test_a_mean_is_shown_with_who_has_the_same() -> None:
    averaged = {**ROUND, "aggregate_sha256": "cd" * 32, "agrees": {"europe": True, "africa": False}}
    head, row = lines_of(rendering.rounds([averaged]))
    assert head[5] == "mean"
    assert row[4] == "cdcdcdcdcdcd = europe ≠ africa"
    head, row = lines_of(rendering.rounds([{**averaged, "equivocated": ["asia"]}]))
    assert row[4] == "cdcdcdcdcdcd = europe ≠ africa (asia signed two artifacts)"


def test_rounds_of_two_generations_can_be_told_apart() -> None:
    _, *rows = lines_of(rendering.rounds([ROUND, {**ROUND, "generation": 2}]))
    assert [row[0] for row in rows] == ["1 of gen 1", "1 of gen 2"]


def test_transfers_are_one_line_each() -> None:
    _, row = lines_of(rendering.transfers([TRANSFER]))
    assert row[1:] == ["out", "europe", "train", "model", "3", "abababababab", "3.0 GiB", "complete"]


ARTIFACT = {"kind": "model", "owner": "asia", "sha256": "ab" * 32, "bytes": 9, "steps": 1, "training_samples": None}


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ({}, []),
        ({"fault": "", "reason": None, "missing": {}, "sources": []}, []),
        ({"artifact": ARTIFACT}, ["artifact=abababababab"]),
        ({"sha256": "cd" * 32, "bytes": 0, "seconds": 0.123456}, ["sha256=cdcdcdcdcdcd  bytes=0  seconds=0.1235"]),
        (
            {"source": {"origin": "europe", "round": 2, "fallback": "", "artifact": ARTIFACT}},
            ["source=origin europe, round 2, artifact abababababab"],
        ),
        ({"missing": {"europe": "silent"}, "below_quorum": True}, ["missing=europe silent  below_quorum=yes"]),
        ({"contributors": ["asia", "europe"], "visiting": False}, ["contributors=asia, europe  visiting=no"]),
        ({"reason": "x" * 70}, [f"reason={'x' * 57}..."]),
        ({"reason": "two\nlines\x1b[2J"}, ["reason=two lines [2J"]),
    ],
)
def test_an_event_is_read_without_brackets_and_quotes(body: Mapping[str, Any], facts: list[str]) -> None:
    _, row = lines_of(rendering.events([{"seq": 1, "time": 0.0, "kind": "chosen", "round": 2, "body": body}]))
    assert row[1:] == ["chosen", "2", *facts]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_are_in_binary_units(count: int, text: str) -> None:
    assert rendering.size(count) == text


@pytest.mark.parametrize("zone", ["UTC+12", "UTC-14"])
def test_the_last_time_that_an_amendment_may_state_is_shown_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert rendering.clock(ISSUED_MAX).startswith("9999-12-3")
    finally:
        monkeypatch.undo()
        time.tzset()
