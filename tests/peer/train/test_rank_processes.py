"""A worker's other ranks, as processes: results of one process, no open port, and no rank without its worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fakes.training import checkpoint_files, copy_artifact, initialise, train
from peer import landlock
from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.roster import SiteName
from peer.core.worker_protocol import FROM_WORKER, StillWorking, WorkerSetting, decode, encode
from peer.daemon.worker_process import WorkerProcess
from peer.train.errors import UnusableConfigurationError, UnusableDataError, WorkInterrupted, fault_of
from peer.train.rank_processes import RankFailed, RankProcesses
from peer.train.trainer import Trainer
from peer.train.worker import EXIT_FAILED, EXIT_ORPHAN, run_rank

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]
ROOT = Path(__file__).parents[3]
FOREVER = 10**6
UNNORMED = {
    "name": "monai.networks.nets.DenseNet",
    "features": ["features.denseblock1", "features.denseblock2"],
    "head": "class_layers.out",
    "parameters": {"init_features": 8, "growth_rate": 4, "block_config": [1, 1], "norm": "instance"},
}
"""A network without batch normalisation."""


class Clock:
    """A second passes with every look at it, so that each step is reported."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 1.0
        return self._now_s


class Team:
    """A trainer, and the ranks that it leads."""

    def __init__(self, setting: WorkerSetting, *, halted: Callable[[], bool] = lambda: False, **options: Any) -> None:
        several = setting.site["training"].get("processes", 1) > 1
        self.lead = RankProcesses(setting, run_rank, halted=halted) if several else None
        self.trainer = Trainer(setting, halted=halted, lead=self.lead, **options)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lead is not None:
            self.lead.close()

    @property
    def pids(self) -> list[int]:
        assert self.lead is not None
        return self.lead.pids


def states(setting: WorkerSetting, state: str) -> dict[str, torch.Tensor]:
    files = checkpoint_files(setting, state)
    return {
        f"{file}/{name}": value
        for file, content in files.items()
        for name, value in safetensors.torch.load(content).items()
    }


def agree(one: dict[str, torch.Tensor], several: dict[str, torch.Tensor]) -> None:
    """Every tensor is the same but for rounding, which grows from step to step."""
    assert one.keys() == several.keys()
    for name, value in one.items():
        gap = (several[name] - value).double().norm()
        assert gap <= 0.01 * value.double().norm() + 1e-6, f"{name}: {gap}"


@pytest.fixture
def received(make_setting: Callable[..., WorkerSetting]) -> tuple[WorkerSetting, Source]:
    """Another site, and its first artifact."""
    setting = make_setting(site="beta", model=UNNORMED)
    artifact = initialise(Trainer(setting)).artifact
    assert artifact is not None
    return setting, Source(SiteName("beta"), 1, artifact)


@pytest.mark.parametrize("method", ["fedskd", pytest.param("fedvisit", marks=pytest.mark.nightly)])
def test_two_rounds_of_two_processes_are_those_of_one(make_setting, tmp_path: Path, received, method: str) -> None:
    """The second round goes on from the moments of the first; its batches come from files, and are of 5 samples.

    Moments are those of the gradients; a small learning rate keeps rounding from growing from step to step.
    """
    results = {}
    for processes in (1, 2):
        home = tmp_path / f"of {processes}"
        training = {"processes": processes, "batch_size": 5}
        setting = make_setting(
            home=home, model=UNNORMED, method={"name": method}, training=training, data={"cache": "none"}, steps=6,
            learning_rate=1e-4,
        )  # fmt: skip
        source = copy_artifact(received[0], setting, received[1])
        with Team(setting) as team:
            start = initialise(team.trainer)
            assert start.device == ("cpu" if processes == 1 else "2 processes on cpu")
            first = train(team.trainer, start.state, source)
            second = train(team.trainer, first.state, source, round=2)
        results[processes] = second.metrics, states(setting, first.state), states(setting, second.state)
    assert results[2][0] == pytest.approx(results[1][0], rel=1e-2, abs=1e-4)
    agree(results[1][1], results[2][1])
    agree(results[1][2], results[2][2])


@pytest.mark.nightly
def test_a_stage_that_is_halted_goes_on_to_the_same_bits(make_setting, tmp_path: Path, received) -> None:
    """With the ranks that were there, and with new ones."""
    steps: list[int] = []
    settings = [
        make_setting(home=tmp_path / name, model=UNNORMED, training={"processes": 2}) for name in ("straight", "halted")
    ]
    sources = [copy_artifact(received[0], setting, received[1]) for setting in settings]
    with Team(settings[0]) as team:
        straight = train(team.trainer, initialise(team.trainer).state, sources[0]).state
    report: Callable[[Any], None] = lambda event: steps.append(event.step)  # noqa: E731
    halts: Callable[[], bool] = lambda: steps in ([1], [1, 0, 2, 3])  # noqa: E731
    with Team(settings[1], report=report, halted=halts, clock=Clock()) as team:
        state = initialise(team.trainer).state
        with pytest.raises(WorkInterrupted):
            train(team.trainer, state, sources[1])
        pids = team.pids
        steps.append(0)
        with pytest.raises(WorkInterrupted):
            train(team.trainer, state, sources[1])
        assert team.pids == pids
    with Team(settings[1], report=report, clock=Clock()) as team:
        halted = train(team.trainer, state, sources[1]).state
    assert steps == [1, 0, 2, 3, 4]
    assert checkpoint_files(settings[0], straight) == checkpoint_files(settings[1], halted)


