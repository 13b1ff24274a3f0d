"""Budget of a daemon's open files: connections to its server, its own dials, and a reserve."""

from __future__ import annotations

import math
import resource

from peer.core import limits


def open_files_max() -> float:
    """Return this process's limit on open files; ``inf`` without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def connections_wanted(configured: int | None, *, sites: int) -> int:
    """Return the configured limit on the server's connections, or the default for ``sites`` sites."""
    return configured or max(limits.CONNECTIONS_MAX, limits.CONNECTIONS_PER_PEER_MAX * sites)


def descriptors_needed(configured: int | None, *, sites: int) -> int:
    """Return the open files of a daemon whose server accepts all wanted connections."""
    return connections_wanted(configured, sites=sites) + _kept(sites)


def connections_max(configured: int | None, *, sites: int) -> int:
    """Return how many connections the server accepts so that the daemon can open its other files."""
    return int(min(connections_wanted(configured, sites=sites), max(1, open_files_max() - _kept(sites))))


def relay_connections(configured: int | None, *, sites: int) -> int:
    """Return how many connections this site may carry as a relay: each takes two of the remaining open files.

    Without a limit on open files, half as many as its server accepts.
    """
    accepted = connections_max(configured, sites=sites)
    left = open_files_max() - accepted - _kept(sites)
    return (accepted if left == math.inf else max(0, int(left))) // 2


def _kept(sites: int) -> int:
    """Return the daemon's open files beside its server's connections."""
    return limits.DESCRIPTORS_RESERVED + limits.DIALLED_PER_PEER_MAX * sites
