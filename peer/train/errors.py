"""Errors of the worker, grouped by who can correct them: the ``fault`` of a ``WorkFailed``."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import torch

from peer.core import events
from peer.core.artifacts import Source
from peer.core.limits import TEXT_BYTES_MAX

ALLOCATION = "can't allocate memory"  # torch's allocator on a CPU raises a bare RuntimeError with this text


class WorkError(Exception):
    """The work cannot be done; the message is one line with the problem and the remedy."""

    fault = "crash"


class UnusableDataError(WorkError):
    """The site's samples cannot be used. The journal, which backups contain, has only ``public``: no name."""

    fault = "data"

    def __init__(self, message: str, public: str = "the site's samples cannot be used") -> None:
        super().__init__(message)
        self.public = f"{public}; worker.log has the names"


class UnusableConfigurationError(WorkError):
    """The site's model, a layer name or a parameter does not fit."""

    fault = "configuration"


class UnusableWeightsError(UnusableConfigurationError):
    """A weights file in site.toml is missing or changed: this site's fault, whichever received artifact needs it."""


class DivergenceError(WorkError):
    """Training diverged without using a received artifact."""

    fault = "divergence"


class UnusableArtifact(Exception):  # noqa: N818 - the name is the fact
    """A received artifact must not be used; the message is the reason.

    Its origin is at fault, unless this site was ``short`` of memory when it read the artifact.
    """

    def __init__(self, source: Source, reason: str, *, short: bool = False) -> None:
        super().__init__(reason)
        self.source, self.short = source, short


class WorkInterrupted(Exception):  # noqa: N818 - no error: a Halt came
    """The work stopped between two steps, because the daemon sent a ``Halt``."""


def fault_of(error: BaseException) -> str:
    """Return one of ``peer.core.events.FAULTS``."""
    if isinstance(error, WorkError):
        return error.fault
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    failed = isinstance(error, RuntimeError) and ALLOCATION in str(error)  # another error may quote a sender's text
    if refused or failed or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "memory"
    return "crash"


def refuse(source: Source, error: Exception) -> UnusableArtifact:
    """Build the refusal of an artifact from the error that occurred when it was read or tried.

    If a lack of memory caused the error, the refusal blames nobody.
    """
    cause: BaseException | None = error
    while cause is not None:
        if fault_of(cause) == "memory":
            return UnusableArtifact(source, reason_of(cause), short=True)
        cause = cause.__cause__
    return UnusableArtifact(source, str(error))


def work_failed(error: BaseException, *, generation: int = 0, attempt: int = 0) -> events.WorkFailed:
    """Build the event of an error that ended an order of the daemon."""
    reason = reason_of(error)
    if isinstance(error, UnusableDataError):
        return events.WorkFailed(generation, attempt, error.fault, error.public, detail=reason)
    return events.WorkFailed(generation, attempt, fault_of(error), reason)


def reason_of(error: BaseException) -> str:
    """Describe an error in one line for the operator; an unexpected one with its type, file and line.

    The name of a file that could not be used is left out of an ``OSError``: it may be a sample's.
    """
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        text = error.strerror or ""
    if not isinstance(error, WorkError):
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        text = f"{type(error).__name__}: {text[: TEXT_BYTES_MAX // 2]}{where}"
    return text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")  # a file's name may not be UTF-8
