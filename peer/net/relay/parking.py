"""A site's end of its reverse tunnels: it parks connections at relays, and joins callers to its own server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from peer.core import limits
from peer.core.roster import SiteName
from peer.core.status_document import RelayState
from peer.errors import CertificateError
from peer.net.relay import frames
from peer.net.relay.frames import Frame
from peer.net.relay.probe import offer
from peer.net.relay.splice import CHUNK_BYTES, Ends, close, splice
from peer.net.transport.connections import Endpoint, plain_address
from peer.net.transport.proxy import Choose, ProxyRefused
from peer.net.transport.tls import Pki
from peer.site.config.toml import split_address

log = logging.getLogger(__name__)

IDLE = 4
"""Parked connections at each relay: so many callers may arrive within a round trip."""
CARRYING_MAX = 60
PARK_S = 2 * limits.HELLO_TIMEOUT_S
"""Time limit for parking a connection."""
RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)


class RelayRefused(Exception):  # noqa: N818 - the name is the fact
    """The relay answered, but accepts no connection of this site; the text is its reason."""


PARKING_ERRORS = (OSError, EOFError, ValueError, CertificateError, RelayRefused)
"""Failures to park a connection; ``Parking.explain`` describes each."""
WRONG_HOST = 62
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH."""


@dataclass
class Parking:
    """Keeps connections parked at one relay.

    Args:
        relay: the relay's name, which its certificate bears.
        address: its host and port.
        pki: this site's certificate and key.
        server: host and port of this site's own server.
        proxy_for: the proxy through which to dial.
        on_caller: called with this end of a connection to the own server, and the caller's address; with None when that
            connection has ended.
    """

    relay: SiteName
    address: tuple[str, int]
    pki: Pki
    server: tuple[str, int]
    proxy_for: Choose
    on_caller: Callable[[Endpoint, str | None], None]
    parked: int = 0
    carrying: int = 0
    problem: str = "not yet reached"
    _logged: str = "not yet reached"
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Park until cancelled."""
        try:
            await asyncio.gather(*(self._keep() for _ in range(IDLE)))
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def try_once(self) -> None:
        """Park a connection and close it; raises what ``_park`` raises."""
        _, writer = await self._park()
        await close(writer)

    def explain(self, error: Exception) -> tuple[str, str]:
        """Describe what keeps this site's connections from the relay, and the remedy."""
        host, port = self.address
        proxy = self.proxy_for(self.relay, f"{host}:{port}")
        through = "" if proxy is None else f", through the proxy {proxy},"
        if isinstance(error, RelayRefused):
            return f"refuses this site: {error}", "settle it with the relay's operator"
        if isinstance(error, ProxyRefused):
            return f"the proxy {proxy} {error}", "compare name and address, or wait" if error.beyond else error.remedy
        if isinstance(error, CertificateError):
            return error.message, error.remedy
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == WRONG_HOST:
            remedy = "compare the name and the address in [connect] relays with the relay's operator"
            return f"what answers at {host}:{port}{through} is not {self.relay}", remedy
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "compare the name and the address in [connect] relays with the relay's operator"
            if proxy is not None:
                remedy = f"have the operator of the proxy {proxy} exempt {host}:{port} from inspection"
            return f"the certificate at {host}:{port}{through} is not of this federation", remedy
        if isinstance(error, ssl.SSLError) and "UNRECOGNIZED_NAME" in (error.reason or ""):
            remedy = "compare the name in [connect] relays with the relay's operator"
            return f"the relay at {host}:{port}{through} is not {self.relay}", remedy
        reason = str(error) or type(error).__name__
        if isinstance(error, EOFError):
            reason = "the relay ended the connection"
        elif isinstance(error, TimeoutError):
            reason = f"no answer within {PARK_S:g} s"
        return f"nothing can be parked at {host}:{port}: {reason}", "compare name and address, or wait"

    async def _keep(self) -> None:
        """Keep one connection parked: when it is taken for a caller, park the next."""
        failures = 0
        while True:
            try:
                stamp = self.pki.stamp()
                ends = await self._park()
                failures = 0
                try:
                    self.parked += 1
                    if self._logged:
                        log.info("parked at a relay", extra={"relay": self.relay})
                    self._logged = ""
                    caller = await self._wait(ends, stamp)
                finally:
                    self.parked -= 1
                if caller is None or self.carrying >= CARRYING_MAX:
                    await close(ends[1])
                    continue
                self._begin_to_carry(ends, caller)
            except PARKING_ERRORS as error:
                self.problem = "; ".join(self.explain(error))
                if self.problem != self._logged:
                    log.warning("not parked at a relay", extra={"relay": self.relay, "reason": self.problem})
                self._logged = self.problem
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1

    async def _park(self) -> Ends:
        """Park a connection.

        Raises:
            RelayRefused: the relay's reason.
            PARKING_ERRORS: the relay cannot be reached or speaks otherwise, or this site's own files are unfit.
        """
        host, port = self.address
        context = self.pki.stream_context()
        context.check_hostname = True
        context.set_alpn_protocols([frames.ALPN])
        proxy = self.proxy_for(self.relay, f"{host}:{port}")
        async with asyncio.timeout(PARK_S):
            place: dict[str, Any] = {"host": host, "port": port}
            if proxy is not None:
                dial = functools.partial(proxy.connect, host, port, timeout_s=limits.HELLO_TIMEOUT_S)
                place = {"sock": await asyncio.to_thread(dial)}
            reader, writer = await asyncio.open_connection(
                **place, ssl=context, server_hostname=self.relay, limit=CHUNK_BYTES
            )
            try:
                kind, reason = await offer((reader, writer), f"{host}:{port}")
                if kind is Frame.REFUSED:
                    raise RelayRefused(reason)
            except BaseException:
                await close(writer)
                raise
        self.problem = ""
        return reader, writer

    def _is_renewed(self, stamp: object) -> bool:
        """Return whether a usable certificate has replaced the one of this stamp."""
        if self.pki.stamp() == stamp:
            return False
        try:
            self.pki.load()
        except CertificateError:
            return False
        return True

    async def _wait(self, ends: Ends, stamp: object) -> str | None:
        """Wait for a caller and return its address; None once this site's certificate has been renewed."""
        reader, writer = ends
        pinging = asyncio.ensure_future(self._ping(writer))
        try:
            while True:
                async with asyncio.timeout(frames.SILENCE_S):
                    kind, payload = await frames.read(reader)
                if kind is Frame.OPEN:
                    return payload.decode("ascii", "replace")
                if kind is not Frame.PONG:
                    raise ValueError(f"the relay sends {kind.name}")
                if self._is_renewed(stamp):
                    return None
        except BaseException:
            await close(writer)
            raise
        finally:
            pinging.cancel()

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                await asyncio.sleep(frames.PING_S)
                writer.write(frames.encode(Frame.PING))
                await writer.drain()

    def _begin_to_carry(self, ends: Ends, caller: str) -> None:
        task = asyncio.ensure_future(self._carry(ends, caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: ends[1].transport.abort())  # it may be cancelled before its first step

    async def _carry(self, ends: Ends, caller: str) -> None:
        """Join the connection to this site's own server."""
        self.carrying += 1
        end: Endpoint | None = None
        try:
            with contextlib.suppress(OSError):
                own = await asyncio.open_connection(*self.server, limit=CHUNK_BYTES)
                host, port = own[1].get_extra_info("sockname")[:2]
                end = str(plain_address(host)), port
                self.on_caller(end, caller)
                ends[1].write(frames.encode(Frame.READY))
                await splice(own, ends)
        finally:
            if end is not None:
                self.on_caller(end, None)
            self.carrying -= 1
            await close(ends[1])


class Parkings:
    """Connections parked at several relays.

    Args:
        relays: name and ``host:port`` of each.
        listen: the address of this site's own server.
        proxy_for, on_caller: as for ``Parking``.
    """

    def __init__(
        self,
        relays: Iterable[tuple[str, str]],
        *,
        pki: Pki,
        listen: str,
        proxy_for: Choose,
        on_caller: Callable[[Endpoint, str | None], None],
    ) -> None:
        host, _ = split_address(listen)
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.all = [
            Parking(SiteName(name), split_address(address), pki, (self._host, 0), proxy_for, on_caller)
            for name, address in relays
        ]
        self._tasks: list[asyncio.Future[None]] = []

    def start(self, port: int) -> None:
        """Park until ``close``; the own server listens on this port."""
        for parking in self.all:
            parking.server = (self._host, port)
            self._tasks.append(asyncio.ensure_future(parking.run()))

    def states(self) -> list[RelayState]:
        """Return the state of each relay's connections."""
        return [
            {
                "name": parking.relay,
                "address": f"{parking.address[0]}:{parking.address[1]}",
                "parked": parking.parked,
                "carrying": parking.carrying,
                "problem": "" if parking.parked else parking.problem,
            }
            for parking in self.all
        ]

    async def close(self) -> None:
        """Close every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
