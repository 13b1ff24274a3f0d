"""The commented site.toml that ``site init`` writes, filled in from the file site.toml beside this module."""

from __future__ import annotations

from importlib import resources

from peer.site.config.site_tables import is_loopback
from peer.site.config.toml import split_address, split_route
from peer.train.data.datalist import SELF_LABELLED

VOLUME_DIMS = 3
SIZES = {1: "[1024]", 2: "[224, 224]", 3: "[32, 32, 32]"}
"""Number of spatial dimensions -> initial input size; the operator changes it to fit the data."""


NETWORKS = {"segmentation": "unet", "super_resolution": "srresnet6", "tabular": "mlp"}
"""Task kind -> the initial network, where it is not that of the example."""
PEERS_PORT = 7443
METRICS_PORT = 9464
NEWCOMERS_LISTEN = f"0.0.0.0:{PEERS_PORT}"
"""All interfaces: the amendment that adds a newcomer brings the address at which the others dial it."""


def site_toml(
    spatial_dims: int,
    address: str | None = None,
    *,
    discovery: bool = True,
    kind: str = "classification",
    listen: str | None = None,
) -> str:
    """Fill in the template for a task and for the site's address in the roster.

    ``listen`` gets the address's port: on loopback if the address is on loopback, else on every interface, so that
    other machines can reach the site. Sites of one machine have different ports there, and get different ports for
    metrics. A site with a relay's address keeps connections parked at the relay.

    Args:
        discovery: whether the site announces itself on the local network; it should only if needed.
        kind: of the task. Its images get mean 0 and standard deviation 1, since on values up to 255 a network learns
            late, and one site's model fails on another's. Super-resolution leaves them as they are, and the rows of a
            table have no size.
        listen: where the daemon listens; by default derived from the address.
    """
    text = resources.files(__package__).joinpath("site.toml").read_text("utf-8")
    text = text.replace(f"input_size = {SIZES[3]}", f"input_size = {SIZES[spatial_dims]}")
    text = text.replace('\nname = "resnet10"', f'\nname = "{NETWORKS.get(kind, "resnet10")}"')
    if kind == "tabular":
        text = text.replace(f"\ninput_size = {SIZES[1]}", f"\n#input_size = {SIZES[2]}")
    if kind in SELF_LABELLED or kind == "tabular":
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
    metrics_port = METRICS_PORT + (port - PEERS_PORT) % 1000  # never equal to the port: 2021 is no multiple of 1000
    text = text.replace(f"127.0.0.1:{METRICS_PORT}", f"127.0.0.1:{metrics_port}")
    return text.replace(f'listen = "127.0.0.1:{PEERS_PORT}"', f'listen = "{listen}"')


def _listen_for(address: str) -> str:
    """Return where a site with this address listens: on loopback only if the address is."""
    host, port = split_address(address)
    if is_loopback(host):
        return f"{'[::1]' if ':' in host else '127.0.0.1'}:{port}"
    return f"{'[::]' if ':' in host else '0.0.0.0'}:{port}"
