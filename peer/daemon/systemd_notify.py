"""Messages from the daemon to systemd (sd_notify): ready, status, watchdog, stopping."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

from peer.errors import one_line

log = logging.getLogger(__name__)


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send systemd one datagram, if this process runs under systemd with notifications."""
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
    """Return the watchdog's time limit, after which systemd kills this process; ``None`` without a watchdog."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    limit_us = environ.get("WATCHDOG_USEC", "")
    return int(limit_us) / 1e6 if limit_us.isdecimal() and int(limit_us) else None


async def watch(summary: Callable[[], str], *, every_s: float = 1.0, environ: Mapping[str, str] = os.environ) -> None:
    """Send systemd every change of the summary, and signs of life at twice the watchdog's rate; never returns under
    systemd.

    This runs in the event loop that serves peers: a daemon that hangs sends no sign of life.
    """
    limit_s = watchdog_s(environ)
    notified = ""
    while environ.get("NOTIFY_SOCKET"):
        now = one_line(summary())  # a line feed in a worker's reason would begin another message
        messages = [f"STATUS={now}"] if now != notified else []
        if limit_s is not None:
            messages.append("WATCHDOG=1")
        if messages:
            notify("\n".join(messages), environ)
        notified = now
        await asyncio.sleep(every_s if limit_s is None else min(every_s, limit_s / 2))
