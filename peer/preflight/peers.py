"""Whether this site and its peers reach each other, in both directions.

Towards the peers: one handshake that tells reasons apart, then a greeting. Towards this site: while its daemon is down,
somebody listens in its place who notes which peers call and tells them that nobody is in; a running daemon is asked who
called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from peer import errors
from peer.config.schema import FederationConfig, SiteConfig, loopback
from peer.config.site_folder import SiteFolder
from peer.config.toml import split_address
from peer.core import limits
from peer.core.messages import EvaluationResult, Heartbeat, Hello, SignedManifest
from peer.core.roster import SiteName, round_key_tag
from peer.daemon.addresses import DISCOVERED_MAX, AddressBook
from peer.daemon.dispatch import now
from peer.preflight.finding import Finding
from peer.transport import handshake, tls, wire
from peer.transport.client import ExchangeClient, ExchangeError, Unreachable
from peer.transport.discovery import Discovery, served_at
from peer.transport.server import ExchangeServer, Grant, Outcome, Refusal, Status

BEATS = 2
"""A peer that runs dials at least so often until this is over."""
SLACK_S = 1.5
"""And has at most this long to wait between two dials of one channel (``tls.RECONNECT_S``), and for its handshake."""
DISCOVERY_S = 3.0
"""Announcements are answered within a second of being asked for."""
DIALS_MAX = 64
"""At a time: a thousand dead peers are known after three minutes, four after one timeout."""
TRIED_MAX = DISCOVERED_MAX + 2
"""Addresses of one peer: those announced, the operator's and the founder's. Who announces ever new ones is a liar."""
CALLED_BEATS_MAX = 5
"""A peer that has not called a running daemon for longer does not reach it now."""


class CallListener:
    """In the place of the service of a site that does not run: notes who calls, and says that nobody is in.

    What it says is "busy", so that nobody takes the site for one that runs, or for one that refuses.
    """

    def __init__(self) -> None:
        self.rang: set[SiteName] = set()
        self._news = asyncio.Event()

    async def heard(self, peers: set[SiteName], *, limit_s: float) -> None:
        """Wait until all of these have called, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not peers <= self.rang:
                    self._news.clear()
                    await self._news.wait()

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        self._ring(caller)

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        self._ring(caller)

    async def manifest(self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float) -> SignedManifest:
        self._ring(caller)

    async def report(self, caller: SiteName, report: EvaluationResult) -> None:
        self._ring(caller)

    def open_artifact(self, caller: SiteName, request: wire.ArtifactRequest, *, sha256: str, offset: int) -> Grant:
        self._ring(caller)

    def record_sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        """Nothing is ever sent."""

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        """Nothing is written down."""

    def _ring(self, caller: SiteName) -> NoReturn:
        self.rang.add(caller)
        self._news.set()
        raise Refusal(Status.BUSY, "this site is only being checked; its daemon does not run")


