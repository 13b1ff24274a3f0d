"""Take the network from the hospital whose network namespace this container shares, for a while, and give it back.

    cut.py ROUNDS SECONDS

It waits until the hospital has committed so many rounds (its own metrics say so), takes every interface but the
loopback down, and brings them up again after so many seconds. That needs the capability NET_ADMIN and nothing else.
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
"""Read and set an interface's flags (Linux, sockios.h)."""
UP = 0x1
"""IFF_UP (Linux, if.h)."""
REQUEST = struct.Struct("16sH22x")
"""struct ifreq: a name, then the flags."""
LOOK_S = 1.0
PATIENCE_S = 1800.0
"""A hospital that has not come so far by then will not: nobody should wait for this container."""


def committed() -> float:
    """How many rounds the hospital has committed; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(METRICS, timeout=5) as answer:
            found = COMMITTED.search(answer.read().decode())
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0


def switch(interface: str, *, up: bool) -> None:
    """Take an interface down or bring it up; ``OSError`` without the right to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, SIOCGIFFLAGS, REQUEST.pack(interface.encode(), 0))
        _, flags = REQUEST.unpack(request)
        flags = flags | UP if up else flags & ~UP
        fcntl.ioctl(control, SIOCSIFFLAGS, REQUEST.pack(interface.encode(), flags))


def main(rounds: int, seconds: float) -> None:
    """Wait, cut, wait, mend; also where `stop` comes first, which the first process of a container hears only so."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    give_up_s = time.monotonic() + PATIENCE_S
    while committed() < rounds:
        if time.monotonic() > give_up_s:
            sys.exit(f"no trouble: round {rounds} was not committed in {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
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
