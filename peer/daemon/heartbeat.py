"""Heartbeats: finds the peers, greets them, and sends heartbeats as long as the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable

from peer import errors
from peer.core import events, limits
from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.daemon.addresses import AddressBook
from peer.daemon.fetcher import backoff_s
from peer.daemon.service import PeerService
from peer.net.transport.client import ExchangeClient, Misbehaved, Mismatched, NotAdmitted, Refused, Unreachable
from peer.net.transport.discovery import Discovery, served_at
from peer.net.transport.handshake import Diagnosis, Fault
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.toml import split_address

log = logging.getLogger(__name__)

ANNOUNCE_S = 0.1
"""Delay from a change of phase to its announcement: during a short exchange its bytes matter more, and the announcement
covers the next change, too."""
DIAGNOSES_MAX = 1
"""Concurrent diagnoses: each dials one peer, which in a busy federation costs both sites more than it explains."""
DIAGNOSE_EVERY_S = 15.0
"""Interval of the diagnoses of an unreachable peer: the cause rarely changes."""
BEATS_AT_ONCE = 8
"""Concurrent heartbeats to reachable peers in a large federation: over lines of 200 ms, 40 in a second."""
GREETINGS_AT_ONCE = 4
"""Concurrent greetings to other peers in a large federation: each may last until its timeout."""
NOT_DIAGNOSED = (float("-inf"), "")
FAREWELL_S = 1.0
"""Time limit of the last heartbeat: a peer that misses it notices the silence instead."""


async def ignore_head(peer: SiteName, head: ChainHead | None) -> None:
    """Ignore a peer's chain tip."""


def ignore_refusal(peer: SiteName) -> None:
    """Do not ask a peer why it refuses this site."""


