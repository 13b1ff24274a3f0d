"""From a folder to a running process and its exit code: refusals, signals, systemd."""

import asyncio
import contextlib
import logging
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.core.limits import DESCRIPTORS_RESERVED
from peer.daemon import startup
from peer.daemon.startup import Options
from peer.daemon.systemd_notify import notify
from peer.errors import CertificateError, ConfigError, LockedError, PortInUse, StateError, UsageError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder, make_private
from peer.site.records.journal import Journal

pytestmark = pytest.mark.e2e

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Restore logging, which a start sets up for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    return enrolled.folder("asia")


def kinds(folder: SiteFolder, generation: int = 1) -> list[str]:
    journal = Journal(folder.generation(generation) / "journal.db", read_only=True)
    kinds = [kind for kind, _, _ in journal.rows()]
    journal.close()
    return kinds


# --- watchers beside the rounds --------------------------------------------------------------------------------------
async def test_a_watcher_that_fails_is_logged_with_its_traceback_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts, started_again = 0, asyncio.Event()

    async def watching() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise KeyError("a bug")
        started_again.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(startup.keep_running("certificate", watching, again_s=0))
    await asyncio.wait_for(started_again.wait(), LIMIT_S)
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["watcher"]) == ("watcher failed and is started again", "certificate")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    await asyncio.wait_for(startup.cancel(task), LIMIT_S)
    assert task.cancelled()


async def test_a_watcher_that_has_nothing_to_watch_is_left_alone() -> None:
    starts = 0

    async def watching() -> None:
        nonlocal starts
        starts += 1

    await asyncio.wait_for(startup.keep_running("systemd watchdog", watching, again_s=0), LIMIT_S)
    assert starts == 1


# --- processes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "mode"), [(signal.SIGTERM, "works"), (signal.SIGHUP, "works"), (signal.SIGINT, "mute")]
)
def test_a_signal_ends_it_in_order_also_while_the_first_model_is_made(
    program: Any, folder: SiteFolder, number: signal.Signals, mode: str
) -> None:
    process = program.start("asia", mode)
    phase = "initialising" if mode == "mute" else "gathering"
    status = program.until("asia", lambda status: status["phase"] == phase and status["worker_pid"] is not None)
    assert status["pid"] == process.pid
    process.send_signal(number)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert stderr.count("left") == 1
    assert "left" in kinds(folder)
    assert not folder.control_socket().exists()
    with pytest.raises(ProcessLookupError):
        os.kill(status["worker_pid"], 0)


def test_strangers_without_a_certificate_take_no_descriptor_that_the_daemon_needs(
    program: Any, folder: SiteFolder
) -> None:
    process = program.start("asia")
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
    address = program.status("asia", "gathering")["listen"]
    host, _, port = address.rpartition(":")
    folder_of_descriptors = f"/proc/{process.pid}/fd"
    with contextlib.ExitStack() as opened:
        strangers = [opened.enter_context(socket.create_connection((host, int(port)), LIMIT_S)) for _ in range(400)]
        while not select.select(strangers, [], [], 0.01)[0]:  # until the daemon hangs up on one of them
            pass
        assert program.status("asia", "gathering")["pid"] == process.pid
        # gRPC accepts a connection before it counts it: for a moment there may be more than the bound.
        until_s = time.monotonic() + LIMIT_S
        while len(os.listdir(folder_of_descriptors)) >= 256 - DESCRIPTORS_RESERVED / 2:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    program.start("europe")
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told
    assert (kinds(folder).count("committed"), kinds(folder).count("refused")) == (3, 0)


def test_two_processes_in_one_folder_are_refused_and_the_first_goes_on(program: Any, folder: SiteFolder) -> None:
    first = program.start("asia")
    program.status("asia", "gathering")
    with pytest.raises(LockedError, match=str(first.pid)):
        startup.run(folder, Options())
    program.status("asia", "gathering")


def test_what_makes_it_impossible_to_go_on_is_the_exit_code(program: Any) -> None:
    process = program.start("asia", "bad data")
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 10
    assert "no data here" in stderr


def test_a_site_whose_metrics_port_is_taken_ends_before_a_peer_hears_of_it(
    program: Any, enrolled: LocalFederation, folder: SiteFolder
) -> None:
    program.start("asia")
    program.status("asia", "gathering")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site_toml = enrolled.folder("europe").site_toml
        site_toml.write_text(f'{site_toml.read_text()}\n[metrics]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n')
        process = program.start("europe")
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == PortInUse.exit_code, stderr
    status = program.status("asia", "gathering")
    assert status["peers"]["europe"]["state"] == "unknown"
    assert "opened" not in kinds(folder)


