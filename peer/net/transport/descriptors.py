"""How a daemon shares out its open files: connections to its server, its own dials, and a reserve."""

from __future__ import annotations

import math
import resource

from peer.core import limits


def open_files_max() -> float:
    """How many files this process may open; ``inf`` where nothing bounds them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def connections_wanted(configured: int | None, *, sites: int) -> int:
    """The connections that a server shall accept among so many sites, unless ``[limits] connections_max`` says it."""
    return configured or max(limits.CONNECTIONS_MAX, limits.CONNECTIONS_PER_PEER_MAX * sites)


def descriptors_needed(configured: int | None, *, sites: int) -> int:
    """The open files of a daemon whose server accepts all of them."""
    return connections_wanted(configured, sites=sites) + _kept(sites)


def connections_max(configured: int | None, *, sites: int) -> int:
    """How many of them a server accepts, so that the daemon's other files can be opened."""
    return int(min(connections_wanted(configured, sites=sites), max(1, open_files_max() - _kept(sites))))


def relay_connections(configured: int | None, *, sites: int) -> int:
    """The connections that this site as a relay may carry, with two of the files that all of those leave for each.

    Where nothing bounds them, half as many as its server accepts.
    """
    accepted = connections_max(configured, sites=sites)
    left = open_files_max() - accepted - _kept(sites)
    return (accepted if left == math.inf else max(0, int(left))) // 2


def _kept(sites: int) -> int:
    """The daemon's open files beside its server's connections."""
    return limits.DESCRIPTORS_RESERVED + limits.DIALLED_PER_PEER_MAX * sites
