"""What systemd hears of a daemon: that it serves, where it is, that it still lives, that it leaves (sd_notify)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

from peer.errors import one_line

log = logging.getLogger(__name__)


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd, where it asked to be told: one datagram to a socket."""
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd not told", extra={"reason": str(error)})


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How long systemd waits for a sign of life before it kills this process; nothing where it does not watch."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    asked = environ.get("WATCHDOG_USEC", "")
    return int(asked) / 1e6 if asked.isdecimal() and int(asked) else None


async def watch(standing: Callable[[], str], *, every_s: float = 1.0, environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd for ever what ``systemctl status`` shows, whenever it changed, and give signs of life twice in time.

    It runs in the event loop that serves peers and takes events: a daemon that hangs falls silent.
    """
    limit_s = watchdog_s(environ)
    notified = ""
    while environ.get("NOTIFY_SOCKET"):
        now = one_line(standing())  # a line feed in a worker's reason would begin another word to systemd
        news = [f"STATUS={now}"] if now != notified else []
        if limit_s is not None:
            news.append("WATCHDOG=1")
        if news:
            notify("\n".join(news), environ)
        notified = now
        await asyncio.sleep(every_s if limit_s is None else min(every_s, limit_s / 2))
