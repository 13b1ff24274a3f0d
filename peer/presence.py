"""How a site shows itself beside the exchange: on the local network, and to a monitoring system. Neither by default."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import model_validator

from peer.toml import Listen, Table, split_address, wrong


class Discovery(Table):
    """``[discovery]`` of site.toml: whether this site tells its address on the local network and listens for others'.

    What is found there is only ever an address: who answers at it is settled by certificates.
    """

    zeroconf: bool = False


class Metrics(Table):
    """``[metrics]`` of site.toml: where a Prometheus server may ask; left out: nowhere.

    The endpoint has no password and no TLS, so that anything but a loopback address needs ``public``.
    """

    listen: Listen | None = None
    public: bool = False

    @model_validator(mode="after")
    def _asked_for(self) -> Self:
        if self.listen is not None and not self.public and not loopback(split_address(self.listen)[0]):
            raise wrong(
                "listen",
                f"{self.listen} can be reached by others, without a password; "
                "take 127.0.0.1, or say `public = true` if that is meant",
            )
        return self


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than ``localhost`` may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
