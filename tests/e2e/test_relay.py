"""A site that nobody can dial takes part through a real relay, which is killed on the way."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from peer.config.site_folder import write_atomically
from peer.core.roster import SiteName
from peer.demo.local_federation import LocalFederation, free_ports
from peer.identity import certificates, enrolment
from peer.relay.folder import RelayFolder

from .conftest import finish_well, records, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


class RelayProcess:
    """A relay in a process of its own."""

    def __init__(self, folder: RelayFolder) -> None:
        self.folder = folder
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "peer.cli", "relay", "start", "--folder", str(self.folder.path)]
        with (self.folder.path / "console.log").open("ab") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._start()


@pytest.fixture
def relayed(found: Callable[..., LocalFederation]) -> Iterator[tuple[LocalFederation, RelayProcess]]:
    """A federation in which asia listens where nobody looks, and parks at the relay."""
    loopback = found(rounds=4, steps=3)
    ca = loopback.home.parent / "ca"
    now = datetime.now(UTC)
    folder = RelayFolder(loopback.home.parent / "gate")
    request, fingerprint = folder.make((ca / "federation.toml").read_text(), "federation.toml", SiteName("gate"))
    certified = enrolment.Authority.load(ca, now=now).certify_relay(request, fingerprint=fingerprint, now=now)
    folder.join(certificates.certificate_pem(certified), now)
    (port,) = free_ports(1)
    folder.relay_toml.write_text(f'name = "gate"\nlisten = "127.0.0.1:{port}"\n')
    for name in loopback.federation.roster:
        path = loopback.folder(name).site_toml
        text = path.read_text()
        if name == "asia":
            text = re.sub(r'listen = "[^"]*"', 'listen = "127.0.0.1:0"', text)
            text += f'\n[connect]\nrelays = ["gate 127.0.0.1:{port}"]\n'
        else:
            text += f'\n[addresses]\nasia = ["127.0.0.1:1", "127.0.0.1:{port}"]\n'
        write_atomically(path, text.encode())
    relay = RelayProcess(folder)
    yield loopback, relay
    relay.process.send_signal(signal.SIGTERM)
    assert relay.process.wait(30) == 0, (folder.path / "console.log").read_text()


def test_every_round_is_whole_although_the_relay_is_killed(relayed: tuple[LocalFederation, RelayProcess]) -> None:
    loopback, relay = relayed
    with loopback:
        for name in loopback.federation.roster:
            loopback.start(name)

        def committed() -> Any:
            return loopback.show("asia", "status")["committed"] >= 1

        wait_until(committed)
        (held,) = loopback.show("asia", "status")["relays"]
        assert (held["name"], held["problem"]) == ("gate", "")
        relay.kill_and_restart()
        finish_well(loopback)
    assert [row["round"] for row in records(loopback, "asia")] == [1, 2, 3, 4]
    carried = relay.folder.status()["sites"]["asia"]
    assert carried["carried_connections"] + carried["carrying"] > 0
    assert not any("asia" in row["missing"] for name in ("africa", "europe") for row in records(loopback, name)[:1])
    assert Path(relay.folder.path / "console.log").read_text().count("relaying") == 2
