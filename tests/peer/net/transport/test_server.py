"""Which callers are admitted, which are refused and why, and that every byte is accounted for."""

import asyncio
import contextlib
import datetime
import socket
import ssl
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes.exchange_calls import exchange_stub
from fakes.two_sites import offered
from peer.core import limits
from peer.core.artifacts import EvaluationResult
from peer.core.messages import Heartbeat, Hello, Unavailable
from peer.errors import CertificateError, PortInUse
from peer.net.transport import wire
from peer.net.transport.client import Refused, Unreachable
from peer.net.transport.rates import TokenBucket
from peer.net.transport.server import SERVICE, Refusal, Status
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)
GREETING = Hello(1, "fe" * 32, "0a" * 32, 1, 1_700_000_000.0)
LIMIT_S = 30.0


def credentials(pki, *, with_certificate=True):
    """The credentials of a client that is no peer."""
    ca, key, chain = (
        (pki.folder / name).read_bytes()
        for name in (certificates.CA_FILE, certificates.KEY_FILE, certificates.CERTIFICATE_FILE)
    )
    return grpc.ssl_channel_credentials(ca, key, chain) if with_certificate else grpc.ssl_channel_credentials(ca)


@contextlib.asynccontextmanager
async def dialled(port, secret):
    options = [("grpc.ssl_target_name_override", "europe"), ("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{port}"
    plain = grpc.aio.insecure_channel(address)
    async with plain if secret is None else grpc.aio.secure_channel(address, secret, options=options) as channel:
        yield channel


@pytest.fixture
async def channel(network, europe):
    """A channel to europe with africa's certificate."""
    async with dialled(europe.port, credentials(network.authority.admit("africa"))) as channel:
        yield channel


def publish(site, sample, *, offset=0):
    """Publish a sample, and make the request of its bytes."""
    site.service.publish(sample)
    request = wire.ArtifactRequest("model", 3, "train", site.name)
    return wire.encode_fetch_request(request, sha256=sample.artifact.sha256, offset=offset)


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_greetings_and_pulses_reach_the_desk_with_the_caller_s_name(europe, africa):
    assert await africa.hello(europe.name, GREETING) == GREETING
    assert await africa.beat(europe.name, PULSE) == PULSE
    assert europe.service.calls == [("hello", "africa"), ("beat", "africa")]


async def test_an_artifact_is_on_record_before_its_first_byte_and_after_its_last(network, wanted):
    europe, africa, sample, offer = await offered(network, wanted)
    path = await africa.fetch(offer, network.inbox())
    assert path.read_bytes() == sample.path.read_bytes()
    assert europe.service.ledger == [
        ("intent", "africa", sample.artifact.sha256, 0),
        ("outcome", 1, sample.artifact.bytes, "complete"),
    ]


@pytest.mark.parametrize("kind", ["plaintext", "no certificate", "another CA", "expired"])
async def test_who_cannot_prove_to_be_a_peer_reaches_nothing(network, europe, foreign_authority, kind):
    pki = network.authority.admit("africa")
    if kind == "expired":
        pki = network.authority.admit("africa", at=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60))
    if kind == "another CA":
        foreign = foreign_authority.admit("africa")
        (foreign.folder / certificates.CA_FILE).write_bytes((pki.folder / certificates.CA_FILE).read_bytes())
        pki = foreign
    secret = None if kind == "plaintext" else credentials(pki, with_certificate=kind != "no certificate")
    async with dialled(europe.port, secret) as channel:
        code = await status_of(exchange_stub(channel).Beat(wire.encode_pulse(PULSE), timeout=LIMIT_S))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert europe.service.calls == []


async def test_a_site_of_the_ca_that_is_not_in_the_roster_is_refused_and_reported(network):
    europe, mars = await network.serve("europe"), network.dial("mars")
    with pytest.raises(Refused, match="europe: 'mars' is not in the roster"):
        await mars.beat(europe.name, PULSE)
    assert europe.service.calls == []
    assert europe.service.refused_calls == [("unknown", "Beat", "'mars' is not in the roster")]


async def test_a_certificate_that_the_operator_refuses_is_refused(network):
    pki = network.authority.admit("africa")
    digest = certificates.certificate_sha256(certificates.certificate_der(pki.load().certificate))
    europe = await network.serve("europe", refused={digest})
    with pytest.raises(Refused, match=f"africa: its certificate {digest} is refused here"):
        await network.dial("africa", pki=pki).beat(europe.name, PULSE)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.DENIED, Refused),
        (Status.MISMATCH, Refused),
        (Status.MISSING, Refused),
        (Status.MALFORMED, Refused),
        (Status.UNSUPPORTED, Refused),
        (Status.UNKNOWN_CALLER, Refused),
        (Status.BUSY, Unreachable),
    ],
)
async def test_the_desk_s_refusals_reach_the_caller_with_their_reason(europe, africa, wanted, status, expected):
    europe.service.refusal = Refusal(status, "the roster digests differ: größe")
    for call in (
        africa.hello(europe.name, GREETING),
        africa.beat(europe.name, PULSE),
        africa.get_manifest(europe.name, wanted(), wait_s=0.0),
    ):
        with pytest.raises(expected, match="europe: the roster digests differ: größe"):
            await call
    assert europe.service.refused_calls == []


