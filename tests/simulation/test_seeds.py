"""Whole federations under a seeded scheduler; ``make soak`` and ``make nightly`` play more seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from simulation import seeded_run
from simulation.mutations import ENOUGH_S, MUTATIONS
from simulation.run import command, play, soak
from simulation.seeded_run import Simulation

RUN = Path(__file__).with_name("run.py")
QUICK = 8
IN_CI = 25
FOUND_IN_QUICK = 4
"""The newest of the seeds that found a fault."""


FOUND = (
    1441621341,
    4036135663,
    825324627,
    2260331863,
    2260332614,
    305463697,
    305469902,
    305470204,
    2260329931,
    2260328629,
    197884077,
    4131577685,
    726205864,
    1256485506,
    1256485678,
    4064451262,
    4064451848,
    4064452323,
    4064453468,
    4064454991,
    4064455411,
    4064455887,
    4064457139,
    4064457669,
    4064458518,
    197883565,
    197884552,
    197885305,
    197885431,
    197888846,
    197888992,
    197892732,
    3759813783,
    1256487219,
    7002042,
    7006917,
    2742519235,
    4144803919,
)
"""Seeds that found a fault, which is mended."""


def check(seeds: Iterable[int]) -> None:
    for seed in seeds:
        assert play(seed).violation == "", f"repeat it: {command(seed)}"


def test_the_invariants_hold() -> None:
    check((*range(QUICK), *FOUND[:FOUND_IN_QUICK]))


@pytest.mark.e2e
def test_no_fault_that_a_seed_found_is_back() -> None:
    check(FOUND[FOUND_IN_QUICK:])


@pytest.mark.e2e
@pytest.mark.parametrize("batch", range(0, IN_CI, 25))
def test_the_invariants_hold_at_length(batch: int) -> None:
    asked = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=RUN.parent, capture_output=True, text=True)
    first = int(asked.stdout or "0", 16)
    check(range(first + batch, first + batch + 25))


@pytest.mark.e2e
@pytest.mark.parametrize("seed", [2, 205])
def test_a_seed_plays_the_same_in_every_process(seed: int) -> None:
    """With other hashes, sets have another order."""
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    finished = subprocess.run(
        [sys.executable, RUN, "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": other},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Simulation(seed).run().digest[:16] in finished.stdout


def test_a_violation_prints_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutation = MUTATIONS["no_intent"]
    with mutation.applied():  # one job is this process
        assert soak(iter([mutation.seed]), 1, float("inf")) == 1
    assert f"repeat it: {command(mutation.seed)}" in capsys.readouterr().out


def test_a_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its files nor what it put in place of the clock, the disk and the network."""
    monkeypatch.setattr(seeded_run, "memory_folder", lambda: str(tmp_path))
    before = os.fsync, os.replace
    Simulation(3).run()
    assert (list(tmp_path.iterdir()), (os.fsync, os.replace)) == ([], before)


def test_the_page_has_the_seed_of_each_rule() -> None:
    page = (RUN.parents[2] / "deploy" / "guarantees.md").read_text("utf-8")
    assert [mutation.row for mutation in MUTATIONS.values() if mutation.row not in page] == []


@pytest.mark.e2e
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_seed_notices_that_a_rule_is_missing(name: str) -> None:
    mutation = MUTATIONS[name]
    assert mutation.violation(mutation.seed), f"find another seed: simulation/mutations.py --search {name}"


@pytest.mark.nightly
def test_the_same_seeds_notice_nothing_while_no_rule_is_missing() -> None:
    for seed in sorted({mutation.seed for mutation in MUTATIONS.values()}):
        assert Simulation(seed, total_s=ENOUGH_S).run().violation == ""
