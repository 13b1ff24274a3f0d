"""Turns at a device: one at a time, in order, whoever dies."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from peer.site.config.site_tables import TrainingConfig
from peer.train.device_queue import DeviceQueue, gpu_folder

WORKER = """
import pathlib, sys
from peer.site.config.site_tables import TrainingConfig
from peer.train.device_queue import DeviceQueue
folder, turns = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def waiting(ahead):
    print("behind", ahead, flush=True)
queue = DeviceQueue(folder / "device")
for _ in range(turns):
    with queue.turn(waiting):
        (folder / "inside").mkdir()  # fails while another process is inside
        print("computes", flush=True)
        if turns == 1:
            sys.stdin.readline()
        (folder / "inside").rmdir()
print("ended", flush=True)
"""


class Workers:
    """Processes that take turns in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, list[subprocess.Popen[str]]()

    def start(self, *, turns: int = 1) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-c", WORKER, str(self.folder), str(turns)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        return process

    def start_in_turn(self) -> subprocess.Popen[str]:
        """A worker that has its ticket: it computes or waits."""
        process = self.start()
        says(process)
        return process

    def close(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.close()


def says(process: subprocess.Popen[str], *, after: str = "") -> str:
    """The next line that differs from ``after``."""
    output: IO[str] | None = process.stdout
    assert output is not None
    return next(line.strip() for line in output if line.strip() != after)


def release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_next_computes_when_the_one_before_has_ended(workers: Workers) -> None:
    first = workers.start()
    assert says(first) == "computes"
    waiter = workers.start()
    assert says(waiter) == "behind 1"
    release(first)
    assert says(waiter, after="behind 1") == "behind 0"
    assert says(waiter) == "computes"
    assert says(first) == "ended"


def test_a_holder_that_is_killed_holds_nothing(workers: Workers) -> None:
    holder, waiter = workers.start_in_turn(), workers.start_in_turn()
    (workers.folder / "inside").rmdir()  # before the kill: the waiter makes it as soon as the holder is gone
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert says(waiter, after="behind 1") == "behind 0"
    assert says(waiter) == "computes"


def test_a_waiter_that_is_killed_keeps_nobody(workers: Workers) -> None:
    holder, killed, last = (workers.start_in_turn() for _ in range(3))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert says(last, after="behind 2") == "behind 1"
    release(holder)
    assert says(last, after="behind 1") == "behind 0"
    assert says(last) == "computes"


def test_tickets_of_dead_workers_count_for_nothing_and_are_cleared(tmp_path: Path) -> None:
    for name in ("001-1", "007-4711", "new-abc"):
        (tmp_path / name).touch()
    with DeviceQueue(tmp_path).turn(_never):
        (own,) = tmp_path.iterdir()
        assert own.name.startswith("001-")
    assert not list(tmp_path.iterdir())


def test_numbers_grow_beyond_their_digits(workers: Workers) -> None:
    queue = DeviceQueue(workers.folder / "device")
    with queue.turn(_never):
        (own,) = (workers.folder / "device").iterdir()
        own.rename(own.with_name("999-1"))
        waiter = workers.start_in_turn()
        assert (workers.folder / "device" / f"1000-{waiter.pid}").exists()
        (workers.folder / "device" / "999-1").rename(own)
    assert says(waiter, after="behind 1") == "behind 0"


def test_who_gives_up_leaves_the_queue(tmp_path: Path) -> None:
    class HaltError(Exception):
        pass

    def give_up(ahead: int) -> None:
        raise HaltError(ahead)

    queue = DeviceQueue(tmp_path)
    with queue.turn(_never):
        with pytest.raises(HaltError, match="1"), queue.turn(give_up):
            raise AssertionError("two compute at once")
        assert len(list(tmp_path.iterdir())) == 1


def test_whoever_waits_gives_signs_of_life(tmp_path: Path) -> None:
    """The daemon's watchdog kills a worker without them."""
    signs: list[int] = []
    heard_twice, holding, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with DeviceQueue(tmp_path).turn(_never):
            holding.set()
            heard_twice.wait()
        done.set()

    def note(ahead: int) -> None:
        signs.append(ahead)
        if len(signs) == 3:
            heard_twice.set()

    threading.Thread(target=hold, daemon=True).start()
    holding.wait()
    with DeviceQueue(tmp_path).turn(note):
        assert heard_twice.is_set()
    assert signs[-1] == 0
    assert set(signs[:-1]) == {1}
    done.wait()


@pytest.mark.e2e
def test_one_at_a_time_computes_while_many_come_and_go(workers: Workers) -> None:
    many = [workers.start(turns=40) for _ in range(6)]
    for process in many:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0
        assert output.count("computes") == 40


def test_the_folder_is_the_homes_or_the_named_one(tmp_path: Path) -> None:
    site = tmp_path / "home" / "trial" / "asia"
    assert gpu_folder(TrainingConfig(), site) is None
    assert gpu_folder(TrainingConfig(gpu="shared", gpu_folder="x"), site) is None
    assert gpu_folder(TrainingConfig(gpu="turns"), site) == tmp_path / "home" / ".gpu"
    assert gpu_folder(TrainingConfig(gpu="turns", gpu_folder="/run/gpu"), site) == Path("/run/gpu")


def _never(ahead: int) -> None:
    raise AssertionError(f"waits behind {ahead}")
