"""A rehearsal: a worker loads the data, builds the model and tries a step of each stage, in a
temporary folder.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.core import commands, events, limits, worker_protocol
from peer.core.roster import SiteName
from peer.daemon.worker_process import WorkerProcess, describe_exit
from peer.data.datalist import UNREADABLE, named
from peer.preflight.finding import Finding
from peer.records.history import duration

SAMPLE_S = 2.0
"""Longer than a worker takes to read a large volume from a slow network disk."""
REHEARSAL_S = 600.0
"""For the first steps of all stages, which take minutes on a CPU with volumes."""
MEMORY_SHARE_MAX = 0.9
"""Of the available memory: the first batch need not be the largest one, and memory fragments."""
REMEDIES = {
    "data": "correct [data] in site.toml",
    "configuration": "correct [model] or [training] in site.toml, as the reason says",
    "divergence": "lower learning_rate in the stage's table of federation.toml, or look for extreme values in the data",
    "memory": "lower [training] batch_size or [data] input_size in site.toml, or take a smaller [model]",
}
TEMPORARY = "set TMPDIR to a folder with room for a few times the model"


@dataclass(frozen=True, slots=True)
class Trial:
    """The findings of a rehearsal, and the size of the artifact to send, if known."""

    findings: tuple[Finding, ...]
    artifact_bytes: int | None = None


async def rehearse(
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    name: SiteName,
    *,
    worker: Sequence[str],
    samples: int,
) -> Trial:
    """Have a worker do the first steps of a round, in a temporary folder."""
    answers: asyncio.Queue[events.Event] = asyncio.Queue()
    try:
        with tempfile.TemporaryDirectory(prefix="mhfl-check-") as home:
            for part in ("artifacts", "checkpoints"):
                (Path(home) / part).mkdir()
            private = site.model_dump(mode="json")
            if site.data.cache == "disk":  # that would copy all samples into the temporary folder
                private["data"]["cache"] = "none"
            setting = worker_protocol.WorkerSetting(
                site_name=name,
                federation_digest=federation.digest,
                federation=federation.model_dump(mode="json"),
                site=private,
                home=home,
                base_folder=str(folder.path),
            )
            worker_process = WorkerProcess(setting, Path(home) / "worker.log", answers.put_nowait, command=worker)
            try:
                await worker_process.send(commands.Initialise(1, 1))
                initialised = await _next_answer(answers, limits.WORKER_START_S + SAMPLE_S * samples)
                if not isinstance(initialised, events.Initialised):
                    return Trial((_describe_failure("worker", initialised),))
                await worker_process.send(commands.Rehearse(1, 2, federation.roster.others(name)))
                rehearsed = await _next_answer(answers, REHEARSAL_S)
            finally:
                await worker_process.close()
            unreadable = _unreadable_samples(Path(home) / "worker.log")
    except OSError as error:  # no temporary folder, or no room in it
        text = f"a temporary folder cannot be used: {error}"
        return Trial((Finding("worker", "failure", text, TEMPORARY),))
    start = _describe_start(initialised, site, unreadable)
    if not isinstance(rehearsed, events.Rehearsed):
        return Trial((start, _describe_failure("rehearsal", rehearsed)))
    return Trial((start, _describe_rehearsal(rehearsed, site)), rehearsed.artifact_bytes)


async def _next_answer(answers: asyncio.Queue[events.Event], limit_s: float) -> events.Event:
    """The worker's next answer, or a failure of kind "slow" when none arrives in time."""
    try:
        async with asyncio.timeout(limit_s):
            return await answers.get()
    except TimeoutError:
        return events.WorkFailed(1, 0, "slow", f"no answer within {limit_s:.0f} s")


def _describe_failure(subject: str, answer: events.Event) -> Finding:
    fault, reason = getattr(answer, "fault", "crash"), getattr(answer, "reason", "")
    if fault == "slow":
        return Finding(subject, "failure", reason, "look at the disk, and at what else this machine does")
    if os.strerror(errno.ENOSPC) in reason:
        return Finding(subject, "failure", reason, TEMPORARY)
    if describe_exit(-signal.SIGKILL) in reason:
        fault = "memory"
    return Finding(subject, "failure", reason, REMEDIES.get(fault, "see the reason"))


def _unreadable_samples(log: Path) -> list[str]:
    """The files that the worker left out, and why, from its log."""
    lines = log.read_text("utf-8", "replace").splitlines()
    return [line.partition(UNREADABLE)[2].strip() for line in lines if UNREADABLE in line]


def _describe_start(answer: events.Initialised, site: SiteConfig, unreadable: Sequence[str]) -> Finding:
    count = answer.samples.get("unreadable", 0)
    size = f", {answer.artifact.bytes / 2**20:.1f} MiB a {answer.artifact.kind}" if answer.artifact is not None else ""
    text = f"{site.model.name} on {answer.device} with {answer.threads} threads{size}, {count} unreadable samples"
    if not count:
        return Finding.by_remedy("worker", text, "")
    remedy = "replace these files, or take them out of the datalist; `data validate` lists all"
    return Finding.by_remedy("worker", f"{text}: {named(unreadable)}", remedy)


def _describe_rehearsal(answer: events.Rehearsed, site: SiteConfig) -> Finding:
    steps = ", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in answer.step_s.items())
    memory = f"{answer.memory_bytes / 2**30:.1f} of {answer.available_bytes / 2**30:.1f} GiB"
    text = (
        f"a step of {site.training.batch_size} samples on {answer.device} takes: {steps}; "
        f"a round trains for about {duration(answer.round_s)}; {memory} of memory"
    )
    tight = answer.memory_bytes > MEMORY_SHARE_MAX * answer.available_bytes
    return Finding.by_remedy("rehearsal", text, REMEDIES["memory"] if tight else "")
