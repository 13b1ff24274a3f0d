"""Fetches the amendments behind the heads that peers state, and keeps a start from acting before it has them."""

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
    """Runs the questions for amendments of one site.

    Args:
        chain: says what to ask, and keeps the answers.
        client: calls peers.
        report: hands an event to the state machine.
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
        """Keep what a start hears of its peers until it has the amendments that they stated first.

        It would open a round by an old chain otherwise: a backup may have been restored. Once these
        questions are over, nothing is held any more.
        """
        if self._held is None or not self._tasks or not isinstance(event, events.PeerGreeted | events.PeerHeard):
            return False
        self._held.append(event)
        return True

    def note_head(self, peer: SiteName, head: ChainHead | None) -> None:
        """Look into the amendment that a caller states, beside its call."""
        if self._chain.follows(peer, head):
            self._begin(peer, self.follow(peer, head))

    def ask_why(self, peer: SiteName) -> None:
        """Ask a peer that does not admit this site whether an amendment expelled it, beside other calls."""
        self._begin(peer, self._ask(peer, lambda: self._chain.ask_why(peer, self._client)))

    async def follow(self, peer: SiteName, head: ChainHead | None) -> None:
        """Ask a peer for the amendments behind its head, if this site does not have them."""
        chain, client = self._chain, self._client
        await self._ask(peer, lambda: chain.follow(peer, head, client) if chain.is_added else chain.ask(peer, client))

    async def _ask(self, peer: SiteName, question: Callable[[], Awaitable[object]]) -> None:
        try:
            await question()
        except NotAdmitted as error:
            if self._chain.is_added:
                log.info("amendments not fetched", extra={"peer": peer, "reason": str(error)})
            elif self._refused_by.get(peer) != error.reason:  # it is asked again with each heartbeat
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
