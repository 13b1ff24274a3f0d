"""Training steps on a GPU: plain, with similarity distillation, and of a reciprocal visit, in float32
and in bfloat16.

``make gpu`` runs it. Without a usable GPU it measures nothing. ``rows_on`` takes any device and
sizes, so that the tests run every step on a CPU with small ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from row import Row, at_least, below

STEP_RATIO_MAX = 1.15
BF16_SPEED_MIN = 1.0
"""Two plain steps in bfloat16 must not take longer than in float32, where the network is large."""
GROWTH_MAX = 1.25
"""The memory of the linear form may grow by this factor more than N, since allocators round up."""
POSITIONS, WIDTH = 13824, 512


SIMILARITY, VISIT = "an SKD step", "a step of a visit"


class StepFigure(NamedTuple):
    """What one step takes."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Case:
    """Two networks of one kind, and a batch of random images."""

    label: str
    network: str
    parameters: Mapping[str, Any]
    batch: int
    size: tuple[int, ...]
    target: float | None = None


CASES = (
    Case("ResNet-10, 8 of 48³", "resnet10", {}, 8, (48, 48, 48), STEP_RATIO_MAX),
    Case("ResNet-10, 8 of 224²", "resnet10", {}, 8, (224, 224), STEP_RATIO_MAX),
    Case("ResNet-50, 8 of 224²", "resnet50", {}, 8, (224, 224), STEP_RATIO_MAX),
    Case("U-Net 32, 2 of 64³", "unet", {"width": 32}, 2, (64, 64, 64)),
)
DRY_CASES = tuple(
    Case(case.label.partition(",")[0], case.network, {"width": 4}, 2, (16,) * len(case.size)) for case in CASES
)
"""The same networks, small enough for the step to take a moment on a CPU."""
DRY_POSITIONS = 512


