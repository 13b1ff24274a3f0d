"""Certificates are renewed, with the same key and with new ones, while 100 MB are on their way: nothing is dropped.

And one is not renewed in time: the site goes on serving what it may, and is back without a restart.
"""

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fakes.drafts import DERANGEMENT, draft
from fakes.still import LIMIT_S, SITE, StillProcess
from peer.audit import evidence_files, verification
from peer.core.messages import Heartbeat
from peer.core.roster import SiteName
from peer.daemon.dispatch import now
from peer.lab.demo.local_federation import LocalFederation, free_ports
from peer.net.transport.client import ExchangeClient, Refused
from peer.net.transport.manifest import from_base64
from peer.net.transport.tls import Pki
from peer.site.config.site_folder import write_atomically
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MEGABYTES = 100
HELD_AFTER = 30 << 20
AFRICA, EUROPE = SiteName("africa"), SiteName("europe")


class Valve:
    """A TCP line to a port that stops carrying answers after so many bytes, until it is opened."""

    def __init__(self, port: int, *, target: int) -> None:
        self.target = target
        self.held = threading.Event()
        self.open = threading.Event()
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # the site is not up yet
                    near.close()
                    continue
                self._sockets.append(far)
                self.connections += 1
                threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                carried += len(data)
                if answers and carried > HELD_AFTER and not self.open.is_set():
                    self.held.set()
                    self.open.wait(LIMIT_S)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Cut every line."""
        self.open.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Trial:
    """Two sites; europe is reached through a valve, and has another key by now than the one that it enrolled with."""

    def __init__(self, folder: Path, *, megabytes: int) -> None:
        text = draft("renewal", schedule=DERANGEMENT, pace={"silence_s": 60})
        self.loopback = LocalFederation.create(folder, text, dict.fromkeys((AFRICA, EUROPE), SITE))
        self.authority = enrolment.Authority.load(folder / "ca", now=now())
        (self.port,) = free_ports(1)
        valve_port = int(self.loopback.federation.addresses[EUROPE].rpartition(":")[2])
        self.valve = Valve(valve_port, target=self.port)
        self.former = folder / "former"
        shutil.copytree(self.loopback.folder(EUROPE).pki, self.former)
        self.replaced = self.renew(EUROPE, days=200, new_key=True)
        self.edit(EUROPE, f"127.0.0.1:{valve_port}", f"127.0.0.1:{self.port}")
        self.daemons = {name: StillProcess(self.loopback, name, megabytes) for name in (AFRICA, EUROPE)}

    def edit(self, name: SiteName, old: str, new: str) -> None:
        """Change the site's site.toml."""
        path = self.loopback.folder(name).site_toml
        path.write_text(path.read_text().replace(old, new))

    def renew(self, name: SiteName, *, days: int, new_key: bool) -> list[str]:
        """What site and founder do; certificates that others should refuse from now on."""
        folder, founder = self.loopback.folder(name), self.authority
        request = enrolment.request(folder, founder.federation, founder.federation_toml, now=now(), renew=new_key)
        said = {"fingerprint": request.fingerprint, "days": days, "replace": new_key}
        admitted = founder.admit(request.pem, now=now(), **said)
        enrolment.join(folder, Bundle.decode(admitted.bundle), now=now())
        return list(admitted.replaced)

    def certify(self, name: SiteName, *, seconds: int) -> None:
        """Put a certificate into the site's folder that lasts no longer."""
        folder, founder = self.loopback.folder(name), self.authority
        own = certificates.Identity.load(
            folder.pki, name=name, ca_certificate=founder.federation.ca_certificate, now=now()
        )
        since, key = now() - timedelta(days=1) + timedelta(seconds=seconds), own.key.public_key()
        certificate = certificates.issue(founder.key, founder.certificate, name=name, public_key=key, now=since, days=1)
        write_atomically(folder.pki / "cert.pem", certificates.certificate_pem(certificate), 0o644)

    def serial(self, name: SiteName) -> int:
        """Of the certificate on disk."""
        return certificates.read_certificate(self.loopback.folder(name).pki / "cert.pem").serial_number

    def served(self) -> int:
        """The serial of the certificate that europe shows a new connection."""
        pki = self.loopback.folder(AFRICA).pki
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        context.load_cert_chain(pki / "cert.pem", pki / "site.key")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as connection,
            context.wrap_socket(connection, server_hostname=EUROPE) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number

    def days(self, name: SiteName) -> int:
        """What ``status`` says."""
        return int(self.loopback.show(name, "status")["certificate_days"])

    def sent(self) -> list[dict[str, Any]]:
        """What left europe, by its ledger."""
        return list(self.loopback.show(EUROPE, "egress"))

    async def call_with_the_former_certificate(self) -> None:
        """Beat at africa as who still has europe's first key would."""
        pki = Pki(self.former, EUROPE, self.loopback.federation.ca_certificate or "", now)
        client = ExchangeClient(
            pki=pki, federation=self.loopback.federation.digest, address=self.loopback.federation.addresses.get
        )
        try:
            await client.beat(AFRICA, Heartbeat(1, 1, "train"))
        finally:
            await client.close()

    def close(self) -> None:
        """End everything."""
        for daemon in self.daemons.values():
            daemon.end()
        self.valve.close()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Starts the two sites: ``begin(megabytes=1)``."""
    with contextlib.ExitStack() as stack:

        def make(*, megabytes: int) -> Trial:
            trial = Trial(tmp_path, megabytes=megabytes)
            stack.callback(trial.close)
            return trial

        yield make


def test_renewals_in_the_middle_of_a_transfer(begin: Callable[..., Trial], tools: Any, tmp_path: Path) -> None:
    trial = begin(megabytes=MEGABYTES)
    assert trial.valve.held.wait(LIMIT_S), "no transfer was seen on its way"
    assert trial.days(EUROPE) == 199
    began = trial.serial(EUROPE)
    assert trial.served() == began
    (moving,) = trial.sent()
    assert (moving["peer"], moving["outcome"]) == (AFRICA, "open")

    trial.renew(EUROPE, days=100, new_key=False)
    same_key = trial.serial(EUROPE)
    assert trial.served() == same_key != began
    assert trial.days(EUROPE) == 99

    trial.renew(EUROPE, days=50, new_key=True)
    trial.renew(AFRICA, days=70, new_key=True)
    new_key = trial.serial(EUROPE)
    assert trial.served() == new_key not in (began, same_key)
    assert (trial.days(EUROPE), trial.days(AFRICA)) == (49, 69)
    tools.wait_until(lambda: trial.valve.connections > 1, limit_s=LIMIT_S, what="africa does not call anew")
    assert [row["outcome"] for row in trial.sent()] == ["open"], "the transfer is still under way"

    trial.valve.open.set()
    assert trial.daemons[AFRICA].hear("ordered 1") == "ordered 1 europe"
    tools.wait_until(lambda: trial.sent()[0]["outcome"] != "open", limit_s=LIMIT_S)
    whole = {**moving, "outcome": "complete"}
    assert trial.sent() == [whole], "in one piece"
    assert whole["bytes"] > MEGABYTES * 1_000_000

    for daemon in trial.daemons.values():
        daemon.hear("ready")
        daemon.release()
    assert trial.daemons[AFRICA].hear("ordered 2") == "ordered 2 europe"
    received = [body for kind, _, body in tools.rows(trial.loopback, AFRICA) if kind == "received"]
    signers = [x509.load_der_x509_certificate(from_base64(body).certificate_der) for body in received]
    assert [signer.serial_number for signer in signers] == [began, new_key]
    asyncio.run(trial.call_with_the_former_certificate())
    trial.edit(AFRICA, "[data]", f"refuse_certificates = {trial.replaced}\n[data]")
    with pytest.raises(Refused, match=r"europe: its certificate [0-9a-f]{64} is refused here"):
        asyncio.run(trial.call_with_the_former_certificate())

    from_africa = tmp_path / "from-africa.json"
    from_africa.write_bytes(evidence_files.encode(verification.make_witness(trial.loopback.folder(AFRICA), EUROPE)))
    proven = verification.verify(trial.loopback.folder(EUROPE), [from_africa])
    assert (proven["problems"], proven["vouched_rows"]) == ([], 2), "manifests of every key are proof"


def test_a_certificate_that_expires_and_is_renewed_late(begin: Callable[..., Trial], tools: Any) -> None:
    trial = begin(megabytes=1)
    for daemon in trial.daemons.values():
        daemon.hear("ready")
    trial.certify(EUROPE, seconds=3)
    tools.wait_until(lambda: trial.days(EUROPE) < 0, limit_s=LIMIT_S, what="it never expired")
    for daemon in trial.daemons.values():
        daemon.release()
    log = trial.loopback.folder(EUROPE).logs / "daemon.log"
    tools.wait_until(lambda: "published, but not signed" in log.read_text(), limit_s=LIMIT_S)
    assert "the certificate expired on" in log.read_text()
    tools.wait_until(lambda: trial.loopback.show(EUROPE, "status")["round"] == 2, limit_s=LIMIT_S)
    # It may have africa's model by now: a connection from before has the former certificate, which is in date.
    assert trial.loopback.show(EUROPE, "status")["refusals"] == []
    waited = tools.wait_until(lambda: trial.loopback.show(AFRICA, "status")["waiting_for"], limit_s=LIMIT_S)
    assert [(one["site"], one["artifact"]) for one in waited] == [(EUROPE, "model")]
    assert [row["round"] for row in trial.sent()] == [1], "nothing leaves under an expired certificate"

    trial.renew(EUROPE, days=50, new_key=True)
    assert trial.daemons[AFRICA].hear("ordered 2") == "ordered 2 europe"
    assert trial.daemons[EUROPE].hear("ordered 2") == "ordered 2 africa"
    assert trial.days(EUROPE) == 49
    assert trial.loopback.show(AFRICA, "status")["refusals"] == []
