"""What the worker found, in one line each; its failures have remedies."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.site.config.site_folder import SiteFolder
from peer.view.preflight.finding import Finding

RunCheck = Callable[..., dict[str, Finding]]
Edit = Callable[[Path, str, str], None]


def test_what_a_step_takes_is_said(run_check: RunCheck) -> None:
    findings = run_check("works")
    assert findings["worker"].message == "resnet10 on cpu with 1 threads, 328 B a model, 0 unreadable samples"
    assert findings["rehearsal"].message == (
        "a step of 8 samples on cpu takes: train 0.5 s; a round trains for about 10 min; 3.0 GiB of 8.0 GiB of memory"
    )


def test_a_file_that_cannot_be_read_is_named(run_check: RunCheck) -> None:
    finding = run_check("one unreadable")["worker"]
    assert finding.verdict == "warning"
    assert finding.message.endswith("1 unreadable samples, such as a b.png: it has 3 channels")
    assert finding.remedy.startswith("replace it, or take it out of the datalist")


def test_label_maps_that_lose_a_class_are_worth_a_warning(run_check: RunCheck) -> None:
    finding = run_check("class lost")["label maps"]
    assert (finding.verdict, finding.message) == ("warning", "at [data] input_size nothing is left")
    assert "input_size" in finding.remedy


def test_bf16_without_a_gpu_is_worth_a_warning(run_check: RunCheck, folder: SiteFolder, edit: Edit) -> None:
    edit(folder.site_toml, r"\[training\]\n", '[training]\nprecision = "bf16"\n')
    finding = run_check("works")["worker"]
    assert (finding.verdict, finding.message.endswith(", in bf16")) == ("warning", True)
    assert 'precision = "fp32"' in finding.remedy


def test_a_network_whose_kernels_see_padding_is_worth_a_warning(run_check: RunCheck) -> None:
    finding = run_check("on padding")["network"]
    assert finding.verdict == "warning"
    assert finding.message.startswith("68% of the weights of resnet10 lie on padding at this input size")
    assert "input_size" in finding.remedy
    assert "network" not in run_check("works")


@pytest.mark.parametrize(
    ("mode", "subject", "verdict", "reason", "remedy"),
    [
        ("bad data", "worker", "failure", "no data here", r"\[data\]"),
        ("nonsense", "worker", "failure", "worker ended with exit code 4", "see the reason"),
        ("too large", "rehearsal", "failure", "out of memory", "batch_size"),
        ("killed", "rehearsal", "failure", "signal 9", "batch_size"),
        ("tight", "rehearsal", "warning", "", "batch_size"),
    ],
)
def test_a_worker_that_fails_or_hardly_fits_says_why(
    run_check: RunCheck, mode: str, subject: str, verdict: str, reason: str, remedy: str
) -> None:
    finding = run_check(mode)[subject]
    assert finding.verdict == verdict
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
