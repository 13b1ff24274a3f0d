"""One stage driven to its end: reports, partial checkpoints and halts happen here, between the steps of the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peer.training.checkpoint import Checkpoint, Checkpoints
from peer.training.data import Batches
from peer.training.fault import Interrupted
from peer.training.loop import TOTAL, Loop

PROGRESS_S = 0.2  # five reports a second look continuous and cost nothing


class Diverged(Exception):  # noqa: N818 - the name is the fact
    """The loss is not finite, so that nothing which follows could be used; the message says where."""


@dataclass(frozen=True)
class Drive:
    """How a stage is run.

    Attributes:
        checkpoints: where partial checkpoints go.
        checkpoint_s: seconds between them.
        report: gets step, steps and the newest losses, at most each ``PROGRESS_S`` seconds and after the last step.
        halted: asked after each step.
        clock: monotonic seconds.
    """

    checkpoints: Checkpoints
    checkpoint_s: float
    report: Callable[[int, int, Mapping[str, float]], None]
    halted: Callable[[], bool]
    clock: Callable[[], float]

    def run(self, loop: Loop, batches: Batches, *, work: str) -> float:
        """Train to the last step, from the partial checkpoint of this ``work`` if there is one.

        Returns:
            The seconds that it took, those before an interruption included.

        Raises:
            Interrupted: a halt came; the partial checkpoint is on disk.
            Diverged: the total loss is not finite.
        """
        began, steps = self.clock(), loop.steps
        saved = began
        reported = -math.inf
        partial = self.checkpoints.read_partial(work)
        if partial is not None:
            loop.load(partial.networks, partial.optimisers)
            loop.resume(partial.record["step"], partial.record["sums"])
            began -= partial.record["duration_s"]
        for step in loop.run(batches):
            now = self.clock()
            if step == steps or now - reported >= PROGRESS_S:
                losses = loop.losses()
                if not math.isfinite(losses[TOTAL]):
                    raise Diverged(f"the loss is {losses[TOTAL]} at step {step}")
                self.report(step, steps, losses)
                reported = now
            if step == steps:
                break
            halted = self.halted()
            if halted or now - saved >= self.checkpoint_s:
                self._save(loop, work, now - began)
                saved = now
            if halted:
                raise Interrupted
        return self.clock() - began

    def _save(self, loop: Loop, work: str, duration_s: float) -> None:
        record = {"work": work, "step": loop.step, "sums": loop.sums(), "duration_s": duration_s}
        self.checkpoints.write_partial(loop.step, Checkpoint(record, loop.networks(), loop.moments()))
