"""A relay between real servers and clients: calls and artifacts pass, and who may not is refused."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl

import pytest

from fakes.http_proxy import HttpProxy
from peer.core.messages import Heartbeat
from peer.net.relay import frames, parking, server, splice
from peer.net.relay.parking import CARRYING_MAX, IDLE, Parking, Parkings, RelayRefused
from peer.net.relay.probe import probe
from peer.net.relay.server import NOBODY_PARKED, UNKNOWN_NAME, RelayServer
from peer.net.transport.client import Refused, Unreachable
from peer.net.transport.handshake import Fault, diagnose
from peer.net.transport.proxy import Proxy, direct
from peer.net.transport.tls import stream_context
from peer.site.identity import certificates

PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)


class Gate:
    """A relay, and the sites that park there."""

    def __init__(self, network, authority):
        self.network, self.authority = network, authority
        self.parkings = []
        self.relay, self.port = None, 0

    async def open(self, sites=("europe",), port=0, **options):
        pki = self.authority.admit("gate")
        files = (pki.folder / certificates.CERTIFICATE_FILE, pki.folder / certificates.KEY_FILE)
        self.relay = RelayServer(
            "gate",
            lambda: stream_context(ssl.PROTOCOL_TLS_SERVER, pki.ca_certificate, *files),
            frozenset(sites),
            **options,
        )
        self.port = await self.relay.start("127.0.0.1", port)
        return self

    async def park(self, site, *, pki=None, relay="gate"):
        """Park connections of a site, and let others reach it through the relay alone."""
        parkings = Parkings(
            [(relay, f"127.0.0.1:{self.port}")],
            pki=pki or self.authority.admit(site.name),
            listen=f"127.0.0.1:{site.port}",
            proxy_for=direct,
            on_caller=site.server.note_relayed,
        )
        parkings.start(site.port)
        self.parkings.append(parkings)
        self.network.addresses[site.name] = f"127.0.0.1:{self.port}"
        return parkings.all[0]

    async def parked(self, site, count=IDLE):
        async with asyncio.timeout(20), self.relay.changed:
            await self.relay.changed.wait_for(lambda: self.relay.traffic()[site]["parked"] >= count)

    async def open_for(self, site, **options):
        """Open the relay with the connections of a site parked, as europe's."""
        await self.open()
        parked = await self.park(site, **options)
        await self.parked("europe")
        return parked

    async def close(self):
        for parkings in self.parkings:
            await parkings.close()
        if self.relay is not None:
            await self.relay.stop()


@pytest.fixture
async def gate(network, authority):
    gate = Gate(network, authority)
    yield gate
    await gate.close()


async def test_calls_and_artifacts_pass_and_are_counted(gate, network, europe, africa, wanted):
    await gate.open_for(europe)
    assert await africa.beat("europe", PULSE) == PULSE
    assert list(europe.server._relayed.values()) == ["127.0.0.1"]
    sample = network.sample()
    europe.service.publish(sample)
    offer = await africa.get_manifest("europe", wanted())
    path = await africa.fetch(offer, network.inbox())
    assert path.read_bytes() == sample.path.read_bytes()
    await gate.parked("europe")
    traffic = gate.relay.traffic()["europe"]
    assert (traffic["parked"], traffic["carrying"], traffic["carried_connections"]) == (IDLE, 2, 2)
    assert ("beat", "africa") in europe.service.calls


async def test_bytes_of_connections_that_were_carried_together_add_up(gate, network, africa, wanted, monkeypatch):
    counts, ended = [], asyncio.Event()

    async def count(one, other):
        counts.append(await splice.splice(one, other))
        if len(counts) == 2:
            ended.set()
        return counts[-1]

    monkeypatch.setattr(server, "splice", count)
    europe = await network.serve("europe")
    await gate.open_for(europe)
    sample = network.sample()
    europe.service.publish(sample)
    await africa.fetch(await africa.get_manifest("europe", wanted()), network.inbox())
    assert gate.relay.traffic()["europe"]["carrying"] == 2
    await africa.close()
    async with asyncio.timeout(20):
        await ended.wait()
    assert gate.relay.traffic()["europe"]["carried_bytes"] == sum(counts) > sample.path.stat().st_size


