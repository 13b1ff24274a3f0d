"""A site keeps in touch: where peers are found, when another address is dialled, and that it ends when it should."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.core import events
from peer.core.messages import Heartbeat, Hello
from peer.core.roster import Sha256, SiteName
from peer.daemon.addresses import AddressBook
from peer.daemon.heartbeat import Heartbeats
from peer.demo.local_federation import LocalFederation
from peer.transport.client import Refused, Unreachable

LIMIT_S = 15.0
EUROPE = SiteName("europe")


class FakeClient:
    """Dials where the book says; the peer is where it is told to be."""

    def __init__(self, addresses: AddressBook) -> None:
        self.addresses = addresses
        self.served_at: str | None = None
        self.refuses = False
        self.bugs = 0
        self.dialled: list[str | None] = []
        self.asked: asyncio.Queue[str | None] = asyncio.Queue()

    async def hello(self, peer: SiteName, greeting: Hello) -> Hello:
        address = self.addresses.address(peer)
        self.dialled.append(address)
        self.asked.put_nowait(address)
        if address is None or address != self.served_at:
            raise Unreachable(peer, "no answer")
        if self.refuses:
            raise Refused(peer, "of another federation")
        return greeting

    async def beat(self, peer: SiteName, pulse: Heartbeat) -> Heartbeat:
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("a bug")
        await self.hello(peer, GREETING)
        return PULSE


class FakeHost:
    """Takes everybody for one of ours."""

    def greeting(self, peer: SiteName) -> Hello:
        return GREETING

    def difference(self, greeting: Hello) -> str | None:
        return None

    def welcome(self, peer: SiteName, greeting: Hello) -> None:
        pass

    def said(self, peer: SiteName, size: int) -> None:
        pass


GREETING = Hello(protocol=1, federation=Sha256("fe" * 32), roster=Sha256("fe" * 32), generation=1, clock_s=0.0)
PULSE = Heartbeat(generation=1, round=1, phase="train")


class Touch:
    """Asia's contact with europe over a fake client."""

    def __init__(self, folder: SiteFolder) -> None:
        federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
        own = SiteName("asia")
        self.file = folder.site_toml
        self.founded = federation.addresses[EUROPE]
        self.addresses = AddressBook(own=own, federation=federation, site=site)
        self.client = FakeClient(self.addresses)
        self.events: list[events.Event] = []
        self.heartbeats = Heartbeats(
            own=own,
            federation=federation,
            site=site,
            addresses=self.addresses,
            client=self.client,  # type: ignore[arg-type]
            host=FakeHost(),
            pulse=lambda: PULSE,
            report=self.events.append,
        )

    async def until(self, address: str | None) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.client.asked.get() != address:
                pass


@pytest.fixture
async def touch(enrolled: LocalFederation) -> AsyncIterator[Touch]:
    touch = Touch(enrolled.folder("asia"))
    yield touch
    await touch.heartbeats.close()


async def test_a_peer_that_moved_is_dialled_where_it_is_announced(touch: Touch) -> None:
    touch.client.served_at = touch.founded
    touch.heartbeats.start(1)
    await touch.until(touch.founded)
    touch.client.served_at = "10.0.0.2:1"
    touch.heartbeats._found(EUROPE, "10.0.0.1:666")
    touch.heartbeats._found(EUROPE, "10.0.0.2:1")
    await touch.until("10.0.0.2:1")
    await touch.until("10.0.0.2:1")
    assert touch.addresses.address(EUROPE) == "10.0.0.2:1"


async def test_a_peer_that_nobody_knew_is_dialled_as_soon_as_it_is_announced(touch: Touch) -> None:
    touch.client.served_at = "10.0.0.2:1"
    touch.heartbeats.start(1)
    await touch.until(touch.founded)
    touch.heartbeats._found(EUROPE, "10.0.0.1:666")
    touch.heartbeats._found(EUROPE, "10.0.0.2:1")
    await touch.until("10.0.0.2:1")


