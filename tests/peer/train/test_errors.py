"""Faults: who can mend a failure, in one line."""

import pytest
import torch

from peer.core.limits import TEXT_BYTES_MAX
from peer.train.errors import UnusableConfigurationError, UnusableDataError, fault_of, reason_of, work_failed


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UnusableDataError("x"), "data"),
        (UnusableConfigurationError("x"), "configuration"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryError(), "memory"),
        (ZeroDivisionError("x"), "crash"),
    ],
)
def test_a_fault_has_a_name(error: Exception, fault: str) -> None:
    assert fault_of(raised(error)) == fault


def test_a_failed_allocation_of_torch_is_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert fault_of(caught.value) == "memory"


def test_an_expected_reason_is_its_text_and_another_names_its_place() -> None:
    assert reason_of(raised(UnusableDataError("a\n b"))) == "a b"
    reason = reason_of(raised(ZeroDivisionError("by\nzero")))
    assert reason.startswith("ZeroDivisionError: by zero (test_errors.py:")


def test_what_is_journalled_names_no_sample() -> None:
    data = work_failed(raised(UnusableDataError("Müller Anna.nii.gz is damaged")), generation=1, attempt=2)
    assert (data.generation, data.attempt, data.fault) == (1, 2, "data")
    assert data.reason == "the site's samples cannot be used; worker.log has the names"
    assert data.detail == "Müller Anna.nii.gz is damaged"
    counted = work_failed(UnusableDataError("a.png is damaged", "1 of 9 samples cannot be read"))
    assert counted.reason == "1 of 9 samples cannot be read; worker.log has the names"
    lost = work_failed(raised(FileNotFoundError(2, "No such file or directory", "/srv/Müller Anna.nii.gz")))
    assert lost.reason.startswith("FileNotFoundError: No such file or directory (test_errors.py:")
    assert lost.detail == ""
    (own,) = [work_failed(UnusableConfigurationError("[model] name: no network"))]
    assert (own.fault, own.reason, own.detail) == ("configuration", "[model] name: no network", "")


def test_a_reason_is_one_line_of_bounded_length() -> None:
    for error in (UnusableDataError("é" * 5000), ValueError("é" * 5000)):
        assert len(reason_of(raised(error)).encode()) <= TEXT_BYTES_MAX


def test_a_file_whose_name_is_no_text_can_be_named_all_the_same() -> None:
    assert reason_of(UnusableDataError("scan\udcff.nii cannot be read")) == "scan?.nii cannot be read"
