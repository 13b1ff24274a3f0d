"""A rehearsal: a worker loads the data, builds the model and tries a step of each stage, in a
temporary folder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import re
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.core import commands, events, limits
from peer.core.roster import SiteName
from peer.daemon.worker_process import WorkerProcess, describe_exit
from peer.quantities import duration, size
from peer.site.config.rules import worker_setting
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.noise_key import KEY_BYTES
from peer.train.data.datalist import UNREADABLE
from peer.train.data.label_maps import LOST_CLASSES
from peer.view.preflight.finding import Finding

SAMPLE_S = 2.0
"""Longer than a worker takes to read a large volume from a slow network disk."""
REHEARSAL_S = 600.0
"""For the first steps of all stages, which take minutes on a CPU with volumes."""
MEMORY_SHARE_MAX = 0.9
"""Of the available memory: the first batch need not be the largest one, and memory fragments."""
REMEDIES = {
    "data": "correct [data] in site.toml, or the samples: `mhfl-peer data validate` says what is wrong with each",
    "configuration": "correct [model] or [training] in site.toml, as the reason says",
    "divergence": "lower learning_rate in the stage's table of federation.toml, or look for extreme values in the data",
    "memory": "lower [training] batch_size or [data] input_size in site.toml, or take a smaller [model]",
}
LEFT_OUT = re.compile(UNREADABLE + r" image=(?P<image>.*?) reason=(?P<reason>.*)")
LOST = re.compile(LOST_CLASSES + r" (.*)")
"""The worker's log lines about a sample, and about label maps."""
PADDING_SHARE_MAX = 0.5
"""Of a model's weights that see padding alone: from here on, most of its traffic says nothing."""
TEMPORARY = "set TMPDIR to a folder with room for a few times the model"


@dataclass(frozen=True, slots=True)
class Trial:
    """The findings of a rehearsal, and the size of the artifact to send, if known."""

    findings: tuple[Finding, ...]
    artifact_bytes: int | None = None


def silent(stage: str) -> None:
    """Ignore the beginning of a stage."""


async def rehearse(
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    name: SiteName,
    *,
    worker: Sequence[str],
    samples: int,
    begin: Callable[[str], None] = silent,
) -> Trial:
    """Have a worker do the first steps of a round, in a temporary folder.

    Args:
        begin: told when the steps begin.
    """
    answers: asyncio.Queue[events.Event] = asyncio.Queue()
    try:
        with tempfile.TemporaryDirectory(prefix="mhfl-check-") as home:
            for part in ("artifacts", "checkpoints"):
                (Path(home) / part).mkdir()
            setting = worker_setting(federation, site, name, home=Path(home), folder=folder.path)
            setting = dataclasses.replace(setting, noise_key=secrets.token_hex(KEY_BYTES))  # of noise that nobody gets
            if site.data.cache == "disk":  # that would copy all samples into the temporary folder
                data = {**setting.site["data"], "cache": "none"}
                setting = dataclasses.replace(setting, site={**setting.site, "data": data})
            log = Path(home) / "worker.log"
            worker_process = WorkerProcess(setting, log, answers.put_nowait, command=worker)
            try:
                await worker_process.send(commands.Initialise(1, 1))
                initialised = await _next_answer(answers, limits.WORKER_START_S + SAMPLE_S * samples)
                if not isinstance(initialised, events.Initialised):
                    return Trial((_describe_failure("worker", initialised),))
                begin("trying a step of each stage")
                await worker_process.send(commands.Rehearse(1, 2, federation.roster.others(name)))
                rehearsed = await _next_answer(answers, REHEARSAL_S)
            finally:
                await worker_process.close()
            logged = log.read_text(errors="replace")
            unreadable, lost = LEFT_OUT.search(logged), LOST.search(logged)
    except OSError as error:  # no temporary folder, or no room in it
        text = f"a temporary folder cannot be used: {error}"
        return Trial((Finding("worker", "failure", text, TEMPORARY),))
    start = [_describe_start(initialised, site, unreadable)]
    if lost is not None:
        start.append(Finding("label maps", "warning", lost[1], "enlarge [data] input_size, or see what it cuts off"))
    if not isinstance(rehearsed, events.Rehearsed):
        return Trial((*start, _describe_failure("rehearsal", rehearsed)))
    findings = (
        *start,
        _describe_rehearsal(rehearsed, site, adds_noise=federation.noise is not None),
        *_describe_padding(rehearsed, site),
    )
    return Trial(findings, rehearsed.artifact_bytes)


