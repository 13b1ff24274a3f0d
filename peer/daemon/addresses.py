"""The addresses of each peer: the operator's, the announced ones, the founder's, and which of them works.

An address is only a hint. The peer that answers there shows its certificate, so a false address costs one dial.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import overload

from peer.core.roster import SiteName
from peer.errors import ConfigError
from peer.net.transport.proxy import Choose
from peer.site.config.reload import SiteTomlWatcher
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.toml import check_route, split_route, suggestion

log = logging.getLogger(__name__)

DISCOVERED_MAX = 8
"""Remembered announcements of one site: two networks in two IP versions, before and after a move."""
FAILURES_MAX = 2
"""Consecutive failures before other addresses are tried: one lost heartbeat does not mean a move."""


class Candidates:
    """One peer's addresses, tried in turn; the one that answered last stays in use until it fails.

    A turn begins with the address that answered last. The operator's follow, then the announced ones, newest first,
    then the founder's.
    """

    def __init__(self, *, operators: Sequence[str] = (), founders: str | None = None) -> None:
        """Start with the addresses of ``[addresses]`` and that of ``federation.toml``, if any."""
        self._operators, self._founders = tuple(operators), founders
        self._discovered: deque[str] = deque(maxlen=DISCOVERED_MAX)
        self._proven: str | None = None  # answered last, even if it no longer does
        self._working = False
        self._failures = 0
        self._turn: deque[str] = deque()  # the first is in use
        self._pushed = 0

    @property
    def current(self) -> str | None:
        """The address to dial now; ``None`` while none is known."""
        if not self._turn:
            self._begin_turn()
        return self._turn[0] if self._turn else None

    @property
    def answers(self) -> bool:
        """Whether the address to dial now answered one of its last two calls."""
        return self._working

    def set_operators(self, addresses: Sequence[str]) -> None:
        """Set the operator's addresses; new ones are tried next, even if another one works."""
        if tuple(addresses) == self._operators:
            return
        self._operators, self._working, self._failures = tuple(addresses), False, 0
        self._begin_turn()
        for address in reversed(self._operators):
            self._turn.remove(address)
            self._turn.appendleft(address)

    @property
    def known(self) -> tuple[str, ...]:
        """Every address, the best first."""
        listed = (self._proven, *self._operators, *self._discovered, self._founders)
        return tuple(dict.fromkeys(address for address in listed if address is not None))

    def discover(self, address: str) -> bool:
        """Add an announced address; return whether to dial it now because no other address works.

        At most ``DISCOVERED_MAX`` join a turn, so that a flood of false addresses does not displace the others.
        """
        in_use = self.current
        if address in self._discovered:
            self._discovered.remove(address)
        self._discovered.appendleft(address)
        if self._working or address in self._turn or self._pushed >= DISCOVERED_MAX:
            return False
        self._turn.insert(0 if in_use is None else 1, address)  # a dial of the first may be under way
        self._pushed += 1
        return True

    def succeed(self, address: str) -> bool:
        if address != self.current:
            return False  # the operator has set another one meanwhile
        is_new = address != self._proven
        self._proven, self._working, self._failures = address, True, 0
        return is_new

    def fail(self, address: str) -> None:
        if address != self.current:
            return
        self._failures += 1
        if self._working and self._failures < FAILURES_MAX:
            return
        if self._working:
            self._working = False
            self._begin_turn()
        self._turn.remove(address)
        self._failures = 0

    def _begin_turn(self) -> None:
        self._turn = deque(self.known)
        self._pushed = 0


class AddressBook:
    """The addresses of all peers of one site.

    Args:
        own: this site's name.
        federation: has the peers and the founder's addresses.
        site: has the operator's addresses; only ``[addresses]`` of its file is read again.
    """

    def __init__(self, *, own: SiteName, federation: FederationConfig, site: SiteConfig) -> None:
        self._site, self._file = site, SiteTomlWatcher(site, "addresses")
        self._own = own
        self._relays: dict[str, str] = {}
        self._peers = {
            name: Candidates(
                operators=self._operators(site, name), founders=self._dialled(federation.addresses.get(name))
            )
            for name in federation.roster.others(own)
        }

    def follow_roster(self, founders: Mapping[SiteName, str | None]) -> None:
        """Add the sites that are new, each with the address in its amendment.

        An address that cannot be dialled is dropped: no chain may keep this site from starting.
        """
        for name, address in founders.items():
            if name in self._peers:
                continue
            founded = None
            try:
                founded = self._dialled(None if address is None else check_route(address))
            except ValueError as error:
                log.warning("address not usable", extra={"peer": name, "reason": str(error)})
            self._peers[name] = Candidates(operators=self._operators(self._site, name), founders=founded)

    def _operators(self, site: SiteConfig, peer: SiteName) -> list[str]:
        return [self._dialled(text) for text in site.addresses.get(peer, ())]

    @overload
    def _dialled(self, route: str) -> str: ...

    @overload
    def _dialled(self, route: None) -> None: ...

    def _dialled(self, route: str | None) -> str | None:
        """Return the address to dial for a route, and note a relay's address."""
        if route is None:
            return None
        relay, address = split_route(route)
        if relay:
            self._relays[address] = relay
        return address

    def known(self, peer: SiteName) -> tuple[str, ...]:
        """Return every address of a peer, the best first."""
        return self._peers[peer].known

    def answers(self, peer: SiteName) -> bool:
        """Return whether the peer has answered at the address that is dialled now."""
        return self._peers[peer].answers

    def relay(self, address: str) -> str:
        """Return the relay that the operator placed at an address; empty if there is none."""
        return self._relays.get(address, "")

    def address(self, peer: SiteName) -> str | None:
        return self._peers[peer].current

    def discover(self, peer: SiteName, address: str) -> bool:
        """Add an announced address of a peer; return whether to dial it now.

        Other sites are ignored.
        """
        return peer in self._peers and self._peers[peer].discover(address)

    def succeed(self, peer: SiteName, address: str) -> None:
        if self._peers[peer].succeed(address):
            log.info("peer found", extra={"peer": peer, "address": address})

    def fail(self, peer: SiteName, address: str) -> None:
        self._peers[peer].fail(address)

    def reread(self) -> None:
        """Apply ``[addresses]`` if the file changed; a broken file is logged once and changes nothing."""
        site = self._file.read_change()
        if site is None:
            return
        addresses = site.addresses
        for unknown in addresses.keys() - {self._own, *self._peers}:
            hint = suggestion(unknown, sorted((self._own, *self._peers)))
            self._file.log_unusable(ConfigError(f"{site.where}: addresses.{unknown}: not in the roster{hint}"))
            return
        self._site = site
        for name, candidates in self._peers.items():
            candidates.set_operators(self._operators(site, name))
        log.info("addresses read again", extra={"addresses": dict(addresses)})


def describe_route(addresses: AddressBook, proxy_for: Choose, peer: SiteName, address: str) -> str:
    """Describe the route to a peer's address: ``direct``, or through which proxy and which relay."""
    proxy, relay = proxy_for(peer, address), addresses.relay(address)
    through = [f"proxy {proxy}"] * (proxy is not None) + [f"relay {relay}"] * bool(relay)
    return ", ".join(through) or "direct"
