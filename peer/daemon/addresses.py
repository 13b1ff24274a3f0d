"""Where each peer may be found: what the operator wrote, what was discovered, what the founder wrote; and what worked.

An address is a hint and nothing more. Whoever answers there shows a certificate, so that a false one costs a dial.
"""

from __future__ import annotations

import logging
from collections import deque

from peer.config.reload import SiteTomlWatcher
from peer.config.schema import FederationConfig, SiteConfig
from peer.config.toml import suggestion
from peer.core.roster import SiteName
from peer.errors import ConfigError

log = logging.getLogger(__name__)

DISCOVERED_MAX = 8
"""What is kept of one site's announcements: two networks in two IP versions, before and after a move."""
FAILURES_MAX = 2
"""In a row, until an address that works makes room for others: one lost beat is no proof of a move."""


class Candidates:
    """One peer's addresses, tried in turn; the one that answered last stays in use until it fails.

    A turn begins with the address that answered last, then the operator's, those announced, newest first, and the
    founder's.
    """

    def __init__(self, *, written: str | None = None, founded: str | None = None) -> None:
        """The address in ``[addresses]`` and the one in ``federation.toml``, where there are any."""
        self._written, self._founded = written, founded
        self._discovered: deque[str] = deque(maxlen=DISCOVERED_MAX)
        self._proven: str | None = None  # answered last, also if it does not any more
        self._working = False
        self._failures = 0
        self._turn: deque[str] = deque()  # the first is in use
        self._pushed = 0

    @property
    def current(self) -> str | None:
        """The address to dial now; nothing while none is known."""
        if not self._turn:
            self._begin_turn()
        return self._turn[0] if self._turn else None

    def write(self, address: str | None) -> None:
        """The operator's word: a new address is the next to be tried, whatever works now."""
        if address == self._written:
            return
        self._written, self._working, self._failures = address, False, 0
        self._begin_turn()
        if address is not None:
            self._turn.remove(address)
            self._turn.appendleft(address)

    def discover(self, address: str) -> bool:
        """An announcement; whether to dial it now, because nothing else works.

        In one turn only so many push in: a flood of false ones must not keep the others from their turn.
        """
        in_use = self.current
        if address in self._discovered:
            self._discovered.remove(address)
        self._discovered.appendleft(address)
        if self._working or address in self._turn or self._pushed >= DISCOVERED_MAX:
            return False
        self._turn.insert(0 if in_use is None else 1, address)  # the first may be in the middle of a dial
        self._pushed += 1
        return True

    def succeed(self, address: str) -> bool:
        if address != self.current:
            return False  # the operator chose another one meanwhile
        news = address != self._proven
        self._proven, self._working, self._failures = address, True, 0
        return news

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
        known = (self._proven, self._written, *self._discovered, self._founded)
        self._turn = deque(dict.fromkeys(address for address in known if address is not None))
        self._pushed = 0


class AddressBook:
    """The addresses of all peers of one site.

    Args:
        own: this site's name.
        federation: names the peers, and the founder's addresses.
        site: the operator's; its file is looked at again for ``[addresses]``, and for nothing else.
    """

    def __init__(self, *, own: SiteName, federation: FederationConfig, site: SiteConfig) -> None:
        self._federation, self._file = federation, SiteTomlWatcher(site, "addresses")
        self._peers = {
            name: Candidates(written=site.addresses.get(name), founded=federation.addresses.get(name))
            for name in federation.roster.others(own)
        }

    def address(self, peer: SiteName) -> str | None:
        return self._peers[peer].current

    def discover(self, peer: SiteName, address: str) -> bool:
        """Take in an announcement for a peer; whether to dial it now. Announcements for strangers come to nothing."""
        return peer in self._peers and self._peers[peer].discover(address)

    def succeed(self, peer: SiteName, address: str) -> None:
        if self._peers[peer].succeed(address):
            log.info("peer found", extra={"peer": peer, "address": address})

    def fail(self, peer: SiteName, address: str) -> None:
        self._peers[peer].fail(address)

    def reread(self) -> None:
        """Take over ``[addresses]`` if the file was changed; one that is broken is named once, and nothing changes."""
        site = self._file.read_change()
        if site is None:
            return
        addresses = site.addresses
        for stranger in addresses.keys() - set(self._federation.roster):
            hint = suggestion(stranger, self._federation.roster)
            self._file.log_unusable(ConfigError(f"{site.where}: addresses.{stranger}: not in the roster{hint}"))
            return
        for name, candidates in self._peers.items():
            candidates.write(addresses.get(name))
        log.info("addresses read again", extra={"addresses": dict(addresses)})
