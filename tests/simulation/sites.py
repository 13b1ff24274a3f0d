"""The sites of a simulated federation: enrolled folders, and real daemons that start, die and start again."""

from __future__ import annotations

import asyncio
import datetime
import functools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peer import errors
from peer.audit.folder_check import check_folder
from peer.core import commands
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.daemon import startup
from peer.daemon.chain_keeper import ChainKeeper
from peer.daemon.dispatch import Daemon
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.kept_configuration import keep_configuration
from simulation.disk import Disk, put_file
from simulation.liars import Liar
from simulation.loop import Process
from simulation.worker import Pace

if TYPE_CHECKING:
    from simulation.programs import Program

NAMES = ("africa", "america", "asia", "europe", "oceania")
EPOCH_S = 1_577_836_800.0  # 2020-01-01: before the date of any file that a run writes
PORT = 7443
RELAY_PORT = 443
FEDERATION = """
name = "trial"
rounds = {rounds}
seed = 7
{top}
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "{method}"
{parameters}
[schedule]
kind = "{schedule}"
{staleness}
[fallback]
kind = "{fallback}"
[pace]
beat_s = 3
silence_s = 15
wait_max_s = 40
deadline_floor_s = 20
linger_s = {linger_s}
isolated_s = 120
artifact_rounds_max = 3
gather_s = 45
"""
SHARED = '[shared_model]\nname = "resnet10"\n'
SITE = """
listen = "0.0.0.0:7443"
[data]
datalist = "datalist.json"
input_size = [8]
[training]
device = "cpu"
[egress]
evaluate = true
newcomers = "accept"
"""


@contextmanager
def repeatable_signatures(first: int = 1) -> Iterator[None]:
    """Sign as RFC 6979 says, so that a signature and its length depend on key and content alone."""
    sign, serials = x509.CertificateBuilder.sign, iter(range(first, first + 1000))

    def sign_certificate(builder: Any, key: Any, algorithm: Any) -> Any:
        return sign(builder, key, algorithm, ecdsa_deterministic=True)

    def sign_data(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
        return key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(x509.CertificateBuilder, "sign", sign_certificate))
        stack.enter_context(mock.patch.object(x509, "random_serial_number", lambda: next(serials)))
        stack.enter_context(mock.patch.object(certificates, "sign", sign_data))
        yield


read_private_key = functools.lru_cache(serialization.load_pem_private_key)


@contextmanager
def remembered_keys() -> Iterator[None]:
    """Parse each private key once: the program reads it again for each connection."""
    with mock.patch.object(serialization, "load_pem_private_key", read_private_key):
        yield


def enrolled() -> tuple[str, dict[str, dict[str, bytes]]]:
    """The CA's certificate, and each site's ``pki`` folder: the same in every process."""
    _, ca, folders = _founded()
    return certificates.certificate_pem(ca).decode(), folders


def authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The founder's key, and the CA's certificate."""
    key, ca, _ = _founded()
    return key, ca


def genesis_key() -> RoundKey:
    """The round key of the genesis."""
    return RoundKey(bytes.fromhex((b"11" * 32).decode()))


@functools.cache
def _founded() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, dict[str, dict[str, bytes]]]:
    numbers = iter(range(1001, 2000))
    now = datetime.datetime.fromtimestamp(EPOCH_S, datetime.UTC) - datetime.timedelta(days=30)
    with (
        repeatable_signatures(),
        mock.patch.object(certificates, "new_key", lambda: ec.derive_private_key(next(numbers), ec.SECP256R1())),
    ):
        ca_key, ca = certificates.new_authority("trial", now=now)
        pem, folders = certificates.certificate_pem(ca), {}
        for name in NAMES:
            key = certificates.new_key()
            certificate = certificates.issue(ca_key, ca, name=SiteName(name), public_key=key.public_key(), now=now)
            folders[name] = {
                certificates.CA_FILE: pem,
                certificates.KEY_FILE: certificates.key_pem(key),
                certificates.ROUND_KEY_FILE: genesis_key().hex().encode(),
                certificates.CERTIFICATE_FILE: certificates.certificate_pem(certificate),
            }
    return ca_key, ca, folders


@functools.cache
def renewed(name: str) -> tuple[dict[str, bytes], Sha256]:
    """The files of a site's second key, as `site enrol --renew` and `site join` leave them, and the key's digest."""
    ca_key, ca = authority()
    now = datetime.datetime.fromtimestamp(EPOCH_S, datetime.UTC) - datetime.timedelta(days=2)
    key = ec.derive_private_key(3001 + NAMES.index(name), ec.SECP256R1())
    with repeatable_signatures(first=3001 + NAMES.index(name)):
        certificate = certificates.issue(ca_key, ca, name=SiteName(name), public_key=key.public_key(), now=now)
    files = {
        certificates.PENDING_KEY_FILE: certificates.key_pem(key),
        certificates.CERTIFICATE_FILE: certificates.certificate_pem(certificate),
    }
    return files, certificates.key_digest(key.public_key())


@dataclass(frozen=True)
class Shape:
    """What a federation is like.

    Attributes:
        relays: the sites that nobody can dial, each with the relays at which it parks.
        relaying: the member that is the relay, where one is; others reach it through its relay, too.
        stay: the sites serve after the last round, until every site has reached every other.
        colluders: how many members of a secure sum may lie together; 0: the sites send what they average.
    """

    names: tuple[str, ...]
    method: str
    rounds: int
    schedule: str = "permutation"
    fallback: str = "self"
    parameters: str = ""
    top: str = ""
    linger_s: int = 100
    governance: int | None = None
    staleness: int = 0
    relays: tuple[tuple[str, tuple[str, ...]], ...] = ()
    relaying: str = ""
    stay: bool = False
    colluders: int = 0

    @functools.cached_property
    def relayed(self) -> dict[str, tuple[str, ...]]:
        """The sites that nobody can dial, each with the relays at which it parks."""
        return dict(self.relays)

    @functools.cached_property
    def relay_names(self) -> tuple[str, ...]:
        """The relays that are no members."""
        return tuple(sorted({relay for _, relays in self.relays for relay in relays} - {self.relaying}))

    def routes(self, name: str) -> list[str]:
        """How others reach a site, the founder's first."""
        relays = self.relayed.get(name, ())
        direct = f"{name}:{RELAY_PORT if name == self.relaying else PORT}"
        return [f"relay {relay} {relay}:{RELAY_PORT}" for relay in relays] or [direct]

    def site_text(self, name: str) -> str:
        """A site's site.toml: its own relays, and the other ways to sites with two."""
        relays = [f"{relay} {relay}:{RELAY_PORT}" for relay in self.relayed.get(name, ())]
        others = {other: self.routes(other) for other in self.relayed if other != name}
        several = {other: routes for other, routes in others.items() if len(routes) > 1}
        connect: dict[str, Any] = {"relays": relays} if relays else {}
        if name == self.relaying:
            connect["relay_listen"] = f"0.0.0.0:{RELAY_PORT}"
        tables = ({"connect": connect} if connect else {}) | ({"addresses": several} if several else {})
        return SITE + toml.text(tables)

    @functools.cached_property
    def text(self) -> str:
        governance = "" if self.governance is None else f"\ngovernance = {{ members = {self.governance} }}"
        draft = FEDERATION.format(
            rounds=self.rounds,
            method=self.method,
            schedule=self.schedule,
            staleness="staleness = 1" if self.staleness else "",  # where it is 0, the digest is what it was
            fallback=self.fallback,
            parameters=self.parameters,
            linger_s=self.linger_s,
            top=f'{self.top}\nca_certificate = """{enrolled()[0]}"""{governance}',
        )
        shared = SHARED if self.method == "fedavg" else ""
        if self.colluders:
            shared += f"[aggregate]\nsecure = true\ncolluders_max = {self.colluders}\n"
        roster = [{"name": name, "address": self.routes(name)[0]} for name in self.names]
        if self.governance is not None:
            roster = [entry | {"key": pinned(entry["name"])} for entry in roster]
        return draft + shared + toml.text({"site": roster})


def pinned(name: str) -> Sha256:
    """The key that a chain pins for a site."""
    certificate = x509.load_pem_x509_certificate(enrolled()[1][name][certificates.CERTIFICATE_FILE])
    return certificates.key_digest(certificates.certificate_key(certificate))


@functools.lru_cache(maxsize=256)
def parsed_federation(text: str, where: str) -> FederationConfig:
    return FederationConfig.parse(text, where)


