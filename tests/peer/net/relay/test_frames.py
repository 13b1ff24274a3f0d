"""The frames of parked connections against the known answers in proto/vectors."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from peer.net.relay import frames
from peer.net.relay.client_hello import ClientHello, parse_client_hello
from peer.net.relay.frames import Frame
from peer.net.relay.server import NOBODY_PARKED, UNKNOWN_NAME

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "parking.json").read_text())


async def read(content: bytes) -> tuple[Frame, bytes]:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return await frames.read(reader)


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: vector["type"])
async def test_a_frame_has_these_bytes(vector: dict[str, str]) -> None:
    kind, payload, content = Frame[vector["type"]], bytes.fromhex(vector["payload"]), bytes.fromhex(vector["bytes"])
    assert frames.encode(kind, payload) == content
    assert await read(content) == (kind, payload)


def test_every_type_has_a_vector() -> None:
    assert [vector["type"] for vector in VECTORS["frames"]] == [kind.name for kind in Frame]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
async def test_what_is_no_frame_is_refused(vector: dict[str, str]) -> None:
    with pytest.raises((ValueError, EOFError)):
        await read(bytes.fromhex(vector["bytes"]))


@pytest.mark.parametrize("vector", VECTORS["client_hellos"], ids=lambda vector: vector["server_name"])
def test_a_relay_reads_name_and_protocol(vector: dict[str, Any]) -> None:
    expected = ClientHello(vector["server_name"], tuple(vector["protocols"]))
    assert parse_client_hello(bytes.fromhex(vector["bytes"])) == expected


def test_the_alerts_are_those_of_the_specification() -> None:
    assert VECTORS["alerts"] == {"unknown name": UNKNOWN_NAME.hex(), "nobody parked": NOBODY_PARKED.hex()}
