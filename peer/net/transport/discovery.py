"""Zeroconf on the local network: announces this site's address, and listens for those of its peers.

Service type ``_mhfl._tcp.local.``, instance ``<site>-<8 hex digits of the federation's digest>``, TXT ``version=1``,
``federation=<16 hex digits>``, ``site=<name>``. Any host on the network can announce anything, so an announcement only
gives an address to dial; certificates decide which site answers there. The number of remembered announcements is
limited, and none is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peer.core.roster import Sha256, SiteName

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

log = logging.getLogger(__name__)

SERVICE = "_mhfl._tcp.local."
VERSION = "1"
INSTANCE_DIGITS, TEXT_DIGITS = 8, 16
ADDRESSES_MAX = 4
"""Addresses of one announcement: a site with two networks has one of each IP version in each."""
RESOLVING_MAX = 16
"""Concurrent lookups of announcements without an address; nearly all announcements have one."""
NAMES_MAX = 2000
"""Announcements between two refreshes, of any federation; the largest federation has two for each
site. More of them are a flood: the library remembers each for up to an hour, so the site stops
listening until the refresh.
"""
RESOLVE_S = 3.0
"""zeroconf's default: a responder answers within a tenth of it."""
REFRESH_S = 30.0
"""Between refreshes: a look at this machine's interfaces, and a new attempt if discovery failed."""


@dataclass(frozen=True, slots=True)
class AnnouncedAddress:
    """The port and addresses to announce for this site, and the interfaces to announce them on, by their address.

    Empty ``interfaces`` stand for all of this machine's.
    """

    port: int
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]


