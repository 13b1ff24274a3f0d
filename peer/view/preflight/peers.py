"""Whether this site and its peers reach each other, in both directions.

Towards a peer, the check does one TLS handshake, which tells reasons for a failure apart, and then
greets the peer. Towards this site, while its daemon is down, the check listens in its place: it
records which peers call, and answers that the site is busy. A running daemon's status says which
peers called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from peer import errors
from peer.core import limits
from peer.core.artifacts import EvaluationResult
from peer.core.class_numbering import NUMBERS_DIFFER, add_own_name, differing_names, digest_names
from peer.core.messages import Heartbeat, Hello, SignedManifest
from peer.core.roster import NO_ROUND_KEY, SiteName, round_key_tag
from peer.daemon import proxies
from peer.daemon.addresses import DISCOVERED_MAX, AddressBook, describe_route
from peer.daemon.dispatch import now
from peer.net.relay.parking import PARKING_ERRORS, Parking, Parkings, RelayRefused
from peer.net.transport import handshake, tls, wire
from peer.net.transport.client import ExchangeClient, ExchangeError, NotAdmitted, Unreachable
from peer.net.transport.discovery import Discovery, served_at
from peer.net.transport.server import ExchangeServer, Grant, Outcome, Refusal, Status
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.site_tables import is_loopback
from peer.site.config.toml import split_address, split_relay, split_route
from peer.site.membership.chain import Membership
from peer.site.membership.folder import MembershipFolder
from peer.site.records.listed_classes import read_class_names
from peer.view.preflight.finding import Finding

BEATS = 2
"""The listener waits so many heartbeats: a running peer dials in each of them."""
SLACK_S = 1.5
"""Added to that: the time between two dials of a channel (``tls.RECONNECT_S``), and for its
handshake.
"""
DISCOVERY_S = 3.0
"""Peers answer a query for announcements within a second."""
DIALS_MAX = 64
"""At a time: a thousand dead peers take three minutes, and four take one timeout."""
TRIED_MAX = DISCOVERED_MAX + 2
"""Addresses to try for a peer: those announced, the operator's and the founder's.

Further announcements are fakes.
"""
CALLED_BEATS_MAX = 5
"""A peer that has not called the running daemon for so many heartbeats does not reach it now."""

WAIT_FOR_AMENDMENT = "wait until the amendment arrives, or ask the founder whether it was made and handed in"


def site_pki(folder: SiteFolder, federation: FederationConfig, membership: Membership) -> tls.Pki:
    """Return the site's identity, and whom it believes by a membership's pins and CAs."""
    return tls.Pki(
        folder.pki,
        folder.site,
        federation.ca_certificate or "",
        now,
        membership.keys,
        lambda: membership.authorities[1:],
        joined_later=folder.site not in federation.roster,
    )


class CallListener:
    """Answers calls for a site whose daemon is down, and records the callers.

    The answer is always "busy": a caller takes the site neither for present, nor for one that
    refuses it.
    """

    def __init__(self) -> None:
        self.callers: set[SiteName] = set()
        self._new_call = asyncio.Event()

    async def wait_for_calls(self, peers: set[SiteName], *, limit_s: float) -> None:
        """Wait until all of these peers have called, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not peers <= self.callers:
                    self._new_call.clear()
                    await self._new_call.wait()

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        self._refuse(caller)

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        self._refuse(caller)

    async def manifest(self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float) -> SignedManifest:
        self._refuse(caller)

    async def report(self, caller: SiteName, report: EvaluationResult) -> None:
        self._refuse(caller)

    def open_artifact(
        self, caller: SiteName, request: wire.ArtifactRequest, *, sha256: str, offset: int, relayed: bool
    ) -> Grant:
        self._refuse(caller)

    def record_sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        """Nothing is ever sent."""

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        """Nothing is written down."""

    def _refuse(self, caller: SiteName) -> NoReturn:
        self.callers.add(caller)
        self._new_call.set()
        raise Refusal(Status.BUSY, "this site is only being checked; its daemon does not run")


