"""What the measured leak costs: seconds of a round in which it is measured, beside all that a worker does then.

``[privacy] leak = "every"`` bounds it to a tenth of the round's passes; the last round measures all people.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from row import Row, below

from peer.lab.datasets import digits
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.runs import Run
from peer.lab.experiments.simulation import Simulation
from peer.lab.experiments.sweep import prepare

SHARE_MAX = 0.1
SIDES = (8, 32)
"""Of the images: a step of the small ones costs no more than to read an artifact."""
METHODS = ("fedavg", "fedvisit", "fedskd")
EXPERIMENT = """
name = "leak"
rounds = 4
seeds = [0]
test_share = 0.5
classes_min = 2
data.pool = "{pool}"
data.input_size = [{side}, {side}]
training.device = "cpu"
training.batch_size = 16
budget.steps = 30
budget.minor_steps = 10
budget.learning_rate = 1e-3
task = {{kind = "classification", spatial_dims = 2, in_channels = 1, classes = 10}}
partitions.equal = {{kind = "equal", per_site = 400, sites = ["africa", "america", "asia", "europe"]}}
models.small."*" = {{name = "resnet10", width = 16, stem_stride = 1, max_pool = false}}
methods.{method} = {{}}
"""


class TimedSimulation(Simulation):
    """A federation whose workers measure the leak in every round, and note the seconds by round."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.folder, round_key=bytes.fromhex(run.document["round_key"]))
        self.all_s: defaultdict[int, float] = defaultdict(float)
        self.leak_s: defaultdict[int, float] = defaultdict(float)
        self.last: set[int] = set()

    def trainer(self, name: Any) -> Any:
        trainer = super().trainer(name)
        meter = trainer._leak_meter
        meter._settings = replace(meter._settings, leak="every")
        self.last |= {round for round in range(1, trainer.settings.rounds + 1) if meter._is_last(round)}
        trainer.perform = timed(trainer.perform, self.all_s)  # type: ignore[method-assign]
        meter._measure_all = timed(meter._measure_all, self.leak_s)  # type: ignore[method-assign]
        return trainer


def timed(call: Callable[..., Any], seconds: defaultdict[int, float]) -> Callable[..., Any]:
    """The function, which also adds up its CPU seconds by the round of its first argument."""

    def measured(command: Any, *arguments: Any) -> Any:
        began_s = time.process_time()
        try:
            return call(command, *arguments)
        finally:
            seconds[getattr(command, "round", 0)] += time.process_time() - began_s

    return measured


def measure(*, quick: bool) -> list[Row]:
    """The share of a round before the last ones, whose people are chosen by cost, and of the last ones, with all."""
    rows = []
    for method in METHODS:
        for side in SIDES[:1] if quick else SIDES:
            with tempfile.TemporaryDirectory() as name:
                simulation = simulate(Path(name), method, side)
            leak_s, all_s = simulation.leak_s, simulation.all_s
            last = leak_s.keys() & simulation.last
            share, share_of_last = (
                sum(leak_s[round] for round in rounds) / sum(all_s[round] for round in rounds)
                for rounds in (leak_s.keys() - last, last)
            )
            label = f"measured leak, {method}, {side} x {side}: share of a round"
            rows.append(below(label, share, "", SHARE_MAX) if side == SIDES[-1] else Row(label, share, ""))
            rows.append(Row(f"{label}, the last ones", share_of_last, ""))
    return rows


def simulate(folder: Path, method: str, side: int) -> TimedSimulation:
    """Play a federation to its end."""
    digits.prepare(folder / "digits")
    path = folder / "leak.toml"
    path.write_text(EXPERIMENT.format(pool=folder / "digits" / "pool.json", method=method, side=side))
    (run,) = prepare(Experiment.load(path), folder / "out")
    simulation = TimedSimulation(run)
    simulation.run()
    return simulation
