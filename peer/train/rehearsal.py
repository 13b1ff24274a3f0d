"""Rehearse a round before the federation starts: run the first steps of every stage, measure memory and time.

The site's own artifact stands in for those of the other sites, so that a method's stages run with as many received
models or heads as in a round. Another site's network may be larger, which a rehearsal cannot foresee.
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

from models.footprint import padding_share
from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.plan import visits
from peer.core.roster import SiteName
from peer.train.artifact_exchange import ArtifactExchange
from peer.train.checkpoint import checkpoint_name
from peer.train.device import describe_device, release_memory
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import TOTAL, Loop
from peer.train.samples import Batches, SiteData
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks

INITIAL = checkpoint_name(0, "initial")
STEPS = 2
"""Steps per pass: the first also warms up the device, the second takes as long as later ones."""
MEMORY_INFORMATION = Path("/proc/meminfo")
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class RehearsedTrainer(Protocol):
    """The trainer's methods that a rehearsal uses; see ``peer.train.trainer``."""

    settings: TrainingSettings
    device: torch.device
    site_networks: SiteNetworks
    artifact_exchange: ArtifactExchange

    @property
    def data(self) -> SiteData: ...

    def prepare(self, command: commands.Train, *, probes: bool = True) -> tuple[Loop, Batches]: ...

    def load(self, state: str) -> None: ...

    def predict(self, images: Tensor) -> Tensor: ...


def rehearse(trainer: RehearsedTrainer, command: commands.Rehearse) -> events.Rehearsed:
    """Try the stages of a round, its aggregation and a prediction, from the initial checkpoint, which must exist.

    Raises:
        UnusableConfigurationError: a loss is not finite, or a stage refuses this site's networks.
        torch.OutOfMemoryError: the device is too small for the batch.
    """
    device, processes = trainer.device, trainer.settings.training.processes
    available = available_bytes(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    artifact = write_own_artifact(trainer)
    sources = stand_ins(trainer, artifact, command.others)
    timings = {name: try_stage(trainer, train) for name, train in stage_commands(trainer, sources)}
    plan = trainer.settings.plan
    usual = timings.keys() & plan.stages_of(plan.phases) or {"visitor"}  # a round may circulate models only
    if "aggregate" in plan.phases and plan.pattern != "visit":
        trainer.artifact_exchange.average(sources, samples=len(trainer.data.training))
    split = trainer.data.test if len(trainer.data.test) else trainer.data.training
    trainer.load(INITIAL)
    images = split.read(range(min(trainer.settings.training.batch_size, len(split))))[0]
    trainer.predict(images)
    return events.Rehearsed(
        generation=command.generation,
        attempt=command.attempt,
        device=describe_device(device, processes),
        step_s={name: step_s for name, (step_s, _) in timings.items()},
        round_s=sum(timings[name][1] for name in usual),
        memory_bytes=peak_bytes(device) * (1 if device.type == "cuda" else processes),  # these share the main memory
        available_bytes=available,
        artifact_bytes=0 if artifact is None else artifact.bytes,
        padding_share=padding_share(trainer.site_networks.dam.eval(), images[:1].to(device)),
    )


def stage_commands(trainer: RehearsedTrainer, sources: tuple[Source, ...]) -> Iterator[tuple[str, commands.Train]]:
    """Yield a round's commands by stage name, with the artifacts received by then."""
    plan, parameters = trainer.settings.plan, trainer.settings.parameters
    if sources and (plan.pattern == "circulate" or parameters.get("activation")):
        (stage, *_) = plan.stages
        visitor = sources[:1]
        yield "visitor", commands.Train(1, 1, 1, stage, INITIAL, visitor, circulate=visitor[0].origin)
    has_received = plan.keeps_last_received
    for phase in () if sources and plan.pattern == "circulate" else plan.phases:
        if phase == "exchange":
            has_received = True
        elif phase not in ("returns", "aggregate"):
            stage = phase.removeprefix("train:")
            yield stage, commands.Train(1, 1, 1, stage, INITIAL, sources if has_received else ())
    for stage in sorted(plan.stages_of(plan.last_round)):
        yield stage, commands.Train(1, 1, 1, stage, INITIAL, ())


def try_stage(trainer: RehearsedTrainer, command: commands.Train) -> tuple[float, float]:
    """Run the first steps of each pass; return the seconds of a step, and of the whole stage."""
    loop, batches = trainer.prepare(command, probes=False)  # the stand-ins are this site's own artifacts
    whole_s = 0.0
    try:
        for number in range(len(loop.stage.passes)):
            steps = loop.pass_steps[number]
            if not steps:
                continue
            loop.begin_pass(number)
            began_s = time.monotonic()
            for step in itertools.islice(loop.run(batches), min(STEPS, steps)):
                losses = loop.losses()  # waits for the device
                if not math.isfinite(losses[TOTAL]):
                    raise UnusableConfigurationError(describe_non_finite(command.stage, step, losses))
                step_s, began_s = time.monotonic() - began_s, time.monotonic()
            whole_s += step_s * steps
    finally:
        loop.close()
        batches.close()
        release_memory(trainer.device)
    return whole_s / loop.steps, whole_s


def describe_non_finite(stage: str, step: int, losses: Mapping[str, float]) -> str:
    """Name the terms that are not finite, and the usual causes."""
    terms = ", ".join(f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value))
    return (
        f"in step {step} of stage {stage} {terms}: look for extreme values in the data, set [data] normalise, "
        f'lower [stages.{stage}] learning_rate, or take precision = "fp32"'
    )


