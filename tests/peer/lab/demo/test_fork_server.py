"""The server that forks workers: what a forked process has, how it ends, and when the server does."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import daemon
from fakes.drafts import draft, site_text
from peer.lab.demo.fork_server import ForkServer, ask, connect
from peer.lab.demo.local_federation import LocalFederation

PROGRAM = """
import os, signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
loaded = "fractions" in sys.modules
if sys.argv[1] == "stay":
    os.fork()
channel.sendall(f"{os.getppid()} {loaded} {os.getcwd()} {os.environ.get('MARK')}".encode())
print("output")
while sys.argv[1] == "stay":
    signal.pause()
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="mhfl-") as path:
        yield Path(path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def call(server: ForkServer, program: Path, word: str) -> tuple[int, str, str]:
    """Return the exit code of a process as its parent sees it, its output, and what it sent through its channel."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        finished = subprocess.run(
            [*server.command(str(program), word), "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], cwd=program.parent, env={"MARK": "own"}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return finished.returncode, finished.stdout, ours.recv(1 << 12).decode()


def test_a_process_has_the_callers_channel_output_folder_and_environment(folder: Path, program: Path) -> None:
    with ForkServer(folder, ("fractions",)) as server:
        first, second = call(server, program, "live"), call(server, program, "live")
    assert first == second
    code, output, sent = first
    parent, *rest = sent.split(" ")
    assert (code, output) == (7, "output\n")
    assert rest == ["True", str(program.parent), "own"], "the server has imported the module"
    assert int(parent) > 1


def test_its_death_by_a_signal_is_the_callers(folder: Path, program: Path) -> None:
    with ForkServer(folder, ()) as server:
        assert call(server, program, "die")[0] == -signal.SIGKILL


def test_who_connects_and_asks_nothing_keeps_nobody_from_a_process(folder: Path, program: Path) -> None:
    with ForkServer(folder, ()) as server, connect(str(server.socket)), connect(str(server.socket)) as gone:
        gone.close()
        assert call(server, program, "live")[0] == 7


@pytest.mark.parametrize("leaves", ["the caller", "the last user"])
def test_a_process_that_nobody_waits_for_is_killed_with_its_children(folder: Path, program: Path, leaves: str) -> None:
    ours, theirs = socket.socketpair()
    reads, writes = os.pipe()  # open in the process and its child
    with ForkServer(folder, ()) as server, ours:
        caller = connect(str(server.socket))
        with theirs:
            ask(caller, [str(program), "stay"], {}, [0, writes, writes, theirs.fileno()])
        os.close(writes)
        assert ours.recv(1 << 12), "the process runs"
        if leaves == "the caller":
            caller.close()
            assert _ends(reads)
    caller.close()
    assert _ends(reads)
    os.close(reads)


def _ends(pipe: int) -> bool:
    """Say whether every process that can write to the pipe has ended."""
    while select.select([pipe], [], [], 30)[0]:
        if not os.read(pipe, 1 << 12):
            return True
    return False


def test_the_server_ends_in_silence_with_its_last_user_also_when_the_folder_is_gone() -> None:
    script = (
        "import sys, tempfile; from pathlib import Path; from peer.lab.demo.fork_server import ForkServer\n"
        "with tempfile.TemporaryDirectory(prefix='mhfl-') as path: server = ForkServer(Path(path), ())\n"
        "server.close()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, cwd=Path(__file__).parents[4])
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b"", "the server holds the pipe open until it ends"
    assert process.wait() == 0


@pytest.mark.e2e
def test_a_daemon_executes_the_command_that_it_is_given_as_its_worker(tmp_path: Path) -> None:
    text = draft("trial", rounds=2, method="fedavg", shared_model={"name": "resnet10"}, pace={"beat_s": 0.5})
    sites = dict.fromkeys(("asia", "europe"), site_text(model={"name": "resnet10"}))
    worker = daemon.program("works", 64, "all_to_all", "model", "train")[-1]
    with LocalFederation.create(tmp_path, text, sites) as federation:
        started = [federation.start(name, "--worker", worker) for name in sites]
        assert [each.wait(120) for each in started] == [0, 0], federation.console("asia")[-3000:]
        homes = [federation.folder(name).generation(1) for name in sites]
    assert all((home / "orders").exists() for home in homes), "only the fake worker writes it"
