"""Cost of similarity distillation: of both forms of the position term, and of a training step with
all terms.

``python tests/bench/similarity.py FORM POSITIONS WIDTH`` runs one form in this process. It prints
the seconds, and the memory in MB that the form needed in addition to the features.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from row import KIB_A_MB, Row, below

POSITIONS, WIDTH = 13824, 512
"""24³ positions, 512 = 8 samples of 64 channels: the first stage of ResNet-10 at 48³."""

STEP_RATIO_MAX = 1.15
GROWTH_MAX = 1.25
"""The memory of the linear form may grow by this factor more than N, since allocators round up."""

Form = Literal["direct", "linear"]


def measure(*, quick: bool) -> list[Row]:
    """Time and memory of both forms, growth of the linear one, ratio of training steps."""
    positions = POSITIONS // 4 if quick else POSITIONS
    rows, shape = [], f"N={positions}, d={WIDTH}"
    for form in get_args(Form):
        seconds, megabytes = run_process(form, positions)
        rows += [
            Row(f"position similarity, {form}, {shape}: time", seconds, "s"),
            Row(f"position similarity, {form}, {shape}: memory", megabytes, "MB"),
        ]
    growth = run_process("linear", 4 * positions)[1] / megabytes / 4
    rows.append(below("position similarity, linear: memory at 4N / 4 · memory at N", growth, "", GROWTH_MAX))
    ratio, plain = step_ratio(size=24 if quick else 48, repetitions=3 if quick else 5)
    rows += [
        Row("two plain training steps of ResNet-10", plain, "s"),
        below("SKD training step / two plain steps", ratio, "", STEP_RATIO_MAX),
    ]
    return rows


def run_process(form: Form, positions: int) -> tuple[float, float]:
    """Seconds and MB of one form, forward and backward, in a process of its own."""
    command = [sys.executable, __file__, form, str(positions), str(WIDTH)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    seconds, megabytes = map(float, finished.stdout.split())
    return seconds, megabytes


def run_form(form: Form, positions: int, width: int) -> tuple[float, float]:
    """Seconds and MB of one form, forward and backward, in a process with no higher peak before."""
    import torch

    from losses import position_similarity_loss

    torch.manual_seed(0)
    small = [torch.rand(1, 4, 8, requires_grad=True) for _ in range(2)]
    # Libraries load code at first use.
    torch.autograd.backward(position_similarity_loss(small[:1], small[1:], form=form))
    dam, ktm = (torch.rand(1, width, positions, requires_grad=True) for _ in range(2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    torch.autograd.backward(position_similarity_loss([dam], [ktm], form=form))
    seconds = time.perf_counter() - start
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / KIB_A_MB


def step_ratio(*, size: int, repetitions: int) -> tuple[float, float]:
    """The ratio of a step of two ResNet-10 with similarity distillation to one without it, and the
    seconds of the latter.

    The batch has 8 samples. Both kinds of step run in turn, so that they see the same machine; the
    figures are medians.
    """
    import torch
    import torch.nn.functional as F

    from losses import similarity_distillation_loss
    from models import create_model

    torch.manual_seed(0)
    dam, ktm = (create_model("resnet10", spatial_dims=3, in_channels=1, classes=2) for _ in range(2))
    optimiser = torch.optim.Adam(chain(dam.parameters(), ktm.parameters()), lr=1e-4, fused=True)
    images, targets = torch.rand(8, 1, size, size, size), torch.arange(8) % 2

    def plain() -> None:
        optimiser.zero_grad()
        for network in (dam, ktm):
            torch.autograd.backward(F.cross_entropy(network(images).prediction, targets))
        optimiser.step()

    def distilled() -> None:
        optimiser.zero_grad()
        own, received = dam(images), ktm(images)
        loss = F.cross_entropy(own.prediction, targets) + F.cross_entropy(received.prediction, targets)
        torch.autograd.backward(loss + similarity_distillation_loss(own.taps, received.taps))
        optimiser.step()

    seconds: dict[Callable[[], None], list[float]] = {plain: [], distilled: []}
    for _ in range(repetitions + 1):
        for step, durations in seconds.items():
            start = time.perf_counter()
            step()
            durations.append(time.perf_counter() - start)
    plain_s, distilled_s = (statistics.median(durations[1:]) for durations in seconds.values())
    return distilled_s / plain_s, plain_s


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(*run_form("direct" if sys.argv[1] == "direct" else "linear", int(sys.argv[2]), int(sys.argv[3])))