async def test_an_artifact_that_was_not_published_is_denied_without_an_intent(network, wanted):
    europe, africa, _, offer = await offered(network, wanted)
    europe.service.published.clear()
    with pytest.raises(Refused, match="europe: not published here"):
        await africa.fetch(offer, network.inbox())
    assert europe.service.ledger == []


async def test_a_published_file_that_is_gone_is_said_to_be_and_accounted_for(network, wanted, caplog):
    europe, africa, sample, offer = await offered(network, wanted)
    sample.path.unlink()
    with pytest.raises(Refused, match="europe: the artifact cannot be read from this site's disk"):
        await africa.fetch(offer, network.inbox())
    assert europe.service.ledger[1:] == [("outcome", 1, 0, "broken")]
    assert "artifact not readable" in caplog.text


async def test_an_offset_beyond_the_end_is_refused_and_accounted_for(network, europe, channel):
    sample = network.sample()
    request = publish(europe, sample, offset=sample.artifact.bytes + 1)
    code = await status_of(exchange_stub(channel).FetchArtifact(request, timeout=LIMIT_S).read())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert europe.service.ledger[1:] == [("outcome", 1, 0, "broken")]


async def test_a_message_outside_the_limits_is_refused_by_name_and_reported(europe, channel):
    with pytest.raises(grpc.aio.AioRpcError, match=r"pulse\.phase is empty") as caught:
        await exchange_stub(channel).Beat(pb.Pulse(), timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert europe.service.refused_calls == [("africa", "Beat", "pulse.phase is empty")]
    assert europe.service.calls == []


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "the request's bytes are no message of this call"),
        (b"\x1a" + b"\xff" * limits.REQUEST_BYTES_MAX, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    ],
)
async def test_bytes_that_are_no_message_or_too_many_never_reach_the_desk(europe, channel, message, code, text):
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        await channel.unary_unary("/mhfl.v1.Exchange/Beat")(message, timeout=LIMIT_S)
    assert caught.value.code() is code
    await exchange_stub(channel).Beat(wire.encode_pulse(PULSE), timeout=LIMIT_S)
    assert europe.service.calls == [("beat", "africa")]


@pytest.mark.parametrize("caller", ["unlisted", "refused", "expired", "over its rate"])
async def test_nothing_of_a_request_is_parsed_before_the_caller_is_admitted(network, caller):
    """The certificate expires after the handshake: the server's clock is moved."""
    pki = network.authority.admit("mars" if caller == "unlisted" else "africa")
    digest = certificates.certificate_sha256(certificates.certificate_der(pki.load().certificate))
    days = 0
    own = replace(
        network.authority.admit("europe", days=90),
        clock=lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days),
    )
    europe = await network.serve("europe", pki=own, refused={digest} if caller == "refused" else (), clock=lambda: 0.0)
    days = 60 if caller == "expired" else 0
    async with dialled(europe.port, credentials(pki)) as channel:
        if caller == "over its rate":
            for _ in range(limits.CALLS_BURST):
                await exchange_stub(channel).Beat(wire.encode_pulse(PULSE), timeout=LIMIT_S)
        for method in ("/mhfl.v1.Exchange/Beat", "/mhfl.v1.Exchange/Nothing", "/grpc.health.v1.Health/Watch"):
            code = await status_of(channel.unary_unary(method)(b"\xff\xff\xff", timeout=LIMIT_S))
            admitted = grpc.StatusCode.UNAVAILABLE if caller == "over its rate" else grpc.StatusCode.UNAUTHENTICATED
            assert code is admitted
    reasons = {reason for _, _, reason in europe.service.refused_calls}
    expected = {
        "unlisted": "'mars' is not in the roster",
        "refused": f"africa: its certificate {digest} is refused here",
        "over its rate": "over 50 calls a second",
    }
    assert reasons == {expected[caller]} if caller in expected else "expired" in reasons.pop()


