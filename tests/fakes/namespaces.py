"""Hosts of a test in network namespaces of their own, which a switch joins; Linux, as root.

Every name begins with ``mhfl-`` and the number of the process that made it. What a process left that
was killed goes when the next test begins.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT_S = 60.0
TOOLS = ("ip", "iptables", "tc")
NAME = re.compile(r"mhfl-([0-9]+)-.*")
SWITCH = "switch"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"


class Hosts:
    """Hosts with the addresses 10.79.0.1, 10.79.0.2 and so on."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self.address = {name: f"10.79.0.{number}" for number, name in enumerate(names, start=1)}

    def _space(self, host: str) -> str:
        return f"mhfl-{os.getpid()}-{host}"

    def inside(self, host: str, *words: object) -> list[str]:
        """A command that runs on a host."""
        return ["ip", "netns", "exec", self._space(host), *map(str, words)]

    def call(self, host: str, *words: object) -> None:
        """Run a command on a host; ``CalledProcessError`` where it fails."""
        _call(*self.inside(host, *words))

    def raise_all(self) -> None:
        """Make the namespaces and their lines."""
        for host in (SWITCH, *self._names):
            _call("ip", "netns", "add", self._space(host))
            self.call(host, "ip", "link", "set", "lo", "up")
        self.call(SWITCH, "ip", "link", "add", "bridge", "type", "bridge")
        self.call(SWITCH, "ip", "link", "set", "bridge", "up")
        for host in self._names:
            ends = ("eth0", "netns", self._space(host), "type", "veth", "peer", "name", host)
            _call("ip", "link", "add", *ends, "netns", self._space(SWITCH))
            self.call(SWITCH, "ip", "link", "set", host, "master", "bridge", "up")
            self.call(host, "ip", "address", "add", f"{self.address[host]}/24", "dev", "eth0")
            self.call(host, "ip", "link", "set", "eth0", "up")

    def clear(self) -> None:
        """Remove the namespaces; their lines go with them."""
        for host in (*self._names, SWITCH):
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True, check=False)

    def let_only_out(self, host: str, *, port: int, to: str | None = None) -> None:
        """A firewall: no connection comes in, and out go only those to this port, and to this host."""
        for chain, interface in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.call(host, "iptables", "-A", chain, interface, "lo", "-j", "ACCEPT")
            self.call(host, "iptables", "-A", chain, "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
        target = () if to is None else ("-d", self.address[to])
        self.call(host, "iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", port, *target, "-j", "ACCEPT")
        for chain in ("INPUT", "OUTPUT", "FORWARD"):
            self.call(host, "iptables", "-P", chain, "DROP")

    def slow_down(self, host: str, megabits: float) -> None:
        """A thin line: so many megabits a second in each direction."""
        shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "32kb", "latency", "400ms")
        self.call(host, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        self.call(SWITCH, "tc", "qdisc", "replace", "dev", host, *shape)

    def reaches(self, host: str, other: str, port: int) -> bool:
        """Whether a connection from one host to a port of another opens."""
        command = self.inside(host, "python3", "-c", CONNECT, self.address[other], port)
        return subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S).returncode == 0


def missing() -> str:
    """What this machine lacks for namespaces; empty where it has all."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"not in PATH: {', '.join(lacking)} (packages iproute2 and iptables)"
    name = f"mhfl-{os.getpid()}-probe"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if added.returncode == 0 else f"no network namespace can be made here: {added.stderr.strip()}"


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts that are gone at the end, however it comes."""
    _clear_former()
    made = Hosts(names)
    try:
        made.raise_all()
        yield made
    finally:
        made.clear()


def _clear_former() -> None:
    """Remove namespaces of processes that are gone."""
    folder = Path("/run/netns")
    for name in [path.name for path in folder.glob("mhfl-*")] if folder.is_dir() else []:
        match = NAME.fullmatch(name)
        if match and not Path("/proc", match[1]).exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _call(*words: object) -> None:
    subprocess.run([str(word) for word in words], capture_output=True, check=True, timeout=LIMIT_S)
