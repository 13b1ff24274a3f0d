"""Whole federations under a seeded scheduler: ``simulation/run.py --seed N`` repeats one."""

from __future__ import annotations

import pytest

from simulation.seeded_run import Simulation


@pytest.mark.parametrize("seed", range(3))
def test_the_invariants_hold(seed: int) -> None:
    assert Simulation(seed).run().violation == ""