class Heartbeats:
    """One task per peer, and discovery if the site is configured for it.

    Args:
        own: this site's name.
        peers: the other sites, which may change (see ``follow_roster``).
        federation: has the heartbeat interval.
        site: configures whether to announce this site and discover others.
        addresses: the peers' addresses; informed of the outcome of each dial.
        client: dials these addresses.
        service: makes this site's greetings and heartbeats, and checks those of peers.
        report: passes an event to the state machine.
        diagnose: dials a peer at an address, in a thread, and returns why it is unreachable.
        follow: fetches the amendments that a peer states, before the state machine hears the peer.
        ask_why: asks a peer that does not admit this site for the amendments that explain it.
    """

    def __init__(
        self,
        *,
        own: SiteName,
        peers: Iterable[SiteName],
        federation: FederationConfig,
        site: SiteConfig,
        addresses: AddressBook,
        client: ExchangeClient,
        service: PeerService,
        report: Callable[[events.Event], None],
        diagnose: Callable[[SiteName, str], Diagnosis],
        follow: Callable[[SiteName, ChainHead | None], Awaitable[None]] = ignore_head,
        ask_why: Callable[[SiteName], None] = ignore_refusal,
    ) -> None:
        self._failing: dict[SiteName, str] = {}  # by peer, the reason why the last call failed
        self._diagnose, self._diagnoses = diagnose, 0
        self._diagnosed: dict[tuple[SiteName, str | None], tuple[float, str]] = {}  # time and result
        self._federation, self._site, self._addresses, self._client = federation, site, addresses, client
        self._service, self._report, self._follow, self._ask_why = service, report, follow, ask_why
        self._large = len(federation.roster) > limits.BEAT_LARGE_SITES
        self._beats, self._greetings = asyncio.Semaphore(BEATS_AT_ONCE), asyncio.Semaphore(GREETINGS_AT_ONCE)
        self._nudges = {name: asyncio.Event() for name in peers}
        self._announcement: asyncio.TimerHandle | None = None
        self._tasks: dict[SiteName, asyncio.Task[None]] = {}
        self._ended: list[asyncio.Task[None]] = []
        self._discovery: Discovery | None = None
        self._started = False
        if site.discovery.zeroconf:
            self._discovery = Discovery(
                site=own, federation=federation.digest, peers=tuple(self._nudges), on_address=self._on_address
            )

    def start(self, port: int) -> None:
        if self._discovery is not None:
            host, _ = split_address(self._site.listen)
            self._discovery.start(lambda: served_at(host, port))
        self._started = True
        for name in self._nudges:
            self._start_peer(name)

    def _start_peer(self, peer: SiteName) -> None:
        self._tasks[peer] = asyncio.create_task(self._run_peer(peer), name=f"heartbeats to {peer}")

    def follow_roster(self, peers: Collection[SiteName]) -> None:
        """Greet new sites, and stop calling sites that are no longer peers."""
        for name in self._nudges.keys() - set(peers):
            del self._nudges[name]
            if name in self._tasks:
                self._tasks[name].cancel()
                self._ended.append(self._tasks.pop(name))
        for name in peers:
            if name not in self._nudges:
                self._nudges[name] = asyncio.Event()
                if self._started:
                    self._start_peer(name)
        if self._discovery is not None:
            self._discovery.follow_roster(peers)

    def nudge(self, peer: SiteName) -> None:
        """Send a peer a heartbeat now."""
        if peer in self._nudges:
            self._nudges[peer].set()

    def announce(self, *, away: bool) -> None:
        """Announce a change of phase to every peer by a heartbeat soon, or now if this site goes away.

        In a large federation, peers learn of it with the next regular heartbeat, unless this site goes away: each round
        has several phases, and the messages of a round would grow with the square of the number of sites.
        """
        if away:
            self._nudge_all()
        elif not self._large and self._announcement is None:
            self._announcement = asyncio.get_running_loop().call_later(ANNOUNCE_S, self._nudge_all)

    def _nudge_all(self) -> None:
        self._announcement = None
        for nudge in self._nudges.values():
            nudge.set()

    async def send_farewell(self) -> None:
        """Send every peer a last heartbeat, within ``FAREWELL_S``."""
        beats = [self._client.beat(name, self._service.pulse(name)) for name in self._nudges]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.gather(*beats, return_exceptions=True)

    def peers(self) -> Collection[SiteName]:
        """Return the peers that are called."""
        return self._nudges.keys()

    async def close(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
        for task in self._tasks.values():
            task.cancel()
        leaving = [self._discovery.stop()] if self._discovery is not None else []
        await asyncio.gather(*self._tasks.values(), *self._ended, *leaving, return_exceptions=True)

    def _on_address(self, peer: SiteName, address: str) -> None:
        if self._addresses.discover(peer, address):
            self.nudge(peer)

    def problem(self, peer: SiteName) -> str:
        """Return why the last call to a peer failed, with a remedy if one is known; empty if it succeeded.

        Every address has its own reason: calls try one after the other.
        """
        if peer not in self._failing:
            return ""
        known = self._addresses.known(peer)
        diagnosed = [self._diagnosed.get((peer, address), NOT_DIAGNOSED)[1] for address in known]
        return "; ".join(filter(None, dict.fromkeys(diagnosed))) or self._failing[peer]

    def _note_answer(self, peer: SiteName, address: str, problem: str = "") -> None:
        """Record a peer's answer; a refusal still counts as a problem."""
        self._failing.pop(peer, None)
        if problem:
            self._failing[peer] = problem
        at_s, _ = self._diagnosed.get((peer, address), NOT_DIAGNOSED)
        self._diagnosed[peer, address] = at_s, ""

    def _diagnose_failure(self, peer: SiteName, address: str) -> None:
        """Diagnose a failing address in a thread: gRPC reports most faults as one.

        The thread is not one of the event loop's, which the loop would wait for at its end.
        """
        loop = asyncio.get_running_loop()
        at_s, former = self._diagnosed.get((peer, address), NOT_DIAGNOSED)
        if self._diagnoses >= DIAGNOSES_MAX or loop.time() < at_s + DIAGNOSE_EVERY_S:
            return
        for other in [key for key in self._diagnosed if key[0] == peer and key[1] not in self._addresses.known(peer)]:
            del self._diagnosed[other]
        self._diagnosed[peer, address] = loop.time(), former
        self._diagnoses += 1

        def dial() -> None:
            diagnosis: Diagnosis | None = None
            try:
                with contextlib.suppress(errors.CertificateError):  # of this site; the call itself reports it
                    diagnosis = self._diagnose(peer, address)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._note_diagnosis, peer, address, diagnosis)

        threading.Thread(target=dial, name=f"diagnose {peer}", daemon=True).start()

    def _note_diagnosis(self, peer: SiteName, address: str, diagnosis: Diagnosis | None) -> None:
        self._diagnoses -= 1
        at_s, former = self._diagnosed.get((peer, address), NOT_DIAGNOSED)
        if diagnosis is None or diagnosis.fault is Fault.NONE or peer not in self._failing:
            return
        text = f"{diagnosis.detail}; {diagnosis.remedy}"
        self._diagnosed[peer, address] = at_s, text
        if text != former and diagnosis.fault is not Fault.UNREACHABLE:  # a peer that is down is no news
            log.warning("peer out of reach", extra={"peer": peer, "reason": text})

    async def _run_peer(self, peer: SiteName) -> None:
        """Greet a peer until it answers, then send heartbeats; greet again if it may have restarted."""
        nudge = self._nudges[peer]
        generation, failures, logged = 0, 0, ""
        while True:
            nudged, address = nudge.is_set(), None
            nudge.clear()
            try:
                self._addresses.reread()
                address = self._addresses.address(peer)
                if address is None:
                    raise Unreachable(peer, "its address is not known")
                async with self._turns(known=generation > 0):
                    generation = await self._call(peer, generation, nudged=nudged)
                failures, logged = 0, ""
                self._note_answer(peer, address, "" if generation else self._failing.get(peer, ""))
                self._addresses.succeed(peer, address)
            except Exception as error:
                generation, failures = 0, failures + 1
                if isinstance(error, Refused | Misbehaved):
                    reason = self._service.explain(error.reason)
                    if address is not None:  # the peer answered there, with its certificate
                        self._addresses.succeed(peer, address)
                        self._note_answer(peer, address, reason)
                    if isinstance(error, Mismatched):
                        self._service.note_mismatch(peer, error.reason)
                    not_admitted = isinstance(error, NotAdmitted)
                    if not_admitted:  # even if the peer may lag: a site that was down does not know which is ahead
                        self._ask_why(peer)
                    if not (not_admitted and self._service.is_ahead_of(peer)):
                        self._report(events.PeerRefused(peer, reason, declined=isinstance(error, Refused)))
                elif isinstance(error, Unreachable):
                    self._failing[peer] = error.reason
                    if address is not None:
                        self._addresses.fail(peer, address)
                        self._diagnose_failure(peer, address)
                elif str(error) != logged:
                    logged = str(error)
                    bug = not isinstance(error, errors.CertificateError)
                    log.error("peer cannot be called", extra={"peer": peer, "reason": logged}, exc_info=bug)
            wait_s = self._wait_s(failures)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # not wait_for: it may lose the cancellation that ends this task
                    await nudge.wait()

    def _turns(self, *, known: bool) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the semaphore for calls to reachable peers, or that for peers to be found.

        In a large federation calls take turns. Otherwise a starting site would call all peers at once, every call would
        time out, and all would be repeated. Unreachable peers delay only each other.
        """
        if not self._large:
            return contextlib.nullcontext()
        return self._beats if known else self._greetings

    def _wait_s(self, failures: int) -> float:
        """Return the wait after this number of consecutive failures.

        In a large federation no peer is called more often than by heartbeats: calls to all peers that are down, or too
        busy to answer in time, would overload a site. A peer that starts calls by itself.
        """
        beat_s = self._federation.beat_s
        return min(beat_s, backoff_s(failures - 1)) if failures and not self._large else beat_s

    async def _call(self, peer: SiteName, generation: int, *, nudged: bool) -> int:
        """Greet a peer of unknown generation (0), otherwise send a heartbeat; return its generation, or 0 to greet
        again.

        A peer whose own greeting does not match is greeted, too, and refuses this site from then on: it may have been
        updated so quickly that no call failed meanwhile.

        In a large federation one heartbeat per pair of sites suffices, since each is answered with another.
        """
        if not generation or self._service.account(peer).mismatch:
            greeting = await self._client.hello(peer, self._service.greeting(peer))
            problem = self._service.difference(greeting)
            if problem is not None:
                self._failing[peer] = problem = self._service.explain(problem)
                self._report(events.PeerRefused(peer, problem))
                return 0
            await self._follow(peer, greeting.head)
            self._service.accept_greeting(peer, greeting)
            generation = greeting.generation
        elif self._large and not nudged and self._service.beaten_within(peer, self._federation.beat_s):
            return generation
        own = self._service.pulse(peer)
        pulse = await self._client.beat(peer, own)
        await self._follow(peer, pulse.head)
        self._service.hear(peer, pulse, sent=own)
        return generation if pulse.generation == generation else 0
