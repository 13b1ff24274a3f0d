"""This site's relay for the other sites, in the daemon's process: ``[connect] relay_listen``."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Container

from peer import errors
from peer.daemon.chain_keeper import ChainKeeper, CurrentSites
from peer.net.relay.server import PARKED_PER_SITE_MAX, RelayServer
from peer.net.transport import tls
from peer.net.transport.descriptors import relay_connections
from peer.net.transport.server import ExchangeServer
from peer.site.config.schema import SiteConfig
from peer.site.config.toml import split_address

log = logging.getLogger(__name__)


def make_relay(
    site: SiteConfig, *, pki: tls.Pki, chain: ChainKeeper, server: ExchangeServer, refused: Container[str]
) -> RelayServer | None:
    """Build the relay within the open files that this site's own server leaves; ``None`` if it relays nothing.

    Raises:
        ConfigError: the process may open too few files.
    """
    if site.connect.relay_listen is None:
        return None
    connections = relay_connections(site.limits.connections_max, sites=len(chain.callers))
    if connections < PARKED_PER_SITE_MAX:
        raise errors.ConfigError(
            "[connect] relay_listen: this process may open too few files to be a relay, too",
            "raise the limit of open files (LimitNOFILE, ulimit -n), or leave relay_listen out",
        )
    return RelayServer(
        pki.name,
        lambda: pki.stream_context(ssl.PROTOCOL_TLS_SERVER),
        CurrentSites(lambda: {name: key for name, key in chain.callers.items() if name != pki.name}),
        refused=refused,
        pins=CurrentSites(lambda: chain.pins),
        on_caller=server.note_relayed,
        connections=connections,
    )


async def start_relay(relay: RelayServer, site: SiteConfig, *, port: int) -> None:
    """Listen as a relay, after the own server on this port; raise ``PortInUse`` if the address cannot be bound."""
    address = site.connect.relay_listen or ""
    host, _ = split_address(site.listen)
    relay.own = ({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
    try:
        await relay.start(*split_address(address))
    except OSError as error:
        raise errors.PortInUse(
            f"[connect] relay_listen: cannot listen on {address}: {error.strerror}", "free it, or name another"
        ) from error
    log.info("relaying for the other sites", extra={"address": address})
