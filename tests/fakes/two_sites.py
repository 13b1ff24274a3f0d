"""Two sites of a small federation on loopback: europe serves, africa dials."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.local_network import LocalNetwork, Sample, Site
from peer.net.transport.client import ExchangeClient, Offer
from peer.net.transport.wire import ArtifactRequest


@pytest.fixture
async def europe(network: LocalNetwork) -> Site:
    return await network.serve("europe")


@pytest.fixture
def africa(network: LocalNetwork) -> ExchangeClient:
    return network.dial("africa")


async def offered(
    network: LocalNetwork, wanted: Callable[..., ArtifactRequest], *, numbers: int = 500_000
) -> tuple[Site, ExchangeClient, Sample, Offer]:
    """Europe with a published sample, africa with its offer."""
    europe, africa = await network.serve("europe"), network.dial("africa")
    sample = network.sample(numbers=numbers)
    europe.service.publish(sample)
    offer = await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    assert isinstance(offer, Offer)
    return europe, africa, sample, offer