@pytest.mark.nightly
def test_a_rehearsal_has_every_rank_take_steps_and_listen_on_the_loopback_interface_alone(make_setting) -> None:
    setting = make_setting(model=UNNORMED, method={"name": "fedvisit"}, training={"processes": 2})
    with Team(setting) as team:
        initialise(team.trainer)
        rehearsed = team.trainer.perform(commands.Rehearse(1, 2, (SiteName("beta"),)))
        addresses = listening_addresses([os.getpid(), *team.pids])
    assert isinstance(rehearsed, events.Rehearsed)
    assert rehearsed.device == "2 processes on cpu"
    assert rehearsed.step_s.keys() == {"train"}
    assert len(addresses) >= 2
    assert set(addresses) == {"0100007F"}  # 127.0.0.1, its bytes from the last to the first


def listening_addresses(pids: list[int]) -> list[str]:
    """The addresses, as /proc/net/tcp has them, at which these processes listen."""
    sockets = set()
    for pid in pids:
        for descriptor in list(Path(f"/proc/{pid}/fd").iterdir()):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(descriptor))
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


def test_a_rank_s_own_failure_ends_the_work_with_its_reason(make_setting) -> None:
    setting = make_setting(model=UNNORMED, training={"processes": 2})
    with Team(setting) as team:
        state = initialise(team.trainer).state
        (Path(setting.home) / "checkpoints" / state / "dam.safetensors").unlink()  # rank 0 has it in memory
        with pytest.raises(RankFailed, match=r"rank 1 of 2: checkpoint .*initial does not fit \[model\]") as caught:
            train(team.trainer, state)
        assert fault_of(caught.value) == "configuration"


@pytest.mark.parametrize("changed", ["labels", pytest.param("samples", marks=pytest.mark.nightly)])
def test_ranks_that_read_other_samples_or_labels_do_not_train(make_setting, signals: Path, changed: str) -> None:
    with Team(make_setting(model=UNNORMED, training={"processes": 2})) as team:
        state = initialise(team.trainer).state
        if changed == "samples":
            (signals / "training3.npz").write_bytes(b"no longer an array")
        else:
            datalist = signals / "datalist.json"
            content = json.loads(datalist.read_text())
            content["training"][3]["label"] = 1 - content["training"][3]["label"]
            datalist.write_text(json.dumps(content))
        with pytest.raises(UnusableDataError, match="rank 1 of 2 has other training samples or labels than rank 0"):
            train(team.trainer, state)


def test_batch_normalisation_on_a_processor_is_refused(make_setting) -> None:
    with pytest.raises(
        UnusableConfigurationError, match=r"processes = 2: resnet10 has batch normalisation, .* GPUs alone"
    ):
        initialise(Team(make_setting(training={"processes": 2})).trainer)


def test_processes_that_are_raised_after_the_start_are_refused_before_a_step(make_setting, tmp_path: Path) -> None:
    home = tmp_path / "home"
    state = initialise(Trainer(make_setting(home=home))).state
    with Team(make_setting(home=home, training={"processes": 2})) as team:
        with pytest.raises(UnusableConfigurationError, match=r"processes = 2: resnet10 has batch normalisation"):
            train(team.trainer, state)
        assert team.pids == []