@pytest.mark.parametrize("method", ["/mhfl.v1.Exchange/Nothing", "/grpc.health.v1.Health/Watch", "/a/b"])
async def test_a_method_that_no_site_answers_tells_nothing_of_the_inside(channel, method):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(method)(b"", timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "this site does not answer this method"


async def test_a_request_that_does_not_arrive_is_not_waited_for(channel, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_WAIT_S", 0.05)
    call = channel.stream_unary("/mhfl.v1.Exchange/Beat")()
    await call.wait_for_connection()
    with pytest.raises(grpc.aio.AioRpcError, match=r"the request did not arrive within 0\.05 s"):
        await call
    monkeypatch.setattr(limits, "REQUEST_WAIT_S", LIMIT_S)  # the end of the stream follows its headers
    empty = channel.stream_unary("/mhfl.v1.Exchange/Beat")(iter(()))
    with pytest.raises(grpc.aio.AioRpcError, match="the call has no request"):
        await empty


async def test_one_caller_s_refused_calls_take_no_other_caller_s_rows(network):
    europe = await network.serve("europe", clock=lambda: 0.0)
    for site in ("africa", "asia"):
        async with dialled(europe.port, credentials(network.authority.admit(site))) as channel:
            for _ in range(30):
                await status_of(exchange_stub(channel).Beat(pb.Pulse(), timeout=LIMIT_S))
    callers = [caller for caller, _, _ in europe.service.refused_calls]
    assert callers == ["africa"] * 20 + ["asia"] * 20


async def test_a_site_of_another_roster_is_refused_by_name_until_its_connection_is_closed(network, europe):
    async with dialled(europe.port, credentials(network.authority.admit("mars"))) as channel:
        beat = exchange_stub(channel).Beat
        with pytest.raises(grpc.aio.AioRpcError, match="is not in the roster"):
            await beat(pb.Pulse(), timeout=LIMIT_S)
        closed = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        for _ in range(500):  # more would have too many bytes
            if not closed.done():
                await status_of(beat(pb.Pulse(), timeout=LIMIT_S))
        await asyncio.wait_for(closed, LIMIT_S)
    assert europe.service.calls == []


async def test_a_caller_has_so_many_calls_at_once_and_others_are_answered(network, wanted):
    europe, pki = await network.serve("europe"), network.authority.admit("africa")
    waiting, all_wait, release = 0, asyncio.Event(), asyncio.Event()

    async def wait_for_release(caller, request, *, wait_s):
        nonlocal waiting
        waiting += 1
        if waiting == limits.CALLS_AT_ONCE_MAX:
            all_wait.set()
        await release.wait()
        return Unavailable.NOT_YET

    europe.service.manifest = wait_for_release
    request = wire.encode_manifest_request(wanted(), wait_s=20.0)
    async with dialled(europe.port, credentials(pki)) as channel, dialled(europe.port, credentials(pki)) as another:
        stub = exchange_stub(channel)
        calls = [
            asyncio.ensure_future(stub.GetManifest(request, timeout=LIMIT_S)) for _ in range(limits.CALLS_AT_ONCE_MAX)
        ]
        await asyncio.wait_for(all_wait.wait(), LIMIT_S)
        with pytest.raises(grpc.aio.AioRpcError, match="16 calls from africa are under way"):
            await exchange_stub(another).GetManifest(request, timeout=LIMIT_S)
        await network.dial("asia").beat(europe.name, PULSE)
        release.set()
        await asyncio.gather(*calls)
        await stub.Beat(wire.encode_pulse(PULSE), timeout=LIMIT_S)


async def test_a_fault_of_this_site_or_an_answer_outside_the_limits_leaks_nothing_and_refuses_nobody(
    europe, africa, caplog
):
    europe.service.refusal = KeyError("/secret/path")
    with pytest.raises(Unreachable) as caught:
        await africa.beat(europe.name, PULSE)
    assert "secret" not in str(caught.value)
    assert "call failed" in caplog.text

    async def answer_outside_the_limits(caller, pulse):
        return replace(PULSE, phase="")

    europe.service.beat = answer_outside_the_limits
    with pytest.raises(Unreachable, match="this call failed here"):
        await africa.beat(europe.name, PULSE)
    assert europe.service.refused_calls == []
    assert "pulse.phase is empty" in caplog.text


async def test_evaluations_are_refused_until_somebody_takes_them(network, europe, africa):
    report = EvaluationResult(1, 3, "ab" * 32, 12, {"auc": 0.75})
    with pytest.raises(Refused, match="this site takes no evaluations"):
        await africa.put_report(europe.name, report)
    taken = []

    async def take(caller, report):
        taken.append((caller, report))

    asia = await network.serve("asia", reports=take)
    await africa.put_report(asia.name, report)
    assert taken == [("africa", report)]


@pytest.mark.parametrize("refused", ["mars", "africa"])
async def test_a_report_is_taken_from_a_peer_with_its_own_certificate_only(network, refused):
    """A site outside the roster, or with a refused certificate, cannot report."""
    taken = []

    async def take(caller, report):
        taken.append(caller)

    pki = network.authority.admit(refused)
    digest = certificates.certificate_sha256(certificates.certificate_der(pki.load().certificate))
    europe = await network.serve("europe", reports=take, refused={digest} if refused == "africa" else set())
    with pytest.raises(Refused, match=r"not in the roster|is refused here"):
        await network.dial(refused, pki=pki).put_report(
            europe.name, EvaluationResult(1, 3, "ab" * 32, 12, {"auc": 1.0})
        )
    assert taken == []
    assert europe.service.refused_calls[0][1] == "PutMetrics"


async def test_a_report_outside_the_limits_does_not_reach_the_desk(network):
    taken = []

    async def take(caller, report):
        taken.append(report)

    europe, pki = await network.serve("europe", reports=take), network.authority.admit("africa")
    message = pb.Metrics(generation=1, round=3, sha256=b"1" * 32, samples=12, values={"auc": float("inf")})
    async with dialled(europe.port, credentials(pki)) as channel:
        code = await status_of(exchange_stub(channel).PutMetrics(message, timeout=LIMIT_S))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert taken == []
    assert "metrics.values[auc] = inf" in europe.service.refused_calls[0][2]


async def test_a_caller_that_asks_too_often_is_told_so_and_others_are_not(network):
    now_s = 0.0
    europe = await network.serve("europe", clock=lambda: now_s)
    africa, asia = network.dial("africa"), network.dial("asia")
    for _ in range(limits.CALLS_BURST):
        await africa.beat(europe.name, PULSE)
    with pytest.raises(Unreachable, match="over 50 calls a second"):
        await africa.beat(europe.name, PULSE)
    await asia.beat(europe.name, PULSE)
    now_s = 0.02
    await africa.beat(europe.name, PULSE)
    assert europe.service.refused_calls == [("africa", "Beat", "over 50 calls a second")]


def test_a_bucket_refills_with_time_and_never_beyond_its_burst():
    now_s = 0.0
    bucket = TokenBucket(2.0, 3, lambda: now_s)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now_s = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    now_s = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


async def test_a_caller_gets_so_many_streams_at_once_and_more_when_they_end(network, europe, channel):
    sample = network.sample(numbers=8_000_000)
    request = publish(europe, sample)
    stub = exchange_stub(channel)
    calls = [stub.FetchArtifact(request, timeout=LIMIT_S) for _ in range(limits.STREAMS_PER_PEER_MAX)]
    for call in calls:
        await call.read()
    with pytest.raises(grpc.aio.AioRpcError, match="4 transfers to africa are under way"):
        await stub.FetchArtifact(request, timeout=LIMIT_S).read()
    calls[0].cancel()
    await europe.service.ended.wait()
    assert (await stub.FetchArtifact(request, timeout=LIMIT_S).read()).data
    assert europe.service.refused_calls == [("africa", "FetchArtifact", "4 transfers to africa are under way")]


@pytest.mark.parametrize("who", ["the caller", "the server"])
async def test_a_stream_that_is_broken_off_is_accounted_for(network, europe, channel, who):
    sample = network.sample(numbers=8_000_000)
    request = publish(europe, sample)
    call = exchange_stub(channel).FetchArtifact(request, timeout=LIMIT_S)
    first = await call.read()
    if who == "the caller":
        call.cancel()
    else:
        await europe.server.stop()
    await asyncio.wait_for(europe.service.ended.wait(), LIMIT_S)
    (outcome,) = europe.service.ledger[1:]
    assert outcome[:2] == ("outcome", 1)
    assert len(first.data) <= outcome[2] < sample.artifact.bytes
    assert outcome[3] == "broken"


async def test_an_address_that_cannot_be_listened_on_is_said_to_be_and_two_daemons_never_share_a_port(network, europe):
    site = await network.serve("asia")
    await site.server.stop()
    with socket.create_server(("127.0.0.1", 0)) as other_program:
        for address, reason in (
            (f"127.0.0.1:{other_program.getsockname()[1]}", "Address already in use"),
            (f"127.0.0.1:{europe.port}", "Address already in use"),
            ("192.0.2.1:7443", "Cannot assign requested address"),
        ):
            with pytest.raises(PortInUse, match=f"cannot listen on {address}: {reason}"):
                await site.server.start(address)


async def test_a_server_without_its_files_does_not_listen(network):
    site = await network.serve("asia")
    await site.server.stop()
    (site.service.pki.folder / certificates.KEY_FILE).unlink()
    with pytest.raises(CertificateError, match=r"site\.key"):
        await site.server.start("127.0.0.1:0")


async def served_certificate(port, pki):
    """The certificate that a new connection gets."""
    return certificates.certificate_sha256(await asyncio.to_thread(shown_to, pki, port))


def shown_to(pki, port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pki.ca_certificate)
    context.load_cert_chain(pki.folder / certificates.CERTIFICATE_FILE, pki.folder / certificates.KEY_FILE)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection,
        context.wrap_socket(connection, server_hostname="europe") as secured,
    ):
        return secured.getpeercert(binary_form=True)


async def test_a_renewed_certificate_is_served_without_a_restart_and_open_transfers_go_on(network, wanted):
    europe, pki = await network.serve("europe"), network.authority.admit("africa")
    africa = network.dial("africa", pki=pki)
    sample = network.sample(numbers=4_000_000)
    europe.service.publish(sample)
    offer = await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    before = await served_certificate(europe.port, pki)
    renewed = asyncio.Event()

    def renew(received):
        if not renewed.is_set():
            network.authority.admit("europe")
            renewed.set()

    path = await africa.fetch(offer, network.inbox(), renew)
    assert path.read_bytes() == sample.path.read_bytes()
    assert len(europe.service.ledger) == 2
    now = certificates.certificate_sha256(certificates.certificate_der(europe.service.pki.load().certificate))
    assert await served_certificate(europe.port, pki) == now != before


async def test_a_renewal_that_is_half_written_is_not_served(network, caplog):
    europe, africa = await network.serve("europe"), network.authority.admit("africa")
    before = await served_certificate(europe.port, africa)
    (europe.service.pki.folder / certificates.CERTIFICATE_FILE).write_text("-----BEGIN CERTIFICATE-----\n")
    assert await served_certificate(europe.port, africa) == before
    for _ in range(3):
        assert await served_certificate(europe.port, africa) == before
    assert caplog.text.count("renewed certificate not usable") == 1


async def test_a_renewed_certificate_that_was_not_valid_yet_is_served_once_it_is(network):
    """The site's clock was behind the founder's, and is corrected."""
    behind = datetime.timedelta(hours=-3)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    pki = network.authority.admit("europe", at=yesterday)
    pki = replace(pki, clock=lambda: datetime.datetime.now(datetime.UTC) + behind)
    europe, africa = await network.serve("europe", pki=pki), network.authority.admit("africa")
    before = await served_certificate(europe.port, africa)
    network.authority.admit("europe")
    assert await served_certificate(europe.port, africa) == before
    behind = datetime.timedelta()
    assert await served_certificate(europe.port, africa) != before


async def test_the_health_service_is_for_peers_and_a_wrong_question_is_no_fault_here(network, europe, channel, caplog):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    lunch = health_pb2.HealthCheckRequest(service="lunch")
    assert await status_of(stub.Check(lunch, timeout=LIMIT_S)) is grpc.StatusCode.NOT_FOUND
    assert "call failed" not in caplog.text
    async with dialled(europe.port, credentials(network.authority.admit("mars"))) as channel:
        asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert await status_of(asked) is grpc.StatusCode.UNAUTHENTICATED


async def test_two_calls_stop_a_server_one_after_the_other(europe):
    """gRPC's own ``stop`` ends the process where they overlap."""

    class Stopping:
        stops, busy = 0, False

        async def stop(self, grace_s):
            assert not self.busy
            self.busy = True
            await asyncio.sleep(0)
            self.stops, self.busy = self.stops + 1, False

    running, stopping = europe.server._server, Stopping()
    europe.server._server = stopping
    await asyncio.gather(europe.server.stop(), europe.server.stop())
    assert stopping.stops == 1
    europe.server._server = running