async def test_an_address_that_the_operator_edits_is_dialled_without_a_restart(touch: Touch) -> None:
    touch.client.served_at = touch.founded
    touch.heartbeats.start(1)
    await touch.until(touch.founded)
    touch.file.write_text(touch.file.read_text() + '[addresses]\neurope = "10.0.0.3:1"\n')
    await touch.until("10.0.0.3:1")


async def test_who_refuses_has_answered(touch: Touch) -> None:
    """Its certificate was right: to dial elsewhere would help nobody."""
    touch.client.served_at, touch.client.refuses = touch.founded, True
    touch.heartbeats._found(EUROPE, "10.0.0.1:666")
    touch.heartbeats.start(1)
    for _ in range(3):
        await touch.until(touch.founded)
    touch.heartbeats.nudge()
    await touch.until(touch.founded)
    assert set(touch.client.dialled[-3:]) == {touch.founded}
    assert events.PeerRefused(EUROPE, "of another federation") in touch.events


async def test_a_bug_in_a_call_is_logged_once_and_the_beats_go_on(
    touch: Touch, caplog: pytest.LogCaptureFixture
) -> None:
    touch.client.served_at, touch.client.bugs = touch.founded, 3
    touch.heartbeats.start(1)
    async with asyncio.timeout(LIMIT_S):
        while events.PeerHeard(EUROPE, PULSE) not in touch.events:
            await touch.client.asked.get()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "peer cannot be called"
    ]


async def test_a_bug_in_the_address_book_is_logged_and_the_beats_go_on(
    touch: Touch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [KeyError("a bug")]

    def reread(addresses: AddressBook) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr(AddressBook, "reread", reread)
    touch.client.served_at = touch.founded
    touch.heartbeats.start(1)
    await touch.until(touch.founded)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "peer cannot be called"
    ]


@pytest.mark.parametrize("content", ["rounds = " + "9" * 5000, "x = " + "[" * 5000])
async def test_whatever_is_in_the_file_the_calls_go_on(touch: Touch, content: str) -> None:
    touch.heartbeats.start(0)
    await touch.until(touch.founded)
    touch.file.write_text(content)
    touch.client.served_at = touch.founded
    for _ in range(4):
        await touch.until(touch.founded)


async def test_a_cancellation_is_not_lost_on_a_task_that_is_woken_at_the_same_time(touch: Touch) -> None:
    """The last beat is nudged and its task ended in one breath: a task that went on would keep the daemon alive."""
    touch.heartbeats.start(1)
    await touch.client.asked.get()
    touch.heartbeats.nudge()
    async with asyncio.timeout(LIMIT_S):
        await touch.heartbeats.close()


# --- daemons that nobody told any address -----------------------------------------------------------------------------
@pytest.mark.usefixtures("multicast")
def test_sites_without_any_address_find_each_other_and_one_that_came_back_elsewhere(
    enrolled: LocalFederation, program: Any
) -> None:
    for name in ("asia", "europe"):
        folder = enrolled.folder(name)
        text = folder.site_toml.read_text()
        text = re.sub(r'listen = ".*"', 'listen = "127.0.0.1:0"', text) + "[discovery]\nzeroconf = true\n"
        folder.site_toml.write_text(text)
        founded = folder.federation_toml.read_text()
        folder.federation_toml.write_text(re.sub(r'address = ".*"\n', "", founded))
    program.start("asia", "mute")
    europe = program.start("europe", "mute")
    before = met(program, "europe")
    assert met(program, "asia") != before
    europe.kill()
    europe.wait()
    program.start("europe", "mute")
    assert met(program, "europe") != before


def met(program: Any, name: str) -> str:
    """The address at which a site is served, once the other one has found it there."""
    other = {"asia": "europe", "europe": "asia"}[name]
    served = program.until(name, lambda status: status["listen"])["listen"]
    status = program.until(other, lambda status: status["peers"][name]["address"] == served)
    assert status["daemon"] == "running"
    program.until(name, lambda status: status["peers"][other]["called_s"] is not None)
    return str(served)
