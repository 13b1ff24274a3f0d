"""Training steps on a GPU: plain, with similarity distillation, and of a reciprocal visit, in float32
and in bfloat16; what channels last, a fused Adam and ``torch.compile`` would gain, and whether a
stage waits for samples on disk.

``make gpu`` runs it. Without a usable GPU it measures nothing. ``rows_on`` takes any device and
sizes, so that the tests run every step on a CPU with small ones.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from row import Row, at_least, below
from similarity import GROWTH_MAX, POSITIONS, STEP_RATIO_MAX, WIDTH

from fakes.datasets import write_cubes
from losses import forward_kl, position_similarity_loss, similarity_distillation_loss
from models import create_model
from peer.core import commands
from peer.core.worker_protocol import WorkerSetting
from peer.train.device import make_reproducible, precision, with_channels_last
from peer.train.trainer import Trainer

BF16_SPEED_MIN = 1.0
"""Two plain steps in bfloat16 must not take longer than in float32, where the network is large."""
INTERLEAVED_S, REPETITIONS_MIN = 8.0, 3
SIMILARITY, VISIT, LAST = "an SKD step", "a step of a visit", "two plain steps with channels last"


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
STAGE, DRY_STAGE = {"side": 48, "count": 192, "steps": 60}, {"side": 16, "count": 24, "steps": 4}


def measure(*, quick: bool) -> Iterator[Row]:
    """The card, then each row as soon as it is measured; what takes longest comes last."""
    if not torch.cuda.is_available():
        return
    device = torch.device("cuda", 0)
    make_reproducible(device, threads=4)
    card = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    yield Row(card, torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB")
    yield from rows_on(device, CASES, positions=POSITIONS, repetitions=5 if quick else 20)
    for case in CASES:
        if case.target:
            yield from compiled_rows(case, device)


def rows_on(device: Any, cases: Sequence[Case], *, positions: int, repetitions: int) -> Iterator[Row]:
    """Rows of every case in both precisions, the growth of the position term's memory, and a stage."""
    for case in cases:
        figures = {}
        for name in ("fp32", "bf16"):
            figures[name] = step_figures(case, name, device, repetitions=repetitions)
            yield from step_rows(f"{case.label}, {name}", figures[name], case.target)
        single, half = (figures[name]["two plain steps"] for name in ("fp32", "bf16"))
        speed = Row(f"{case.label}: two plain steps in fp32 / in bf16", single.seconds / half.seconds, "")
        yield at_least(*speed[:3], BF16_SPEED_MIN) if case.target else speed
        yield Row(f"{case.label}: peak memory in bf16 / in fp32", half.bytes / max(1, single.bytes), "")
    small, large = (position_bytes(count, device) for count in (positions, 4 * positions))
    if small:
        yield below("position term: peak memory at 4N / 4 · at N", large / small / 4, "", GROWTH_MAX)
    yield from stage_rows(device, **(STAGE if device.type == "cuda" else DRY_STAGE))
    for case in cases:
        yield Row(f"{case.label}: Adam as PyTorch chooses it / fused", adam_ratio(case, device, repetitions), "")


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
    rows.append(Row(f"{label}: {LAST} / two plain steps", figures[LAST].seconds / plain_s, ""))
    return rows


def step_figures(case: Case, precision_name: str, device: Any, *, repetitions: int) -> dict[str, StepFigure]:
    """Seconds and peak memory of two plain steps, one with similarity distillation, and one of a visit."""
    dam, ktm = networks(case, device)
    optimiser = torch.optim.Adam(chain(dam.parameters(), ktm.parameters()), lr=1e-4, fused=True)
    images = torch.rand(case.batch, 1, *case.size, device=device)

    def plain(images: Any = images) -> None:
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

    last = functools.partial(plain, with_channels_last(images))
    steps = {"two plain steps": plain, SIMILARITY: distilled, VISIT: visited, LAST: last}
    peaks = [peak_bytes(step, device) for step in steps.values()]
    seconds = interleaved_seconds(tuple(steps.values()), repetitions, device)
    return {kind: StepFigure(*figure) for kind, figure in zip(steps, zip(seconds, peaks, strict=True), strict=True)}


def networks(case: Case, device: Any) -> list[Any]:
    """Two networks of the case, with the same weights in each call."""
    torch.manual_seed(0)
    dimensions = len(case.size)
    return [
        create_model(case.network, spatial_dims=dimensions, in_channels=1, classes=2, **case.parameters).to(device)
        for _ in range(2)
    ]


def supervised(prediction: Any) -> Any:
    """A loss of predictions; the labels are all 0."""
    return prediction.float().log_softmax(1)[:, 0].mean().neg()