def write_own_artifact(trainer: RehearsedTrainer) -> Artifact | None:
    """Write the artifact that the site would send; return ``None`` if the method sends none."""
    if trainer.settings.plan.artifact is None:
        return None
    trainer.site_networks.load(INITIAL)
    samples = len(trainer.data.training)
    return trainer.artifact_exchange.send(
        trainer.site_networks.artifact_network, owner=trainer.settings.site, steps=0, samples=samples
    )


def stand_ins(trainer: RehearsedTrainer, artifact: Artifact | None, others: tuple[SiteName, ...]) -> tuple[Source, ...]:
    """Return the site's own artifact as if others had sent it: all, the visitors of a round, or one."""
    if artifact is None:
        return ()
    plan, parameters = trainer.settings.plan, trainer.settings.parameters
    count = visits(plan, sites=len(others) + 1, parameters=parameters) if plan.pattern == "visit" else 1
    return tuple(Source(name, 1, artifact) for name in (others if plan.pattern == "all_to_all" else others[:count]))


def available_bytes(device: torch.device) -> int:
    """Return the memory that this process can use on the device; for the CPU, on the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device)  # this process can reuse its own reserve
    try:
        text = MEMORY_INFORMATION.read_text()
        (kib,) = (line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([int(kib) * 1024, *group_free_bytes()]) + peak_bytes(device)


def group_free_bytes(group: Path = GROUP, groups: Path = GROUPS) -> Iterator[int]:
    """Yield the memory left in each control group of this process; a container or unit may have less than the machine.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html; as in Kubernetes, inactive file
    pages count as free.

    Args:
        group: the file that lists the process's groups; only version 2, a line that begins with
            ``0::``, counts.
        groups: where the groups are mounted.
    """
    try:
        (name,) = (line[3:] for line in group.read_text().splitlines() if line.startswith("0::"))
    except (OSError, ValueError):
        return
    innermost = groups / name.strip("/")
    for folder in (innermost, *innermost.parents):
        if not folder.is_relative_to(groups):
            return
        try:
            limit, used = ((folder / f"memory.{file}").read_text().strip() for file in ("max", "current"))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            if limit != "max":
                yield max(0, int(limit) - int(used) + int(counts["inactive_file"]))
        except (OSError, ValueError, KeyError):
            continue


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory since the GPU's statistics were reset, or since the process started."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
