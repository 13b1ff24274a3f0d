"""Heartbeats: when which address is dialled, and that the tasks end when they should."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.core import events
from peer.core.messages import ChainHead, Heartbeat, Hello, SignedNotice
from peer.core.roster import Sha256, SiteName
from peer.daemon.addresses import AddressBook
from peer.daemon.heartbeat import GREETINGS_AT_ONCE, Heartbeats
from peer.daemon.notice_spread import NoticeSpread
from peer.daemon.peer_account import PeerAccount
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.client import Mismatched, Unreachable
from peer.net.transport.handshake import Diagnosis, Fault
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder

pytestmark = pytest.mark.e2e

LIMIT_S = 15.0
EUROPE = SiteName("europe")


class FakeClient:
    """Dials the address book's addresses; the peer answers at ``served_at``."""

    def __init__(self, addresses: AddressBook) -> None:
        self.addresses = addresses
        self.served_at: str | None = None
        self.refuses = False
        self.bugs = self.greetings = 0
        self.dialled: list[str | None] = []
        self.asked: asyncio.Queue[str | None] = asyncio.Queue()

    async def hello(self, peer: SiteName, greeting: Hello) -> Hello:
        self.greetings += 1
        await self.answer(peer)
        return greeting

    async def answer(self, peer: SiteName) -> None:
        address = self.addresses.address(peer)
        self.dialled.append(address)
        self.asked.put_nowait(address)
        if address is None or address != self.served_at:
            raise Unreachable(peer, "no answer")
        if self.refuses:
            raise Mismatched(peer, "of another federation")

    async def beat(self, peer: SiteName, pulse: Heartbeat) -> Heartbeat:
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("a bug")
        await self.answer(peer)
        return PULSE


class FakeService:
    """Accepts every greeting."""

    def __init__(self, report: Callable[[events.Event], None]) -> None:
        self.report = report
        self.beaten = False
        self.known: dict[SiteName, SignedNotice] = {}
        self.notices = NoticeSpread(SiteName("asia"), lambda: self.known)
        self.europe = PeerAccount()

    def explain(self, reason: str) -> str:
        return f"{reason}, explained"

    def beaten_within(self, peer: SiteName, seconds: float) -> bool:
        return self.beaten

    def account(self, peer: SiteName) -> PeerAccount:
        return self.europe

    def greeting(self, peer: SiteName) -> Hello:
        return GREETING

    def difference(self, greeting: Hello) -> str | None:
        return None

    def accept_greeting(self, peer: SiteName, greeting: Hello) -> None:
        self.europe.mismatch = ""

    def note_mismatch(self, peer: SiteName, problem: str) -> None:
        self.europe.mismatch = problem

    def pulse(self, peer: SiteName) -> Heartbeat:
        return replace(PULSE, notice=self.notices.next(peer))

    def hear(self, peer: SiteName, pulse: Heartbeat, *, sent: Heartbeat | None = None) -> None:
        if sent is not None and sent.notice is not None:  # the peer shows what it was sent
            self.notices.confirm(peer, SiteName("africa"))
        self.report(events.PeerHeard(peer, pulse))