def adam_ratio(case: Case, device: Any, repetitions: int) -> float:
    """How much longer an update of Adam takes that is not fused."""
    (network, _) = networks(case, device)
    torch.autograd.backward(supervised(network(torch.rand(case.batch, 1, *case.size, device=device)).prediction))
    updates = tuple(
        torch.optim.Adam(network.parameters(), lr=1e-4, fused=fused or None).step for fused in (False, True)
    )
    chosen, fused = interleaved_seconds(updates, repetitions, device)
    return chosen / fused


def compiled_rows(case: Case, device: Any) -> list[Row]:
    """What ``torch.compile`` takes at first, and gains in a plain step, in float32."""
    network, compiled = networks(case, device)
    compiled = torch.compile(compiled)
    images = torch.rand(case.batch, 1, *case.size, device=device)
    steps = tuple(functools.partial(_plain_step, each, images) for each in (network, compiled))
    start = time.perf_counter()
    steps[1]()
    synchronise(device)
    first_s = time.perf_counter() - start
    plain_s, compiled_s = interleaved_seconds(steps, 20, device)
    return [
        Row(f"{case.label}, fp32: the first step of a compiled network", first_s, "s"),
        Row(f"{case.label}, fp32: a plain step / compiled", plain_s / compiled_s, ""),
    ]


def _plain_step(network: Any, images: Any) -> None:
    network.zero_grad()
    torch.autograd.backward(supervised(network(images).prediction))


def stage_rows(device: Any, *, side: int, count: int, steps: int) -> list[Row]:
    """A stage of one network that reads prepared samples from the disk, against one with all in memory."""
    seconds: dict[str, list[float]] = {"memory": [], "disk": []}
    with tempfile.TemporaryDirectory() as folder:
        datalist = write_cubes(Path(folder) / "data", seed=0, count=count, side=side)
        for turn in range(3):  # the first warms up
            for cache, durations in seconds.items():
                durations.append(stage_s(Path(folder) / f"{cache}-{turn}", datalist, cache, device, side, steps))
    memory_s, disk_s = (min(durations[1:]) for durations in seconds.values())
    label = f"a stage of {steps} steps, ResNet-10, 8 of {side}³"
    return [Row(label, memory_s, "s"), Row(f"{label}: samples on disk / in memory", disk_s / memory_s, "")]


def stage_s(home: Path, datalist: Path, cache: str, device: Any, side: int, steps: int) -> float:
    """Seconds of a stage, its artifact and checkpoint among them."""
    (home / "artifacts").mkdir(parents=True)
    federation = {
        "name": "bench",
        "rounds": 1,
        "task": {"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
        "method": {"name": "local"},
        "stages": {"train": {"unit": "step", "count": steps, "learning_rate": 1e-4, "weight_decay": 0.0}},
        "weighting": "uniform",
        "wire": "float32",
        "site": [{"name": "alpha"}],
    }
    site = {
        "data": {"datalist": datalist.name, "input_size": [side] * 3, "cache": cache},
        "model": {"name": "resnet10", "parameters": {}},
        "training": {"device": str(device), "threads": 4, "readers": 4, "batch_size": 8},
    }
    trainer = Trainer(WorkerSetting("alpha", "ab" * 32, federation, site, str(home), str(datalist.parent)))
    state = trainer.perform(commands.Initialise(1, 1)).state
    start = time.perf_counter()
    trainer.perform(commands.Train(1, 1, 2, "train", state, ()))
    return time.perf_counter() - start


def interleaved_seconds(steps: tuple[Callable[[], None], ...], repetitions: int, device: Any) -> list[float]:
    """The fastest repetition of each step; they run in turn, for about ``INTERLEAVED_S`` at most."""
    durations: list[list[float]] = [[] for _ in steps]
    for repetition in range(repetitions + 2):
        if repetition >= REPETITIONS_MIN + 2 and sum(map(sum, durations)) > INTERLEAVED_S:
            break
        for step, seconds in zip(steps, durations, strict=True):
            synchronise(device)
            start = time.perf_counter()
            step()
            synchronise(device)
            seconds.append(time.perf_counter() - start)
    return [min(seconds[2:]) for seconds in durations]


def synchronise(device: Any) -> None:
    """Wait for the card; a CPU works at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(step: Callable[[], None], device: Any) -> int:
    """The peak of the tensors' memory during the second run of a step; 0 on a CPU, which does not count it."""
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
    dam, ktm = (torch.rand(1, WIDTH, positions, requires_grad=True, device=device) for _ in range(2))
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    def step() -> None:
        torch.autograd.backward(position_similarity_loss([dam], [ktm], form="linear"))

    return peak_bytes(step, device) - before
