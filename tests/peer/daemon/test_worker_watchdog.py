"""The watchdog of the worker: how long it may give no sign of progress, by its own pace and CPU time."""

import os

import pytest

from peer.daemon.worker_watchdog import ProgressMonitor, cpu_s

HANG_S = 100.0


def seconds_until_hung(monitor: ProgressMonitor, *, computed_s: float | None, limit: int = 10_000) -> float:
    for tick in range(1, limit):
        if monitor.elapse(computed_s) is not None:
            return tick * monitor.tick_s
    raise AssertionError("never")


@pytest.mark.parametrize(("computed_s", "factor"), [(0.0, 1), (0.05, 1), (1.0, 4), (None, 4)])
def test_a_worker_that_computes_gets_four_times_as_long(computed_s: float | None, factor: float) -> None:
    assert seconds_until_hung(ProgressMonitor(HANG_S), computed_s=computed_s) == factor * HANG_S


def test_a_sign_of_progress_begins_the_wait_anew() -> None:
    monitor = ProgressMonitor(HANG_S)
    for _ in range(5):
        assert all(monitor.elapse(0.0) is None for _ in range(99))
        monitor.advance()


def test_steps_that_took_long_before_may_take_three_times_as_long_and_never_more_than_the_bound() -> None:
    monitor = ProgressMonitor(HANG_S)
    for gap_s, patience_s in ((390, 1170), (1160, 1200), (1190, 1200)):
        assert all(monitor.elapse(1.0) is None for _ in range(gap_s))
        monitor.advance()
        assert seconds_until_hung(monitor, computed_s=0.0) == patience_s
        monitor.begin()


def test_the_reason_says_how_long_and_whether_the_worker_computed() -> None:
    monitor = ProgressMonitor(20.0)
    reasons = [monitor.elapse(0.0) for _ in range(20)]
    assert reasons[-1] == "no sign of progress for 20 s, in which the worker did not compute ([training] hang_s)"
    assert reasons[:-1] == [None] * 19


def test_the_cpu_time_of_a_process_grows_while_it_computes() -> None:
    before_s = cpu_s(os.getpid())
    assert before_s is not None
    while cpu_s(os.getpid()) == before_s:
        pass
    assert cpu_s(2**22 + 1) is None