GREETING = Hello(protocol=1, federation=Sha256("fe" * 32), roster=Sha256("fe" * 32), generation=1, clock_s=0.0)
NOTICE = SignedNotice(b"body", b"signature", b"certificate")
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
        self.service = FakeService(self.events.append)
        self.heartbeats = Heartbeats(
            own=own,
            peers=federation.roster.others(own),
            federation=federation,
            site=site,
            addresses=self.addresses,
            client=self.client,  # type: ignore[arg-type]
            service=self.service,  # type: ignore[arg-type]
            report=self.events.append,
            diagnose=self.diagnose,
        )
        self.diagnosis = Diagnosis(Fault.UNREACHABLE, "nothing answers", "start it")
        self.diagnosed: list[str] = []

    def diagnose(self, peer: SiteName, address: str) -> Diagnosis:
        self.diagnosed.append(address)
        return self.diagnosis

    async def begin(self) -> None:
        """Beat to europe, which answers at its founded address."""
        self.client.served_at = self.founded
        self.heartbeats.start(1)
        await self.until(self.founded)

    async def until_problem(self, problem: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.heartbeats.problem(EUROPE) != problem:
                await self.client.asked.get()

    async def until(self, address: str | None) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.client.asked.get() != address:
                pass


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
async def setup(enrolled: LocalFederation) -> AsyncIterator[HeartbeatSetup]:
    setup = HeartbeatSetup(enrolled.folder("asia"))
    yield setup
    await setup.heartbeats.close()


async def test_a_peer_that_was_updated_between_two_heartbeats_is_greeted_again(setup: HeartbeatSetup) -> None:
    """Its own greeting did not fit: only this site's greeting tells it so."""
    setup.client.served_at = setup.founded
    assert await setup.heartbeats._call(EUROPE, 1, nudged=True) == 1
    assert setup.client.greetings == 0
    setup.service.europe.mismatch = "no protocol version is common"
    assert await setup.heartbeats._call(EUROPE, 1, nudged=True) == 1
    assert setup.client.greetings == 1


async def test_a_peer_that_moved_is_dialled_where_it_is_announced(setup: HeartbeatSetup) -> None:
    await setup.begin()
    setup.client.served_at = "10.0.0.2:1"
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats._on_address(EUROPE, "10.0.0.2:1")
    await setup.until("10.0.0.2:1")
    await setup.until("10.0.0.2:1")
    assert setup.addresses.address(EUROPE) == "10.0.0.2:1"


async def test_a_newcomer_is_greeted_where_its_amendment_says_and_a_site_that_is_gone_is_not(
    setup: HeartbeatSetup,
) -> None:
    await setup.begin()
    america = SiteName("america")
    setup.addresses.follow_roster({america: "10.0.0.9:1", EUROPE: None})
    setup.heartbeats.follow_roster([america])
    await setup.until("10.0.0.9:1")
    assert setup.addresses.address(EUROPE) == setup.founded
    setup.heartbeats.nudge(EUROPE)
    await setup.until("10.0.0.9:1")
    setup.client.dialled.clear()
    await setup.until("10.0.0.9:1")
    assert set(setup.client.dialled) == {"10.0.0.9:1"}


async def test_a_peer_is_heard_once_its_amendments_were_looked_into(setup: HeartbeatSetup) -> None:
    order: list[str] = []

    async def follow(peer: SiteName, head: ChainHead | None) -> None:
        await asyncio.sleep(0)
        order.append(f"followed {peer}")

    heard = asyncio.Event()

    def hear(peer: SiteName, pulse: Heartbeat, *, sent: Heartbeat | None = None) -> None:
        order.append(f"heard {peer}")
        heard.set()

    setup.heartbeats._follow, setup.service.hear = follow, hear  # type: ignore[method-assign]
    setup.client.served_at = setup.founded
    setup.heartbeats.start(1)
    await asyncio.wait_for(heard.wait(), LIMIT_S)
    assert order == ["followed europe", "followed europe", "heard europe"]


async def test_a_peer_that_nobody_knew_is_dialled_as_soon_as_it_is_announced(setup: HeartbeatSetup) -> None:
    setup.client.served_at = "10.0.0.2:1"
    setup.heartbeats.start(1)
    await setup.until(setup.founded)
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats._on_address(EUROPE, "10.0.0.2:1")
    await setup.until("10.0.0.2:1")


async def test_an_address_that_the_operator_edits_is_dialled_without_a_restart(setup: HeartbeatSetup) -> None:
    await setup.begin()
    setup.file.write_text(setup.file.read_text() + '[addresses]\neurope = "10.0.0.3:1"\n')
    await setup.until("10.0.0.3:1")


async def test_who_refuses_has_answered(setup: HeartbeatSetup) -> None:
    """The peer's certificate was right, so another address would not help."""
    setup.client.served_at, setup.client.refuses = setup.founded, True
    setup.heartbeats._on_address(EUROPE, "10.0.0.1:666")
    setup.heartbeats.start(1)
    for _ in range(3):
        await setup.until(setup.founded)
    setup.heartbeats.announce(away=False)
    await setup.until(setup.founded)
    assert set(setup.client.dialled[-3:]) == {setup.founded}
    assert events.PeerRefused(EUROPE, "of another federation, explained", declined=True) in setup.events


async def test_a_peer_that_refuses_this_site_s_greeting_is_not_served_until_a_greeting_matches(
    setup: HeartbeatSetup,
) -> None:
    """It may be updated, and its own greeting late: until then, it fetched from a site that it does not speak with."""
    setup.client.served_at, setup.client.refuses = setup.founded, True
    setup.heartbeats.start(1)
    await setup.until_problem("of another federation, explained")
    assert setup.service.europe.mismatch == "of another federation"
    setup.client.refuses = False
    await setup.until_problem("")
    assert setup.service.europe.mismatch == ""


async def test_a_peer_out_of_reach_is_diagnosed_once_and_forgotten_when_it_answers(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.diagnosis = Diagnosis(Fault.PROXY, "the proxy wants a password", "give it one")
    setup.heartbeats.start(1)
    await setup.until_problem("the proxy wants a password; give it one")
    for _ in range(3):
        await setup.until(setup.founded)
    assert setup.diagnosed == [setup.founded]
    warned = [record.reason for record in caplog.records if record.getMessage() == "peer out of reach"]  # type: ignore[attr-defined]
    assert warned == ["the proxy wants a password; give it one"]
    assert setup.events == [], "what a proxy does is no deed of the peer"
    setup.client.served_at = setup.founded
    await setup.until_problem("")


async def test_a_peer_that_is_down_is_shown_and_not_logged(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.heartbeats.start(1)
    await setup.until_problem("nothing answers; start it")
    assert "peer out of reach" not in [record.getMessage() for record in caplog.records]


async def test_a_refusal_is_a_problem_too(setup: HeartbeatSetup) -> None:
    setup.client.served_at, setup.client.refuses = setup.founded, True
    setup.heartbeats.start(1)
    await setup.until_problem("of another federation, explained")
    assert setup.diagnosed == []


async def test_a_bug_in_a_call_is_logged_once_and_the_beats_go_on(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.client.served_at, setup.client.bugs = setup.founded, 3
    setup.heartbeats.start(1)
    async with asyncio.timeout(LIMIT_S):
        while events.PeerHeard(EUROPE, PULSE) not in setup.events:
            await setup.client.asked.get()
    assert errors(caplog) == ["peer cannot be called"]


async def test_a_bug_in_the_address_book_is_logged_and_the_beats_go_on(
    setup: HeartbeatSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [KeyError("a bug")]

    def reread(addresses: AddressBook) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr(AddressBook, "reread", reread)
    await setup.begin()
    assert errors(caplog) == ["peer cannot be called"]


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
    setup.heartbeats.announce(away=True)
    async with asyncio.timeout(LIMIT_S):
        await setup.heartbeats.close()


@pytest.mark.parametrize("large", [False, True])
async def test_a_site_that_goes_away_tells_it_at_once(setup: HeartbeatSetup, large: bool) -> None:
    setup.heartbeats._large = large
    setup.heartbeats.announce(away=True)
    assert setup.heartbeats._nudges[EUROPE].is_set()


@pytest.mark.parametrize("large", [False, True])
async def test_another_phase_is_told_soon_and_in_a_large_federation_with_the_next_heartbeat(
    setup: HeartbeatSetup, large: bool
) -> None:
    nudge, setup.heartbeats._large = setup.heartbeats._nudges[EUROPE], large
    for _ in range(2):
        setup.heartbeats.announce(away=False)
        assert not nudge.is_set(), "a short exchange is over before"
    assert (setup.heartbeats._announcement is None) is large
    if not large:
        async with asyncio.timeout(LIMIT_S):
            await nudge.wait()
        assert setup.heartbeats._announcement is None, "both changes are told with one heartbeat"


@pytest.mark.parametrize(
    ("large", "generation", "nudged", "calls"),
    [(True, 1, False, 0), (True, 1, True, 1), (True, 0, False, 2), (False, 1, False, 1)],
)
async def test_in_a_large_federation_one_heartbeat_of_a_pair_is_enough(
    setup: HeartbeatSetup, large: bool, generation: int, nudged: bool, calls: int
) -> None:
    setup.client.served_at, setup.heartbeats._large = setup.founded, large
    setup.service.beaten = True
    assert await setup.heartbeats._call(EUROPE, generation, nudged=nudged) == 1
    assert len(setup.client.dialled) == calls, "a peer that was not greeted yet is greeted first"
    setup.service.beaten = False
    await setup.heartbeats._call(EUROPE, 1, nudged=False)
    assert len(setup.client.dialled) == calls + 1


@pytest.mark.parametrize("large", [False, True])
async def test_in_a_large_federation_greetings_take_turns_and_the_beats_of_peers_that_are_up_do_not_wait_for_them(
    setup: HeartbeatSetup, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    names = [SiteName(f"site-{number}") for number in range(GREETINGS_AT_ONCE + 3)]
    greeted: list[SiteName] = []

    async def hello(peer: SiteName, greeting: Hello) -> Hello:
        greeted.append(peer)
        if peer != EUROPE:
            await asyncio.Event().wait()  # it is down, and no answer comes
        return greeting

    monkeypatch.setattr(setup.client, "hello", hello)
    monkeypatch.setattr(setup.heartbeats, "_wait_s", lambda failures: 0.0)
    monkeypatch.setattr(setup.addresses, "address", lambda peer: setup.founded)
    setup.client.served_at, setup.heartbeats._large = setup.founded, large
    setup.heartbeats.follow_roster([EUROPE, *names])
    setup.heartbeats.start(1)
    for _ in range(3):
        await setup.until(setup.founded)  # a beat to europe
    assert greeted == [EUROPE, *(names[:GREETINGS_AT_ONCE] if large else names)]


@pytest.mark.parametrize(("large", "waits_s"), [(False, [3.0, 0.2, 0.5, 2.0]), (True, [3.0, 3.0, 3.0, 3.0])])
def test_in_a_large_federation_a_peer_that_is_down_is_called_as_often_as_one_that_is_up(
    setup: HeartbeatSetup, large: bool, waits_s: list[float]
) -> None:
    federation = setup.heartbeats._federation
    pace = federation.pace.model_copy(update={"beat_s": 3.0})
    setup.heartbeats._federation = federation.model_copy(update={"pace": pace})
    setup.heartbeats._large = large
    assert [setup.heartbeats._wait_s(failures) for failures in (0, 1, 2, 9)] == waits_s


# --- daemons that nobody told any address -----------------------------------------------------------------------------
@pytest.mark.usefixtures("multicast")
async def test_a_notice_travels_until_the_peer_has_answered_it(setup: HeartbeatSetup) -> None:
    setup.service.known[SiteName("africa")] = NOTICE
    setup.heartbeats.start(7443)
    await setup.until(setup.founded)
    assert setup.service.notices.lacks(EUROPE) == ["africa"]
    setup.client.served_at = setup.founded
    async with asyncio.timeout(LIMIT_S):
        while setup.service.notices.lacks(EUROPE):
            await setup.client.asked.get()


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
