"""The operator's side of the control socket: what a command says of daemons that answer, and of others."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from peer.errors import ConfigError, DaemonDown, StateError
from peer.net.transport import control
from peer.net.transport.control import ControlClient, DaemonSilent

ROOT = Path(__file__).parents[4]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    """A process that listens and takes no connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        yield listener


@pytest.fixture
def answer(listener: socket.socket) -> Iterator[Callable[..., futures.Future[bytes]]]:
    """Gives the next request these bytes as its answer; the future has the request."""

    def serve(content: bytes, *, reads: bool) -> bytes:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            request = lines.readline() if reads else b""
            connection.sendall(content)
            return request

    with futures.ThreadPoolExecutor(1) as thread:
        yield lambda content, reads=True: thread.submit(serve, content, reads=reads)


def test_a_request_is_one_line_and_so_is_the_answer(path: Path, answer: Callable[..., futures.Future[bytes]]) -> None:
    request = answer('{"document":{"name":"größe"}}\n'.encode())
    assert ControlClient(path).show("plan", rounds=2, note="ö\n") == {"name": "größe"}
    line = '{"call": "show", "name": "plan", "arguments": {"rounds": 2, "note": "ö\\n"}}\n'
    assert request.result() == line.encode()


def test_a_follower_gets_each_document_until_the_end(path: Path, answer: Callable[..., object]) -> None:
    answer(b'{"document":1}\n{"document":2}\n{"end":true}\n')
    assert list(ControlClient(path).follow("status")) == [1, 2]


def test_an_answer_of_megabytes_arrives_whole(path: Path, answer: Callable[..., object]) -> None:
    answer(b'{"document":"' + b"x" * 6_000_000 + b'"}\n')
    assert len(ControlClient(path).show("events")) == 6_000_000


@pytest.mark.parametrize("reads", [True, False], ids=["of the request", "of the connection"])
def test_a_refusal_is_the_error_that_the_daemon_raised(path: Path, answer: Callable[..., object], reads: bool) -> None:
    answer(b'{"error":{"exit_code":3,"message":"site.toml: threads","remedy":"set it"}}\n', reads)
    with pytest.raises(ConfigError, match=r"^site\.toml: threads; set it$"):
        ControlClient(path).act("stop")


def test_a_refusal_with_an_exit_code_of_another_release_is_a_refusal(path: Path, answer: Callable[..., object]) -> None:
    answer(b'{"error":{"exit_code":99,"message":"not today","remedy":"wait"}}\n')
    with pytest.raises(StateError, match="not today; wait"):
        ControlClient(path).act("stop")


@pytest.mark.parametrize("left_behind", [False, True])
def test_without_a_daemon_the_operator_is_told_so(path: Path, left_behind: bool) -> None:
    if left_behind:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    with pytest.raises(DaemonDown, match=f"no daemon answers on {path}") as caught:
        ControlClient(path).show("status")
    assert not isinstance(caught.value, DaemonSilent)


@pytest.mark.parametrize("content", [b"", b'{"document":{"round"', b'{"document":1}\n', b'{"document":1}\n{"docu'])
def test_a_daemon_that_dies_in_its_answer_is_down(path: Path, answer: Callable[..., object], content: bytes) -> None:
    answer(content)
    with pytest.raises(DaemonDown, match="no daemon answers on"):
        list(ControlClient(path).follow("status"))


@pytest.mark.parametrize("busy", [False, True], ids=["takes the connection", "has its queue full"])
def test_a_daemon_that_listens_and_does_not_answer_is_not_taken_for_none(
    path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(control, "ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as first:
        if busy:
            first.connect(str(path))
        with pytest.raises(DaemonSilent, match=r"runs, but did not answer within 0\.2 s"):
            ControlClient(path).act("pause")


def test_a_caller_may_wait_longer_for_an_answer_than_others(
    path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An amendment is answered once it is on the disk, which other processes may keep busy."""
    monkeypatch.setattr(control, "ANSWER_S", 0.1)
    listener.listen(1)
    with futures.ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ControlClient(path, answer_s=60.0).act, "approve")
        connection, _ = listener.accept()
        with connection:
            with pytest.raises(DaemonSilent, match=r"did not answer within 0\.1 s"):
                ControlClient(path).act("pause")
            connection.sendall(b'{"document":"signed"}\n')
            assert asked.result() == "signed"


def test_a_command_waits_for_its_place_in_the_daemon_s_queue(path: Path, listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as first, futures.ThreadPoolExecutor(1) as thread:
        first.connect(str(path))
        asked = thread.submit(ControlClient(path).show, "status")
        listener.accept()[0].close()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b'{"document":"well"}\n')
            assert asked.result() == "well"


def test_a_follower_waits_no_longer_than_it_said(path: Path, listener: socket.socket) -> None:
    with pytest.raises(DaemonSilent, match=r"did not answer within 0\.1 s"):
        list(ControlClient(path).follow("status", silence_s=0.1))


@pytest.mark.parametrize("content", [b"HTTP/1.1 400 Bad Request\r\n", b"[1]\n", b"\x00\x00\x18\x04"])
def test_what_answers_otherwise_is_of_another_release(
    path: Path, answer: Callable[..., object], content: bytes
) -> None:
    answer(content)
    with pytest.raises(StateError, match=r"process \d+, is of another release; end it with `kill \d+`, and start it"):
        ControlClient(path).show("status")


def test_a_daemon_with_grpc_as_before_is_of_another_release(path: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        with pytest.raises(StateError, match="is of another release; end it with"):
            ControlClient(path).act("pause")
    finally:
        server.stop(0).wait()


def test_a_follower_that_leaves_closes_its_connection(path: Path, listener: socket.socket) -> None:
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            lines.readline()
            connection.sendall(b'{"document":1}\n')
            assert lines.read() == b""
        ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    for document in ControlClient(path).follow("status"):
        assert document == 1
        break
    assert ended.wait(30)
    thread.join()


def test_the_command_line_s_side_imports_no_more_than_it_needs() -> None:
    heavy = "{'torch', 'monai', 'cryptography', 'numpy', 'pydantic', 'grpc', 'asyncio', 'google'}"
    code = f"import sys, peer.net.transport.control; print(sorted(sys.modules.keys() & {heavy}))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert finished.stdout == "[]\n"
