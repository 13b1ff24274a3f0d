"""Values that `mhfl-peer site configure` proposes: sizes of the input, and ports that are free."""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from peer.errors import ConfigError
from peer.site.config.schema import SiteConfig
from peer.site.config.site_folder import SiteFolder, sites
from peer.site.config.site_tables import AXIS_OF
from peer.site.config.toml import split_address
from peer.view.preflight.local import check_port, listening_ports

SIDES_MAX = {1: 4096, 2: 256, 3: 96}
"""By number of dimensions, the longest side to propose: a batch of larger images fits few machines."""
MULTIPLE = 16
"""Sides of images are multiples of it, since networks halve the grid four times."""
PORTS_TRIED = 200


def propose_input_size(
    survey: Mapping[str, Any], *, dims: int, in_channels: int, orientation: str | None
) -> list[int] | None:
    """Propose the median sides of a datalist's images, scaled down where they are long; None without images.

    Args:
        survey: of the datalist, by ``peer.train.data.survey``.
        orientation: the directions to which volumes are turned.
    """
    spaces: Counter[tuple[int, ...]] = Counter()
    for split in survey["splits"].values():
        for shape, count in split["shapes"].items():
            space = _without_channels(tuple(map(int, shape.split("x"))), dims, in_channels)
            if space is not None:
                spaces[space] += count
    if not spaces:
        return None
    sides = [statistics.median_low(axis) for axis in zip(*spaces.elements(), strict=True)]
    stored = _most_common(split["orientations"] for split in survey["splits"].values())
    if dims == len(AXIS_OF) // 2 and stored and orientation not in (None, "stored"):
        length = {AXIS_OF[letter]: side for letter, side in zip(stored, sides, strict=True)}
        sides = [length[AXIS_OF[letter]] for letter in str(orientation)]
    factor = min(1.0, SIDES_MAX[dims] / max(sides))
    return [_round(side * factor, dims) for side in sides]


def propose_scale(survey: Mapping[str, Any]) -> int | None:
    """Return how many times larger the targets of super-resolution are than their images; None if unclear."""
    images = _most_common(split["shapes"] for split in survey["splits"].values())
    targets = _most_common(split["label_shapes"] for split in survey["splits"].values())
    if images is None or targets is None:
        return None
    scale, rest = divmod(int(targets.split("x")[0]), int(images.split("x")[0]))
    return scale if rest == 0 and scale in (2, 4, 8) else None


def propose_address(address: str, taken: Iterable[int]) -> str:
    """Propose the address, or the same host with the next port that is free here and not taken."""
    host, port = split_address(address)
    if port == 0:
        return address
    taken = set(taken)
    for number in range(port, min(port + PORTS_TRIED, 1 << 16)):
        candidate = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        if number not in taken and check_port("port", candidate, key="listen").verdict == "ok":
            return candidate
    return address


def neighbours_ports(folder: SiteFolder) -> set[int]:
    """Return the ports of the other sites of this home, whether they run or not."""
    ports: set[int] = set()
    for neighbour in sites(folder.home):
        if neighbour != folder:
            with contextlib.suppress(ConfigError):
                ports |= listening_ports(SiteConfig.load(neighbour.site_toml))
    return ports


def _without_channels(shape: tuple[int, ...], dims: int, in_channels: int) -> tuple[int, ...] | None:
    """Return the sides in a shape, of which a picture has its channels behind, and an array may have them in front."""
    if len(shape) == dims:
        return shape
    if len(shape) == dims + 1 and in_channels in (shape[-1], shape[0]):
        return shape[:-1] if shape[-1] == in_channels else shape[1:]
    return None


def _most_common(counts: Iterable[Mapping[str, int]]) -> str | None:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total.most_common(1)[0][0] if total else None


def _round(side: float, dims: int) -> int:
    if dims == 1 or side < 2 * MULTIPLE:
        return max(1, round(side))
    return MULTIPLE * int(side / MULTIPLE + 0.5)
