"""The operator's socket: documents both ways, closed to others, clear errors without a daemon."""

import asyncio
import functools
import os
import socket
import stat
import subprocess
import sys

import pytest

from peer.errors import ConfigError, DaemonDown, StateError
from peer.net.transport.control import TRAINING, ControlClient, ControlServer, DaemonSilent


class FakeService:
    """Answers with the request; raises ``fault`` if it is set."""

    def __init__(self):
        self.fault = None
        self.changed = asyncio.Event()
        self.followers = 0
        self.well = self.open = True

    def serves(self):
        return self.open

    def trains(self):
        return self.well

    async def show(self, topic, arguments):
        if self.fault is not None:
            raise self.fault
        return {"topic": topic, "arguments": arguments, "name": "größe"}

    async def act(self, action, arguments):
        if self.fault is not None:
            raise self.fault
        return {"will": action}

    async def follow(self, topic, arguments):
        self.followers += 1
        try:
            yield {"topic": topic, "count": 0}
            await self.changed.wait()
            yield {"topic": topic, "count": 1}
        finally:
            self.followers -= 1
            self.changed.set()


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def path(tmp_path):
    """Where the socket is, in a folder that is the operator's alone."""
    tmp_path.chmod(0o700)
    return tmp_path / "control.sock"


@pytest.fixture
async def server(service, path):
    """The fake service behind the socket."""
    server = ControlServer(service)
    await server.start(path)
    yield server
    await server.stop()


@pytest.fixture
def ask(server, path):
    """Asks the fake service behind its socket."""
    return functools.partial(asked, path)


async def asked(path, question):
    """A client's answer, from a thread, since the command line has no event loop."""

    def ask():
        with ControlClient(path) as client:
            return question(client)

    return await asyncio.to_thread(ask)


async def test_a_document_is_shown_with_its_arguments_and_an_action_is_begun(ask):
    shown = await ask(lambda client: client.show("plan", rounds=10))
    assert shown == {"topic": "plan", "arguments": {"rounds": 10}, "name": "größe"}
    assert await ask(lambda client: client.act("pause")) == {"will": "pause"}


async def test_changes_are_followed_until_the_document_ends(service, ask):
    counts = []

    def follow(client):
        for document in client.follow("status"):
            counts.append(document["count"])
            loop.call_soon_threadsafe(service.changed.set)

    loop = asyncio.get_running_loop()
    await ask(follow)
    assert counts == [0, 1]


async def test_a_follower_that_leaves_is_let_go(service, ask):
    first = await ask(lambda client: next(client.follow("status")))
    assert first == {"topic": "status", "count": 0}
    await asyncio.wait_for(service.changed.wait(), 30)
    assert service.followers == 0


async def test_two_calls_stop_a_server_one_after_the_other(server, europe):
    """gRPC's own ``stop`` ends the process where they overlap."""

    class Stopping:
        stops, busy = 0, False

        async def stop(self, grace_s):
            assert not self.busy
            self.busy = True
            await asyncio.sleep(0)
            self.stops, self.busy = self.stops + 1, False

    for each in (server, europe.server):
        running, stopping = each._server, Stopping()
        each._server = stopping
        await asyncio.gather(each.stop(), each.stop())
        assert stopping.stops == 1
        each._server = running


async def test_a_follower_is_told_that_the_daemon_ended(server, path):

    def follow(client):
        for _ in client.follow("status"):
            asyncio.run_coroutine_threadsafe(server.stop(), loop)

    loop = asyncio.get_running_loop()
    with pytest.raises(DaemonDown, match="no daemon answers on"):
        await asked(path, follow)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (lambda client: client.show("secrets"), "nothing to show called 'secrets'; there are status, rounds"),
        (lambda client: list(client.follow("secrets")), "nothing to show called 'secrets'"),
        (lambda client: client.act("explode"), "no action 'explode'; there are pause, resume, stop"),
    ],
)
async def test_an_unknown_question_is_refused_with_the_known_ones(ask, question, reason):
    with pytest.raises(StateError, match=reason):
        await ask(question)


@pytest.mark.parametrize("fault", [ConfigError("site.toml: threads", "set it"), ValueError("round 7 is not planned")])
async def test_the_daemon_s_reason_reaches_the_operator(service, ask, fault):
    service.fault = fault
    kind = StateError if isinstance(fault, ValueError) else type(fault)
    with pytest.raises(kind, match=str(fault)):
        await ask(lambda client: client.act("stop"))


async def test_a_fault_of_the_daemon_is_said_and_logged(service, ask, caplog):
    service.fault = KeyError("lost")
    with pytest.raises(StateError, match="the daemon failed: 'lost'"):
        await ask(lambda client: client.show("status"))
    assert "control call failed" in caplog.text


async def test_nobody_but_the_operator_can_open_the_socket(server, path):
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_folder_that_others_can_enter_gets_no_socket(tmp_path):
    tmp_path.chmod(0o750)
    with pytest.raises(StateError, match=r"is open to others \(mode 0750\); run `chmod 700"):
        await ControlServer(FakeService()).start(tmp_path / "control.sock")
    assert not (tmp_path / "control.sock").exists()


async def test_a_socket_that_was_left_behind_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = ControlServer(FakeService())
    await server.start(path)
    assert await asked(path, lambda client: client.act("stop")) == {"will": "stop"}
    await server.stop()


async def test_a_path_that_cannot_be_bound_is_named(tmp_path):
    tmp_path.chmod(0o700)
    path = tmp_path / ("x" * 120)
    with pytest.raises(StateError, match="cannot be bound"):
        await ControlServer(FakeService()).start(path)


@pytest.mark.parametrize("left_behind", [False, True])
async def test_without_a_daemon_the_operator_is_told_so(path, left_behind):
    if left_behind:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    with pytest.raises(DaemonDown, match=f"no daemon answers on {path}"):
        await asked(path, lambda client: client.show("status"))
    with pytest.raises(DaemonDown):
        await asked(path, lambda client: client.healthy())


async def test_a_large_document_passes(ask):
    shown = await ask(lambda client: client.show("events", filler="x" * 6_000_000))
    assert len(shown["arguments"]["filler"]) == 6_000_000


def test_the_command_line_s_side_imports_no_more_than_it_needs():
    code = (
        "import sys, peer.net.transport.control as c; "
        "print(sorted(sys.modules.keys() & {'torch', 'monai', 'cryptography', 'numpy', 'pydantic'}))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert finished.stdout == "[]\n"


async def test_the_health_service_tells_of_daemon_and_training(service, ask):
    assert await ask(lambda client: (client.healthy(), client.healthy(TRAINING))) == (True, True)
    service.well = False
    assert await ask(lambda client: (client.healthy(), client.healthy(TRAINING))) == (True, False)
    service.open = False
    assert not await ask(lambda client: client.healthy())
    with pytest.raises(StateError, match="there is no service 'lunch'"):
        await ask(lambda client: client.healthy("lunch"))


def test_a_daemon_that_listens_and_does_not_answer_is_not_taken_for_none(path, monkeypatch):
    monkeypatch.setattr("peer.net.transport.control.ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with ControlClient(path) as client, pytest.raises(DaemonSilent, match="did not answer within"):
            client.act("pause")
