"""Sites find each other on the loopback interface; false announcements cost one dial each."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from zeroconf import InterfaceChoice, IPVersion

from peer.core.roster import Sha256, SiteName
from peer.net.transport.discovery import (
    ADDRESSES_MAX,
    NAMES_MAX,
    SERVICE,
    AnnouncedAddress,
    Discovery,
    announced,
    choose_announced,
    dialable,
    served_at,
)

FEDERATION = Sha256(os.urandom(32).hex())
"""Another digest in every run: other tests announce on the same interface."""
LIMIT_S = 20.0
LOOPBACK = "127.0.0.1"
TEXT = {"version": "1", "federation": FEDERATION[:16], "site": "europe"}
EUROPE = f"europe-{FEDERATION[:8]}"


needs_multicast = pytest.mark.usefixtures("multicast")


class Network:
    """Sites and other programs on the loopback interface, and the addresses that asia gets."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.news = asyncio.Event()
        self.open: list[Any] = []

    def on_address(self, peer: SiteName, address: str) -> None:
        self.heard.append((peer, address))
        self.news.set()

    def site(
        self, name: str, port: int, *, federation: Sha256 = FEDERATION, deaf: bool = False, **options: Any
    ) -> Discovery:
        others = [SiteName(other) for other in ("africa", "asia", "europe") if other != name]
        on_address = (lambda peer, address: None) if deaf else self.on_address
        discovery = Discovery(
            site=SiteName(name), federation=federation, peers=others, on_address=on_address, **options
        )
        discovery.start(lambda: AnnouncedAddress(port, (LOOPBACK,), (LOOPBACK,)))
        self.open.append(discovery)
        return discovery

    async def stranger(self, instance: str, port: int, text: dict[str, Any], *, service: str = SERVICE) -> Any:
        """Announce any name, without asking whether it is taken."""
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

        zeroconf = AsyncZeroconf(interfaces=[LOOPBACK])
        facts = {"port": port, "properties": text, "parsed_addresses": [LOOPBACK], "server": f"{instance}-liar.local."}
        info = AsyncServiceInfo(service, f"{instance}.{service}", **facts)
        await (await zeroconf.async_register_service(info, cooperating_responders=True))
        self.open.append(zeroconf)
        return zeroconf

    async def until(self, *wanted: tuple[str, str]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not set(wanted) <= set(self.heard):
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network()
    yield network
    await asyncio.gather(*(each.stop() if isinstance(each, Discovery) else each.async_close() for each in network.open))


@needs_multicast
async def test_a_site_is_found_and_found_again_at_another_port(network: Network) -> None:
    network.site("asia", 1001)
    europe = network.site("europe", 1002, deaf=True)
    await network.until(("europe", "127.0.0.1:1002"))
    await europe.stop()
    network.site("europe", 1003, deaf=True)
    await network.until(("europe", "127.0.0.1:1003"))
    assert {peer for peer, _ in network.heard} == {"europe"}, "nobody hears of itself"


@needs_multicast
async def test_a_liar_is_heard_as_well_and_silences_nobody(network: Network) -> None:
    await network.stranger(EUROPE, 666, TEXT)
    network.site("asia", 1001)
    network.site("europe", 1002, deaf=True)
    await network.until(("europe", "127.0.0.1:666"), ("europe", "127.0.0.1:1002"))


@needs_multicast
async def test_what_still_holds_is_said_again(network: Network) -> None:
    network.site("asia", 1001, refresh_s=0.2)
    network.site("europe", 1002, deaf=True)
    await network.until(("europe", "127.0.0.1:1002"))
    network.heard.clear()  # as if it had been forgotten, over all the lies that came meanwhile
    await network.until(("europe", "127.0.0.1:1002"))


@needs_multicast
async def test_what_is_none_of_ours_is_left_alone(network: Network) -> None:
    network.site("europe", 2001, federation=Sha256("ab" * 32), deaf=True)
    await asyncio.gather(
        network.stranger(f"{EUROPE}-of-another", 2002, {**TEXT, "federation": "ab" * 8}),
        network.stranger(f"{EUROPE}-of-the-future", 2003, {**TEXT, "version": "2"}),
        network.stranger(f"{EUROPE}-garbage", 2004, {"site": b"\xff\xfe", "federation": None, "": "x" * 200}),
        network.stranger(f"{EUROPE}-stranger", 2005, {**TEXT, "site": "mars"}),
        network.stranger(f"{EUROPE}-nowhere", 0, TEXT),
    )
    network.site("asia", 1001)
    network.site("africa", 1002, deaf=True)
    await network.until(("africa", "127.0.0.1:1002"))
    assert set(network.heard) == {("africa", "127.0.0.1:1002")}


@needs_multicast
async def test_another_program_sees_the_site(network: Network) -> None:
    network.site("europe", 1002)
    watcher = """
import json, sys, threading
from zeroconf import ServiceBrowser, ServiceListener, Zeroconf

class Listener(ServiceListener):
    def add_service(self, zeroconf, kind, name):
        if name != sys.argv[1]:  # other tests' sites
            return
        info = zeroconf.get_service_info(kind, name)
        text = {key.decode(): value.decode() for key, value in info.properties.items()}
        print(json.dumps([name, info.port, info.parsed_addresses(), text]), flush=True)
        seen.set()

    def remove_service(self, zeroconf, kind, name):  # of other tests' sites
        pass

    update_service = add_service

seen = threading.Event()
with Zeroconf(interfaces=["127.0.0.1"]) as zeroconf:
    ServiceBrowser(zeroconf, "_mhfl._tcp.local.", Listener())
    sys.exit(not seen.wait(20))
"""
    name = f"{EUROPE}.{SERVICE}"
    command = [sys.executable, "-c", watcher, name]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=3 * LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == [name, 1002, [LOOPBACK], TEXT]


class LogLines(logging.Handler):
    """Collects discovery's warnings, with their reasons."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(f"{record.getMessage()}: {vars(record).get('reason')}")


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    log_lines, log = LogLines(), logging.getLogger("peer.net.transport.discovery")
    log.addHandler(log_lines)
    yield log_lines
    log.removeHandler(log_lines)


@pytest.mark.e2e
@needs_multicast
async def test_a_flood_is_not_listened_to_and_not_held_against_those_who_come_after_it(
    network: Network, log_lines: LogLines
) -> None:
    from zeroconf import ServiceStateChange

    asia = network.site("asia", 1001, refresh_s=0.5)
    network.site("africa", 1002, deaf=True)
    await network.until(("africa", "127.0.0.1:1002"))
    for number in range(NAMES_MAX + 1):  # not over the network: other tests' sites are on it
        asia._on_announcement(None, SERVICE, f"lie-{number}.{SERVICE}", ServiceStateChange.Added)  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S):
        assert (
            await log_lines.lines.get()
            == f"discovery does not work; trying again: over {NAMES_MAX} announcements in 0.5 s"
        )
    network.site("europe", 1003, deaf=True)
    await network.until(("europe", "127.0.0.1:1003"))
    assert set(network.heard) == {("africa", "127.0.0.1:1002"), ("europe", "127.0.0.1:1003")}


async def test_a_network_that_is_not_there_is_waited_for_with_one_warning(
    network: Network, log_lines: LogLines
) -> None:
    def where() -> AnnouncedAddress:
        loop.call_soon_threadsafe(looks.put_nowait, None)
        raise OSError("no such network")

    loop, looks = asyncio.get_running_loop(), asyncio.Queue[None]()
    discovery = Discovery(
        site=SiteName("asia"), federation=FEDERATION, peers=[], on_address=network.on_address, refresh_s=0.001
    )
    network.open.append(discovery)
    discovery.start(where)
    async with asyncio.timeout(LIMIT_S):
        for _ in range(3):
            await looks.get()
    assert log_lines.lines.get_nowait() == "discovery does not work; trying again: no such network"
    assert log_lines.lines.empty()


@pytest.mark.parametrize(
    ("interfaces", "addresses", "opened_on"),
    [
        ((LOOPBACK,), (LOOPBACK,), {"interfaces": [LOOPBACK]}),
        ((), ("192.0.2.1",), {"interfaces": InterfaceChoice.All, "ip_version": IPVersion.V4Only}),
        ((), ("192.0.2.1", "2001:db8::1"), {"interfaces": InterfaceChoice.All, "ip_version": IPVersion.All}),
    ],
)
async def test_a_site_with_addresses_of_its_own_speaks_on_their_interfaces_alone(
    network: Network, monkeypatch: pytest.MonkeyPatch, interfaces: Any, addresses: Any, opened_on: dict[str, Any]
) -> None:
    opened = asyncio.Queue[dict[str, Any]]()

    def refuse(**options: Any) -> None:
        opened.put_nowait(options)
        raise OSError("no such network")

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", refuse)
    discovery = Discovery(site=SiteName("asia"), federation=FEDERATION, peers=[], on_address=network.on_address)
    network.open.append(discovery)
    discovery.start(lambda: AnnouncedAddress(1001, addresses, interfaces))
    async with asyncio.timeout(LIMIT_S):
        assert await opened.get() == opened_on


# --- what an announcement says --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        {},
        {b"site": b"europe"},
        {b"version": b"1", b"federation": FEDERATION[:16].encode()},
        {b"version": b"1", b"federation": FEDERATION[:16].encode(), b"site": None},
        {b"version": b"1", b"federation": FEDERATION[:16].encode(), b"site": b""},
        {b"version": b"1", b"federation": FEDERATION[:16].encode(), b"site": b"\xff"},
        {b"version": b"1", b"federation": FEDERATION[:15].encode(), b"site": b"europe"},
    ],
)
def test_a_text_that_lacks_something_names_nobody(text: dict[bytes, Any]) -> None:
    assert announced(text, FEDERATION) is None


def test_a_text_that_is_whole_names_its_site() -> None:
    text = {key.encode(): value.encode() for key, value in TEXT.items()} | {b"more": b"later"}
    assert announced(text, FEDERATION) == "europe"


def test_addresses_that_need_a_scope_or_mean_nobody_are_left_out() -> None:
    given = ["fe80::1", "fd00::2", "0.0.0.0", "224.0.0.251", "169.254.1.1", "192.0.2.7"]
    assert dialable(given) == ["192.0.2.7", "fd00::2"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_site_on_loopback_is_told_of_on_loopback_alone(host: str) -> None:
    assert served_at(host, 7443) == AnnouncedAddress(7443, (LOOPBACK,), (LOOPBACK,))


def test_a_site_on_all_interfaces_tells_their_addresses() -> None:
    place = served_at("0.0.0.0", 7443)
    assert place.interfaces == ()
    assert place.addresses
    assert not any(":" in address for address in place.addresses)
    assert len(place.addresses) == 1 or LOOPBACK not in place.addresses


def test_bridges_of_containers_leave_room_for_the_address_that_leads_out() -> None:
    bridges = [f"172.{number}.0.1" for number in range(17, 25)]
    assert choose_announced([*bridges, "192.168.1.5"], "192.168.1.5") == ("192.168.1.5", *bridges[: ADDRESSES_MAX - 1])
    assert choose_announced(["10.0.0.2", "10.0.0.1"], "") == ("10.0.0.1", "10.0.0.2")
