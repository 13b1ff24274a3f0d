"""Zeroconf on the local network: tell where this site is served, and listen for where the others are.

Service type ``_mhfl._tcp.local.``, instance ``<site>-<8 hex digits of the federation's digest>``, TXT ``version=1``,
``federation=<16 hex digits>``, ``site=<name>``. Anybody on the network can say anything here, so that all it ever gives
is an address to dial: who answers there is settled by certificates. What is kept is bounded, and nothing is logged of
what others announce.
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
"""Taken from one announcement: a site with two networks has an address of each IP version in each."""
ASKING_MAX = 16
"""Announcements without an address that are asked about at a time; announcements nearly always hold theirs."""
NAMES_MAX = 2000
"""Announcements between two looks, of whatever federation: the largest one has two for each of its sites. The library
remembers each for up to an hour, so that after more of them, which is a flood, it is not listened to until the next."""
ASK_S = 3.0
"""zeroconf's own default: a responder answers within a tenth of it."""
LOOK_S = 30.0
"""Between looks at this machine's own interfaces; after so long, too, what could not be opened is tried again."""


@dataclass(frozen=True, slots=True)
class DiscoveredAddress:
    """Where this site is served: the port, the addresses to tell, and the interfaces to tell them on, by address.

    Empty ``interfaces`` are all that there are.
    """

    port: int
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]