class ReachabilityCheck:
    """One check of all peers.

    Args:
        status: the status of the running daemon; ``None`` while none runs.
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
        self._class_names = read_class_names(federation, site)
        kept = MembershipFolder(folder.membership)
        chain, pin = kept.chain(federation), kept.joined()
        membership = chain.head
        self._head, self._founded = membership.head, membership.addresses.get(own)
        has_pin = pin is None or any(link.after.head == pin for link in chain.links)
        self._is_added = own in membership.used_names and has_pin
        self._peers = tuple(name for name in membership.members if name != own)
        self._pki = site_pki(folder, federation, membership)
        self._book = AddressBook(own=own, federation=federation, site=site)
        self._book.follow_roster({name: membership.addresses.get(name) for name in self._peers})
        self._proxy_for = proxies.choice(site)
        self._listener = CallListener()
        self._new_address = asyncio.Event()
        self._answered: set[SiteName] = set()
        self._unaware: set[SiteName] = set()
        self._discovered: set[SiteName] = set()
        self._discovery: Discovery | None = None

    async def run(self, *, listening: bool) -> list[Finding]:
        """Dial every peer, and wait for the peers' calls: a few heartbeats at most, however many
        peers are dead.

        Args:
            listening: whether the site's address is free, or its own daemon's.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._status is not None:
                for name, peer in self._status["peers"].items():
                    if peer.get("address"):
                        self._book.discover(name, peer["address"])
            elif listening:
                await self._listen(stack)
            findings = [*self._check_discovery(), *await self._try_relays(), *await self._dial_all()]
            called = await self._wait_for_calls()
        findings += [
            self._check_way_back(name, called.get(name, False)) for name in self._peers if self._is_up(name, called)
        ]
        if self._peers:
            findings += [self._check_own_address(any(called.values())), *self._check_amendment()]
        return findings

    async def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        """Answer calls in the daemon's place.

        Announce the site and wait for announcements if it uses discovery.
        """
        server = ExchangeServer(
            self._listener,
            pki=self._pki,
            roster=(self._own, *self._peers),
            refused=frozenset(self._site.refuse_certificates),
            reports=self._listener.report,
        )
        try:
            port = await server.start(self._site.listen)
        except errors.PortInUse:  # since the check of the port; the next run reports it
            return
        stack.push_async_callback(server.stop)
        if self._site.discovery.zeroconf:
            discovery = self._discovery = Discovery(
                site=self._own, federation=self._federation.digest, peers=self._peers, on_address=self._discover
            )
            host, _ = split_address(self._site.listen)
            discovery.start(lambda: served_at(host, port))
            stack.push_async_callback(discovery.stop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCOVERY_S):
                    while not self._discovered >= set(self._peers):
                        self._new_address.clear()
                        await self._new_address.wait()

    def _discover(self, peer: SiteName, address: str) -> None:
        self._book.discover(peer, address)
        self._discovered.add(peer)
        self._new_address.set()

    def _check_discovery(self) -> Iterator[Finding]:
        """Return the peers that discovery found, if the site uses it."""
        if self._discovery is None:
            return
        if self._discovery.problem:
            remedy = "let UDP port 5353 through to 224.0.0.251, or give addresses and switch [discovery] off"
            yield Finding("discovery", "warning", f"does not work: {self._discovery.problem}", remedy)
        else:
            names = ", ".join(sorted(self._discovered)) or "nobody"
            yield Finding("discovery", "ok", f"this site was announced for a moment; found: {names}")

    async def _try_relays(self) -> list[Finding]:
        """Park a connection at every relay, and give it up."""
        parkings = Parkings(
            [split_relay(relay) for relay in self._site.connect.relays],
            pki=self._pki,
            listen=self._site.listen,
            proxy_for=self._proxy_for,
            on_caller=lambda end, caller: None,
        )
        return list(await asyncio.gather(*(self._try_relay(parking) for parking in parkings.all)))

    async def _try_relay(self, parking: Parking) -> Finding:
        subject = f"relay {parking.relay}"
        try:
            await parking.try_once()
        except PARKING_ERRORS as error:
            message, remedy = parking.explain(error)
            return Finding(subject, "failure" if isinstance(error, RelayRefused) else "warning", message, remedy)
        return Finding(subject, "ok", "takes this site's connections, through which others reach it")

    async def _dial_all(self) -> list[Finding]:
        if not self._peers:
            return []
        client = ExchangeClient(
            pki=self._pki, federation=self._federation.digest, address=self._book.address, proxy_for=self._proxy_for
        )
        threads = concurrent.futures.ThreadPoolExecutor(min(DIALS_MAX, len(self._peers)), thread_name_prefix="dial")
        try:
            return list(await asyncio.gather(*(self._dial(name, client, threads) for name in self._peers)))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            await client.close()

    async def _dial(self, peer: SiteName, client: ExchangeClient, threads: concurrent.futures.Executor) -> Finding:
        """Dial the peer's addresses until it answers at one.

        A finding about the first failure if it never does.
        """
        failures: dict[str, handshake.Diagnosis] = {}
        while len(failures) < TRIED_MAX:
            address = self._book.address(peer)
            if address is None or address in failures:
                break
            loop = asyncio.get_running_loop()
            diagnosis = await loop.run_in_executor(threads, self._diagnose, address, peer)
            if diagnosis.fault == handshake.Fault.NONE:
                finding = await self._greet(peer, client, address)
                others = await self._describe_others(peer, address, failures, threads)
                return dataclasses.replace(finding, message=finding.message + others)
            failures[address] = diagnosis
            self._book.fail(peer, address)
        if not failures:
            remedy = "start that site, or add its address to [addresses] in site.toml"
            if not self._site.discovery.zeroconf:
                remedy = "add it to [addresses] in site.toml, or set [discovery] zeroconf on a network that all share"
            return Finding(peer, "warning", "no address is known", remedy)
        faults = [diagnosis for diagnosis in failures.values() if diagnosis.fault != handshake.Fault.UNREACHABLE]
        first = next(iter(faults or failures.values()))
        if not faults:
            more_tried = len(failures) - 1
            noun = "address" if more_tried == 1 else "addresses"
            more = f", and at {more_tried} other {noun} neither" if more_tried else ""
            return Finding(peer, "warning", first.detail + more, first.remedy)
        return Finding(peer, "failure", f"{first.fault}: {first.detail}", first.remedy)

    async def _describe_others(
        self,
        peer: SiteName,
        working: str,
        failures: Mapping[str, handshake.Diagnosis],
        threads: concurrent.futures.Executor,
    ) -> str:
        """Return what the other addresses are good for, once one works: the daemon falls back on them."""
        loop = asyncio.get_running_loop()
        untried = [address for address in self._book.known(peer) if address not in (working, *failures)][:TRIED_MAX]
        tried = await asyncio.gather(
            *(loop.run_in_executor(threads, self._diagnose, address, peer) for address in untried)
        )
        words = []
        for address, diagnosis in [*failures.items(), *zip(untried, tried, strict=True)]:
            works = diagnosis.fault == handshake.Fault.NONE
            way = describe_route(self._book, self._proxy_for, peer, address)
            words.append(f"{address} ({way}) " + ("works, too" if works else f"does not work: {diagnosis.detail}"))
        return "".join(f"; {each}" for each in words)

    def _diagnose(self, address: str, peer: SiteName) -> handshake.Diagnosis:
        host, port = split_address(address)
        through = self._proxy_for(peer, address)
        return handshake.diagnose(host, port, pki=self._pki, site=peer, proxy=through)

    async def _greet(self, peer: SiteName, client: ExchangeClient, address: str) -> Finding:
        """Compare digests and clocks.

        Generation 0 tells the peer that the caller takes no part in the rounds.
        """
        federation = self._federation
        own_hello = Hello(
            protocol=limits.PROTOCOL_VERSION,
            federation=federation.digest,
            roster=federation.roster.digest,
            generation=0,
            clock_s=time.time(),
            round_key_tag=round_key_tag(self._pki.load().round_key or NO_ROUND_KEY, federation.digest),
            head=self._head,
            class_names=digest_names(self._class_names, federation.digest),
        )
        try:
            answer = await client.hello(peer, own_hello)
        except Unreachable as error:
            return Finding(peer, "warning", f"does not answer now: {error.reason}", "look again in a minute")
        except NotAdmitted as error:
            if not self._is_added and tls.NOT_IN_ROSTER in error.reason:
                self._unaware.add(peer)
                return Finding(peer, "warning", f"does not have the amendment that adds this site yet, and refuses it: "
                               f"{error.reason}", WAIT_FOR_AMENDMENT)  # fmt: skip
            return Finding(peer, "failure", error.reason, "compare `mhfl-peer federation show` at both sites")
        except ExchangeError as error:
            remedy = "compare `mhfl-peer federation show` at both sites"
            if NUMBERS_DIFFER in error.reason:
                remedy = "give each class one number, in the datalists of both sites"
            return Finding(peer, "failure", add_own_name(error.reason, self._own, self._class_names), remedy)
        self._answered.add(peer)
        skew_s = round(answer.clock_s - time.time(), 1) + 0.0  # -0.0 becomes 0.0
        route = describe_route(self._book, self._proxy_for, peer, address)
        way = address if route == "direct" else f"{address} ({route})"
        text = f"answers at {way} as {answer.software or 'a peer'}, same federation, clock {skew_s:+.1f} s"
        remedies = ["set both clocks (NTP)"] if abs(skew_s) > limits.CLOCK_SKEW_WARNING_S else []
        if differing := list(differing_names(self._class_names, answer.class_names, federation.digest)):
            text += f"; its datalist has another name for class {', '.join(differing)}"
            remedies.append("ask that site what its class is, or found the federation with class_names")
        return Finding.by_remedy(peer, text, "; ".join(remedies))

    async def _wait_for_calls(self) -> dict[SiteName, bool]:
        """Return whether each peer has called this site, after the time in which a running peer calls."""
        if self._status is not None:
            limit_s = CALLED_BEATS_MAX * self._federation.beat_s
            ages = {name: self._status["peers"][name]["called_s"] for name in self._peers}
            return {name: age is not None and age <= limit_s for name, age in ages.items()}
        await self._listener.wait_for_calls(self._answered, limit_s=BEATS * self._federation.beat_s + SLACK_S)
        return {name: name in self._listener.callers for name in self._peers}

    def _is_up(self, peer: SiteName, called: Mapping[SiteName, bool]) -> bool:
        """Return whether the peer is known to run; of any other peer, a missing call proves nothing."""
        return called.get(peer, False) or peer in self._answered

    def _check_way_back(self, peer: SiteName, called: bool) -> Finding:
        subject, relays = f"from {peer}", self._site.connect.relays
        if called:
            return Finding(subject, "ok", f"{peer} reaches this site")
        if relays and self._status is None:  # a relay has connections of the daemon alone
            return Finding(subject, "ok", f"{peer} runs; it can reach this site by a relay once the daemon runs")
        founded, source = self._founded, self._source
        where = f"{founded}, as {source} says" if founded else f"any address: {source} gives none"
        if not self._is_added:
            where = "the address in the amendment that adds it, which is not here yet"
        port = f"open the port in the firewall towards {self._site.listen}, "
        return Finding(
            subject, "warning", f"{peer} runs, and does not reach this site at {where}",
            f"{'' if relays else port}have the founder correct the address, or that "
            f"site's operator write the right one into [addresses] {self._own}",
        )  # fmt: skip

    def _check_own_address(self, reached: bool) -> Finding:
        """Check whether peers can reach this site's listening address; a call from one proves it."""
        founded, listen = self._founded, self._site.listen
        discovered = self._site.discovery.zeroconf
        ways = [f"{self._source} sends the others to {founded}"] if founded else []
        ways += ["this site is announced"] if discovered else []
        relays = self._site.connect.relays
        if relays and self._is_added and not split_route(founded or "")[0]:
            ways.append(f'[addresses] of the others must have "relay {relays[0]}"')
        if not self._is_added:
            ways.insert(0, "the amendment that adds this site, and has its address, is not here yet")
        text = f"{' and '.join(ways) or f'{self._source} gives this site no address'}; it listens on {listen}"
        return Finding.by_remedy("address", text, "" if reached else self._correction(founded, discovered=discovered))

    @property
    def _source(self) -> str:
        """What has this site's address for the others."""
        is_founder = self._own in self._federation.roster
        return "federation.toml" if is_founder else "the amendment that adds this site"

    def _check_amendment(self) -> Iterator[Finding]:
        """Return what a newcomer waits for while it does not have the amendment that adds it."""
        if self._is_added:
            return
        text = "the amendment that adds this site is not here yet"
        if self._answered:
            text += f"; the daemon gets it from {', '.join(sorted(self._answered))}"
            yield Finding("amendment", "ok", text)
        elif self._unaware:
            yield Finding(
                "amendment", "warning", f"{text}, nor at {', '.join(sorted(self._unaware))}", WAIT_FOR_AMENDMENT
            )
        else:
            yield Finding("amendment", "ok", f"{text}: the first member that has it gives it to the daemon")

    def _correction(self, founded: str | None, *, discovered: bool) -> str:
        """Return the remedy if peers cannot reach the site at its address; empty if they can."""
        host, port = split_address(self._site.listen)
        relay, address = split_route(founded or "")
        if relay:
            parks = f"{relay} {address}" in self._site.connect.relays
            return "" if parks else f'add "{relay} {address}" to [connect] relays in site.toml'
        if self._site.connect.relays:
            return ""  # what the others' site.toml says is not known here
        if port == 0 and not discovered:
            return "set a port in `listen`: this is another one at each start, and nobody is told which"
        if founded is None and not self._is_added:
            local = f'set listen = "0.0.0.0:{port}" in site.toml: no other machine reaches {host}'
            return local if is_loopback(host) else ""
        if founded is None:
            remedy = "the others must write an address into [addresses], or all sites set [discovery] zeroconf"
            return "" if discovered else remedy
        founded_host, founded_port = split_address(founded)
        if is_loopback(host) and not is_loopback(founded_host):
            return f'set listen = "0.0.0.0:{port}" in site.toml: no other machine reaches {host}'
        if port not in (0, founded_port):
            return "make the ports equal, unless a router or container passes the one on to the other"
        return ""
