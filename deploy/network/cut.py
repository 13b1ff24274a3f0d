"""Cut a hospital's network for a while: this container shares the hospital's network namespace.

    cut.py ROUNDS SECONDS

The script waits until the hospital's metrics say that it has committed ROUNDS rounds. Then it takes
every interface but the loopback down, and brings them up again after SECONDS. It needs only the
capability NET_ADMIN.
"""

from __future__ import annotations

import fcntl
import re
import signal
import socket
import struct
import sys
import time
import urllib.request

METRICS = "http://127.0.0.1:9464/metrics"
COMMITTED = re.compile(r"^mhfl_round_committed(?:\{[^}]*\})? ([0-9.]+)", re.MULTILINE)
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
"""Requests that read and set an interface's flags (Linux, sockios.h)."""
UP = 0x1
"""IFF_UP (Linux, if.h)."""
REQUEST = struct.Struct("16sH22x")
"""struct ifreq: a name, then the flags."""
POLL_S = 1.0
WAIT_MAX_S = 1800.0
"""The script gives up after that time: a hospital that is not there yet will not get there."""


def committed() -> float:
    """How many rounds the hospital has committed; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(METRICS, timeout=5) as answer:
            match = COMMITTED.search(answer.read().decode())
    except OSError:
        return 0.0
    return float(match[1]) if match else 0.0


def switch(interface: str, *, up: bool) -> None:
    """Take an interface down or bring it up; ``OSError`` without the capability."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, SIOCGIFFLAGS, REQUEST.pack(interface.encode(), 0))
        _, flags = REQUEST.unpack(request)
        flags = flags | UP if up else flags & ~UP
        fcntl.ioctl(control, SIOCSIFFLAGS, REQUEST.pack(interface.encode(), flags))


def main(rounds: int, seconds: float) -> None:
    """Wait, take the interfaces down, wait, and bring them up, also if the container is stopped
    meanwhile.
    """
    # The first process of a container gets SIGTERM only if it has a handler.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    give_up_s = time.monotonic() + WAIT_MAX_S
    while committed() < rounds:
        if time.monotonic() > give_up_s:
            sys.exit(f"no trouble: round {rounds} was not committed in {WAIT_MAX_S:.0f} s")
        time.sleep(POLL_S)
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    print(f"trouble: {', '.join(interfaces)} down for {seconds:.0f} s", flush=True)
    try:
        for name in interfaces:
            switch(name, up=False)
        time.sleep(seconds)
    finally:
        for name in interfaces:
            switch(name, up=True)
    print(f"trouble: {', '.join(interfaces)} up again", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
