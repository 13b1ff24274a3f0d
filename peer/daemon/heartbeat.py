"""Heartbeats: finds the peers, greets them, and sends heartbeats as long as the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from peer import errors
from peer.config.schema import FederationConfig, SiteConfig
from peer.config.toml import split_address
from peer.core import events
from peer.core.messages import Heartbeat
from peer.core.roster import SiteName
from peer.daemon.addresses import AddressBook
from peer.daemon.fetcher import backoff_s
from peer.daemon.service import PeerService
from peer.transport.client import ExchangeClient, Misbehaved, Refused, Unreachable
from peer.transport.discovery import Discovery, served_at

log = logging.getLogger(__name__)

FAREWELL_S = 1.0
"""How long the last heartbeat may take: a peer that misses it notices the silence instead."""


class Heartbeats:
    """One task a peer, and discovery where the site is configured for it.

    Args:
        own: this site's name.
        federation: has the peers and the interval of heartbeats.
        site: says whether to announce this site and discover others.
        addresses: the peers' addresses; is told how each dial ended.
        client: dials these addresses.
        service: makes this site's greetings and heartbeats, and checks those of peers.
        report: hands an event to the state machine.
    """

    def __init__(
        self,
        *,
        own: SiteName,
        federation: FederationConfig,
        site: SiteConfig,
        addresses: AddressBook,
        client: ExchangeClient,
        service: PeerService,
        report: Callable[[events.Event], None],
    ) -> None:
        self._federation, self._site, self._addresses, self._client = federation, site, addresses, client
        self._service, self._report = service, report
        self._nudges = {name: asyncio.Event() for name in federation.roster.others(own)}
        self._tasks: list[asyncio.Task[None]] = []
        self._discovery: Discovery | None = None
        if site.discovery.zeroconf:
            self._discovery = Discovery(
                site=own, federation=federation.digest, peers=tuple(self._nudges), on_address=self._on_address
            )

    def start(self, port: int) -> None:
        if self._discovery is not None:
            host, _ = split_address(self._site.listen)
            self._discovery.start(lambda: served_at(host, port))
        self._tasks = [asyncio.create_task(self._run_peer(name), name=f"heartbeats to {name}") for name in self._nudges]

    def nudge(self) -> None:
        """Send every peer a heartbeat now: the phase has changed."""
        for nudge in self._nudges.values():
            nudge.set()

    async def send_farewell(self) -> None:
        """Send every peer a last heartbeat, within ``FAREWELL_S``."""
        beats = [self._beat(name) for name in self._nudges]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.gather(*beats, return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        leaving = [self._discovery.stop()] if self._discovery is not None else []
        await asyncio.gather(*self._tasks, *leaving, return_exceptions=True)

    def _on_address(self, peer: SiteName, address: str) -> None:
        if self._addresses.discover(peer, address):
            self._nudges[peer].set()

    async def _run_peer(self, peer: SiteName) -> None:
        """Greet a peer until it answers, then send heartbeats; greet again if it may have restarted."""
        beat_s, nudge = self._federation.beat_s, self._nudges[peer]
        generation, failures, logged = 0, 0, ""
        while True:
            nudge.clear()
            address = None
            try:
                self._addresses.reread()
                address = self._addresses.address(peer)
                if address is None:
                    raise Unreachable(peer, "its address is not known")
                generation = await self._call(peer, generation)
                failures, logged = 0, ""
                self._addresses.succeed(peer, address)
            except Exception as error:
                generation, failures = 0, failures + 1
                if isinstance(error, Refused | Misbehaved):
                    if address is not None:  # the peer did answer there, with its certificate
                        self._addresses.succeed(peer, address)
                    self._report(events.PeerRefused(peer, error.reason))
                elif isinstance(error, Unreachable):
                    if address is not None:
                        self._addresses.fail(peer, address)
                elif str(error) != logged:
                    logged = str(error)
                    bug = not isinstance(error, errors.CertificateError)
                    log.error("peer cannot be called", extra={"peer": peer, "reason": logged}, exc_info=bug)
            wait_s = min(beat_s, backoff_s(failures - 1)) if failures else beat_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # not wait_for: it may lose the cancellation that ends this task
                    await nudge.wait()

    async def _call(self, peer: SiteName, generation: int) -> int:
        """Greet a peer of unknown generation (0), then send a heartbeat; returns 0 to greet again."""
        if not generation:
            greeting = await self._client.hello(peer, self._service.greeting(peer))
            problem = self._service.difference(greeting)
            if problem is not None:
                self._report(events.PeerRefused(peer, problem))
                return 0
            self._service.accept_greeting(peer, greeting)
            generation = greeting.generation
        pulse = await self._beat(peer)
        self._service.hear(peer, pulse)
        return generation if pulse.generation == generation else 0

    async def _beat(self, peer: SiteName) -> Heartbeat:
        return await self._client.beat(peer, self._service.pulse(peer))