class Worker:
    """A worker as a daemon starts it, and its log."""

    def __init__(self, log: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.log = log
        with theirs, log.open("wb") as output:
            command = (sys.executable, "-P", "-m", "peer.train.worker", "--fd", str(theirs.fileno()))
            # A worker may write in the system's temporary folder, in which all of a test lies.
            (log.parent / "temporary").mkdir()
            environment = {**os.environ, "TMPDIR": str(log.parent / "temporary"), "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, pass_fds=[theirs.fileno()], env=environment
            )
        self.lines = self.socket.makefile("rb")

    def send(self, *messages: object) -> None:
        self.socket.sendall(b"".join(map(encode, messages)))

    def next(self, kind: type) -> Any:
        for line in self.lines:
            event = decode(line, FROM_WORKER)
            if isinstance(event, kind):
                return event
            assert isinstance(event, events.Progressed | StillWorking), event
        raise AssertionError(f"the worker ended without a {kind.__name__}: {self.log.read_text()}")

    def ranks(self) -> list[int]:
        return ranks_in(self.log)

    def close(self) -> None:
        self.lines.close()
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def ranks_in(log: Path) -> list[int]:
    """The processes of the other ranks, which the worker's log names."""
    (pids,) = re.findall(r"ranks started: count=[0-9]+ pids=\[(.*)\]", log.read_text())
    return list(map(int, pids.split(", ")))


@pytest.fixture
def worker(make_setting, tmp_path: Path) -> Iterator[Worker]:
    """A worker of three processes in a stage without end."""
    worker = Worker(tmp_path / "worker.log")
    try:
        setting = make_setting(model=UNNORMED, training={"processes": 3, "batch_size": 6}, steps=FOREVER)
        (Path(setting.home) / "checkpoints").mkdir()  # as the daemon does: a confined worker could not
        worker.send(setting)
        worker.send(commands.Initialise(1, 1))
        state = worker.next(events.Initialised).state
        worker.send(commands.Train(1, 1, 2, "train", state, ()))
        worker.next(events.Progressed)
        yield worker
    finally:
        worker.close()


def wait_until_dead(pids: list[int]) -> None:
    """Return once none of the processes runs; a dead one whose parent is gone waits for init."""
    while running := [pid for pid in pids if _is_running(pid)]:
        time.sleep(0.05)
        assert running


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_rank_that_is_killed_ends_the_worker_which_names_it(worker: Worker) -> None:
    ranks = worker.ranks()
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    failed = worker.next(events.WorkFailed)
    assert failed.fault == "crash"
    assert failed.reason == "rank 2 of 3: ended with signal 9 (out of memory?)"
    assert worker.process.wait() == EXIT_FAILED
    wait_until_dead(ranks)


def assert_confined(worker: Worker) -> None:
    """Every rank is confined as the worker is.

    Who confines itself gives up all new privileges first, and children inherit both.
    """
    assert "not confined" not in worker.log.read_text()
    for pid in (worker.process.pid, *worker.ranks()):
        assert "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text().splitlines()


def test_ranks_are_confined_and_none_outlives_a_worker_that_is_killed_even_one_that_hangs(worker: Worker) -> None:
    """One worker for both: three processes that import torch are dear."""
    if landlock.abi():
        assert_confined(worker)
    ranks = worker.ranks()
    os.kill(ranks[0], signal.SIGSTOP)
    os.kill(worker.process.pid, signal.SIGKILL)
    wait_until_dead(ranks)
    if landlock.abi() == 0:
        pytest.skip("the kernel has no Landlock: whether ranks are confined is not tested")


@pytest.mark.nightly
async def test_after_a_killed_rank_the_daemon_s_next_worker_goes_on(make_setting, tmp_path: Path) -> None:
    answers: asyncio.Queue[events.Event] = asyncio.Queue()
    setting = make_setting(model=UNNORMED, training={"processes": 2}, steps=FOREVER)
    # Keys in the temporary folder: the confined worker cannot read what appears beside the way to them.
    (Path(setting.base_folder).parent.parent / "federation" / "site" / "pki").mkdir(parents=True, exist_ok=True)
    log = tmp_path / "worker.log"
    worker = WorkerProcess(setting, log, answers.put_nowait)
    try:
        await worker.send(commands.Initialise(1, 1))
        initialised = await answers.get()
        assert isinstance(initialised, events.Initialised)
        order = commands.Train(1, 1, 2, "train", initialised.state, ())
        await worker.send(order)
        assert isinstance(await answers.get(), events.Progressed)
        (rank,) = ranks_in(log)
        os.kill(rank, signal.SIGKILL)
        while isinstance(failed := await answers.get(), events.Progressed):
            pass
        reason = "rank 1 of 2: ended with signal 9 (out of memory?)"
        assert failed == events.WorkFailed(1, 2, "crash", reason)
        await worker.send(order)
        assert isinstance(await answers.get(), events.Progressed)
    finally:
        await worker.close()


@pytest.mark.nightly
def test_no_rank_outlives_a_worker_whose_daemon_is_gone(worker: Worker) -> None:
    ranks = worker.ranks()
    worker.socket.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait() == EXIT_ORPHAN
    wait_until_dead(ranks)


@pytest.mark.nightly
def test_an_interrupt_of_the_terminal_reaches_no_rank(worker: Worker) -> None:
    """The daemon hears it, and halts the worker; the ranks are there for the next stage."""
    ranks = worker.ranks()
    for pid in (worker.process.pid, *ranks):
        os.kill(pid, signal.SIGINT)
    worker.send(commands.Halt(1, 3))
    assert worker.next(events.Halted).attempt == 3
    worker.send(commands.Train(1, 1, 4, "train", "round-000000/initial", ()))
    while worker.next(events.Progressed).attempt != 4:
        pass
    assert worker.ranks() == ranks
    assert all(map(_is_running, ranks))
