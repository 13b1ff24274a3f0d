"""What the worker found, in one line each; its failures have remedies."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.preflight.finding import Finding

Look = Callable[..., dict[str, Finding]]


def test_what_a_step_takes_is_said(look: Look) -> None:
    found = look("works")
    assert found["worker"].message == "resnet10 on cpu with 1 threads, 0.0 MiB a model, 0 unreadable samples"
    assert found["rehearsal"].message == (
        "a step of 8 samples on cpu takes: train 0.5 s; a round trains for about 10 min; 3.0 of 8.0 GiB of memory"
    )


def test_memory_that_hardly_suffices_is_worth_a_warning(look: Look) -> None:
    found = look("tight")["rehearsal"]
    assert found.verdict == "warning"
    assert "batch_size" in found.remedy


@pytest.mark.parametrize(
    ("mode", "subject", "reason", "remedy"),
    [
        ("bad data", "worker", "no data here", r"\[data\]"),
        ("nonsense", "worker", "worker ended with exit code 4", "see the reason"),
        ("too large", "rehearsal", "out of memory", "batch_size"),
        ("killed", "rehearsal", "signal 9", "batch_size"),
    ],
)
def test_a_worker_that_fails_says_why(look: Look, mode: str, subject: str, reason: str, remedy: str) -> None:
    found = look(mode)[subject]
    assert found.verdict == "failure"
    assert reason in found.message
    assert re.search(remedy, found.remedy)


def test_a_temporary_folder_that_cannot_be_used_is_a_failure(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    found = look("works")["worker"]
    assert found.verdict == "failure"
    assert "not there" in found.message
    assert "TMPDIR" in found.remedy
