"""HTTP proxies between this site and its peers, and the tunnel that the checks open.

gRPC opens its own tunnels with CONNECT. The mutual TLS inside is the usual one, so a proxy learns addresses, sizes and
times, and nothing else.
"""

from __future__ import annotations

import base64
import re
import socket
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from peer.core.roster import SiteName
from peer.errors import one_line

ANSWER_BYTES_MAX = 16 << 10
PASSWORD_WANTED = 407
NOT_REACHED = (502, 503, 504)
"""A proxy's answers for a target that is down (RFC 9110, 15.6); squid's is 503."""


class ProxyRefused(OSError):  # noqa: N818 - the name is the fact
    """The proxy answered but opened no tunnel; the text states its answer."""

    def __init__(self, answer: str, remedy: str, *, beyond: bool = False) -> None:
        self.remedy = remedy
        self.beyond = beyond  # whether the fault lies beyond the proxy, with its target
        super().__init__(answer)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        login: ``user:password`` for the proxy, or empty.
    """

    host: str
    port: int
    login: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, int | str]:
        """gRPC options of a channel through this proxy; they override those of a direct channel."""
        user, colon, password = self.login.partition(":")
        login = f"{urllib.parse.quote(user, safe='')}{colon}{urllib.parse.quote(password, safe='')}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = f"http://{login if self.login else ''}{host}:{self.port}"
        return {"grpc.enable_http_proxy": 1, "grpc.http_proxy": url}

    def connect(self, host: str, port: int, *, timeout_s: float) -> socket.socket:
        """Open a connection to the host through the proxy.

        Raises:
            ProxyRefused: the proxy opens no tunnel to the host.
            OSError: the proxy cannot be reached, or has not answered after ``timeout_s``.
        """
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = ""
        if self.login:
            login = f"Proxy-Authorization: Basic {base64.b64encode(self.login.encode()).decode()}\r\n"
        ends_s = time.monotonic() + timeout_s
        connection = socket.create_connection((self.host, self.port), timeout=timeout_s)
        try:
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < ANSWER_BYTES_MAX:
                # Byte by byte: the bytes after the answer belong to the tunnel.
                connection.settimeout(max(ends_s - time.monotonic(), 0.001))
                byte = connection.recv(1)
                if not byte:
                    break
                answer += byte
            status = answer.split(b"\r\n", 1)[0].decode("latin-1")
            answered = re.fullmatch(r"HTTP/1\.[01] (\d{3}) ?(.*)", status)
            if answered is None:
                raise ProxyRefused(f"answers no HTTP: {one_line(status)[:80]!r}", "correct [connect] proxy")
            code = int(answered[1])
            if code == PASSWORD_WANTED and self.login:
                raise ProxyRefused("wants another user and password", "correct the file of [connect] password_file")
            if code == PASSWORD_WANTED:
                remedy = "write user:password into a file, and name it as [connect] password_file"
                raise ProxyRefused("wants a user and a password", remedy)
            answer_line = f"{code} {one_line(answered[2])[:80]}"
            if code in NOT_REACHED:
                remedy = (
                    "start that site, or the relay there; or correct its address; or the firewall stops the proxy, too"
                )
                raise ProxyRefused(f"does not reach {target}: {answer_line}", remedy, beyond=True)
            if code // 100 != 2:
                remedy = f"have the proxy's operator allow CONNECT to {target}"
                raise ProxyRefused(f"refuses {target}: {answer_line}", remedy)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(timeout_s)
        return connection


Choose = Callable[[SiteName, str], Proxy | None]
"""Returns the proxy through which to dial a peer at an address; None: dial directly."""


def direct(peer: SiteName, address: str) -> None:
    """Dial every peer directly."""
