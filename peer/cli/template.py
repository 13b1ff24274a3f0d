"""The commented site.toml that ``site init`` writes, from the file site.toml beside this module."""

from __future__ import annotations

from importlib import resources

from peer.site.config.site_tables import is_loopback
from peer.site.config.toml import split_address, split_route

VOLUME_DIMS = 3
SIZES = {1: "[1024]", 2: "[224, 224]", 3: "[32, 32, 32]"}
"""An input size for each number of spatial dimensions; the operator changes it to fit the data."""


PEERS_PORT = 7443
METRICS_PORT = 9464
NEWCOMERS_LISTEN = f"0.0.0.0:{PEERS_PORT}"
"""Every interface: a newcomer's address comes only with the amendment that adds it, and the others dial it there."""


def site_toml(
    spatial_dims: int,
    address: str | None = None,
    *,
    discovery: bool = True,
    normalised: bool = True,
    listen: str | None = None,
) -> str:
    """The template, filled in for a task and for the site's address in the roster.

    ``listen`` gets the address's port: on loopback where the address is on loopback, else on every
    interface, so that other machines can reach the site. Sites of one machine have different ports
    there, and get different ports for metrics. A site whose address is a relay's parks there.

    Args:
        discovery: whether the site announces itself on the local network; without need it does not.
        normalised: whether images are brought to mean 0 and deviation 1: of values up to 255 a network learns
            late, and one site's model fails on another's. Super-resolution takes them as they are.
        listen: where the daemon listens; left out: as the address has it.
    """
    text = resources.files(__package__).joinpath("site.toml").read_text("utf-8")
    text = text.replace(f"input_size = {SIZES[3]}", f"input_size = {SIZES[spatial_dims]}")
    if not normalised:
        text = text.replace('\nnormalise = "zscore"', '\n#normalise = "none"')
    if not discovery:
        text = text.replace("\nzeroconf = true", "\n#zeroconf = false")
    if spatial_dims < VOLUME_DIMS:
        text = text.replace('\norientation = "RAS"', '\n#orientation = "RAS"')
    relay, direct = (None, None) if address is None else split_route(address)
    if relay:
        text = text.replace('\n#relays = ["gate relay.example.org:443"]', f'\nrelays = ["{relay} {direct}"]')
    elif direct is not None and listen is None:
        listen = _listen_for(direct)
    if listen is None:
        return text
    port = split_address(listen)[1]
    metrics_port = METRICS_PORT + (port - PEERS_PORT) % 1000  # never the port itself: 2021 is no multiple of 1000
    text = text.replace(f"127.0.0.1:{METRICS_PORT}", f"127.0.0.1:{metrics_port}")
    return text.replace(f'listen = "127.0.0.1:{PEERS_PORT}"', f'listen = "{listen}"')


def _listen_for(address: str) -> str:
    """Where a site listens that has this address: on loopback only if the address is."""
    host, port = split_address(address)
    if is_loopback(host):
        return f"{'[::1]' if ':' in host else '127.0.0.1'}:{port}"
    return f"{'[::]' if ':' in host else '0.0.0.0'}:{port}"
