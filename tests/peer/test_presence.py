"""What a site shows beside the exchange: nothing unless asked, and nothing to the world unless asked twice."""

from __future__ import annotations

import pytest

from peer import presence, toml
from peer.errors import ConfigError


def metrics(**keys: object) -> presence.Metrics:
    return toml.validated(presence.Metrics, keys, "site.toml: metrics")


def test_nothing_is_shown_by_default() -> None:
    assert metrics().listen is None
    assert toml.validated(presence.Discovery, {}, "site.toml").zeroconf is False


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "127.8.8.8:1", "[::1]:9464", "localhost:9464"])
def test_an_address_of_this_machine_alone_is_free(address: str) -> None:
    assert metrics(listen=address).listen == address


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "10.0.0.7:9464", "[::]:9464", "gpu-server:9464"])
def test_an_address_that_others_reach_must_be_asked_for(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        metrics(listen=address)
    assert address in str(caught.value)
    assert "`public = true`" in str(caught.value)
    assert metrics(listen=address, public=True).listen == address


def test_an_address_without_a_port_is_none() -> None:
    with pytest.raises(ConfigError, match="listen"):
        metrics(listen="127.0.0.1")
