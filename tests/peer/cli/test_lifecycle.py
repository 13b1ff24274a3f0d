"""`start`, `pause`, `resume` and `stop` as an operator calls them."""

import asyncio
import contextlib
import json
import os
import signal
from typing import Any, cast

import pytest
from click.testing import Result

from fakes.cli import refused_in_one_line, run, run_json, run_process
from peer.daemon.control_server import ControlServer, OperatorCalls
from peer.errors import EXIT_CODES
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("at_home")]

LIMIT_S = 30.0


def call(*words: str) -> Result:
    return run(*words, "--site", "asia")


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
def test_without_a_daemon_there_is_nobody_to_tell(action: str) -> None:
    assert "mhfl-peer start" in refused_in_one_line("DaemonDown", action, "--json", "--site", "asia")


def test_a_daemon_pauses_goes_on_and_leaves(enrolled: LocalFederation, program: Any) -> None:
    process = program.start_and_wait("asia")
    paused = call("pause").stdout
    assert paused.startswith("asia: training stops after this step; the site keeps serving; the others go on, and a")
    assert paused.endswith("site that is more than 2 rounds behind skips what it missed\n")
    program.status("asia", "paused")
    answer = json.loads(call("resume", "--json").stdout)
    assert answer == {"site": "asia", "action": "resume", "effect": "the site goes on"}
    program.status("asia", "gathering")
    healthy = json.loads(call("health", "--training", "--json").stdout)
    assert healthy == {"site": "asia", "serves": True, "trains": True}
    assert call("health").stdout == "asia: serves\n"
    assert call("stop", "--wait").exit_code == 0
    with enrolled.folder("asia").locked():  # the daemon has left its folder
        pass
    assert process.wait(LIMIT_S) == 0
    assert call("stop").exit_code == 14
    assert call("health").exit_code == 14


def test_a_frozen_daemon_is_not_called_down(program: Any) -> None:
    process = program.start_and_wait("asia")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        status = run_json("status", "--site", "asia")
        stopped = call("stop", "--wait")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert (status["daemon"], status["pid"], status["committed"]) == ("unresponsive", process.pid, 0)
    assert EXIT_CODES[stopped.exit_code].name == "DaemonDown"
    assert f"process {process.pid} holds asia and does not answer" in stopped.stderr


class EndingDaemon:
    """A daemon that is about to end: its port is closed, its control socket is open."""

    async def show(self, topic: str, arguments: object) -> object:
        return {"site": "asia", "serves": False, "trains": True}


async def test_a_daemon_that_starts_or_leaves_is_not_well(enrolled: LocalFederation) -> None:
    server = ControlServer(cast(OperatorCalls, EndingDaemon()))
    await server.start(enrolled.folder("asia").prepare_control_socket())
    result = await asyncio.to_thread(call, "health", "--json")
    await server.stop()
    assert json.loads(result.stdout) == {"site": "asia", "serves": False, "trains": True}
    assert result.exit_code == 14
    assert "the daemon of asia runs, but does not serve its peers; it starts or leaves" in result.stderr


class StoppingDaemon:
    """A daemon that holds its folder until it is told to stop, or longer."""

    def __init__(self, held: contextlib.ExitStack, *, ends: bool) -> None:
        self._held, self._ends = held, ends

    async def act(self, action: str, arguments: object) -> object:
        if self._ends:
            self._held.close()
        return {"site": "asia", "action": action, "effect": "the site leaves"}


@pytest.mark.parametrize("ends", [True, False])
async def test_stop_waits_for_the_end_of_the_daemon(enrolled: LocalFederation, ends: bool) -> None:
    folder = enrolled.folder("asia")
    with contextlib.ExitStack() as held:
        held.enter_context(folder.locked())
        server = ControlServer(cast(OperatorCalls, StoppingDaemon(held, ends=ends)))
        await server.start(folder.prepare_control_socket())
        result = await asyncio.to_thread(call, "stop", "--wait", "--timeout", "30" if ends else "0.01")
        await server.stop()
    if ends:
        assert (result.exit_code, result.stdout) == (0, "asia: the daemon has ended\n")
    else:
        assert (EXIT_CODES[result.exit_code].name, result.stdout) == ("LockedError", "")
        assert f"process {os.getpid()} still holds asia after 0.01 s; wait longer" in result.stderr


def test_stop_that_waits_is_content_where_no_daemon_runs() -> None:
    assert call("stop", "--wait").stdout == "asia: no daemon runs\n"


def start(*words: str) -> tuple[int, str]:
    """`start` in a process of its own: it sets up logging, signals and an event loop."""
    process = run_process("start", "--site", "asia", *words)
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
    return process.returncode, process.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--without", "mars"), 2, "--without mars: not another site of this federation; there are europe"),
        (("--resume", "perhaps"), 2, "'perhaps' is not one of 'auto', 'fresh', 'require'"),
        (("--resume", "require"), 6, "holds nothing to resume"),
    ],
)
def test_a_start_that_is_refused_is_one_line_and_begins_nothing(
    enrolled: LocalFederation, words: tuple[str, ...], code: int, message: str
) -> None:
    exit_code, error = start(*words)
    assert (exit_code, error.count("\n")) == (code, 1)
    assert message in error
    assert enrolled.folder("asia").generations() == ()


def test_a_second_start_in_the_same_folder_names_the_first(program: Any) -> None:
    process = program.start_and_wait("asia")
    code, error = start()
    assert code == 7
    assert f"held by process {process.pid}" in error
    os.kill(process.pid, 0)
