"""What the worker found, in one line each; its failures have remedies."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.preflight.finding import Finding

RunCheck = Callable[..., dict[str, Finding]]


def test_what_a_step_takes_is_said(run_check: RunCheck) -> None:
    findings = run_check("works")
    assert findings["worker"].message == "resnet10 on cpu with 1 threads, 0.0 MiB a model, 0 unreadable samples"
    assert findings["rehearsal"].message == (
        "a step of 8 samples on cpu takes: train 0.5 s; a round trains for about 10 min; 3.0 of 8.0 GiB of memory"
    )


def test_samples_that_the_worker_leaves_out_are_named(run_check: RunCheck) -> None:
    finding = run_check("unreadable")["worker"]
    assert finding.verdict == "warning"
    assert finding.message.endswith("1 unreadable samples: image=b.png reason=has 3 channels")


def test_memory_that_hardly_suffices_is_worth_a_warning(run_check: RunCheck) -> None:
    finding = run_check("tight")["rehearsal"]
    assert finding.verdict == "warning"
    assert "batch_size" in finding.remedy


@pytest.mark.parametrize(
    ("mode", "subject", "reason", "remedy"),
    [
        ("bad data", "worker", "no data here", r"\[data\]"),
        ("nonsense", "worker", "worker ended with exit code 4", "see the reason"),
        ("too large", "rehearsal", "out of memory", "batch_size"),
        ("killed", "rehearsal", "signal 9", "batch_size"),
    ],
)
def test_a_worker_that_fails_says_why(run_check: RunCheck, mode: str, subject: str, reason: str, remedy: str) -> None:
    finding = run_check(mode)[subject]
    assert finding.verdict == "failure"
    assert reason in finding.message
    assert re.search(remedy, finding.remedy)


def test_a_temporary_folder_that_cannot_be_used_is_a_failure(
    run_check: RunCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    finding = run_check("works")["worker"]
    assert finding.verdict == "failure"
    assert "not there" in finding.message
    assert "TMPDIR" in finding.remedy