@dataclass
class Site:
    """One site: its folder, its disk, and its daemon while one runs."""

    name: str
    shape: Shape
    folder: SiteFolder
    disk: Disk
    rng: random.Random
    liar: Liar | None = None
    skew_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    process: Process | None = None
    daemon: Daemon | None = None
    left: bool = False
    keeper: ChainKeeper | None = None
    power: bool = True
    down_s: float = 0.0
    key_is_new: bool = False
    programs: list[Program] = field(default_factory=list)
    journal_ahead: int = 0
    started_s: float = 0.0
    vanished: set[str] = field(default_factory=set)

    @classmethod
    def enrol(cls, root: Path, name: str, shape: Shape, rng: random.Random) -> Site:
        """A site that has never started; one that joins later has no round key of the genesis."""
        folder = SiteFolder(root, "trial", SiteName(name))
        for path in (folder.pki, folder.logs):
            path.mkdir(parents=True, mode=0o700)
        for file, content in enrolled()[1][name].items():
            if file == certificates.ROUND_KEY_FILE and name not in shape.names:
                continue
            (folder.pki / file).touch(mode=0o600)
            (folder.pki / file).write_bytes(content)
        folder.federation_toml.write_text(shape.text)
        folder.site_toml.write_text(shape.site_text(name))
        return cls(name, shape, folder, Disk(folder.path, rng), rng)

    def join_again(self) -> None:
        """The operator installs the certificate of the new key, which `site join` refuses while another is pinned."""
        files, key = renewed(self.name)
        federation = parsed_federation(self.shape.text, str(self.folder.federation_toml))
        pinned_key = MembershipFolder(self.folder.membership).chain(federation).head.keys.get(self.folder.site)
        if pinned_key in (None, key) and self.certificate_pem != files[certificates.CERTIFICATE_FILE]:
            for file, content in files.items():
                put_file(self.folder.pki / file, content)

    def identity(self) -> certificates.Identity:
        """The key and the certificate in the site's folder."""
        ca = enrolled()[0]
        return certificates.Identity.load(
            self.folder.pki, name=SiteName(self.name), ca_certificate=ca, now=None, joined_later=True
        )

    @property
    def certificate_pem(self) -> bytes:
        return (self.folder.pki / certificates.CERTIFICATE_FILE).read_bytes()

    @property
    def expelled(self) -> frozenset[SiteName]:
        """The sites that were expelled, as far as this site's daemon knows."""
        return frozenset() if self.keeper is None else self.keeper.chain.head.expelled

    @property
    def program(self) -> Program | None:
        """The version of the program that is installed; ``None`` where all sites run this one."""
        return self.programs[-1] if self.programs else None

    @property
    def journal_is_newer(self) -> bool:
        """Whether a later program than the installed one wrote the journal."""
        return self.program is not None and self.journal_ahead > self.program.journal

    @property
    def had_later_program(self) -> bool:
        """Whether a later program than the installed one was installed: it may have died once it had the journal."""
        return any(each.journal > self.programs[-1].journal for each in self.programs)

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.dead

    def start(
        self,
        *,
        watch: Callable[[Site], None],
        crashed: Callable[[Site], None],
        ended: Callable[[Site, BaseException | None], None],
    ) -> None:
        """Start the daemon on what the disk has.

        Args:
            watch: called with the site before its first event.
            crashed: called when the process dies in a write.
            ended: called when the daemon has ended, with its error; not after a crash.
        """
        process = self.process = Process(self.name, self.disk)
        process.program, self.started_s = self.program, asyncio.get_running_loop().time()
        process.on_crash = lambda: crashed(self)
        task = asyncio.get_running_loop().create_task(self._run(process, watch), context=process.context())

        def finish(task: asyncio.Task[commands.Exit]) -> None:
            error = None if task.cancelled() else task.exception()
            if not process.dead:
                end_process(process)
                for end in list(process.ends):
                    end.die(power=False)
                self.disk.settle()
                self.process = self.daemon = None
                ended(self, error)

        task.add_done_callback(finish)

    async def _run(self, process: Process, watch: Callable[[Site], None]) -> commands.Exit:
        """What ``peer.daemon.startup.run`` does, without a lock, logs and the control socket."""
        folder = self.folder
        federation = parsed_federation(self.shape.text, str(folder.federation_toml))
        site = SiteConfig.load(folder.site_toml)
        membership = MembershipFolder(folder.membership)
        own = certificates.Identity.load(
            folder.pki,
            name=folder.site,
            ca_certificate=federation.ca_certificate,
            now=startup.now(),
            pinned_key=membership.chain(federation).head.keys.get(folder.site),
            joined_later=folder.site not in federation.roster,
        )
        check_folder(folder, federation, own)
        generation = startup._generation(folder, startup.Options())
        keep_configuration(folder, generation, federation, site, accept=False)
        stay = self.liar is not None or self.shape.stay  # a liar never goes away
        self.daemon = Daemon(folder=folder, federation=federation, site=site, own=own, generation=generation, stay=stay)
        watch(self)

        async def ready(port: int) -> None:
            pass

        return await self.daemon.run(ready)

    def bury(self, *, power: bool) -> None:
        """Clear up after a crash; with ``power`` the machine went down with the process."""
        process, self.process, self.daemon = self.process, None, None
        end_process(process)
        if power:
            self.disk.lose_power()
        else:
            self.disk.settle()


def end_process(process: Process) -> None:
    """Let nothing of a process go on, nor have an effect on its files."""
    process.dead = True
    for task in list(process.tasks):
        task.cancel()
    for connection in list(process.connections):
        process.context().run(connection.close)


FINAL = (errors.StateError, errors.ConfigError, errors.UsageError, errors.CertificateError)
"""Errors after which no restart helps: an honest site must not meet one."""