class Reach:
    """One look at all peers.

    Args:
        folder: the site's.
        federation: the federation.
        site: the site's private configuration.
        own: the site's name.
        status: what a running daemon says; nothing while none runs.
    """

    def __init__(
        self,
        folder: SiteFolder,
        federation: FederationConfig,
        site: SiteConfig,
        own: SiteName,
        status: Mapping[str, Any] | None,
    ) -> None:
        self._federation, self._site, self._own, self._status = federation, site, own, status
        self._peers = federation.roster.others(own)
        self._pki = tls.Pki(folder.pki, own, federation.ca_certificate or "", now)
        self._book = AddressBook(own=own, federation=federation, site=site)
        self._bell = CallListener()
        self._found = asyncio.Event()
        self._answered: set[SiteName] = set()
        self._discovered: set[SiteName] = set()
        self._discovery: Discovery | None = None

    async def look(self, *, listening: bool) -> list[Finding]:
        """Dial every peer, and see who calls: at most a few beats, however many of them are dead.

        Args:
            listening: whether the site's address is free, or its daemon's.
        """
        async with contextlib.AsyncExitStack() as open_:
            if self._status is not None:
                for name, peer in self._status["peers"].items():
                    if peer.get("address"):
                        self._book.discover(name, peer["address"])
            elif listening:
                await self._listen(open_)
            findings = [*self._announced(), *await self._dial()]
            called = await self._called()
        findings += [self._way_back(name, called.get(name, False)) for name in self._peers if self._says(name, called)]
        if self._peers:
            findings.append(self._own_address(any(called.values())))
        return findings

    async def _listen(self, open_: contextlib.AsyncExitStack) -> None:
        """Answer in the daemon's place; also announce, and listen for announcements, where the site does that."""
        server = ExchangeServer(
            self._bell,
            pki=self._pki,
            roster=self._federation.roster,
            refused=frozenset(self._site.refuse_certificates),
            reports=self._bell.report,
        )
        try:
            port = await server.start(self._site.listen)
        except errors.PortInUse:  # taken since it was looked at; the next check says so
            return
        open_.push_async_callback(server.stop)
        if self._site.discovery.zeroconf:
            discovery = self._discovery = Discovery(
                site=self._own, federation=self._federation.digest, peers=self._peers, on_address=self._discover
            )
            host, _ = split_address(self._site.listen)
            discovery.start(lambda: served_at(host, port))
            open_.push_async_callback(discovery.stop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCOVERY_S):
                    while not self._discovered >= set(self._peers):
                        self._found.clear()
                        await self._found.wait()

    def _discover(self, peer: SiteName, address: str) -> None:
        self._book.discover(peer, address)
        self._discovered.add(peer)
        self._found.set()

    def _announced(self) -> Iterator[Finding]:
        """What discovery came to, where there is any."""
        if self._discovery is None:
            return
        if self._discovery.problem:
            remedy = "let UDP port 5353 through to 224.0.0.251, or give addresses and switch [discovery] off"
            yield Finding("discovery", "warning", f"does not work: {self._discovery.problem}", remedy)
        else:
            found = ", ".join(sorted(self._discovered)) or "nobody"
            yield Finding("discovery", "ok", f"this site was announced for a moment; found: {found}")

    async def _dial(self) -> list[Finding]:
        if not self._peers:
            return []
        client = ExchangeClient(pki=self._pki, federation=self._federation.digest, address=self._book.address)
        threads = concurrent.futures.ThreadPoolExecutor(min(DIALS_MAX, len(self._peers)), thread_name_prefix="dial")
        try:
            return list(await asyncio.gather(*(self._peer(name, client, threads) for name in self._peers)))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            await client.close()

    async def _peer(self, peer: SiteName, client: ExchangeClient, threads: concurrent.futures.Executor) -> Finding:
        """The first of the peer's addresses at which it answers; of several that fail, what is wrong with the first."""
        failures: dict[str, handshake.Diagnosis] = {}
        while len(failures) < TRIED_MAX:
            address = self._book.address(peer)
            if address is None or address in failures:
                break
            host, port = split_address(address)
            dial = asyncio.get_running_loop().run_in_executor(threads, self._diagnose, host, port, peer)
            diagnosis = await dial
            if diagnosis.fault == handshake.Fault.NONE:
                return await self._greet(peer, client, address)
            failures[address] = diagnosis
            self._book.fail(peer, address)
        if not failures:
            remedy = "start that site, or add its address to [addresses] in site.toml"
            if not self._site.discovery.zeroconf:
                remedy = "add it to [addresses] in site.toml, or set [discovery] zeroconf on a network that all share"
            return Finding(peer, "warning", "no address is known", remedy)
        worst = next((one for one in failures.values() if one.fault != handshake.Fault.UNREACHABLE), None)
        first = worst or next(iter(failures.values()))
        if worst is None:
            more = f", and at {len(failures) - 1} other addresses neither" if len(failures) > 1 else ""
            remedy = "start that site, or correct its address or the firewall"
            return Finding(peer, "warning", first.detail + more, remedy)
        return Finding(peer, "failure", f"{first.fault}: {first.detail}", "settle it with that site's operator")

    def _diagnose(self, host: str, port: int, peer: SiteName) -> handshake.Diagnosis:
        return handshake.diagnose(host, port, pki=self._pki, site=peer)

    async def _greet(self, peer: SiteName, client: ExchangeClient, address: str) -> Finding:
        """Compare digests and clocks. Generation 0 says that this is only a question, not a site that takes part."""
        federation = self._federation
        mine = Hello(
            protocol=limits.PROTOCOL_VERSION,
            federation=federation.digest,
            roster=federation.roster.digest,
            generation=0,
            clock_s=time.time(),
            round_key_tag=round_key_tag(self._pki.load().round_key, federation.digest),
        )
        try:
            theirs = await client.hello(peer, mine)
        except Unreachable as error:
            return Finding(peer, "warning", f"does not answer now: {error.reason}", "look again in a minute")
        except ExchangeError as error:
            return Finding(peer, "failure", error.reason, "compare `mhfl-peer federation show` at both sites")
        self._answered.add(peer)
        skew_s = theirs.clock_s - time.time()
        text = f"answers at {address} as {theirs.software or 'a peer'}, same federation, clock {skew_s:+.1f} s"
        late = abs(skew_s) > limits.CLOCK_SKEW_WARNING_S
        return Finding.judged(peer, text, "set both clocks (NTP)" if late else "")

    async def _called(self) -> dict[SiteName, bool]:
        """Of each peer that could have called this site by now whether it did; others are left out."""
        if self._status is not None:
            limit_s = CALLED_BEATS_MAX * self._federation.beat_s
            ages = {name: self._status["peers"][name]["called_s"] for name in self._peers}
            return {name: age is not None and age <= limit_s for name, age in ages.items()}
        await self._bell.heard(self._answered, limit_s=BEATS * self._federation.beat_s + SLACK_S)
        return {name: name in self._bell.rang for name in self._peers}

    def _says(self, peer: SiteName, called: Mapping[SiteName, bool]) -> bool:
        """Whether a peer's silence, or its call, says anything: one that does not answer may not run at all."""
        return called.get(peer, False) or peer in self._answered

    def _way_back(self, peer: SiteName, called: bool) -> Finding:
        subject = f"from {peer}"
        if called:
            return Finding(subject, "ok", f"{peer} reaches this site")
        founded = self._federation.addresses.get(self._own)
        where = f"{founded}, as federation.toml says" if founded else "any address: federation.toml gives none"
        return Finding(
            subject, "warning", f"{peer} runs, and does not reach this site at {where}",
            f"open the port in the firewall towards {self._site.listen}, have the founder correct the address, or that "
            f"site's operator write the right one into [addresses] {self._own}",
        )  # fmt: skip

    def _own_address(self, reached: bool) -> Finding:
        """Whether where this site listens can be where the others dial; that somebody called settles it."""
        founded, listen = self._federation.addresses.get(self._own), self._site.listen
        discovered = self._site.discovery.zeroconf
        told = [f"federation.toml sends the others to {founded}"] if founded else []
        told += ["this site is announced"] if discovered else []
        text = f"{' and '.join(told) or 'federation.toml gives this site no address'}; it listens on {listen}"
        return Finding.judged("address", text, "" if reached else self._correction(founded, discovered=discovered))

    def _correction(self, founded: str | None, *, discovered: bool) -> str:
        """What of the site's address cannot be meant, in the form of what to do about it; empty where nothing is."""
        host, port = split_address(self._site.listen)
        if port == 0 and not discovered:
            return "set a port in `listen`: this is another one at each start, and nobody is told which"
        if founded is None:
            no_way = "the others must write an address into [addresses], or all sites set [discovery] zeroconf"
            return "" if discovered else no_way
        founded_host, founded_port = split_address(founded)
        if loopback(host) and not loopback(founded_host):
            return f'set listen = "0.0.0.0:{port}" in site.toml: no other machine reaches {host}'
        if port not in (0, founded_port):
            return "make the ports equal, unless a router or container passes the one on to the other"
        return ""