async def test_a_relay_that_was_away_is_found_again(gate, europe, africa, monkeypatch):
    monkeypatch.setattr(parking, "RETRY_S", (0.05,))
    parked = await gate.open_for(europe)
    await africa.beat("europe", PULSE)
    await gate.relay.stop()
    with pytest.raises(OSError, match="Connect call failed") as raised:
        await parked.try_once()
    assert parked.explain(raised.value)[0].startswith(f"nothing can be parked at 127.0.0.1:{gate.port}: ")
    with pytest.raises(Unreachable):
        await africa.beat("europe", PULSE)
    await gate.open(port=gate.port)
    await gate.parked("europe")
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Unreachable):
                assert await africa.beat("europe", PULSE) == PULSE
                break


async def answer_to(port, name, protocol="h2"):
    """What a caller of this name reads from the relay after its first message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols([protocol])
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    message = outgoing.read()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in (message[:3], message[3:700], message[700:]):  # in several segments
        writer.write(part)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_name_that_is_not_listed_and_a_site_that_is_away_are_told(gate, monkeypatch):
    monkeypatch.setattr(server, "PARKING_WAIT_S", 0.05)
    await gate.open()
    assert await answer_to(gate.port, "asia") == UNKNOWN_NAME
    assert await answer_to(gate.port, "gate") == UNKNOWN_NAME
    assert await answer_to(gate.port, "europe", "http/1.1") == UNKNOWN_NAME
    assert await answer_to(gate.port, "europe") == NOBODY_PARKED
    assert gate.relay.refusals == {"unknown name": 3, "europe has nothing parked": 1}


@pytest.mark.parametrize(
    ("content", "ends", "refusal"),
    [(b"GET / HTTP/1.1\r\n\r\n", False, "no TLS handshake"), (b"\x16\x03\x01", True, "closed")],
)
async def test_what_is_no_tls_or_ends_within_its_first_message_is_hung_up_on(gate, content, ends, refusal):
    await gate.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    writer.write(content)
    if ends:
        writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert gate.relay.refusals == {refusal: 1}


async def test_callers_from_elsewhere_that_come_at_once_are_bounded(gate, monkeypatch):
    monkeypatch.setattr(server, "PARKING_WAIT_S", 0.7)  # all five are there while the first two still wait
    monkeypatch.setattr(server, "CARRIED_FROM_ELSEWHERE_MAX", 2)
    await gate.open(networks=[ipaddress.ip_network("192.0.2.0/24")])
    answers = await asyncio.gather(*(answer_to(gate.port, "europe") for _ in range(5)))
    assert answers == [NOBODY_PARKED] * 5
    assert gate.relay.refusals == {"too many callers from elsewhere": 3, "europe has nothing parked": 2}
    assert await answer_to(gate.port, "europe") == NOBODY_PARKED
    assert gate.relay.refusals["europe has nothing parked"] == 3


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_every_address_of_ipv6_is_every_address_of_ipv4_too():
    relay = RelayServer("gate", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), frozenset({"europe"}))
    port = await relay.start("::", 0)
    assert await answer_to(port, "asia") == UNKNOWN_NAME
    await relay.stop()


async def test_a_silent_caller_ends(gate, monkeypatch):
    monkeypatch.setattr(server, "HELLO_S", 0.05)
    await gate.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    assert await reader.read() == b""
    assert gate.relay.refusals == {"silent": 1}
    writer.close()


async def test_a_crowd_of_silent_callers_is_bounded(gate):
    await gate.open()
    lines = [await asyncio.open_connection("127.0.0.1", gate.port) for _ in range(server.UNHEARD_PER_SOURCE_MAX + 3)]
    assert [await reader.read() for reader, _ in lines[-3:]] == [b""] * 3
    assert gate.relay.refusals == {"too many connections": 3}
    for _, writer in lines:
        writer.close()


async def test_a_site_that_is_not_listed_is_refused_with_the_reason(gate, network):
    asia = await network.serve("asia")
    await gate.open()
    parked = await gate.park(asia)
    with pytest.raises(RelayRefused, match="asia is not among the sites of gate") as raised:
        await parked.try_once()
    remedy = "settle it with the relay's operator"
    assert parked.explain(raised.value) == ("refuses this site: asia is not among the sites of gate", remedy)


async def test_a_site_that_is_no_member_any_more_is_cut_off_and_a_newcomer_parks(gate, network):
    await gate.open(sites=("europe",))
    parking = await gate.park(await network.serve("europe"))
    await gate.parked("europe")
    held = [writer.transport for writer in gate.relay._held["europe"]]
    gate.relay.follow(frozenset({"asia"}))
    assert len(held) >= IDLE
    assert all(transport.is_closing() for transport in held)
    with pytest.raises(RelayRefused, match="europe is not among the sites of gate"):
        await parking.try_once()
    assert gate.relay.traffic().keys() == {"asia"}
    await gate.park(await network.serve("asia"))
    await gate.parked("asia")


async def test_connections_under_a_key_that_an_amendment_replaced_are_cut_with_what_they_carry(gate, network, africa):
    await gate.open(sites=("asia", "europe"))
    europe, asia = await network.serve("europe"), await network.serve("asia")
    parked, _ = await gate.park(europe), await gate.park(asia)
    await gate.parked("europe")
    await gate.parked("asia")
    key = certificates.key_digest(europe.service.pki.load().key.public_key())
    await africa.beat("europe", PULSE)
    await gate.parked("europe")
    held = [writer.transport for writer in gate.relay._held["europe"]]
    others = [writer.transport for writer in gate.relay._held["asia"]]
    assert len(held) == IDLE + 1, "one carries africa's calls"
    gate.relay.pins = {"europe": key}
    gate.relay.follow(frozenset({"asia", "europe"}))
    assert not any(transport.is_closing() for transport in (*held, *others))
    gate.relay.pins = {"europe": "ab" * 32}
    gate.relay.follow(frozenset({"asia", "europe"}))
    assert all(transport.is_closing() for transport in held)
    assert not any(transport.is_closing() for transport in others)
    with pytest.raises(RelayRefused, match="the key of europe is not the one that is pinned"):
        await parked.try_once()


async def test_a_site_parks_anew_once_its_certificate_is_renewed(gate, europe, authority, monkeypatch):
    monkeypatch.setattr(frames, "PING_S", 0.05)
    await gate.open()
    pki = authority.admit("europe")
    await gate.park(europe, pki=pki)
    await gate.parked("europe")
    former = set(gate.relay._held["europe"])
    certificate = pki.folder / certificates.CERTIFICATE_FILE
    kept = certificate.read_bytes()
    certificate.write_bytes(kept[:100])  # half of a renewal: the site stays within reach
    looked, load = asyncio.Event(), pki.load
    monkeypatch.setattr(type(pki), "load", lambda each: looked.set() or load())
    await asyncio.wait_for(looked.wait(), 20)
    monkeypatch.undo()
    monkeypatch.setattr(frames, "PING_S", 0.05)
    assert set(gate.relay._held["europe"]) == former
    certificate.write_bytes(kept)
    async with asyncio.timeout(20):
        while former & set(gate.relay._held["europe"]):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
    await gate.parked("europe")


async def test_a_certificate_with_another_key_than_the_pinned_one_cannot_park(gate, network):
    await gate.open(pins={"europe": "ab" * 32})
    parking = await gate.park(await network.serve("europe"))
    with pytest.raises(RelayRefused, match="the key of europe is not the one that is pinned"):
        await parking.try_once()


async def test_a_site_of_another_federation_cannot_park(gate, europe, foreign_authority):
    await gate.open()
    theirs = foreign_authority.admit("europe")
    stranger = await gate.park(europe, pki=theirs)
    with pytest.raises(OSError, match="CERTIFICATE"):
        await stranger.try_once()
    assert gate.relay.traffic()["europe"]["parked"] == 0


async def test_a_relay_under_another_name_gets_no_connection(gate, europe):
    await gate.open()
    wrong = await gate.park(europe, relay="other")
    with pytest.raises(OSError, match="NAME") as raised:
        await wrong.try_once()
    message, remedy = wrong.explain(raised.value)
    assert message == f"the relay at 127.0.0.1:{gate.port} is not other"
    assert remedy.startswith("compare the name in [connect] relays")


async def test_what_answers_with_the_certificate_of_another_name_is_named(network):
    europe, asia = await network.serve("europe"), await network.serve("asia")
    parked = Parking("gate", ("127.0.0.1", asia.port), europe.service.pki, ("127.0.0.1", 1), direct, print)
    with pytest.raises(OSError, match="match") as raised:
        await parked.try_once()
    message, remedy = parked.explain(raised.value)
    assert message == f"what answers at 127.0.0.1:{asia.port} is not gate"
    assert remedy.startswith("compare the name and the address in [connect] relays")


async def test_a_proxy_before_a_relay_is_named_with_what_to_do(gate, network, europe, foreign_authority):
    breaker = await network.serve("asia", pki=foreign_authority.admit("gate"))
    for served, message, remedy in (
        (HttpProxy("me:it"), "wants a user and a password", "name it as [connect] password_file"),
        (HttpProxy(instead=breaker.port), "is not of this federation", "exempt 127.0.0.1:9 from inspection"),
    ):
        async with served.serving() as proxy:
            through = Proxy("127.0.0.1", proxy.port)
            place = (europe.service.pki, ("127.0.0.1", 1), lambda peer, address, through=through: through, print)
            parked = Parking("gate", ("127.0.0.1", 9), *place)
            with pytest.raises(OSError, match=r"password|certificate") as raised:
                await parked.try_once()
        explained = parked.explain(raised.value)
        assert message in explained[0]
        assert str(through) in explained[0]
        assert remedy in explained[1]


async def test_a_relay_that_joins_to_another_site_is_caught_by_the_certificate(gate, network, authority):
    asia = await network.serve("asia")
    liar = await gate.open_for(asia, pki=authority.admit("europe"))
    assert liar.server == ("127.0.0.1", asia.port), "what is parked as europe leads to asia"
    africa = network.dial("africa")
    network.addresses["europe"] = f"127.0.0.1:{gate.port}"
    with pytest.raises(Unreachable):
        await africa.beat("europe", PULSE)
    assert asia.service.calls == []
    diagnosis = await asyncio.to_thread(
        diagnose, "127.0.0.1", gate.port, pki=authority.admit("africa"), site="europe", timeout_s=20.0
    )
    assert diagnosis.fault is Fault.WRONG_NAME
    assert diagnosis.detail == f"127.0.0.1:{gate.port} is asia, not europe"
    assert "where it is a relay's, tell the relay's operator" in diagnosis.remedy


async def test_a_site_whose_server_is_down_lets_the_relay_try_the_next(gate, network, europe, monkeypatch):
    monkeypatch.setattr(frames, "READY_S", 0.2)
    parked = await gate.open_for(europe)
    parked.server = ("127.0.0.1", 1)
    with pytest.raises(Unreachable):
        await network.dial("africa").beat("europe", PULSE)
    parked.server = ("127.0.0.1", europe.port)
    monkeypatch.setattr(frames, "READY_S", 20.0)
    await gate.parked("europe")
    assert await network.dial("asia").beat("europe", PULSE) == PULSE


async def test_a_parked_connection_that_is_given_up_costs_its_caller_no_wait(gate, network, monkeypatch):
    """As that of ``check``, which parks only to see that it may."""
    monkeypatch.setattr(frames, "READY_S", 60.0)
    monkeypatch.setattr(server, "OPEN_S", 60.0)
    europe, asia = await network.serve("europe"), network.dial("asia")
    await gate.open()
    given_up = asyncio.Event()

    async def give_up(parking, ends, stamp):
        assert (await frames.read(ends[0]))[0] is frames.Frame.OPEN
        ends[1].close()
        given_up.set()

    monkeypatch.setattr(Parking, "_wait", give_up)
    monkeypatch.setattr("peer.net.relay.parking.IDLE", 1)
    await gate.park(europe)
    await gate.parked("europe", 1)
    beat = asyncio.ensure_future(asia.beat("europe", PULSE))
    await given_up.wait()
    monkeypatch.undo()
    assert await beat == PULSE


async def test_a_connection_that_comes_as_the_relay_stops_is_closed(gate):
    await gate.open()
    idle = len(gate.relay._tasks)
    with socket.create_connection(("127.0.0.1", gate.port), timeout=20) as caller:
        async with asyncio.timeout(20):
            while len(gate.relay._tasks) == idle:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
        await gate.relay.stop()  # before the first step of what serves it
        assert caller.recv(1) == b""


async def test_a_caller_hears_that_nobody_is_parked_before_its_dial_times_out(gate, europe, monkeypatch):
    monkeypatch.setattr(server, "OPEN_S", 0.3)
    parked = await gate.open_for(europe)
    parked.carrying = CARRYING_MAX  # it gives each connection up that a caller takes
    assert await answer_to(gate.port, "europe") == server.NOBODY_PARKED


@pytest.mark.parametrize(("opened", "answered"), [(False, frames.encode(frames.Frame.PONG)), (True, b"")])
async def test_a_ping_that_crosses_open_is_not_answered_into_the_caller_s_bytes(opened, answered):
    class Writer(bytearray):
        write = bytearray.extend

        async def drain(self):
            pass

    reader, writer = asyncio.StreamReader(), Writer()
    reader.feed_data(frames.encode(frames.Frame.PING) + frames.encode(frames.Frame.READY))
    await RelayServer("gate", lambda: None, ())._hold(server.Parked((reader, writer), opened=opened))
    assert bytes(writer) == answered


async def test_the_server_counts_callers_by_the_address_that_the_relay_states(europe):
    note, guard = europe.server.note_relayed, europe.server._connections
    note(("127.0.0.1", 5), "2001:db8::7")
    note(("127.0.0.1", 6), "nonsense")
    note(("10.0.0.5", 7), "192.0.2.9")  # where the server listens at an address of its own
    assert guard._network_of(("127.0.0.1", 5)) == "2001:db8::/64 through a relay"
    assert guard._network_of(("127.0.0.1", 6)) == "an address that is none through a relay"
    assert guard._network_of(("10.0.0.5", 7)) == "192.0.2.9 through a relay"
    assert guard._network_of(("192.0.2.1", 5)) == "192.0.2.1"
    note(("127.0.0.1", 5), None)
    assert guard._network_of(("127.0.0.1", 5)) == "127.0.0.1"


async def test_a_relay_s_certificate_makes_it_no_peer(gate, network, europe, authority):
    with pytest.raises(Refused):
        await network.dial("gate", pki=authority.admit("gate")).beat("europe", PULSE)
    assert europe.service.calls == []


class Member(Gate):
    """Africa: a member that is a relay for the others, and reached at the same address."""

    async def open(self, africa, sites=("asia", "europe"), **options):  # type: ignore[override]
        pki = self.authority.admit("africa")
        self.relay = RelayServer(
            "africa",
            lambda: pki.stream_context(ssl.PROTOCOL_TLS_SERVER),
            frozenset(sites),
            own=("127.0.0.1", africa.port),
            on_caller=africa.server.note_relayed,
            **options,
        )
        self.port = await self.relay.start("127.0.0.1", 0)
        return self


@pytest.fixture
async def member(network, authority):
    member = Member(network, authority)
    yield member
    await member.close()


async def test_a_member_relays_for_the_others_and_is_reached_at_the_same_address(member, network):
    africa, europe = await network.serve("africa"), await network.serve("europe")
    await member.open(africa)
    await member.park(europe, relay="africa")
    await member.parked("europe")
    network.addresses["africa"] = f"127.0.0.1:{member.port}"
    asia = network.dial("asia")
    assert await asia.beat("europe", PULSE) == PULSE
    assert await asia.beat("africa", PULSE) == PULSE
    assert ("beat", "asia") in africa.service.calls
    assert ("beat", "asia") in europe.service.calls
    assert list(africa.server._relayed.values()) == ["127.0.0.1"], "its own server counts who called"


async def test_a_site_whose_certificate_a_member_refuses_cannot_park_there(member, network):
    africa, europe = await network.serve("africa"), await network.serve("europe")

    class Everybody:
        def __contains__(self, digest):
            return len(digest) == 64

    await member.open(africa, refused=Everybody())
    parked = await member.park(europe, relay="africa")
    with pytest.raises(RelayRefused, match="europe is not among the sites of africa"):
        await parked.try_once()


async def test_a_relay_that_is_probed_answers_to_its_own_name_alone(gate, authority):
    await gate.open()

    def context():
        return authority.admit("gate").stream_context()

    await probe("127.0.0.1", gate.port, "gate", context())
    assert not gate.relay.refusals
    with pytest.raises(OSError, match=r"ALERT|alert|name"):
        await probe("127.0.0.1", gate.port, "door", context())


async def test_more_connections_than_a_relay_may_have_are_closed(gate):
    await gate.open(connections=1)
    first = socket.create_connection(("127.0.0.1", gate.port))
    second = socket.create_connection(("127.0.0.1", gate.port))
    with first, second:
        second.settimeout(20)
        assert await asyncio.to_thread(second.recv, 1) == b""
        assert gate.relay.refusals["too many connections"] == 1
