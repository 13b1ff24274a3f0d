"""A step of everything that a round does, before the night in which it should: does it fit, how long does it take?

The site's own artifact stands in for those of the others, so that a method's stages run with as many received models
or heads as they will. Theirs may be larger: what this cannot foresee is another site's network.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from peer.core import commands, events
from peer.core.commands import Source
from peer.core.messages import Artifact
from peer.core.roster import SiteName
from peer.training.artifact_exchange import ArtifactExchange
from peer.training.checkpoint import checkpoint_name
from peer.training.data import Batches, SiteData
from peer.training.device import describe_device, release_memory
from peer.training.errors import UnusableConfigurationError
from peer.training.loop import TOTAL, Loop
from peer.training.settings import TrainingSettings
from peer.training.site_networks import SiteNetworks

INITIAL = checkpoint_name(0, "initial")
STEPS = 2
"""Of each pass: the first also builds what a device needs, the second is as long as those that follow."""
MEMORY_INFORMATION = Path("/proc/meminfo")
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class RehearsedTrainer(Protocol):
    """Who does the work: ``peer.training.trainer``."""

    settings: TrainingSettings
    device: torch.device
    kept: SiteNetworks
    artifact_exchange: ArtifactExchange

    @property
    def data(self) -> SiteData:
        """The site's data, checked and read."""

    def prepare(self, command: commands.Train) -> tuple[Loop, Batches]:
        """A stage before its first step."""

    def hold(self, state: str) -> None:
        """Have the networks as they were in a checkpoint, ready to predict."""

    def predict(self, images: Tensor) -> Tensor:
        """The prediction of the networks in hand."""


def rehearsed(trainer: RehearsedTrainer, command: commands.Rehearse) -> events.Rehearsed:
    """Try the stages of a round, its mean and a prediction, from the initial checkpoint, which must be there.

    Raises:
        ConfigurationError: a loss is not finite, or a stage refuses this site's networks.
        torch.OutOfMemoryError: the device is too small for the batch.
    """
    device = trainer.device
    available = available_bytes(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    artifact = own_artifact(trainer)
    sources = stand_ins(trainer, artifact, command.others)
    tried = {name: try_stage(trainer, order) for name, order in stages(trainer, sources)}
    if "aggregate" in trainer.settings.plan.phases:
        trainer.artifact_exchange.averaged(sources, samples=len(trainer.data.training))
    split = trainer.data.test if len(trainer.data.test) else trainer.data.training
    trainer.hold(INITIAL)
    trainer.predict(split.read(range(min(trainer.settings.batch_size, len(split))))[0])
    return events.Rehearsed(
        generation=command.generation,
        attempt=command.attempt,
        device=describe_device(device),
        step_s={name: step_s for name, (step_s, _) in tried.items()},
        # A round that only moves models on has no stage beside it.
        round_s=sum(whole_s for name, (_, whole_s) in tried.items() if name != "visitor" or len(tried) == 1),
        memory_bytes=held_bytes(device),
        available_bytes=available,
        artifact_bytes=0 if artifact is None else artifact.bytes,
    )


def stages(trainer: RehearsedTrainer, sources: tuple[Source, ...]) -> Iterator[tuple[str, commands.Train]]:
    """The orders of a round by name, each with what will have come by then; also of a round that only moves models."""
    plan, parameters = trainer.settings.plan, trainer.settings.parameters
    if sources and (plan.pattern == "circulate" or parameters.get("activation")):
        (stage, *_) = plan.stages
        visitor = sources[:1]
        yield "visitor", commands.Train(1, 1, 1, stage, INITIAL, visitor, circulate=visitor[0].origin)
        if plan.pattern == "circulate":
            return
    came = plan.keeps_last_received
    for phase in plan.phases:
        if phase == "exchange":
            came = True
        elif phase != "aggregate":
            stage = phase.removeprefix("train:")
            yield stage, commands.Train(1, 1, 1, stage, INITIAL, sources if came else ())


def try_stage(trainer: RehearsedTrainer, order: commands.Train) -> tuple[float, float]:
    """Run the first steps of each pass of a stage: the seconds of a step, and those of the whole stage."""
    loop, batches = trainer.prepare(order)
    whole_s = 0.0
    try:
        for number in range(len(loop.stage.passes)):
            loop.resume(number * loop.pass_steps, {})
            began_s = time.monotonic()
            for step in itertools.islice(loop.run(batches), min(STEPS, loop.pass_steps)):
                losses = loop.losses()  # waits for the device
                if not math.isfinite(losses[TOTAL]):
                    raise UnusableConfigurationError(describe(order.stage, step, losses))
                step_s, began_s = time.monotonic() - began_s, time.monotonic()
            whole_s += step_s * loop.pass_steps
    finally:
        loop.thaw()
        batches.close()
        release_memory(trainer.device)
    return whole_s / loop.steps, whole_s


def describe(stage: str, step: int, losses: Mapping[str, float]) -> str:
    """Which terms are not finite, and what that usually comes from."""
    terms = ", ".join(f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value))
    return (
        f"in step {step} of stage {stage} {terms}: look for extreme values in the data, set [data] normalise, "
        f'lower [stages.{stage}] learning_rate, or take precision = "fp32"'
    )


def own_artifact(trainer: RehearsedTrainer) -> Artifact | None:
    """What the site would send; nothing where the method sends nothing."""
    if trainer.settings.plan.artifact is None:
        return None
    trainer.kept.hold(INITIAL)
    samples = len(trainer.data.training)
    return trainer.artifact_exchange.send(trainer.kept.sent, owner=trainer.settings.site, steps=0, samples=samples)


def stand_ins(trainer: RehearsedTrainer, artifact: Artifact | None, others: tuple[SiteName, ...]) -> tuple[Source, ...]:
    """The site's own artifact as if others had sent it: one where one is received in a round, else one of each."""
    if artifact is None:
        return ()
    several = trainer.settings.plan.pattern == "all_to_all"
    return tuple(Source(name, 1, artifact) for name in (others if several else others[:1]))


def available_bytes(device: torch.device) -> int:
    """What a process can take of the device's memory now, or of the machine's where the device is the CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device)  # what this process holds is its own
    try:
        text = MEMORY_INFORMATION.read_text()
        (kib,) = (line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([int(kib) * 1024, *group_rooms()]) + held_bytes(device)


def group_rooms(group: Path = GROUP, groups: Path = GROUPS) -> Iterator[int]:
    """What each control group that this process is in may still take: a container or a unit has less than the machine.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html; as Kubernetes does, pages of files that nobody used
    lately count as free.

    Args:
        group: says which group it is; only one of version 2, whose line begins with ``0::``, is looked at.
        groups: where the groups are mounted.
    """
    try:
        (name,) = (line[3:] for line in group.read_text().splitlines() if line.startswith("0::"))
    except (OSError, ValueError):
        return
    place = groups / name.strip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(groups):
            return
        try:
            limit, used = ((folder / f"memory.{what}").read_text().strip() for what in ("max", "current"))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            if limit != "max":
                yield max(0, int(limit) - int(used) + int(counts["inactive_file"]))
        except (OSError, ValueError, KeyError):
            continue


def held_bytes(device: torch.device) -> int:
    """The largest amount of memory held so far: on a GPU since its statistics were reset, on a CPU since the start."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
