"""A daemon's open files: what connections, dials and the reserve take of the process's limit."""

import resource
from collections.abc import Callable, Iterator

import pytest

from peer.core import limits
from peer.net.transport import descriptors

SetLimit = Callable[[int], None]


@pytest.fixture
def set_limit() -> Iterator[SetLimit]:
    """Sets how many files this process may open, until the test ends."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.parametrize(
    ("sites", "configured", "wanted"),
    [(2, None, 512), (64, None, 512), (65, None, 520), (1000, None, 8000), (1000, 4500, 4500), (2, 16, 16)],
)
def test_connections_follow_the_roster_unless_site_toml_says_their_number(
    sites: int, configured: int | None, wanted: int
) -> None:
    assert descriptors.connections_wanted(configured, sites=sites) == wanted
    dialled = limits.DIALLED_PER_PEER_MAX * sites
    assert descriptors.descriptors_needed(configured, sites=sites) == wanted + dialled + limits.DESCRIPTORS_RESERVED


def test_dials_and_the_reserve_come_before_connections(set_limit: SetLimit) -> None:
    set_limit(512 + 128 + 3 * 64)
    assert descriptors.connections_max(None, sites=64) == 512
    assert descriptors.relay_connections(None, sites=64) == 0
    assert descriptors.relay_connections(12, sites=64) == 250
    assert descriptors.connections_max(None, sites=84) == 512 - 3 * 20
    set_limit(200)
    assert descriptors.connections_max(None, sites=64) == 1, "a server without any connection reaches nobody"
