"""The daemon's side of the control socket: documents and actions, closed to others, bounded whoever calls."""

import asyncio
import contextlib
import json
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from peer.daemon import control_server
from peer.daemon.control_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, SHORT_BYTES, ControlServer
from peer.errors import ConfigError, DaemonDown, StateError
from peer.net.transport.control import ControlClient

LIMIT_S = 30.0


class FakeService:
    """Answers with the request; raises ``fault`` if it is set."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.document: Any = None
        self.changed = asyncio.Event()
        self.followers = 0
        self.acted: list[str] = []

    async def show(self, topic: str, arguments: Mapping[str, Any]) -> object:
        if self.fault is not None:
            raise self.fault
        return self.document or {"topic": topic, "arguments": arguments, "name": "größe"}

    async def act(self, action: str, arguments: Mapping[str, Any]) -> object:
        if self.fault is not None:
            raise self.fault
        self.acted.append(action)
        return {"will": action, "bytes": len(str(arguments))}

    async def follow(self, topic: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        self.followers += 1
        try:
            yield {"topic": topic, "count": 0}
            if self.fault is not None:
                raise self.fault
            await self.changed.wait()
            yield {"topic": topic, "count": 1}
        finally:
            self.followers -= 1
            self.changed.set()


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket is, in a folder that is the operator's alone."""
    tmp_path.chmod(0o700)
    return tmp_path / "control.sock"


@pytest.fixture
async def server(service: FakeService, path: Path) -> AsyncIterator[ControlServer]:
    """The fake service behind the socket."""
    server = ControlServer(service)
    await server.start(path)
    yield server
    await server.stop()


@pytest.fixture
def ask(server: ControlServer, path: Path) -> Callable[..., Any]:
    """Asks the fake service with the command line's client, in a thread."""
    return lambda question: asyncio.to_thread(question, ControlClient(path))


@pytest.fixture
async def connect(server: ControlServer, path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens connections, which are closed at the end, and sends each these bytes."""
    async with contextlib.AsyncExitStack() as opened:

        async def connect(content: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 24)
            opened.callback(writer.close)
            with contextlib.suppress(ConnectionError):
                writer.write(content)
                await writer.drain()
            return reader, writer

        yield connect


def request(call: str, name: str, **arguments: Any) -> bytes:
    return json.dumps({"call": call, "name": name, "arguments": arguments}).encode() + b"\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


async def error_of(reader: asyncio.StreamReader) -> str:
    """The message of a connection's only answer, which is an error."""
    async with asyncio.timeout(LIMIT_S):
        line = await reader.readline()
        with contextlib.suppress(ConnectionError):  # what the server had not read when it closed
            assert await reader.read() == b""
    return str(json.loads(line)["error"]["message"])


# --- what a command gets ----------------------------------------------------------------------------------------------
async def test_a_document_is_shown_with_its_arguments_and_an_action_is_begun(ask: Callable[..., Any]) -> None:
    shown = await ask(lambda client: client.show("plan", rounds=10, name="größe\n"))
    assert shown == {"topic": "plan", "arguments": {"rounds": 10, "name": "größe\n"}, "name": "größe"}
    assert (await ask(lambda client: client.act("pause")))["will"] == "pause"


async def test_a_large_document_passes_whole(service: FakeService, ask: Callable[..., Any]) -> None:
    service.document = [{"filler": "x" * 1000, "number": number} for number in range(6000)]
    assert await ask(lambda client: client.show("transfers")) == service.document


async def test_a_document_over_the_bound_is_refused(
    service: FakeService, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "ANSWER_BYTES_MAX", 1000)
    service.document = ["x" * 1000]
    with pytest.raises(StateError, match="the document has over"):
        await ask(lambda client: client.show("transfers"))


async def test_a_proposal_of_four_megabytes_passes(ask: Callable[..., Any]) -> None:
    proposal = '"\n' * (2 << 20)
    assert (await ask(lambda client: client.act("enact", proposal=proposal)))["bytes"] > len(proposal)


async def test_changes_are_followed_until_the_document_ends(service: FakeService, ask: Callable[..., Any]) -> None:
    counts, loop = [], asyncio.get_running_loop()

    def follow(client: ControlClient) -> None:
        for document in client.follow("status"):
            counts.append(document["count"])
            loop.call_soon_threadsafe(service.changed.set)

    await ask(follow)
    assert counts == [0, 1]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (lambda client: client.show("secrets"), "nothing to show called 'secrets'; there are status, rounds"),
        (lambda client: list(client.follow("secrets")), "nothing to show called 'secrets'"),
        (lambda client: client.act("explode"), "no action 'explode'; there are pause, resume, stop"),
    ],
)
async def test_an_unknown_question_is_refused_with_the_known_ones(
    ask: Callable[..., Any], question: Callable[[ControlClient], Any], reason: str
) -> None:
    with pytest.raises(StateError, match=reason):
        await ask(question)


