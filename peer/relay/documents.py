"""The JSON documents of ``mhfl-peer relay``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class SiteTraffic(TypedDict):
    """What a relay holds and has carried for a site."""

    parked: Annotated[int, "connections that wait for a caller"]
    carrying: Annotated[int, "connections that carry a caller now"]
    carried_connections: Annotated[int, "callers so far"]
    carried_bytes: Annotated[int, "bytes of callers that are gone, both directions"]


class RelayRequested(TypedDict):
    """`relay init`"""

    name: Annotated[str, "the relay's name"]
    folder: Annotated[str, "its folder"]
    request: Annotated[str, "the signing request for the founder"]
    fingerprint: Annotated[str, "of its public key"]


class RelayJoined(TypedDict):
    """`relay join`"""

    folder: Annotated[str, "the relay's folder"]
    days: Annotated[int, "days until its certificate expires"]


class RelayStatus(TypedDict):
    """`relay status`"""

    name: Annotated[str, "the relay's name"]
    port: Annotated[int, "where it listens"]
    since: Annotated[float, "when it started, Unix time in seconds"]
    at: Annotated[float, "when this was written; at most two seconds ago"]
    sites: Annotated[Mapping[str, SiteTraffic], "by site that may park"]
    refused: Annotated[Mapping[str, int], "connections that were refused, by reason; the most frequent"]


DOCUMENTS: Mapping[str, Any] = {"relay init": RelayRequested, "relay join": RelayJoined, "relay status": RelayStatus}
"""By command, the type of the document that ``--json`` prints."""