class Discovery:
    """Announces one site, and reports the announced addresses of its peers.

    Args:
        site: this site's name.
        federation: the digest; other federations' announcements are ignored.
        peers: the sites whose announcements are reported.
        on_address: called with each announced address as ``host:port``, newest last; called again at each refresh.
        refresh_s: seconds between refreshes.

    Attributes:
        problem: why discovery does not work now; empty while it does.
    """

    def __init__(
        self,
        *,
        site: SiteName,
        federation: Sha256,
        peers: Collection[SiteName],
        on_address: Callable[[SiteName, str], None],
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._site, self._federation, self._on_address, self._refresh_s = site, federation, on_address, refresh_s
        self._peers = {_instance(peer, federation): peer for peer in peers}
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._service: AsyncServiceInfo | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._names = 0
        self.problem = ""
        self._watch: asyncio.Task[None] | None = None

    def follow_roster(self, peers: Collection[SiteName]) -> None:
        """Report the announcements of these sites from now on."""
        self._peers = {_instance(peer, self._federation): peer for peer in peers}

    def start(self, find_address: Callable[[], AnnouncedAddress]) -> None:
        """Start to announce and to listen in the background, as soon as the network is up.

        Args:
            find_address: returns this site's address; called at every refresh, since interfaces may change. It may
                block.
        """
        self._watch = asyncio.create_task(self._run(find_address), name="discovery")

    async def stop(self) -> None:
        """Stop listening, and withdraw the announcement so that other hosts forget this site."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._close()

    async def _run(self, find_address: Callable[[], AnnouncedAddress]) -> None:
        announced_address: AnnouncedAddress | None = None
        warned = ""
        while True:
            try:
                self.problem = ""
                if self._names > NAMES_MAX:
                    announced_address, self.problem = None, f"over {NAMES_MAX} announcements in {self._refresh_s:g} s"
                self._names = 0
                if (address := await asyncio.to_thread(find_address)) != announced_address:
                    await self._close()
                    await self._open(address)
                    announced_address = address
                else:
                    self._repeat()
            except Exception as error:  # the network or the library failed: the site runs without discovery
                announced_address, self.problem = None, str(error) or repr(error)
                await self._close()
            if self.problem and self.problem != warned:
                log.warning("discovery does not work; trying again", extra={"reason": self.problem})
            warned = self.problem
            await asyncio.sleep(self._refresh_s)

    async def _open(self, address: AnnouncedAddress) -> None:
        from zeroconf import InterfaceChoice, IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        if address.interfaces:
            zeroconf = AsyncZeroconf(interfaces=list(address.interfaces))
        else:
            both = any(":" in host for host in address.addresses)
            version = IPVersion.All if both else IPVersion.V4Only
            zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All, ip_version=version)
        self._zeroconf = zeroconf
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._on_announcement])
        instance = _instance(self._site, self._federation)
        text = {"version": VERSION, "federation": self._federation[:TEXT_DIGITS], "site": self._site}
        self._service = AsyncServiceInfo(
            SERVICE,
            f"{instance}.{SERVICE}",
            port=address.port,
            properties=text,
            server=f"{instance}.local.",
            parsed_addresses=list(address.addresses),
        )
        # Another host may use the name already: then the protocol adds a number to it.
        await (await zeroconf.async_register_service(self._service, allow_name_change=True))
        log.info("announced", extra={"addresses": list(address.addresses), "port": address.port})

    def _repeat(self) -> None:
        """Report the addresses under the peers' own names again: false announcements may have displaced them."""
        from zeroconf.asyncio import AsyncServiceInfo

        for instance in self._peers:
            info = AsyncServiceInfo(SERVICE, f"{instance}.{SERVICE}")
            if self._zeroconf is not None and info.load_from_cache(self._zeroconf.zeroconf):
                self._report(info)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        browser, self._browser = self._browser, None
        zeroconf, self._zeroconf = self._zeroconf, None
        with contextlib.suppress(Exception):  # the network may be gone
            async with asyncio.timeout(RESOLVE_S):
                if browser is not None:
                    await browser.async_cancel()
                if zeroconf is not None:
                    await zeroconf.async_close()

    def _on_announcement(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        """Handle a new or changed announcement; ignore withdrawals, which may be false.

        The peers' names are known, so other announcements are not resolved.
        """
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceInfo

        self._names += state_change is ServiceStateChange.Added
        if self._names > NAMES_MAX:
            self._stop_listening()
            return
        if state_change is ServiceStateChange.Removed or not any(map(name.startswith, self._peers)):
            return
        info = AsyncServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._report(info)
        elif len(self._tasks) < RESOLVING_MAX:
            self._start_task(self._resolve(zeroconf, info))

    def _stop_listening(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            self._start_task(browser.async_cancel())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="discovery")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        with contextlib.suppress(Exception):  # an unknown host's answer may break the library
            if await info.async_request(zeroconf, RESOLVE_S * 1000):
                self._report(info)

    def _report(self, info: AsyncServiceInfo) -> None:
        """Report the addresses of a well-formed announcement by a peer of this federation."""
        peer = announced(info.properties, self._federation)
        if peer is None or peer not in self._peers.values() or not info.port:
            return
        for address in reversed(dialable(info.parsed_addresses())[:ADDRESSES_MAX]):
            self._on_address(peer, f"[{address}]:{info.port}" if ":" in address else f"{address}:{info.port}")


def announced(text: dict[bytes, Any], federation: Sha256) -> SiteName | None:
    """Return the site that a TXT record names; ``None`` for a malformed or foreign record."""
    try:
        fields = {key.decode("ascii"): value.decode("ascii") for key, value in text.items() if value is not None}
    except UnicodeDecodeError:
        return None
    if fields.get("version") != VERSION or fields.get("federation") != federation[:TEXT_DIGITS]:
        return None
    return SiteName(fields["site"]) if fields.get("site") else None


def dialable(addresses: Sequence[str]) -> list[str]:
    """Return the addresses that any host on their network can dial, without a scope, IPv4 first."""
    parsed = [ipaddress.ip_address(address) for address in addresses]
    scopeless = [ip for ip in parsed if not (ip.is_link_local or ip.is_unspecified or ip.is_multicast)]
    return [str(ip) for ip in sorted(scopeless, key=lambda ip: ip.version)]


def served_at(host: str, port: int) -> AnnouncedAddress:
    """Choose the address to announce for a site that listens on a host; loopback only on its own interface.

    Raises:
        OSError: the host's name has no address.
    """
    if host in ("0.0.0.0", "::"):
        import ifaddr

        listed = [ip.ip if ip.is_IPv4 else ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips]
        own = dialable([str(address) for address in listed if host == "::" or ":" not in str(address)])
        beyond = [address for address in own if not ipaddress.ip_address(address).is_loopback]
        return AnnouncedAddress(port, choose_announced(beyond or own, _outward()), ())
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = tuple(dialable([str(name[0]) for *_, name in resolved])[:1])
    return AnnouncedAddress(port, first, first)


def choose_announced(addresses: Sequence[str], outward: str) -> tuple[str, ...]:
    """Return the first ``ADDRESSES_MAX`` addresses, the outward one first: a machine may have bridges."""
    return tuple(sorted(addresses, key=lambda address: (address != outward, address))[:ADDRESSES_MAX])


def _outward() -> str:
    """Return this machine's address on its default route; empty without one. Sends no packet."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that no host has
        return str(probe.getsockname()[0])
    return ""


@functools.cache
def _instance(site: SiteName, federation: Sha256) -> str:
    return f"{site}-{federation[:INSTANCE_DIGITS]}"
