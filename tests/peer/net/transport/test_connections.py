"""Which connections a server closes: by number, by bytes and by refused calls, and whom it spares."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from adversary import http2

from peer.core import limits
from peer.core.messages import Heartbeat
from peer.core.roster import SiteName
from peer.net.transport import connections
from peer.net.transport.connections import (
    CONNECTION_REFUSALS_BURST,
    FLOOD_S,
    RELEASE_S,
    AcceptedSocket,
    AcceptedSockets,
    ConnectionBounds,
    ConnectionGuard,
    ScanTimes,
    endpoint_of,
    network_of,
    pause_s,
)

AFRICA, ASIA = SiteName("africa"), SiteName("asia")
PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)
LIMIT_S = 30.0


@dataclass
class FakeConnection:
    endpoint: tuple[str, int]
    received: int = 5000
    sent: int = 5000
    closed: bool = False

    def shut_down(self) -> None:
        self.closed = True


class Table:
    """The connections of a guard, and a clock that the test moves."""

    def __init__(self, **bounds: int) -> None:
        self.now_s, self.released = 0.0, 0
        self.connections: list[FakeConnection] = []
        defaults = {"unknown": 100, "unknown_per_address": 100, "per_peer": 100}
        self.guard = ConnectionGuard(
            ConnectionBounds(**{**defaults, **bounds}), clock=lambda: self.now_s, release_memory=self._release
        )

    def open(self, port: int, address: str = "192.0.2.1", caller: SiteName | None = None) -> FakeConnection:
        """A connection that is seen at once, a moment after the one before."""
        connection = FakeConnection((address, port))
        self.connections.append(connection)
        if caller is not None:
            self.guard.admitted(f"ipv4:{address}:{port}", caller)
        self.now_s += 0.001
        self.guard.enforce(self.connections)
        return connection

    def closed(self) -> list[int]:
        """The ports of the closed connections; those leave the table."""
        self.guard.enforce(self.connections)
        ports = [connection.endpoint[1] for connection in self.connections if connection.closed]
        self.connections = [connection for connection in self.connections if not connection.closed]
        return ports

    def _release(self) -> None:
        self.released += 1


@pytest.mark.parametrize(
    ("peer", "endpoint", "network"),
    [
        ("ipv4:192.0.2.1:4711", ("192.0.2.1", 4711), "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", ("2001:db8::1", 4711), "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", ("fe80::1", 4711), "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:4711", ("192.0.2.1", 4711), "192.0.2.1"),
    ],
)
def test_a_caller_s_end_is_read_from_grpc_s_notation(peer: str, endpoint: tuple[str, int], network: str) -> None:
    assert endpoint_of(peer) == endpoint
    assert network_of(endpoint) == network


@pytest.mark.parametrize(
    ("cpu_s", "flood", "wait_s"),
    [(0.0, False, 0.05), (0.0004, False, 0.05), (0.002, False, 0.2), (1.0, False, 0.5), (0.002, True, 0.04)],
)
def test_the_scans_of_many_connections_keep_to_their_share_of_a_core(cpu_s: float, flood: bool, wait_s: float) -> None:
    assert pause_s(cpu_s, flood=flood) == pytest.approx(wait_s)


def test_scans_keep_to_their_share_of_a_process_that_works_and_one_that_hardly_works_is_scanned_seldom() -> None:
    now_s, used_s = 0.0, 0.0
    times = ScanTimes(lambda: now_s, lambda: used_s)
    due = []
    for work_s in (0.0, 0.019, 0.001, 0.021, *(0.0001,) * 39, 0.0):
        now_s, used_s = now_s + 0.05, used_s + work_s
        due.append(times.is_due(0.001))
    assert due == [True, False, True, True, *(False,) * 39, True]


def test_a_caller_that_has_hung_up_costs_no_error_and_no_record() -> None:
    table = Table(per_peer=2)
    assert endpoint_of("") is None
    table.guard.admitted("", AFRICA)
    table.guard.refused("")
    assert table.closed() == []


def test_the_oldest_connections_of_a_peer_give_way_to_its_newest_and_another_peer_s_stay() -> None:
    table = Table(per_peer=2)
    other = table.open(9, caller=ASIA)
    for port in range(4):
        table.open(port, caller=AFRICA)
    assert table.closed() == [0, 1]
    assert not other.closed


def test_the_connections_of_a_peer_that_an_amendment_concerns_are_closed_once() -> None:
    table = Table()
    for port, caller in enumerate((AFRICA, ASIA, AFRICA, None)):
        table.open(port, caller=caller)
    table.guard.dismiss({AFRICA})
    assert table.closed() == [0, 2]
    again = table.open(4, caller=AFRICA)
    assert table.closed() == []
    assert not again.closed


def test_an_address_without_a_peer_s_call_has_so_many_and_neither_peers_nor_other_addresses_suffer() -> None:
    table = Table(unknown_per_address=2)
    kept = [table.open(8, caller=AFRICA), table.open(9, "192.0.2.2"), table.open(10, "192.0.2.2")]
    for port in range(4):
        table.open(port)
    assert table.closed() == [0, 1]
    assert not any(connection.closed for connection in kept)


def test_strangers_of_many_addresses_leave_the_reserved_connections_to_peers() -> None:
    table = Table(unknown=3)
    peer = table.open(1, "198.51.100.1", caller=AFRICA)
    for number in range(5):
        table.open(7, f"192.0.2.{number}")
    closed = [connection.endpoint[0] for connection in table.connections if connection.closed]
    assert closed == ["192.0.2.0", "192.0.2.1"]
    assert not peer.closed


@pytest.mark.parametrize(("sites", "connections", "unknown"), [(4, 512, 496), (400, 512, 256), (3, 2, 1), (2, 1, 1)])
def test_two_connections_are_reserved_for_each_site_where_there_are_enough(
    sites: int, connections: int, unknown: int
) -> None:
    assert ConnectionBounds.of(sites, connections).unknown == unknown


def test_a_connection_that_sends_more_than_requests_need_is_closed_and_a_receiver_is_not() -> None:
    table = Table()
    flooding, fetching = table.open(1, caller=AFRICA), table.open(2, caller=ASIA)
    for _ in range(20):
        table.now_s += 1.0
        flooding.received += limits.REQUEST_BYTES_PER_SECOND_MAX // 2
        fetching.sent += 100 << 20
        fetching.received += 1 << 20
        assert table.closed() == []
    flooding.received += limits.REQUEST_BYTES_BURST + 1
    assert table.closed() == [1]


def test_a_connection_without_a_peer_s_call_has_few_bytes_and_little_time() -> None:
    table = Table()
    talkative, silent, peer = table.open(1), table.open(2), table.open(3, caller=AFRICA)
    # The longest greeting: with the proof of a long manifest, certificates in the handshake and in the proof, headers.
    talkative.received += limits.SHOWN_BYTES_MAX + 3 * limits.CERTIFICATE_BYTES_MAX + 16 * limits.TEXT_BYTES_MAX
    assert table.closed() == []
    talkative.received = limits.FIRST_CALL_BYTES_MAX + 1
    assert table.closed() == [1]
    table.now_s += limits.FIRST_CALL_S + 1
    assert table.closed() == [2]
    assert silent.closed
    assert not peer.closed
    table.guard.first_call_s = 3 * limits.FIRST_CALL_S
    table.open(4)
    table.now_s += limits.FIRST_CALL_S + 1
    assert table.closed() == []


def test_a_connection_with_too_many_refused_calls_is_closed_and_the_next_one_on_its_port_is_not() -> None:
    table = Table()
    connection = table.open(1)
    for _ in range(CONNECTION_REFUSALS_BURST):
        table.guard.refused("ipv4:192.0.2.1:1")
    assert table.closed() == []
    table.guard.refused("ipv4:192.0.2.1:1")
    assert table.closed() == [1]
    assert connection.closed
    table.connections.append(FakeConnection(("192.0.2.1", 1), received=100))
    assert table.closed() == []


def test_closed_connections_are_logged_once_a_scan_by_name_and_memory_is_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = Table(per_peer=1)
    table.connections = [FakeConnection(("192.0.2.1", port)) for port in range(4)]
    for port in range(4):
        table.guard.admitted(f"ipv4:192.0.2.1:{port}", AFRICA)
    assert len(table.closed()) == 3
    (record,) = caplog.records
    assert (vars(record)["peer"], vars(record)["connections"]) == ("africa", 3)
    assert table.released == 1
    table.now_s += RELEASE_S
    assert table.closed() == []
    assert table.released == 2
    table.now_s += FLOOD_S
    assert table.closed() == []
    assert table.released == 2


# --- real sockets ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_process_s_own_accepted_connections_are_listed_counted_and_closed(
    family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        listener.listen()
        listener.settimeout(LIMIT_S)
        port = listener.getsockname()[1]
        with socket.create_connection((address, port), LIMIT_S) as caller, listener.accept()[0] as served:
            caller.sendall(b"x" * 1000)
            assert len(served.recv(1000, socket.MSG_WAITALL)) == 1000
            (connection,) = AcceptedSockets(port).scan()
            assert connection.endpoint == (address, caller.getsockname()[1])
            assert (connection.received, connection.sent) == (1000, 0)
            connection.shut_down()
            assert caller.recv(1) == b""
            assert served.fileno() >= 0  # the descriptor of the connection's owner is not closed


def test_a_quiet_process_closes_at_once_what_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned, enforce = threading.Event(), ConnectionGuard.enforce
    passed_over, is_due = threading.Semaphore(0), ScanTimes.is_due

    def is_due_and_tell(times: ScanTimes, scan_s: float) -> bool:
        due = is_due(times, scan_s)
        if not due:
            passed_over.release()
        return due

    def enforce_and_tell(guard: ConnectionGuard, present: list[AcceptedSocket]) -> None:
        enforce(guard, present)
        scanned.set()

    monkeypatch.setattr(connections, "QUIET_SCAN_S", 10 * LIMIT_S)
    monkeypatch.setattr(connections, "OWN_SHARE", 1e-9)
    monkeypatch.setattr(ConnectionGuard, "enforce", enforce_and_tell)
    monkeypatch.setattr(ScanTimes, "is_due", is_due_and_tell)
    guard = ConnectionGuard(ConnectionBounds.of(2, 100))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        guard.start(listener.getsockname()[1])
        try:
            with socket.create_connection(listener.getsockname(), LIMIT_S) as caller, listener.accept()[0]:
                assert scanned.wait(LIMIT_S)
                assert all(passed_over.acquire(timeout=LIMIT_S) for _ in range(2))
                host, port = caller.getsockname()
                guard.admitted(f"ipv4:{host}:{port}", AFRICA)
                guard.dismiss({AFRICA})
                assert caller.recv(1) == b""
        finally:
            guard.stop()


def test_a_later_scan_counts_on_and_tells_a_new_connection_from_the_one_before_it_at_its_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets = AcceptedSockets(listener.getsockname()[1])
        seen = []
        for size in (1000, 10):
            with socket.create_connection(listener.getsockname(), LIMIT_S) as caller, listener.accept()[0] as served:
                for _ in range(2):
                    caller.sendall(b"x" * size)
                    assert len(served.recv(size, socket.MSG_WAITALL)) == size
                    (connection,) = sockets.scan()
                    seen.append((connection.endpoint == caller.getsockname(), connection.received))
        assert seen == [(True, 1000), (True, 2000), (True, 10), (True, 20)]
        assert sockets.scan() == []


def test_a_scan_keeps_no_connection_open_and_closes_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        first = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        served, _ = listener.accept()
        (connection,) = AcceptedSockets(port).scan()
        served.close()
        assert first.recv(1) == b""  # a duplicate would keep it open, and registered in its owner's epoll
        with first, socket.create_connection(("127.0.0.1", port), LIMIT_S) as second, listener.accept()[0] as other:
            AcceptedSocket(other.fileno(), connection.endpoint, b"").shut_down()  # the number, reused
            second.sendall(b"x")
            assert other.recv(1) == b"x"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("PING", marks=pytest.mark.e2e),
        *(kind for kind in http2.FLOODS if "PING" not in kind and "empty" not in kind),
    ],
)
async def test_a_flood_ends_its_connection_and_a_peer_s_calls_go_on(network, africa, kind: str) -> None:
    europe, mallory = await network.serve("europe"), network.authority.admit("asia")
    await africa.beat(europe.name, PULSE)
    address, context = f"127.0.0.1:{europe.port}", http2.member_context(mallory.folder)
    hung_up = asyncio.create_task(flood_once(address, context, http2.FLOODS[kind]))
    while not hung_up.done():
        await asyncio.wait([hung_up], timeout=0.05)
        await africa.beat(europe.name, PULSE)
    assert hung_up.result()


async def flood_once(address: str, context, frames: Callable) -> bool:
    """Flood on one connection until the server hangs up; whether it did."""

    def send() -> bool:
        with http2.Connection(address, context) as connection, contextlib.suppress(OSError):
            for content in frames(connection):
                connection.take()
                connection.send(content)
            return False
        return True

    return await asyncio.wait_for(asyncio.to_thread(send), LIMIT_S)
