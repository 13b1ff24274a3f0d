"""The commented site.toml that ``site init`` writes, from the file site.toml beside this module."""

from __future__ import annotations

from importlib import resources

from peer.config.schema import is_loopback
from peer.config.toml import split_address
from peer.core.tasks import ROWS_COLUMNS

VOLUME_DIMS = 3
SIZES = {1: "[1024]", 2: "[224, 224]", 3: "[32, 32, 32]"}
"""An input size for each number of spatial dimensions; the operator changes it to fit the data."""


def site_toml(spatial_dims: int, address: str | None = None, *, image_axes: str = ROWS_COLUMNS) -> str:
    """The template, filled in for a task and for the site's address in the roster.

    Volumes are turned to RAS, but not in a federation of release 0.2.0, whose sites leave them.

    ``listen`` gets the address's port: on loopback where the address is on loopback, else on every
    interface, so that other machines can reach the site.
    """
    text = resources.files(__package__).joinpath("site.toml").read_text("utf-8")
    text = text.replace(f"input_size = {SIZES[3]}", f"input_size = {SIZES[spatial_dims]}")
    if spatial_dims < VOLUME_DIMS or image_axes != ROWS_COLUMNS:
        text = text.replace('\norientation = "RAS"', '\n#orientation = "RAS"')
    if address is None:
        return text
    host, port = split_address(address)
    everywhere = "[::]" if ":" in host else "0.0.0.0"
    listen = f"{'[::1]' if ':' in host else '127.0.0.1'}:{port}" if is_loopback(host) else f"{everywhere}:{port}"
    return text.replace('listen = "127.0.0.1:7443"', f'listen = "{listen}"')