def test_systemd_is_told_when_it_serves_and_when_it_stops(program: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(LIMIT_S)
        process = program.start("asia", NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert systemd.recv(100) == b"READY=1"
        process.terminate()
        while (message := systemd.recv(100)).startswith(b"STATUS="):
            assert message.startswith(b"STATUS=round 0 of")
        assert message == b"STOPPING=1"


def test_a_kill_leaves_a_site_that_starts_again(program: Any, folder: SiteFolder) -> None:
    process = program.start("asia")
    program.status("asia", "gathering")
    process.kill()
    process.wait()
    assert folder.control_socket().exists()
    program.start("asia")
    assert program.status("asia", "gathering")["generation"] == 1
    assert kinds(folder).count("initialised") == 1


@pytest.mark.parametrize("lost", ["empty", "missing"])
def test_a_lost_journal_ends_the_start_with_code_6_and_deletes_nothing(
    program: Any, folder: SiteFolder, lost: str
) -> None:
    process = program.start("asia")
    program.start("europe")
    assert process.wait(LIMIT_S) == 0
    home = folder.generation(1)
    files = sorted(home.glob("artifacts/*"))
    assert len(files) > 1
    for path in home.glob("journal.db*"):
        path.unlink()
    if lost == "empty":
        (home / "journal.db").touch()
    process = program.start("asia")
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 6, stderr
    assert "Traceback" not in stderr
    assert f"journal.db is {lost}, but {len(files)} artifacts" in stderr
    assert "start --resume fresh" in stderr
    assert sorted(home.glob("artifacts/*")) == files


# --- before the first byte -------------------------------------------------------------------------------------------
def test_systemd_that_is_gone_is_no_reason_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for address in (str(tmp_path / "gone"), "@gone", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
    assert [record.getMessage() for record in caplog.records] == ["systemd not told"] * 3


def test_a_folder_that_others_can_write_is_refused_before_anything_is_read(folder: SiteFolder) -> None:
    folder.site_toml.chmod(0o666)
    folder.federation_toml.write_text("no toml")
    with pytest.raises(StateError, match=r"other users can write .*site\.toml \(mode 0666\); run `chmod go-w "):
        startup.run(folder, Options())


@pytest.mark.parametrize("name", ["mars", "asia", ""])
def test_a_stranger_or_oneself_cannot_be_absent(folder: SiteFolder, name: str) -> None:
    with pytest.raises(UsageError, match=rf"--without {name}: not another site of this federation; there are europe"):
        startup.run(folder, Options(without=("europe", name)))
    assert folder.generations() == ()


def test_require_refuses_to_begin(folder: SiteFolder) -> None:
    with pytest.raises(StateError, match="holds nothing to resume"):
        startup.run(folder, Options(resume="require"))
    assert folder.generations() == ()


@pytest.mark.parametrize("rows", [None, (), ("configured", "began", "left")])
def test_require_refuses_a_generation_without_a_model(folder: SiteFolder, rows: tuple[str, ...] | None) -> None:
    """A journal was lost, or a first start failed: there is nothing to resume."""
    folder.create_generation()
    if rows is not None:
        journal = Journal(folder.generation(1) / "journal.db")
        for kind in rows:
            journal.append(kind, 0, {})
        journal.close()
    with pytest.raises(StateError, match="holds nothing to resume"):
        startup.run(folder, Options(resume="require"))


def test_an_enrolment_that_is_not_whole_is_refused_before_the_lock(folder: SiteFolder) -> None:
    (folder.pki / "round.key").unlink()
    with pytest.raises(CertificateError, match=r"round\.key"):
        startup.run(folder, Options())
    assert not folder.logs.exists()


def test_a_site_toml_that_is_gone_is_named(folder: SiteFolder) -> None:
    folder.site_toml.unlink()
    with pytest.raises(ConfigError, match=r"site\.toml"):
        startup.load(folder)


def test_a_lock_is_kept_by_no_start_that_failed(folder: SiteFolder) -> None:
    make_private(folder.generation(1))
    with pytest.raises(StateError):
        startup.run(folder, Options(resume="require"))
    with folder.locked():
        pass


def test_afresh_begins_after_the_newest_generation_that_peers_have_seen(folder: SiteFolder) -> None:
    """A restored backup took a new generation without a new folder: its number must not come again."""
    folder.create_generation()
    journal = Journal(folder.generation(1) / "journal.db")
    journal.append("regenerated", 2, {"generation": 2, "reported_by": "europe", "their_round": 3})
    journal.close()
    assert startup.next_generation(folder) == 3
    folder.create_generation(3)
    assert startup.next_generation(folder) == 4
