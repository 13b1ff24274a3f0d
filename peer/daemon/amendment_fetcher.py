"""Fetches the amendments up to the chain tips that peers state, and defers a start until it has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from peer import errors
from peer.core import events
from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.daemon.chain_keeper import ChainKeeper
from peer.net.transport.client import ExchangeClient, ExchangeError, NotAdmitted

log = logging.getLogger(__name__)


class AmendmentFetcher:
    """Requests amendments from the peers of one site.

    Args:
        chain: decides what to request, and stores the answers.
        client: calls peers.
        report: passes an event to the state machine.
        fail: called with an error that the site cannot survive, such as a failed disk.
    """

    def __init__(
        self,
        chain: ChainKeeper,
        *,
        client: ExchangeClient,
        report: Callable[[events.Event], None],
        fail: Callable[[errors.PeerError], None],
    ) -> None:
        self._chain, self._client = chain, client
        self._report, self._fail = report, fail
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[events.Event] | None = []
        self._refused_by: dict[SiteName, str] = {}

    def holds(self, event: events.Event) -> bool:
        """Defer a peer's event during the start until the first amendments are fetched; return whether it is deferred.

        Otherwise the site might open a round by an old chain: a backup may have been restored. Later no event is
        deferred.
        """
        if self._held is None or not self._tasks or not isinstance(event, events.PeerGreeted | events.PeerHeard):
            return False
        self._held.append(event)
        return True

    def note_head(self, peer: SiteName, head: ChainHead | None) -> None:
        """Fetch the amendments of a chain tip that a caller states, in a task beside its call."""
        if self._chain.follows(peer, head):
            self._begin(peer, self.follow(peer, head))

    def ask_why(self, peer: SiteName) -> None:
        """Ask a peer that does not admit this site, in a task, whether an amendment expelled this site."""
        self._begin(peer, self._ask(peer, lambda: self._chain.ask_why(peer, self._client)))

    async def follow(self, peer: SiteName, head: ChainHead | None) -> None:
        """Fetch the amendments up to a peer's chain tip, if this site does not have them."""
        chain, client = self._chain, self._client
        await self._ask(peer, lambda: chain.follow(peer, head, client) if chain.is_added else chain.ask(peer, client))

    async def _ask(self, peer: SiteName, question: Callable[[], Awaitable[object]]) -> None:
        try:
            await question()
        except NotAdmitted as error:
            if self._chain.is_added:
                log.info("amendments not fetched", extra={"peer": peer, "reason": str(error)})
            elif self._refused_by.get(peer) != error.reason:  # each heartbeat asks it again
                self._refused_by[peer] = error.reason
                log.warning("peer does not admit this site yet", extra={"peer": peer, "reason": error.reason})
        except (ExchangeError, errors.CertificateError) as error:
            log.info("amendments not fetched", extra={"peer": peer, "reason": str(error)})
        except errors.PeerError as error:
            log.error("amendments cannot be kept", extra={"peer": peer, "reason": str(error)})
            self._fail(error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, peer: SiteName, question: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(question, name=f"amendments of {peer}")
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks and self._held is not None:
            held, self._held = self._held, None
            for event in held:
                self._report(event)
