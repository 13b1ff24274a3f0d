"""A relay in a process of its own, as an operator starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from peer.core.roster import SiteName
from peer.net.relay.folder import RelayFolder
from peer.site.identity import certificates, enrolment


def make_relay(ca: Path, folder: Path, *, listen: str) -> RelayFolder:
    """The folder of the relay gate with the certificate of a federation's CA."""
    now = datetime.now(UTC)
    relay = RelayFolder(folder)
    request, fingerprint = relay.make((ca / "federation.toml").read_text(), "federation.toml", SiteName("gate"))
    certified = enrolment.Authority.load(ca, now=now).certify_relay(request, fingerprint=fingerprint, now=now)
    relay.join(certificates.certificate_pem(certified), now)
    relay.relay_toml.write_text(f'name = "gate"\nlisten = "{listen}"\n')
    return relay


class RelayProcess:
    """The process, and its console in the relay's folder; ``prefix`` stands before its command."""

    def __init__(self, folder: RelayFolder, prefix: Sequence[str] = ()) -> None:
        self.folder, self._prefix = folder, prefix
        self.start_again()

    def start_again(self) -> None:
        """Start it, and wait until it relays, or has ended."""
        started = self.console.count("relaying")
        words = [sys.executable, "-P", "-m", "peer.cli", "relay", "start", "--folder", str(self.folder.path)]
        with (self.folder.path / "console.log").open("ab") as output:
            command = [*self._prefix, *words]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while self.process.poll() is None and self.console.count("relaying") == started:
            time.sleep(0.05)

    @property
    def console(self) -> str:
        path = self.folder.path / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it in order; its exit code."""
        self.process.terminate()
        return self.process.wait(30)
