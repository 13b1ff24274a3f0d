"""Heartbeats: when which address is dialled, and that the tasks end when they should."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
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
    """Dials the address book's addresses; the peer answers at ``served_at``."""

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


class FakeService:
    """Accepts every greeting."""

    def __init__(self, report: Callable[[events.Event], None]) -> None:
        self.report = report

    def greeting(self, peer: SiteName) -> Hello:
        return GREETING

    def difference(self, greeting: Hello) -> str | None:
        return None

    def accept_greeting(self, peer: SiteName, greeting: Hello) -> None:
        pass

    def pulse(self, peer: SiteName) -> Heartbeat:
        return PULSE

    def hear(self, peer: SiteName, pulse: Heartbeat) -> None:
        self.report(events.PeerHeard(peer, pulse))


GREETING = Hello(protocol=1, federation=Sha256("fe" * 32), roster=Sha256("fe" * 32), generation=1, clock_s=0.0)
PULSE = Heartbeat(generation=1, round=1, phase="train")


class HeartbeatSetup:
    """Asia's heartbeats to europe over a fake client."""

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
            service=FakeService(self.events.append),  # type: ignore[arg-type]
            report=self.events.append,
        )

    async def until(self, address: str | None) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.client.asked.get() != address:
                pass


@pytest.fixture
async def setup(enrolled: LocalFederation) -> AsyncIterator[HeartbeatSetup]:
    setup = HeartbeatSetup(enrolled.folder("asia"))
    yield setup
    await setup.heartbeats.close()


async def test_a_peer_that_moved_is_dialled_where_it_is_announced(setup: HeartbeatSetup) -> None:
    setup.client.served_at = setup.founded
    setup.heartbeats.start(1)
    await setup.until(setup.founded)
    setup.client.served_at = "10.0.0.2:1"
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats._on_address(EUROPE, "10.0.0.2:1")
    await setup.until("10.0.0.2:1")
    await setup.until("10.0.0.2:1")
    assert setup.addresses.address(EUROPE) == "10.0.0.2:1"


async def test_a_peer_that_nobody_knew_is_dialled_as_soon_as_it_is_announced(setup: HeartbeatSetup) -> None:
    setup.client.served_at = "10.0.0.2:1"
    setup.heartbeats.start(1)
    await setup.until(setup.founded)
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats._on_address(EUROPE, "10.0.0.2:1")
    await setup.until("10.0.0.2:1")


async def test_an_address_that_the_operator_edits_is_dialled_without_a_restart(setup: HeartbeatSetup) -> None:
    setup.client.served_at = setup.founded
    setup.heartbeats.start(1)
    await setup.until(setup.founded)
    setup.file.write_text(setup.file.read_text() + '[addresses]\neurope = "10.0.0.3:1"\n')
    await setup.until("10.0.0.3:1")


async def test_who_refuses_has_answered(setup: HeartbeatSetup) -> None:
    """The peer's certificate was right, so another address would not help."""
    setup.client.served_at, setup.client.refuses = setup.founded, True
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats.start(1)
    for _ in range(3):
        await setup.until(setup.founded)
    setup.heartbeats.nudge()
    await setup.until(setup.founded)
    assert set(setup.client.dialled[-3:]) == {setup.founded}
    assert events.PeerRefused(EUROPE, "of another federation") in setup.events


async def test_a_bug_in_a_call_is_logged_once_and_the_beats_go_on(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.client.served_at, setup.client.bugs = setup.founded, 3
    setup.heartbeats.start(1)
    async with asyncio.timeout(LIMIT_S):
        while events.PeerHeard(EUROPE, PULSE) not in setup.events:
            await setup.client.asked.get()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "peer cannot be called"
    ]


async def test_a_bug_in_the_address_book_is_logged_and_the_beats_go_on(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [KeyError("a bug")]

    def reread(addresses: AddressBook) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr(AddressBook, "reread", reread)
    setup.client.served_at = setup.founded
    setup.heartbeats.start(1)
    await setup.until(setup.founded)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "peer cannot be called"
    ]


@pytest.mark.parametrize("content", ["rounds = " + "9" * 5000, "x = " + "[" * 5000])
async def test_whatever_is_in_the_file_the_calls_go_on(setup: HeartbeatSetup, content: str) -> None:
    setup.heartbeats.start(0)
    await setup.until(setup.founded)
    setup.file.write_text(content)
    setup.client.served_at = setup.founded
    for _ in range(4):
        await setup.until(setup.founded)


async def test_a_cancellation_is_not_lost_on_a_task_that_is_woken_at_the_same_time(setup: HeartbeatSetup) -> None:
    """The heartbeat is nudged and its task ended at once: a task that went on would block the daemon."""
    setup.heartbeats.start(1)
    await setup.client.asked.get()
    setup.heartbeats.nudge()
    async with asyncio.timeout(LIMIT_S):
        await setup.heartbeats.close()


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