def measure(*, quick: bool) -> list[Row]:
    """The card, rows of every case in both precisions, and the growth of the position term's memory."""
    import torch

    from peer.training.device import make_reproducible

    if not torch.cuda.is_available():
        return []
    device = torch.device("cuda", 0)
    make_reproducible(device, threads=4)
    card = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    rows = [Row(card, torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB")]
    return rows + rows_on(device, CASES, positions=POSITIONS, repetitions=5 if quick else 20)


def rows_on(device: Any, cases: Sequence[Case], *, positions: int, repetitions: int) -> list[Row]:
    """Rows of every case in both precisions, and the growth of the position term's memory."""
    rows = []
    for case in cases:
        figures = {name: step_figures(case, name, device, repetitions=repetitions) for name in ("fp32", "bf16")}
        for name, figure in figures.items():
            rows += step_rows(f"{case.label}, {name}", figure, case.target)
        single, half = (figures[name]["two plain steps"] for name in ("fp32", "bf16"))
        speed = f"{case.label}: two plain steps in fp32 / in bf16"
        rows += [
            at_least(speed, single.seconds / half.seconds, "", BF16_SPEED_MIN)
            if case.target
            else Row(speed, single.seconds / half.seconds, ""),
            Row(f"{case.label}: peak memory in bf16 / in fp32", half.bytes / max(1, single.bytes), ""),
        ]
    small, large = (position_bytes(count, device) for count in (positions, 4 * positions))
    if small:
        rows.append(below("position term: peak memory at 4N / 4 · at N", large / small / 4, "", GROWTH_MAX))
    return rows


def step_rows(label: str, figures: Mapping[str, StepFigure], target: float | None) -> list[Row]:
    """Milliseconds and peak memory of each kind of step, and each kind against two plain steps."""
    rows = []
    for kind, figure in figures.items():
        rows += [
            Row(f"{label}: {kind}", figure.seconds * 1e3, "ms"),
            Row(f"{label}: peak memory of {kind}", figure.bytes / 2**20, "MiB"),
        ]
    plain_s = figures["two plain steps"].seconds
    for kind in (SIMILARITY, VISIT):
        ratio = figures[kind].seconds / plain_s
        name = f"{label}: {kind} / two plain steps"
        rows.append(below(name, ratio, "", target) if target else Row(name, ratio, ""))
    return rows


def step_figures(case: Case, precision_name: str, device: Any, *, repetitions: int) -> dict[str, StepFigure]:
    """Seconds and peak memory of two plain steps, one with similarity distillation, and one of a visit."""
    import torch

    from losses import forward_kl, similarity_distillation_loss
    from models import create_model
    from peer.training.device import precision

    torch.manual_seed(0)
    dimensions = len(case.size)
    dam, ktm = (
        create_model(case.network, spatial_dims=dimensions, in_channels=1, classes=2, **case.parameters).to(device)
        for _ in range(2)
    )
    optimiser = torch.optim.Adam(chain(dam.parameters(), ktm.parameters()), lr=1e-4)
    images = torch.rand(case.batch, 1, *case.size, device=device)

    def supervised(prediction: Any) -> Any:
        return prediction.float().log_softmax(1)[:, 0].mean().neg()

    def plain() -> None:
        optimiser.zero_grad()
        for network in (dam, ktm):
            with precision(precision_name, device):
                prediction = network(images).prediction
            torch.autograd.backward(supervised(prediction))
        optimiser.step()

    def distilled() -> None:
        optimiser.zero_grad()
        with precision(precision_name, device):
            own, received = dam(images), ktm(images)
        loss = supervised(own.prediction) + supervised(received.prediction)
        torch.autograd.backward(loss + similarity_distillation_loss(own.taps, received.taps))
        optimiser.step()

    def visited() -> None:  # FedVisit with its defaults: each model learns from the other's prediction
        optimiser.zero_grad()
        with precision(precision_name, device):
            own, visitor = dam(images), ktm(images)
        loss = supervised(own.prediction) + supervised(visitor.prediction)
        mutual = forward_kl(visitor.prediction, own.prediction) + forward_kl(own.prediction, visitor.prediction)
        torch.autograd.backward(loss + mutual)
        optimiser.step()

    steps = {"two plain steps": plain, SIMILARITY: distilled, VISIT: visited}
    peaks = [peak_bytes(step, device) for step in steps.values()]
    seconds = interleaved_seconds(tuple(steps.values()), repetitions, device)
    return {kind: StepFigure(*figure) for kind, figure in zip(steps, zip(seconds, peaks, strict=True), strict=True)}


def interleaved_seconds(steps: tuple[Callable[[], None], ...], repetitions: int, device: Any) -> list[float]:
    """The fastest repetition of each step; they run in turn."""
    durations: list[list[float]] = [[] for _ in steps]
    for _ in range(repetitions + 2):
        for step, seconds in zip(steps, durations, strict=True):
            synchronise(device)
            start = time.perf_counter()
            step()
            synchronise(device)
            seconds.append(time.perf_counter() - start)
    return [min(seconds[2:]) for seconds in durations]


def synchronise(device: Any) -> None:
    """Wait for the card; a CPU works at once."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(step: Callable[[], None], device: Any) -> int:
    """The peak of the tensors' memory during the second run of a step; 0 on a CPU, which does not count it."""
    import torch

    step()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated(device))


def position_bytes(positions: int, device: Any) -> int:
    """The memory of the position term, forward and backward, in addition to its features."""
    import torch

    from losses import position_similarity_loss

    dam, ktm = (torch.rand(1, WIDTH, positions, requires_grad=True, device=device) for _ in range(2))
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    step = functools.partial(_position_step, position_similarity_loss, dam, ktm)
    return peak_bytes(step, device) - before


def _position_step(loss: Callable[..., Any], dam: Any, ktm: Any) -> None:
    import torch

    torch.autograd.backward(loss([dam], [ktm], form="linear"))
