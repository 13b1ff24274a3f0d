"""Spread of the notices of leaving sites: calls carry a notice until the peer's answer shows the same.

A peer has a notice once the peer itself shows it, in a call or in the answer to a call with it: it shows only notices
on its disk. An answer with a notice that the call did not have confirms nothing yet. The peer cannot know that its
answer arrived; this site's next call, or its farewell, confirms it. Every member passes notices on, so that a peer that
was down while a site left learns of it from any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping

from peer.core import events
from peer.core.messages import SignedNotice
from peer.core.roster import SiteName
from peer.core.status_document import PeerWait, peer_wait
from peer.net.transport.rates import loop_time

log = logging.getLogger(__name__)

ALL_S = 10.0
"""Seconds that a leaving site stays for the last peers after the first answer: several attempts to dial each."""


class NoticeSpread:
    """The notices that a site knows, and the peers that may lack them.

    Args:
        own: this site's name; its own notice is sent first, then the receiver's, which waits for that.
        notices: returns the valid notices by leaving site.
    """

    def __init__(self, own: SiteName, notices: Callable[[], Mapping[SiteName, SignedNotice]]) -> None:
        self._own, self._notices = own, notices
        self._had: defaultdict[SiteName, set[SiteName]] = defaultdict(set)
        self._turns: Counter[SiteName] = Counter()

    def lacks(self, peer: SiteName) -> list[SiteName]:
        """Return the leaving sites whose notices the peer may lack."""
        return sorted(self._notices().keys() - self._had[peer])

    def next(self, peer: SiteName, *, echo: SiteName | None = None) -> SignedNotice | None:
        """Choose the notice for the next heartbeat to a peer, in turn among those that it may lack; None if it has all.

        Args:
            peer: the receiver.
            echo: the site whose notice the peer's call had; an answer shows that this site has it, too.
        """
        if echo is not None and echo in self._notices():
            return self._notices()[echo]
        lacked = self.lacks(peer)
        if not lacked:
            return None
        self._turns[peer] += 1
        turn = lacked[self._turns[peer] % len(lacked)]
        return self._notices()[next((name for name in (self._own, peer) if name in lacked), turn)]

    def confirm(self, peer: SiteName, leaver: SiteName) -> None:
        """Record that the peer has shown a site's notice."""
        self._had[peer].add(leaver)

    def forget(self, peer: SiteName) -> None:
        """Forget a greeting peer's notices: it may have been restored from a backup."""
        self._had[peer].clear()

    def unreached(self, peers: Collection[SiteName]) -> frozenset[SiteName]:
        """Return the peers that may lack this site's own notice; empty while it stays a member."""
        return frozenset(peer for peer in peers if self._own in self.lacks(peer))


class NoticeWait:
    """The wait of a leaving site until its peers have its notice.

    Once one peer has it, the others get it from there; so the site stays at most ``ALL_S`` for peers that are down, and
    ``linger_s`` while it reaches nobody.

    Args:
        spread: tracks which peers may lack the notice; every heartbeat to these carries it.
        peers: returns the peers that are called.
        linger_s: the longest stay.
    """

    def __init__(self, spread: NoticeSpread, peers: Callable[[], Collection[SiteName]], *, linger_s: float) -> None:
        self._spread, self._peers, self._linger_s = spread, peers, linger_s
        self._began_s: float | None = None
        self._reached_s: float | None = None

    def waits(self) -> list[PeerWait]:
        """Return the peers that may lack the notice, with a deadline once ``stay`` has begun."""
        began_s = self._began_s
        since_s = 0.0 if began_s is None else loop_time() - began_s
        left_s = None if began_s is None else round(self._left_s(began_s), 1)
        return [peer_wait(name, "notice", since_s, left_s) for name in self._unreached()]

    async def stay(self, queue: asyncio.Queue[events.Event], *, poll_s: float) -> None:
        """Return once every peer has the notice, the time is over, or the operator stops the daemon.

        Args:
            queue: the daemon's events; each answer of a peer is one.
            poll_s: interval of the checks without an event.
        """
        self._began_s = loop_time()
        while unreached := self._unreached():
            left_s = self._left_s(self._began_s)
            if left_s <= 0:
                log.warning("left before every peer knew; those that know tell the others", extra={"peers": unreached})
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, poll_s)):
                    if isinstance(await queue.get(), events.StopRequested):
                        return

    def _unreached(self) -> list[SiteName]:
        return sorted(self._spread.unreached(self._peers()))

    def _left_s(self, began_s: float) -> float:
        if self._reached_s is None and len(self._unreached()) < len(self._peers()):
            self._reached_s = loop_time()
        end_s = began_s + self._linger_s
        return (end_s if self._reached_s is None else min(end_s, self._reached_s + ALL_S)) - loop_time()
