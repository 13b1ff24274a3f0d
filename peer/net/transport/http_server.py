"""An HTTP server with limits, for a daemon's metrics and an operator's dashboard.

It is ``prometheus_client``'s threading server of the standard library, and answers with a WSGI application.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import time
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

log = logging.getLogger(__name__)

SILENCE_S = 5.0  # for the next bytes of a request to arrive, or of an answer to be taken
CONNECTION_S = 15.0  # for all of it: Prometheus itself gives a scrape 10 s
CONNECTIONS_MAX = 16  # two Prometheus servers and a person with curl
POLL_S = 0.1  # how often the server looks for connections that are too old, and whether it shall stop
SERVER = "mhfl-peer"


class BoundedServer(ThreadingWSGIServer):
    """A thread for each connection: ``CONNECTIONS_MAX`` at most, and each for a limited time."""

    def __init__(self, address: tuple[Any, ...], *, silence_s: float, connection_s: float) -> None:
        self.address_family, self.silence_s, self._connection_s = address[0], silence_s, connection_s
        self._since_s: dict[socket.socket, float] = {}
        self._asked: set[socket.socket] = set()
        super().__init__(address[4][:2], Handler)

    @property
    def connections(self) -> int:
        return len(self._since_s)

    def server_bind(self) -> None:
        """Bind to this address family alone, without a DNS lookup of the host's name."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; above ``CONNECTIONS_MAX``, the oldest caller that has asked for nothing gives way."""
        silent: list[socket.socket] = []
        if self.connections >= CONNECTIONS_MAX:
            silent = [other for other in list(self._since_s) if other not in self._asked][:1]
            if not silent:
                self.shutdown_request(request)
                return
            self._since_s.pop(silent[0], None)
        self._since_s[request] = time.monotonic()
        self.hang_up(silent)  # last: a caller that sees its end finds the new one counted
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._since_s.pop(request, None)
        self._asked.discard(request)
        super().shutdown_request(request)

    def note_request(self, request: socket.socket) -> None:
        """Note that a caller has sent a whole request."""
        self._asked.add(request)

    def service_actions(self) -> None:
        """Hang up on connections that are too old: a byte now and then does not keep one open."""
        oldest_s = time.monotonic() - self._connection_s
        self.hang_up([request for request, since_s in list(self._since_s.items()) if since_s < oldest_s])

    def hang_up(self, requests: Iterable[socket.socket] | None = None) -> None:
        """Shut down these connections, by default all: their threads then read and write no more."""
        for request in list(self._since_s) if requests is None else requests:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log callers that left or timed out at debug level only."""
        log.debug("http connection ended", exc_info=True)


class Handler(WSGIRequestHandler):
    """A handler of one request that logs nothing."""

    server: BoundedServer
    server_version, sys_version = SERVER, ""

    def setup(self) -> None:
        self.request.settimeout(self.server.silence_s)
        super().setup()

    def parse_request(self) -> bool:
        is_request = super().parse_request()
        self.server.note_request(self.request)
        return is_request

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def get_stderr(self) -> Any:
        """Discard what wsgiref writes about callers that left; the application logs its own errors."""
        return io.StringIO()