class Discovery:
    """Announces one site, and passes on where the others are said to be.

    Args:
        site: this site's name.
        federation: the digest; other federations' announcements are left alone.
        peers: whose announcements matter.
        found: hears of each announced address, as ``host:port``, newest last; at each look of what still holds again.
        look_s: between looks at where this site is served.

    Attributes:
        problem: why it does not work now; empty while it does.
    """

    def __init__(
        self,
        *,
        site: SiteName,
        federation: Sha256,
        peers: Collection[SiteName],
        found: Callable[[SiteName, str], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._site, self._federation, self._found, self._look_s = site, federation, found, look_s
        self._peers = {_instance(peer, federation): peer for peer in peers}
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._told: AsyncServiceInfo | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._names = 0
        self.problem = ""
        self._watch: asyncio.Task[None] | None = None

    def start(self, where: Callable[[], DiscoveredAddress]) -> None:
        """Begin to announce and to listen, in the background: a network that is not up yet is waited for.

        Args:
            where: tells where this site is served, at the start and whenever the machine's interfaces may have changed;
                it may block.
        """
        self._watch = asyncio.create_task(self._run(where), name="discovery")

    async def stop(self) -> None:
        """Say goodbye, so that others' caches forget this site, and listen no more."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._close()

    async def _run(self, where: Callable[[], DiscoveredAddress]) -> None:
        told: DiscoveredAddress | None = None
        warned = ""
        while True:
            try:
                self.problem = ""
                if self._names > NAMES_MAX:
                    told, self.problem = None, f"over {NAMES_MAX} announcements in {self._look_s:g} s"
                self._names = 0
                if (place := await asyncio.to_thread(where)) != told:
                    await self._close()
                    await self._open(place)
                    told = place
                else:
                    self._repeat()
            except Exception as error:  # whatever the network or the library does, the site goes on without
                told, self.problem = None, str(error) or repr(error)
                await self._close()
            if self.problem and self.problem != warned:
                log.warning("discovery does not work; trying again", extra={"reason": self.problem})
            warned = self.problem
            await asyncio.sleep(self._look_s)

    async def _open(self, place: DiscoveredAddress) -> None:
        from zeroconf import InterfaceChoice, IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        if place.interfaces:
            zeroconf = AsyncZeroconf(interfaces=list(place.interfaces))
        else:
            both = any(":" in address for address in place.addresses)
            version = IPVersion.All if both else IPVersion.V4Only
            zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All, ip_version=version)
        self._zeroconf = zeroconf
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._heard])
        instance = _instance(self._site, self._federation)
        text = {"version": VERSION, "federation": self._federation[:TEXT_DIGITS], "site": self._site}
        self._told = AsyncServiceInfo(
            SERVICE,
            f"{instance}.{SERVICE}",
            port=place.port,
            properties=text,
            server=f"{instance}.local.",
            parsed_addresses=list(place.addresses),
        )
        # Somebody else may use the name already: then a number is added to it, as the protocol has it.
        await (await zeroconf.async_register_service(self._told, allow_name_change=True))
        log.info("announced", extra={"addresses": list(place.addresses), "port": place.port})

    def _repeat(self) -> None:
        """Pass on again what is announced under the peers' own names: lies may have pushed it out where it went."""
        from zeroconf.asyncio import AsyncServiceInfo

        for instance in self._peers:
            info = AsyncServiceInfo(SERVICE, f"{instance}.{SERVICE}")
            if self._zeroconf is not None and info.load_from_cache(self._zeroconf.zeroconf):
                self._take(info)

    async def _close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        browser, self._browser = self._browser, None
        zeroconf, self._zeroconf = self._zeroconf, None
        with contextlib.suppress(Exception):  # a network that is gone cannot be told goodbye
            async with asyncio.timeout(ASK_S):
                if browser is not None:
                    await browser.async_cancel()
                if zeroconf is not None:
                    await zeroconf.async_close()

    def _heard(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """An announcement came, or one that said something else than before; a goodbye may be a lie, and costs nothing.

        The names that matter are known, so that others' are not even looked up.
        """
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceInfo

        self._names += state_change is ServiceStateChange.Added
        if self._names > NAMES_MAX:
            self._go_deaf()
            return
        if state_change is ServiceStateChange.Removed or not any(map(name.startswith, self._peers)):
            return
        info = AsyncServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._take(info)
        elif len(self._asking) < ASKING_MAX:
            self._begin(self._ask(zeroconf, info))

    def _go_deaf(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            self._begin(browser.async_cancel())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="discovery")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        with contextlib.suppress(Exception):  # whatever a stranger's answer does to the library
            if await info.async_request(zeroconf, ASK_S * 1000):
                self._take(info)

    def _take(self, info: AsyncServiceInfo) -> None:
        """Pass on what an announcement says, if it is well-formed, of this federation and of a peer."""
        peer = announced(info.properties, self._federation)
        if peer is None or peer not in self._peers.values() or not info.port:
            return
        for address in reversed(usable(info.parsed_addresses())[:ADDRESSES_MAX]):
            self._found(peer, f"[{address}]:{info.port}" if ":" in address else f"{address}:{info.port}")


def announced(text: dict[bytes, Any], federation: Sha256) -> SiteName | None:
    """The site that a TXT record speaks of; nothing where it is of another version or federation, or makes no sense."""
    try:
        facts = {key.decode("ascii"): value.decode("ascii") for key, value in text.items() if value is not None}
    except UnicodeDecodeError:
        return None
    if facts.get("version") != VERSION or facts.get("federation") != federation[:TEXT_DIGITS]:
        return None
    return SiteName(facts["site"]) if facts.get("site") else None


def usable(addresses: Sequence[str]) -> list[str]:
    """Those that can be dialled from anywhere on their network: none that need a scope, and IPv4 first."""
    parsed = [ipaddress.ip_address(address) for address in addresses]
    wanted = [one for one in parsed if not (one.is_link_local or one.is_unspecified or one.is_multicast)]
    return [str(one) for one in sorted(wanted, key=lambda one: one.version)]


def served_at(host: str, port: int) -> DiscoveredAddress:
    """Where a site is served that listens on a host: a loopback address is announced on that interface alone.

    Raises:
        OSError: the host's name has no address.
    """
    if host in ("0.0.0.0", "::"):
        import ifaddr

        shown = [ip.ip if ip.is_IPv4 else ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips]
        own = usable([str(address) for address in shown if host == "::" or ":" not in str(address)])
        beyond = [address for address in own if not ipaddress.ip_address(address).is_loopback]
        return DiscoveredAddress(port, told(beyond or own, _outward()), ())
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = tuple(usable([str(name[0]) for *_, name in found])[:1])
    return DiscoveredAddress(port, first, first)


def told(addresses: Sequence[str], outward: str) -> tuple[str, ...]:
    """Those to announce, as many as are taken: the one that leads out first, for a machine may have many bridges."""
    return tuple(sorted(addresses, key=lambda address: (address != outward, address))[:ADDRESSES_MAX])


def _outward() -> str:
    """This machine's address on the way to the rest of the world; empty without a way. No packet is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # RFC 5737: nobody's
        return str(probe.getsockname()[0])
    return ""


@functools.cache
def _instance(site: SiteName, federation: Sha256) -> str:
    return f"{site}-{federation[:INSTANCE_DIGITS]}"
