"""The choice of a proxy for each dial, by ``[connect]`` of site.toml."""

from __future__ import annotations

import os
import re
import urllib.parse
import urllib.request
from pathlib import Path

from peer.core.roster import SiteName
from peer.errors import CertificateError, ConfigError
from peer.net.transport.proxy import Choose, Proxy
from peer.site.config.schema import SiteConfig
from peer.site.config.toml import split_address, split_proxy
from peer.site.identity.certificates import read_file

VARIABLE = re.compile(r".*_proxy", re.IGNORECASE)
HTTP_PORT = 80


def choice(site: SiteConfig) -> Choose:
    """Build the function that chooses a proxy by ``[connect]``.

    Removes the proxies from the environment: gRPC obeys them even if a channel's options say otherwise.

    Raises:
        ConfigError: the password's file, or a proxy of the environment, cannot be used.
    """
    connect = site.connect
    environment = urllib.request.getproxies_environment()
    for name in [name for name in os.environ if VARIABLE.fullmatch(name)]:
        del os.environ[name]
    login = ""
    if connect.password_file is not None:
        login = read_secret(site.folder / connect.password_file)
    inherited = None
    if "environment" in (connect.proxy, *connect.peers.values()):
        inherited = _inherited(environment, login)

    def choose(peer: SiteName, address: str) -> Proxy | None:
        named = connect.peers.get(peer, connect.proxy)
        if named == "none":
            return None
        if named != "environment":
            host, port = split_proxy(named)
            return Proxy(host, port, login)
        host, _ = split_address(address)
        return None if urllib.request.proxy_bypass(host, environment) else inherited

    return choose


def read_secret(path: Path) -> str:
    """Read ``user:password`` from a file that contains nothing else and that only this user can read."""
    try:
        login = read_file(path, secret=True).decode().strip()
    except (CertificateError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"[connect] password_file: {error}", "write user:password into it, and `chmod 600` it"
        ) from None
    if ":" not in login or not login.isprintable():
        raise ConfigError(f"[connect] password_file: {path} does not hold user:password in one line", "write it so")
    return login


def _inherited(environment: dict[str, str], login: str) -> Proxy | None:
    """Return the environment's proxy for TLS."""
    url = environment.get("https") or environment.get("all")
    if url is None:
        return None
    remedy = "name one in site.toml"
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or HTTP_PORT
    except ValueError:  # its text may have the password in it
        raise ConfigError("[connect] proxy: https_proxy of the environment is no address", remedy) from None
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(
            f"[connect] proxy: {parts.scheme}://{parts.hostname} of the environment is no HTTP proxy", remedy
        )
    if parts.username is not None:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return Proxy(parts.hostname, port, login)