@pytest.mark.parametrize("fault", [ConfigError("site.toml: threads", "set it"), ValueError("round 7 is not planned")])
@pytest.mark.parametrize("call", ["show", "act", "follow"])
async def test_the_daemon_s_reason_reaches_the_operator(
    service: FakeService, ask: Callable[..., Any], fault: Exception, call: str
) -> None:
    service.fault = fault
    kind = StateError if isinstance(fault, ValueError) else type(fault)
    with pytest.raises(kind, match=str(fault)):
        await ask(lambda client: client.act("stop") if call == "act" else list(getattr(client, call)("status")))


async def test_a_fault_of_the_daemon_is_said_and_logged(
    service: FakeService, ask: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    service.fault = KeyError("lost")
    with pytest.raises(StateError, match="the daemon failed: 'lost'"):
        await ask(lambda client: client.show("status"))
    assert "control call failed" in caplog.text
    assert "KeyError" in caplog.text


# --- the socket -------------------------------------------------------------------------------------------------------
async def test_nobody_but_the_operator_can_open_the_socket(server: ControlServer, path: Path) -> None:
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_folder_that_others_can_enter_gets_no_socket(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(StateError, match=r"is open to others \(mode 0750\); run `chmod 700"):
        await ControlServer(FakeService()).start(tmp_path / "control.sock")
    assert not (tmp_path / "control.sock").exists()


async def test_a_socket_that_was_left_behind_is_replaced_and_removed_at_the_end(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = ControlServer(FakeService())
    await server.start(path)
    assert (await asyncio.to_thread(ControlClient(path).act, "stop"))["will"] == "stop"
    await asyncio.gather(server.stop(), server.stop())
    assert not path.exists()


@pytest.mark.parametrize("name", ["x" * 120, "a file"])
async def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / name
    if len(name) < 100:
        path.touch()
    with pytest.raises(StateError, match=f"{name} cannot be bound"):
        await ControlServer(FakeService()).start(path)


# --- the end ----------------------------------------------------------------------------------------------------------
async def test_a_follower_is_told_that_the_daemon_ended(server: ControlServer, ask: Callable[..., Any]) -> None:
    loop = asyncio.get_running_loop()

    def follow(client: ControlClient) -> None:
        for _ in client.follow("status"):
            asyncio.run_coroutine_threadsafe(server.stop(), loop)

    with pytest.raises(DaemonDown, match="no daemon answers on"):
        await ask(follow)


async def test_a_follower_gets_its_last_document_within_the_grace(
    service: FakeService, server: ControlServer, connect: Callable[..., Any]
) -> None:
    reader, _ = await connect(request("follow", "status"))
    await reader.readline()
    stopping = asyncio.create_task(server.stop(LIMIT_S))
    await asyncio.sleep(0)
    service.changed.set()
    assert [json.loads(line) async for line in reader] == [{"document": {"topic": "status", "count": 1}}, {"end": True}]
    await stopping


async def test_an_end_waits_neither_for_idle_connections_nor_for_those_that_do_not_read(
    service: FakeService, server: ControlServer, connect: Callable[..., Any]
) -> None:
    service.document = "x" * (4 << 20)
    await connect()
    await connect(request("show", "status"))
    await connect(request("follow", "status"))
    await until(lambda: service.followers == 1)
    await asyncio.wait_for(server.stop(), LIMIT_S)
    assert (service.followers, len(server._connections)) == (0, 0)


async def test_an_action_is_carried_out_although_its_caller_has_gone(
    service: FakeService, connect: Callable[..., Any]
) -> None:
    _, writer = await connect(request("act", "stop"))
    writer.close()
    await until(lambda: service.acted == ["stop"])


# --- callers that behave otherwise ------------------------------------------------------------------------------------
@pytest.fixture
async def well(server: ControlServer, ask: Callable[..., Any]) -> AsyncIterator[None]:
    """Afterwards the daemon answers, and nobody is connected."""
    yield
    await until(lambda: not server._connections)
    assert (await ask(lambda client: client.show("status")))["topic"] == "status"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n", "is not a JSON object"),
        (b"status\n", "is not a JSON object"),
        (b"\xff\x00\n", "is not a JSON object"),
        (b"[" * 60_000 + b"\n", "is not a JSON object"),
        (b'["show", "status", {}]\n', "is not a JSON object"),
        (b"9" * 5000 + b"\n", "is not a JSON object"),
        (b'{"call": "show", "name": "status"}\n', "a request has a call"),
        (b'{"call": "show", "name": ["status"], "arguments": {}}\n', "a request has a call"),
        (b'{"call": {}, "name": "status", "arguments": {}}\n', "a request has a call"),
        (b'{"call": "show", "name": "status", "arguments": []}\n', "a request has a call"),
        (b'{"call": "show", "name": "\\u001b[2J\\ud800", "arguments": {}}\n', "nothing to show called '"),
        (request("show", "status", filler="x" * SHORT_BYTES), f"is over {SHORT_BYTES} bytes"),
        (request("act", "explode", filler="x" * SHORT_BYTES), "no action 'explode'"),
        (request("act", "enact", proposal="x" * REQUEST_BYTES_MAX), f"is over {REQUEST_BYTES_MAX} bytes"),
        (b"x" * (REQUEST_BYTES_MAX + SHORT_BYTES + 1), f"is over {REQUEST_BYTES_MAX} bytes"),
    ],
    ids=range(15),
)
async def test_what_is_no_request_is_refused_with_its_reason(
    well: None, connect: Callable[..., Any], caplog: pytest.LogCaptureFixture, content: bytes, message: str
) -> None:
    reader, _ = await connect(content)
    assert message in await error_of(reader)
    assert len(caplog.text) < 2000, "the log tells of it in one line"


async def test_one_long_request_is_read_at_a_time(
    well: None, server: ControlServer, ask: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    long = request("act", "enact", proposal="x" * (4 * SHORT_BYTES))
    first, second = await connect(long[:-9]), await connect()
    await until(server._long.locked)
    second[1].write(long)  # of which the server does not read the rest before the first one's end
    assert (await ask(lambda client: client.show("status")))["topic"] == "status"
    assert server._long.locked()
    first[1].write(long[-9:])
    for reader, _ in (first, second):
        assert b'"will":"enact"' in await asyncio.wait_for(reader.read(), LIMIT_S)


@pytest.mark.parametrize("content", [b"", b'{"call": "sh', request("act", "stop")[:-1], b"x" * (2 * SHORT_BYTES)])
@pytest.mark.parametrize("half_closed", [False, True])
async def test_a_caller_that_sends_no_whole_request_is_hung_up_on(
    well: None,
    service: FakeService,
    connect: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    half_closed: bool,
) -> None:
    monkeypatch.setattr(control_server, "REQUEST_S", LIMIT_S if half_closed else 0.05)
    reader, writer = await connect(content)
    if half_closed:
        writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
    assert not service.acted


async def test_a_request_whose_caller_sends_no_more_is_answered(well: None, connect: Callable[..., Any]) -> None:
    reader, writer = await connect(request("act", "pause"))
    writer.write_eof()
    assert json.loads(await reader.read())["document"]["will"] == "pause"


@pytest.mark.parametrize("leaves", ["closes", "closes half", "sends more"])
async def test_a_follower_that_leaves_is_let_go(
    well: None, service: FakeService, connect: Callable[..., Any], leaves: str
) -> None:
    reader, writer = await connect(request("follow", "status"))
    assert json.loads(await reader.readline())["document"]["count"] == 0
    if leaves == "closes":
        writer.close()
    elif leaves == "closes half":
        writer.write_eof()
    else:
        writer.write(b"?")
    await until(lambda: service.followers == 0)


@pytest.fixture
def mute(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Sends requests and reads no answer."""
    with contextlib.ExitStack() as opened:

        def send(content: bytes) -> None:
            caller = opened.enter_context(socket.socket(socket.AF_UNIX))
            caller.connect(str(path))
            caller.sendall(content)

        yield send


async def test_a_caller_that_does_not_read_its_answer_is_hung_up_on(
    server: ControlServer, service: FakeService, mute: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "SEND_S", 0.05)
    service.document = "x" * (8 << 20)
    mute(request("show", "status"))
    await until(lambda: len(server._connections) == 1)
    await until(lambda: not server._connections)


async def test_a_follower_that_does_not_read_gets_no_second_document(
    server: ControlServer, service: FakeService, ask: Callable[..., Any], mute: Callable[[bytes], None]
) -> None:
    made = 0

    async def follow(topic: str, arguments: object) -> AsyncGenerator[object, None]:
        nonlocal made
        while True:
            made += 1
            yield "x" * (8 << 20)

    service.follow = follow  # type: ignore[method-assign]
    mute(request("follow", "status"))
    await until(lambda: made == 1)
    for _ in range(50):
        await ask(lambda client: client.show("status"))
    assert made == 1


async def test_no_more_than_a_bound_of_commands_are_connected(
    well: None, server: ControlServer, ask: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    callers = [await connect() for _ in range(CONNECTIONS_MAX)]
    await until(lambda: len(server._connections) == CONNECTIONS_MAX)
    with pytest.raises(StateError, match=f"{CONNECTIONS_MAX} commands are connected to the daemon; end some"):
        await ask(lambda client: client.act("stop"))
    callers[0][1].close()
    await until(lambda: len(server._connections) < CONNECTIONS_MAX)
    assert (await ask(lambda client: client.act("pause")))["will"] == "pause"
    for _, writer in callers[1:]:
        writer.close()


async def test_a_thousand_connections_leave_the_daemon_as_it_was(
    well: None, server: ControlServer, connect: Callable[..., Any]
) -> None:
    callers = [await connect() for _ in range(1000)]
    assert len(server._connections) == CONNECTIONS_MAX
    for _, writer in callers:
        writer.close()


async def test_a_command_of_a_release_with_grpc_does_not_wait(
    well: None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def show() -> bytes:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            answer: bytes = channel.unary_unary("/mhfl.v1.Control/Show")(b"", timeout=LIMIT_S)
            return answer

    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(show)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert "control request refused" in caplog.text
