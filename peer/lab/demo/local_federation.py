"""A federation of real daemons on loopback, for the demo, tests and benchmarks.

Every site is enrolled with its own folder, key and bundle; its daemon is a separate process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from peer.core.roster import SiteName, site_name
from peer.daemon.dispatch import now
from peer.net.transport.control import ControlClient
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, write_atomically
from peer.site.identity import enrolment
from peer.site.identity.bundle import Bundle

LEAVE_S = 30.0
"""A daemon leaves within a training step of SIGTERM; after this time it is killed."""

PORTS = range(20_000, 32_768)
"""Below Linux's ephemeral ports: a daemon binds its port long after it was chosen."""
_tried = itertools.count(os.getpid() * 1009)  # two concurrent processes begin far from each other


@dataclass
class LocalFederation:
    """Sites with folders under one folder. Leaving the context stops the running daemons."""

    home: Path
    federation: FederationConfig
    daemons: dict[SiteName, subprocess.Popen[bytes]] = field(default_factory=dict)
    program: ClassVar[Sequence[str]] = (sys.executable, "-P", "-m", "peer.cli")

    @classmethod
    def create(
        cls, folder: Path, draft: str, sites: Mapping[str, str], *, addresses: Mapping[str, str] | None = None
    ) -> LocalFederation:
        """Found a federation and enrol its sites.

        Args:
            folder: ``ca/`` and ``sites/`` are created in it.
            draft: the text of a ``federation.toml`` without its sites.
            sites: by site, the text of its ``site.toml`` without ``listen``.
            addresses: by site, its address in ``federation.toml``, if any, where it also listens unless
                its text sets ``listen``; default: free ports on loopback.
        """
        if addresses is None:
            addresses = {name: f"127.0.0.1:{port}" for name, port in zip(sites, free_ports(len(sites)), strict=True)}
        known = {name: {"address": address} for name, address in addresses.items()}
        roster = [{"name": name} | known.get(name, {}) for name in sorted(sites)]
        authority = enrolment.Authority.create(
            folder / "ca", draft + toml.text({"site": roster}), "the draft", now=now()
        )
        local_federation = cls(folder / "sites", authority.federation)
        for name, text in sites.items():
            site = local_federation.folder(name)
            request = enrolment.request(site, authority.federation, authority.federation_toml, now=now())
            admitted = authority.admit(request.pem, fingerprint=request.fingerprint, now=now())
            enrolment.join(site, Bundle.decode(admitted.bundle), now=now())
            listen = "" if text.startswith("listen") else toml.text({"listen": addresses[name]})
            write_atomically(site.site_toml, (listen + text).encode())
        return local_federation

    def folder(self, name: str) -> SiteFolder:
        return SiteFolder(self.home, self.federation.name, site_name(name))

    def start(self, name: str, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a site's daemon; its output goes to ``logs/console.log``."""
        folder = self.folder(name)
        folder.logs.mkdir(mode=0o700, exist_ok=True)
        command = [*self.program, "--home", str(self.home), "start", "--site", name, *options]
        with (folder.logs / "console.log").open("ab") as output:
            daemon = self.execute(command, output, {**os.environ, **(environment or {})})
        self.daemons[site_name(name)] = daemon
        return daemon

    def execute(
        self, command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Execute a daemon's command."""
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)

    def kill(self, name: str) -> None:
        """Kill a site's daemon with SIGKILL, and wait for its end."""
        daemon = self.daemons[site_name(name)]
        daemon.kill()
        daemon.wait()

    def control(self, name: str) -> ControlClient:
        return ControlClient(self.folder(name).control_socket())

    def show(self, name: str, document: str, **arguments: Any) -> Any:
        """Query a document of a running daemon. Raise ``DaemonDown`` while it does not answer."""
        return self.control(name).show(document, **arguments)

    def console(self, name: str) -> str:
        return (self.folder(name).logs / "console.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            try:
                daemon.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def free_ports(count: int) -> Iterable[int]:
    """Choose free ports on loopback; all are bound until all are chosen, so that they differ."""
    with contextlib.ExitStack() as stack:
        chosen: list[int] = []
        while len(chosen) < count:
            bound, port = stack.enter_context(socket.socket()), PORTS[next(_tried) % len(PORTS)]
            with contextlib.suppress(OSError):  # the port is in use
                bound.bind(("127.0.0.1", port))
                chosen.append(port)
        return chosen
