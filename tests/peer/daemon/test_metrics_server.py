"""The Prometheus endpoint: what it answers, to whom ever asks however badly, and that it reads no row twice."""

import asyncio
import contextlib
import gzip
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from fakes.sites import TRANSFER
from peer.daemon.dispatch import Daemon
from peer.daemon.metrics import METRICS
from peer.daemon.metrics_server import MetricsServer
from peer.errors import PortInUse
from peer.net.transport.http_server import CONNECTIONS_MAX
from peer.site.records.journal import chain_hash

SENT: dict[str, Any] = {**TRANSFER, "bytes": 9}
LIMIT_S = 20.0
SHORT_S = 0.5
LONG_S = 2.0
GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n"
OPENMETRICS = b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n"


class Served:
    """A server on a port of its own, and a caller that sends bytes."""

    def __init__(self, server: MetricsServer, port: int) -> None:
        self.server, self.port = server, port

    async def send(self, content: bytes, *, end: bool = False) -> bytes:
        """Everything that comes back until the server hangs up."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(content)
            if end:
                writer.write_eof()
            answer = b""
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                while b"\r\n\r\n" not in answer or len(answer.partition(b"\r\n\r\n")[2]) < length(answer):
                    more = await reader.read(1 << 16)
                    if not more:
                        break
                    answer += more
            writer.transport.abort()
            return answer

    async def get(self, *headers: bytes) -> tuple[dict[str, str], bytes]:
        """Headers and body of a scrape that succeeds."""
        head, _, body = (await self.send(GET + b"".join(headers) + b"\r\n")).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        assert first == "HTTP/1.0 200 OK"
        shown = dict(line.split(": ", 1) for line in lines)
        assert int(shown["Content-Length"]) == len(body)
        return shown, body


def length(answer: bytes) -> int:
    """The length that an answer promises of its body."""
    value = answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return int(value or 0)


@pytest.fixture
async def served(daemon: Daemon) -> AsyncIterator[Served]:
    """A server that waits for callers on a busy machine."""
    server = MetricsServer(daemon, silence_s=LIMIT_S, connection_s=LIMIT_S)
    yield Served(server, await server.start("127.0.0.1:0"))
    await server.stop()


@pytest.fixture
async def impatient(daemon: Daemon) -> AsyncIterator[Served]:
    """A server that soon hangs up."""
    server = MetricsServer(daemon, silence_s=SHORT_S, connection_s=LONG_S)
    yield Served(server, await server.start("127.0.0.1:0"))
    await server.stop()


async def test_a_scrape_in_the_plain_format_is_what_prometheus_client_reads(served: Served) -> None:
    headers, body = await served.get()
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in parse(body.decode())}
    samples = {sample.name for family in families.values() for sample in family.samples}
    assert {name for name in samples if name.startswith("mhfl_")} <= METRICS.keys()
    assert {"mhfl_site_info", "mhfl_peer_heard", "mhfl_egress_rows_total", "process_resident_memory_bytes"} <= samples
    assert all(family.documentation for family in families.values())
    assert families["mhfl_site_info"].samples[0].labels["site"] == "asia"


async def test_openmetrics_and_compression_are_given_to_who_asks(served: Served) -> None:
    headers, body = await served.get(OPENMETRICS, b"Accept-Encoding: gzip\r\n")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(body).decode()
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["mhfl_site"].type == "info"
    assert families["mhfl_transfers"].type == "counter"


@pytest.mark.parametrize("accept", [b"application/openmetrics-text;version=new", b"a,b;;;,=", b"\xff\x00", b""])
async def test_who_asks_for_no_known_format_gets_the_plain_one(served: Served, accept: bytes) -> None:
    headers, _ = await served.get(b"Accept: " + accept + b"\r\n")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_promtool_finds_nothing_to_complain_of(served: Served) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    _, body = await served.get()
    command = [promtool, "check", "metrics"]
    checked = await asyncio.to_thread(subprocess.run, command, input=body, capture_output=True)
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


async def test_head_has_the_length_and_no_body(served: Served) -> None:
    answer = await served.send(b"HEAD /?x=1 HTTP/1.0\r\n\r\n", end=True)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert length(answer) > 0
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secrets HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/../pki HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"405 Method Not Allowed"),
        (b"GET metrics HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics SPDY/3\r\n\r\n", b"Bad request version"),
        (b"GET /metrics and more HTTP/1.1\r\n\r\n", b"400 Bad request syntax"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", b"431 Too many headers"),
        (b"GET /" + b"m" * 65537 + b" HTTP/1.1\r\n\r\n", b"414 "),
    ],
)
async def test_what_is_no_request_for_metrics_is_told_so(
    served: Served, caplog: pytest.LogCaptureFixture, request_bytes: bytes, status: bytes
) -> None:
    answer = await served.send(request_bytes)
    assert status in answer
    assert (b"Allow: GET, HEAD" in answer) == (b"405" in status)
    await served.get()
    assert not caplog.records


async def test_who_leaves_in_the_middle_leaves_nothing_behind(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert b"mhfl_" not in await served.send(b"GET /metr", end=True)
    await served.get()
    assert not caplog.records


@pytest.mark.parametrize("request_bytes", [b"", b"GET /metrics HTTP/1.1\r\nHos", b"\x16\x03\x01\x02\x00\xff\xfe"])
async def test_a_caller_that_falls_silent_is_hung_up_on(
    impatient: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], request_bytes: bytes
) -> None:
    assert await impatient.send(request_bytes) == b""
    await impatient.get()
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


async def test_a_caller_that_sends_a_byte_now_and_then_is_hung_up_on(impatient: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
    with contextlib.suppress(ConnectionError):
        while not reader.at_eof():
            writer.write(b"x")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), SHORT_S / 4)
    writer.transport.abort()


async def test_too_many_at_once_are_hung_up_on_and_make_room_again(served: Served) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2 * CONNECTIONS_MAX)]
    ends = asyncio.as_completed([all_of(reader) for reader, _ in opened], timeout=LIMIT_S)
    assert [await next(ends) for _ in range(CONNECTIONS_MAX)] == [b""] * CONNECTIONS_MAX
    assert served.server.connections == CONNECTIONS_MAX
    for _, writer in opened:
        writer.transport.abort()
    assert [await end for end in ends] == [b""] * CONNECTIONS_MAX
    async with asyncio.timeout(LIMIT_S):
        while served.server.connections == CONNECTIONS_MAX:  # their threads have yet to see that the caller left
            await asyncio.to_thread(threading.Event().wait, 0.01)
    await served.get()


async def test_callers_that_ask_for_nothing_give_way_to_who_asks(served: Served) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(CONNECTIONS_MAX)]
    async with asyncio.timeout(LIMIT_S):
        while served.server.connections < CONNECTIONS_MAX:
            await asyncio.to_thread(threading.Event().wait, 0.01)
    await served.get()
    async with asyncio.timeout(LIMIT_S):
        assert await all_of(opened[0][0]) == b"", "the oldest"
    for _, writer in opened:
        writer.transport.abort()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_who_stays_after_the_answer_is_hung_up_on(impatient: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        answer = await all_of(reader)
    assert answer.startswith(b"HTTP/1.0 200")
    assert b'href="/metrics"' in answer, "the first page leads to the metrics"
    writer.transport.abort()


async def test_a_port_in_use_names_the_key_and_the_remedy(daemon: Daemon) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            PortInUse, match=rf"metrics\.listen = {address} cannot be bound: Address already in use; ch"
        ):
            await MetricsServer(daemon).start(address)
    with pytest.raises(PortInUse, match=r"metrics\.listen = nowhere\.invalid:1 cannot be bound"):
        await MetricsServer(daemon).start("nowhere.invalid:1")


async def test_a_stop_ends_what_is_under_way_and_frees_the_port(daemon: Daemon) -> None:
    server = MetricsServer(daemon)
    port = await server.start("127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics")
    await asyncio.wait_for(server.stop(), LIMIT_S)
    assert await asyncio.wait_for(all_of(reader), LIMIT_S) == b""
    writer.transport.abort()
    await server.stop()
    other = MetricsServer(daemon)
    assert await other.start(f"127.0.0.1:{port}") == port
    await other.stop()


async def test_a_journal_that_cannot_be_read_fails_the_scrape_and_is_named_in_the_log_alone(
    served: Served, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks may be anybody on the network: paths of this machine are not theirs."""
    await served.get()
    daemon.journal._connection.execute("INSERT INTO row (time_s, kind, round, body) VALUES (0, 'denied', 1, '{')")
    answer = await served.send(GET + b"\r\n")
    assert answer.startswith(b"HTTP/1.0 500 ")
    assert answer.endswith(b"\r\n\r\njournal or ledger cannot be read; the site's log says why\n")
    assert any("journal.db is damaged" in getattr(record, "reason", "") for record in caplog.records)


async def test_a_long_ledger_is_read_once(served: Served, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(daemon, transfers=10_000)
    loads = mock.Mock(wraps=json.loads)
    monkeypatch.setattr(json, "loads", loads)
    assert b"mhfl_egress_rows_total 20000.0" in (await served.get())[1]
    first = loads.call_count
    assert b"mhfl_egress_rows_total 20000.0" in (await served.get())[1]
    assert (first >= 20_000, loads.call_count - first < 100) == (True, True)
    daemon.ledger.settle(daemon.ledger.intend(**SENT), bytes=9, outcome="complete")
    assert b"mhfl_egress_rows_total 20002.0" in (await served.get())[1]


def fill(daemon: Daemon, *, transfers: int) -> None:
    """Rows as the ledger writes them, without a commit for each."""
    rows: list[tuple[int, str, str]] = []
    head = "0" * 64
    for number in range(1, 2 * transfers + 1):
        body = {"type": "intent", "time": 0.0, **SENT}
        if number % 2 == 0:
            body = {"type": "outcome", "time": 0.0, "intent": number - 1, "bytes": 9, "outcome": "complete"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        head = chain_hash(head, text)
        rows.append((number, text, head))
    with daemon.ledger._connection as connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO ledger VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