async def _next_answer(answers: asyncio.Queue[events.Event], limit_s: float) -> events.Event:
    """Return the worker's next answer, or a failure of kind "slow" when none arrives in time."""
    try:
        async with asyncio.timeout(limit_s):
            return await answers.get()
    except TimeoutError:
        return events.WorkFailed(1, 0, "slow", f"no answer within {limit_s:.0f} s")


def _describe_failure(subject: str, answer: events.Event) -> Finding:
    fault, reason = getattr(answer, "fault", "crash"), getattr(answer, "detail", "") or getattr(answer, "reason", "")
    if fault == "slow":
        return Finding(subject, "failure", reason, "look at the disk, and at what else this machine does")
    if os.strerror(errno.ENOSPC) in reason:
        return Finding(subject, "failure", reason, TEMPORARY)
    if describe_exit(-signal.SIGKILL) in reason:
        fault = "memory"
    return Finding(subject, "failure", reason, REMEDIES.get(fault, "see the reason"))


def _describe_start(answer: events.Initialised, site: SiteConfig, first: re.Match[str] | None) -> Finding:
    unreadable = answer.samples.get("unreadable", 0)
    sent = f", {size(answer.artifact.bytes)} a {answer.artifact.kind}" if answer.artifact is not None else ""
    text = f"{site.model.name} on {answer.device} with {answer.threads} threads{sent}, {unreadable} unreadable samples"
    text += f", such as {first['image']}: {first['reason']}" if first is not None else ""
    if answer.weights is not None:
        text += f"; {site.model.weights}: {answer.weights}"
    remedies = ["replace it, or take it out of the datalist; `data validate` names the others"] if unreadable else []
    if site.training.precision == "bf16" and answer.device.startswith("cpu"):
        text += ", in bf16"
        remedies.append('set [training] precision = "fp32" in site.toml: bf16 saves time and memory on a GPU alone')
    return Finding.by_remedy("worker", text, ", and ".join(remedies))


def _describe_rehearsal(answer: events.Rehearsed, site: SiteConfig, *, adds_noise: bool) -> Finding:
    steps = ", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in answer.step_s.items())
    memory = f"{size(answer.memory_bytes)} of {size(answer.available_bytes)}"
    samples = f"{site.training.batch_size} samples" + (" (of all people where noise is added)" if adds_noise else "")
    text = (
        f"a step of {samples} on {answer.device} takes: {steps}; "
        f"a round trains for about {duration(answer.round_s)}; {memory} of memory"
    )
    tight = answer.memory_bytes > MEMORY_SHARE_MAX * answer.available_bytes
    return Finding.by_remedy("rehearsal", text, REMEDIES["memory"] if tight else "")


def _describe_padding(answer: events.Rehearsed, site: SiteConfig) -> Iterator[Finding]:
    """Return a warning where most weights never train, since the deepest maps are smaller than the kernels."""
    if answer.padding_share > PADDING_SHARE_MAX:
        yield Finding(
            "network",
            "warning",
            f"{answer.padding_share:.0%} of the weights of {site.model.name} lie on padding at this input size: they "
            "get no gradient, take that share of the traffic, and identify this site to who receives two of its models",
            "take a network with fewer halvings of the grid (stem_stride = 1, max_pool = false, fewer stages), or a "
            "larger [data] input_size",
        )
