"""Training steps on a GPU: plain, with similarity distillation, in float32 and in bfloat16.

``make gpu`` runs it. Without a usable GPU it measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from row import Row, below

STEP_RATIO_MAX = 1.15
GROWTH_MAX = 1.25
"""The memory of the linear form may grow by this factor more than N, since allocators round up."""
POSITIONS, WIDTH = 13824, 512


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
    Case("ResNet-101, 8 of 224²", "resnet101", {}, 8, (224, 224)),
    Case("U-Net 32, 2 of 64³", "unet", {"width": 32}, 2, (64, 64, 64)),
)


def measure(*, quick: bool) -> list[Row]:
    """Rows of every case in both precisions, and the growth of the position term's memory."""
    import torch

    from peer.training.device import make_reproducible

    if not torch.cuda.is_available():
        return []
    device = torch.device("cuda", 0)
    make_reproducible(device, threads=4)
    card = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    rows = [Row(card, torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB")]
    for case in CASES:
        for precision in ("fp32", "bf16"):
            rows += step_rows(case, precision, device, repetitions=5 if quick else 20)
    small, large = (position_bytes(count, device) for count in (POSITIONS, 4 * POSITIONS))
    rows.append(below("position term: peak memory at 4N / 4 · at N", large / small / 4, "", GROWTH_MAX))
    return rows


def step_rows(case: Case, precision_name: str, device: Any, *, repetitions: int) -> list[Row]:
    """Milliseconds and peak memory of two plain steps and of one step with similarity distillation."""
    import torch

    from losses import similarity_distillation_loss
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

    peaks = [peak_bytes(step, device) for step in (plain, distilled)]
    plain_s, distilled_s = interleaved_seconds((plain, distilled), repetitions)
    label = f"{case.label}, {precision_name}"
    ratio = f"{label}: SKD step / two plain steps"
    return [
        Row(f"{label}: two plain steps", plain_s * 1e3, "ms"),
        Row(f"{label}: their peak memory", peaks[0] / 2**20, "MiB"),
        Row(f"{label}: peak memory of an SKD step", peaks[1] / 2**20, "MiB"),
        below(ratio, distilled_s / plain_s, "", case.target) if case.target else Row(ratio, distilled_s / plain_s, ""),
    ]


def interleaved_seconds(steps: tuple[Callable[[], None], ...], repetitions: int) -> list[float]:
    """The fastest repetition of each step; they run in turn."""
    import torch

    durations: list[list[float]] = [[] for _ in steps]
    for _ in range(repetitions + 2):
        for step, seconds in zip(steps, durations, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return [min(seconds[2:]) for seconds in durations]


def peak_bytes(step: Callable[[], None], device: Any) -> int:
    """The peak of the tensors' memory during the second run of a step."""
    import torch

    step()
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
    before = torch.cuda.memory_allocated(device)
    return (
        peak_bytes(lambda: torch.autograd.backward(position_similarity_loss([dam], [ktm], form="linear")), device)
        - before
    )
