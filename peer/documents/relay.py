"""The JSON documents of ``mhfl-peer relay``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from peer.core.status_document import SiteTraffic


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


class RelayAmended(TypedDict):
    """`relay amend`"""

    folder: Annotated[str, "the relay's folder"]
    number: Annotated[int, "number of the newest amendment"]
    digest: Annotated[str, "SHA-256 of its body"]
    sites: Annotated[list[str], "sites that may park by now"]
    unknown: Annotated[list[str], "names in `sites` of relay.toml that no amendment has added yet"]


class RelayStatus(TypedDict):
    """`relay status`"""

    name: Annotated[str, "the relay's name"]
    port: Annotated[int, "where it listens"]
    since: Annotated[float, "when it started, Unix time in seconds"]
    at: Annotated[float, "when this was written; at most two seconds ago"]
    amendment: Annotated[int, "number of the newest amendment that the relay was given; 0: none"]
    sites: Annotated[Mapping[str, SiteTraffic], "by site that may park"]
    unknown: Annotated[list[str], "names in `sites` of relay.toml that no amendment has added yet"]
    refused: Annotated[Mapping[str, int], "connections that were refused, by reason; the most frequent"]
    problem: Annotated[str, "why the relay's files cannot be used, so that it goes on with what it had; else empty"]


class RelayChecked(TypedDict):
    """`relay check`"""

    name: Annotated[str, "the relay's name"]
    days: Annotated[int, "days until its certificate expires"]
    sites: Annotated[list[str], "sites that may park"]
    unknown: Annotated[list[str], "names in `sites` of relay.toml that no amendment has added yet"]
    connections: Annotated[int, "connections that it takes at a time, by the limit of open files"]
    running: Annotated[bool, "whether a relay runs in the folder"]
    answers: Annotated[list[str], "addresses at which it answers to its name; empty while it does not run"]


DOCUMENTS: Mapping[str, Any] = {
    "relay init": RelayRequested,
    "relay join": RelayJoined,
    "relay amend": RelayAmended,
    "relay status": RelayStatus,
    "relay check": RelayChecked,
}
"""By command, the type of the document that ``--json`` prints."""
