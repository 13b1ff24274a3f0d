"""Messages to systemd, and how often they are sent."""

import asyncio
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.daemon import systemd_notify

LIMIT_S = 20.0


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(LIMIT_S)
        yield channel


@pytest.mark.parametrize(
    ("environ", "limit_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_for_this_process_alone(environ: dict[str, str], limit_s: float | None) -> None:
    assert systemd_notify.watchdog_s(environ) == limit_s


@pytest.mark.parametrize(
    ("watchdog", "every_s", "words", "heard"),
    [
        (
            {"WATCHDOG_USEC": "100000"},
            LIMIT_S,
            ["round 1, train", "round 1, train", "round 2, train"],
            [b"STATUS=round 1, train\nWATCHDOG=1", b"WATCHDOG=1", b"STATUS=round 2, train\nWATCHDOG=1"],
        ),
        ({}, 0.01, ["one", "one", "two"], [b"STATUS=one", b"STATUS=two"]),
        # A worker's reason may have line feeds, after which systemd would read another message.
        ({}, 0.01, ["out of memory\nWATCHDOG=trigger\n"], [b"STATUS=out of memory WATCHDOG=trigger"]),
    ],
    ids=["signs of life", "changes alone", "one line"],
)
async def test_systemd_hears_of_changes_and_signs_of_life_each_in_one_line(
    systemd: socket.socket, watchdog: dict[str, str], every_s: float, words: list[str], heard: list[bytes]
) -> None:
    telling = itertools.chain(words, itertools.repeat(words[-1]))
    environ = {"NOTIFY_SOCKET": systemd.getsockname(), **watchdog}
    watching = asyncio.create_task(systemd_notify.watch(lambda: next(telling), every_s=every_s, environ=environ))
    messages = [await asyncio.to_thread(systemd.recv, 200) for _ in heard]
    watching.cancel()
    assert messages == heard


async def test_nobody_is_told_where_nobody_asked() -> None:
    async with asyncio.timeout(LIMIT_S):
        await systemd_notify.watch(lambda: pytest.fail("nobody asks"), environ={})


def test_a_process_without_a_descriptor_to_spare_goes_on(
    systemd: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Signs of life come from one task: an error must not end it, or systemd kills the daemon."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(systemd.fileno())
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        systemd_notify.notify("WATCHDOG=1", {"NOTIFY_SOCKET": systemd.getsockname()})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [record.getMessage() for record in caplog.records] == ["systemd not told"]
