"""Serves the dashboard to one person on this machine: loopback alone, and only to who has the link.

The link has a random token, since other users of the machine reach its loopback address as well. A
page of another origin cannot read an answer: the ``Host`` header must name this server, so that a
name that was rebound to loopback leads nowhere, and no header permits another origin.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from peer import __version__
from peer.errors import PeerError, PortInUse
from peer.net.transport.http_server import CONNECTION_S, POLL_S, SERVER, SILENCE_S, BoundedServer
from peer.site.config.site_folder import SiteFolder
from peer.view.dashboard import page
from peer.view.dashboard.collect import FederationReader

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
"""What the Host header may call this server, each with the port."""
TOKEN_BYTES = 24
FRESH_S = 1.0
"""A page that was read so recently is shown again: several windows cost no more than one."""
PLAIN, HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class DashboardServer:
    """A server for these sites; it listens once it is made.

    Args:
        port: 0 takes any free port.

    Raises:
        PortInUse: the port cannot be bound.
    """

    def __init__(self, folders: Sequence[SiteFolder], *, port: int = 0) -> None:
        self._reader = FederationReader(folders)
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._lock = threading.Lock()
        self._page: tuple[str, str] = ("", "")
        self._read_s = -FRESH_S
        self._policy = f"{page.live_policy()}; frame-ancestors 'none'"
        address = (socket.AF_INET, None, None, None, (ADDRESS, port))
        try:
            self._server = BoundedServer(address, silence_s=SILENCE_S, connection_s=CONNECTION_S)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise PortInUse(
                f"--port {port}: {ADDRESS} cannot be bound: {reason}", "leave --port out, or name a free one"
            ) from None
        self._server.set_app(self._answer)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def link(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self._token}/"

    def serve(self) -> None:
        """Answer until ``stop`` is called, or Ctrl-C is pressed."""
        try:
            self._server.serve_forever(POLL_S)
        finally:
            self._server.hang_up()
            self._server.server_close()

    def stop(self) -> None:
        """End ``serve`` from another thread."""
        self._server.shutdown()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        status, kind, content = self._respond(environ)
        body = content.encode()
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", self._policy),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Server", SERVER),
        ]
        start_response(status, headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _respond(self, environ: dict[str, Any]) -> tuple[str, str, str]:
        """Return the status line, the type and the content of an answer."""
        if environ.get("HTTP_HOST", "") not in {f"{name}:{self.port}" for name in NAMES}:
            return "403 Forbidden", PLAIN, f"this server is {ADDRESS}:{self.port}\n"
        path = environ["PATH_INFO"].encode("latin-1", "replace")  # as PEP 3333 has it
        if not hmac.compare_digest(path, f"/{self._token}/".encode()):
            return "403 Forbidden", PLAIN, "open the link that `mhfl-peer dashboard` printed\n"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", PLAIN, "this page can only be read\n"
        return self._read_page()

    def _read_page(self) -> tuple[str, str, str]:
        with self._lock:
            if time.monotonic() - self._read_s >= FRESH_S:
                try:
                    self._page = "200 OK", page.write_page(self._reader.read(), version=__version__, live=True)
                except PeerError as error:
                    self._page = "503 Service Unavailable", page.write_problem(str(error), version=__version__)
                self._read_s = time.monotonic()
            status, content = self._page
            return status, HTML, content
