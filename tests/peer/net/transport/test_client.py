"""What the client accepts from peers; every transfer ends with the right bytes or the right error."""

import asyncio
import contextlib
import hashlib
import os
import random
from dataclasses import replace

import grpc
import pytest

from fakes.exchange_calls import serve_artifacts
from fakes.two_sites import offered
from peer.core import limits
from peer.core.artifacts import EvaluationResult
from peer.core.messages import (
    AmendmentsReply,
    Endorsement,
    Heartbeat,
    Hello,
    SignedAmendment,
    SignedManifest,
    Unavailable,
)
from peer.errors import DiskError
from peer.net.transport import client as peer_client
from peer.net.transport import tls, wire
from peer.net.transport.bounds import WireError
from peer.net.transport.client import Misbehaved, Refused, Unreachable
from peer.net.transport.header import read_tensors
from peer.net.transport.manifest import sign_manifest
from peer.net.transport.transfer import ARRIVED
from peer.net.transport.wire import ArtifactRequest
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_part(inbox, artifact, content):
    """What an earlier transfer of the artifact left after these bytes."""
    rest = bytes(artifact.bytes - len(content))
    (inbox / f"{artifact.sha256}.part").write_bytes(content + rest + ARRIVED.pack(len(content)))


@pytest.mark.parametrize("variable", ["https_proxy", "grpc_proxy", "http_proxy"])
async def test_no_call_goes_through_a_proxy_of_the_environment(network, wanted, monkeypatch, variable):
    """Nothing listens at the proxy's port: gRPC alone would dial it, also for 127.0.0.1."""
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    europe, africa = await network.serve("europe"), network.dial("africa")
    assert await africa.beat(europe.name, PULSE) == PULSE


async def test_a_long_silence_limit_leaves_a_busy_peer_time_to_answer(network, europe, monkeypatch):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hello(caller, greeting):
        asked.set()
        await answer.wait()
        return greeting

    europe.service.hello = hello
    monkeypatch.setattr(limits, "HELLO_TIMEOUT_S", 0.5)
    greeting = Hello(protocol=1, federation="fe" * 32, roster="fe" * 32, generation=1, clock_s=0.0)
    with pytest.raises(Unreachable):
        await network.dial("africa").hello(europe.name, greeting)
    patient = asyncio.create_task(network.dial("asia", silence_s=100 * limits.SILENCE_S).hello(europe.name, greeting))
    asked.clear()
    await asked.wait()
    with pytest.raises(Unreachable):
        await network.dial("africa").hello(europe.name, greeting)
    assert not patient.done()
    answer.set()
    assert await patient == greeting


async def test_an_artifact_that_waits_for_its_turn_has_no_file_and_no_thread(network, wanted):
    europe, africa, _, offer = await offered(network, wanted)
    asked = asyncio.Event()

    class Turns(asyncio.Semaphore):
        async def acquire(self):
            asked.set()
            return await super().acquire()

    folder, africa._turns = network.inbox(), Turns(0)
    fetching = asyncio.create_task(africa.fetch(offer, folder))
    await asked.wait()
    assert names(folder) == []
    assert ("open", "africa") not in europe.service.calls
    africa._turns.release()
    path = await fetching
    assert names(folder) == [path.name]


# What a peer may say of an artifact, and what is believed of it.
@pytest.mark.parametrize("answer", list(Unavailable))
async def test_a_peer_may_have_nothing(europe, africa, wanted, answer):
    europe.service.reply = answer
    assert await africa.get_manifest(europe.name, wanted(), wait_s=0.0) is answer


async def test_an_offer_holds_what_was_asked_signed_and_said(network, wanted):
    europe, _, sample, offer = await offered(network, wanted)
    assert offer.request == wanted()
    assert offer.signed == europe.service.reply
    assert offer.manifest.artifact == sample.artifact
    assert (offer.manifest.origin, offer.manifest.round) == ("europe", 3)


@pytest.mark.parametrize(
    ("changes", "other", "reason"),
    [
        ({"federation": "00" * 32}, {}, "manifest: federation is 0000"),
        ({"origin": "asia"}, {}, "manifest: origin is asia, asked for was europe"),
        ({"round": 2}, {}, "manifest: it is of round 2, asked for was 3"),
        ({"round": 4}, {}, "manifest: it is of round 4, asked for was 3"),
        ({}, {"kind": "head"}, "kind is .*, asked for was head"),
        ({}, {"owner": "asia"}, "owner is .*, asked for was asia"),
    ],
)
async def test_a_manifest_of_something_else_is_refused(network, europe, africa, wanted, changes, other, reason):
    europe.service.publish(network.sample(), **changes)
    with pytest.raises(Misbehaved, match=reason):
        await africa.get_manifest(europe.name, wanted(**other), wait_s=0.0)


@pytest.mark.parametrize(("purpose", "said"), [("train", "it is for evaluation"), ("evaluate", "it is not for")])
async def test_what_is_lent_is_not_trained_with_and_the_other_way_round(network, europe, africa, wanted, purpose, said):
    europe.service.publish(network.sample(), evaluation=purpose == "train")
    with pytest.raises(Misbehaved, match=said):
        await africa.get_manifest(europe.name, wanted(purpose=purpose), wait_s=0.0)
    europe.service.publish(network.sample(), evaluation=purpose == "evaluate")
    offer = await africa.get_manifest(europe.name, wanted(purpose=purpose), wait_s=0.0)
    assert offer.manifest.evaluation == (purpose == "evaluate")


async def test_an_earlier_round_is_taken_only_where_it_was_allowed(network, europe, africa, wanted):
    europe.service.publish(network.sample(), round=2)
    offer = await africa.get_manifest(europe.name, wanted(earlier=True), wait_s=0.0)
    assert offer.manifest.round == 2
    europe.service.publish(network.sample(), round=4)
    with pytest.raises(Misbehaved, match="it is of round 4"):
        await africa.get_manifest(europe.name, wanted(earlier=True), wait_s=0.0)


async def test_a_manifest_is_parsed_only_after_its_signature_holds(network, europe, africa, wanted):
    signed, own = europe.service.publish(network.sample()), europe.service.pki.load()
    europe.service.reply = replace(signed, body=b"\xff\xff")
    with pytest.raises(Misbehaved, match="manifest: the signature does not fit"):
        await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    europe.service.reply = sign_manifest(own, b"\xff\xff")
    with pytest.raises(Misbehaved, match=r"manifest: manifest is not a message of mhfl\.v1"):
        await africa.get_manifest(europe.name, wanted(), wait_s=0.0)


GARBAGE = b"\x0a\xff\xff\xff\xff\x0f"  # a field that is longer than the message


async def test_manifests_are_compared_where_the_peer_compares_them(network, africa):
    shown = []

    async def compare(caller, signed):
        shown.append((caller, signed))
        return signed[1:]

    europe, asia = await network.serve("europe", compare=compare), await network.serve("asia")
    one, other = (europe.service.publish(network.sample(numbers=4)) for _ in range(2))
    assert await africa.compare_manifests(europe.name, (one, other)) == [other]
    assert shown == [("africa", [one, other])]
    with pytest.raises(Refused, match="this site compares no manifests"):
        await africa.compare_manifests(asia.name, (one,))


async def test_amendments_come_with_keys_for_the_certificate_that_the_caller_shows(network):
    calls = []

    def chain(caller, certificate_der, after):
        calls.append((caller, certificate_der, after))
        return AmendmentsReply((SignedAmendment(b"{}", (Endorsement(b"", b"signature"),)),))

    europe, asia = await network.serve("europe", chain=chain), await network.serve("asia")
    pki = network.authority.admit("africa")
    africa = network.dial("africa", pki=pki)
    reply = await africa.get_amendments(europe.name, after=3)
    assert reply.amendments[0].body == b"{}"
    assert calls == [("africa", certificates.certificate_der(pki.load().certificate), 3)]
    with pytest.raises(Refused, match="this site has no chain of amendments"):
        await africa.get_amendments(asia.name, after=0)


def test_no_more_manifests_are_compared_than_fit_into_a_message():
    large = SignedManifest(bytes(limits.MANIFEST_BYTES_MAX), b"signature", b"certificate")
    assert wire.encode_manifests((large,)).manifests
    with pytest.raises(WireError, match=r"manifests has \d+ bytes, over the limit"):
        wire.encode_manifests((large, large))
    small = pb.SignedManifests(manifests=[pb.SignedManifest(body=b"b", signature=b"s", certificate_der=b"c")] * 3)
    with pytest.raises(WireError, match="manifests has 3 entries, over the limit of 2"):
        wire.decode_manifests(small)


@contextlib.asynccontextmanager
async def garbled(network):
    """Europe's certificate before a server whose answers to every call are no messages."""
    pki, server = network.authority.admit("europe"), grpc.aio.server()

    async def answer(request, context):
        return GARBAGE

    async def stream(request, context):
        yield GARBAGE

    unary = dict.fromkeys(("Hello", "Beat", "GetManifest", "PutMetrics"), grpc.unary_unary_rpc_method_handler(answer))
    methods = {**unary, "FetchArtifact": grpc.unary_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("mhfl.v1.Exchange", methods),))
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(pki))
    await server.start()
    network.addresses["europe"] = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        await server.stop(None)


@pytest.mark.parametrize("call", ["hello", "beat", "get_manifest", "put_report", "fetch"])
async def test_an_answer_that_is_no_message_is_a_breach_of_the_peer(network, wanted, call):
    _, africa, _, offer = await offered(network, wanted)
    digest = "ab" * 32
    calls = {
        "hello": lambda: africa.hello("europe", Hello(1, digest, digest, 1, 0.0)),
        "beat": lambda: africa.beat("europe", PULSE),
        "get_manifest": lambda: africa.get_manifest("europe", wanted()),
        "put_report": lambda: africa.put_report("europe", EvaluationResult(1, 1, digest)),
        "fetch": lambda: africa.fetch(offer, network.inbox()),
    }
    async with garbled(network):
        with pytest.raises(Misbehaved, match=r"europe: its answer is no message of mhfl\.v1"):
            await asyncio.wait_for(calls[call](), 30)


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (
            lambda own, signed, network, foreign: replace(signed, signature=certificates.sign(own.key, signed.body)),
            "the signature does not fit",
        ),
        (
            lambda own, signed, network, foreign: sign_manifest(network.authority.admit("asia").load(), signed.body),
            "the certificate names asia, not europe",
        ),
        (
            lambda own, signed, network, foreign: sign_manifest(foreign.admit("europe").load(), signed.body),
            "the certificate is not from this federation's CA",
        ),
    ],
    ids=["without the label", "by another site", "under a foreign CA"],
)
async def test_a_manifest_that_is_not_signed_as_the_peer_s_is_refused(
    network, europe, africa, wanted, foreign_authority, forge, reason
):
    signed, own = europe.service.publish(network.sample()), europe.service.pki.load()
    europe.service.reply = forge(own, signed, network, foreign_authority)
    with pytest.raises(Misbehaved, match=f"manifest: {reason}"):
        await africa.get_manifest(europe.name, wanted(), wait_s=0.0)


async def test_a_manifest_under_a_refused_certificate_is_refused(network, europe, wanted):
    signed = europe.service.publish(network.sample())
    africa = network.dial("africa", refused={certificates.certificate_sha256(signed.certificate_der)})
    with pytest.raises(Misbehaved, match="the certificate is refused here"):
        await africa.get_manifest(europe.name, wanted(), wait_s=0.0)


async def test_a_manifest_under_another_key_than_the_pinned_one_is_refused_and_no_fault_of_the_peer(network, wanted):
    """The key signed it that an amendment has replaced, or will: or one that is not the peer's at all."""
    europe, impostor = await network.serve("europe"), network.authority.admit("europe", into="impostor").load()
    signed = europe.service.publish(network.sample())
    europe.service.reply = sign_manifest(impostor, signed.body)
    pinned = {europe.name: certificates.key_digest(europe.service.pki.load().key.public_key())}
    await network.dial("africa").get_manifest(europe.name, wanted(), wait_s=0.0)
    pki = replace(network.authority.admit("africa"), pinned=pinned)
    with pytest.raises(Unreachable, match="manifest: the federation pins the key"):
        await network.dial("africa", pki=pki).get_manifest(europe.name, wanted(), wait_s=0.0)


# Fetching.
async def test_a_part_is_resumed_at_its_offset(network, wanted):
    europe, africa, sample, offer = await offered(network, wanted)
    sha256, content = sample.artifact.sha256, sample.path.read_bytes()
    write_part(network.inbox(), sample.artifact, content[:1_234_567])
    received = []
    path = await africa.fetch(offer, network.inbox(), received.append)
    assert path.read_bytes() == content
    assert received == sorted(set(received)), "progress is told, and ends at the size"
    assert received[-1] == sample.artifact.bytes
    assert europe.service.ledger == [
        ("intent", "africa", sha256, 1_234_567),
        ("outcome", 1, len(content) - 1_234_567, "complete"),
    ]


async def test_a_complete_part_is_not_sent_again(network, wanted):
    europe, africa, sample, offer = await offered(network, wanted)
    write_part(network.inbox(), sample.artifact, sample.path.read_bytes())
    await africa.fetch(offer, network.inbox())
    assert europe.service.ledger == []
    assert names(network.inbox()) == [f"{sample.artifact.sha256}.safetensors"]


async def test_a_damaged_part_on_this_site_s_disk_does_not_accuse_the_peer(network, wanted):
    europe, africa, sample, offer = await offered(network, wanted)
    write_part(network.inbox(), sample.artifact, bytes(1000))
    path = await africa.fetch(offer, network.inbox())
    assert path.read_bytes() == sample.path.read_bytes()
    assert [row[3] for row in europe.service.ledger if row[0] == "intent"] == [1000, 0]


async def test_what_is_already_here_or_on_its_way_is_not_sent(network, wanted):
    europe, africa, _, offer = await offered(network, wanted)
    paths = await asyncio.gather(*(africa.fetch(offer, network.inbox()) for _ in range(3)))
    assert set(paths) == {await africa.fetch(offer, network.inbox())}
    assert len(europe.service.ledger) == 2


async def test_what_vanishes_between_a_look_and_its_opening_is_fetched_again(network, wanted, monkeypatch):
    """The member that ended every daemon: its bytes of a round were discarded while the next round looked at them."""
    europe, africa, sample, offer = await offered(network, wanted)
    first = await africa.fetch(offer, network.inbox())
    check, looks = peer_client.check_safetensors_header, []

    def discard_first(path, **facts):
        looks.append(path)
        if len(looks) == 1:
            path.unlink()
        check(path, **facts)

    monkeypatch.setattr(peer_client, "check_safetensors_header", discard_first)
    assert await africa.fetch(offer, network.inbox()) == first
    assert first.read_bytes() == sample.path.read_bytes()
    assert [row[0] for row in europe.service.ledger].count("intent") == 2


@pytest.mark.parametrize("times", [1, peer_client.PARTS_VANISHED_MAX + 1])
async def test_a_part_that_vanishes_is_received_again_but_not_for_ever(network, wanted, monkeypatch, times):
    _, africa, sample, offer = await offered(network, wanted)
    check, left = peer_client.check_safetensors_header, [times]

    def unlink(path, **facts):
        if left[0]:
            left[0] -= 1
            path.unlink()
        check(path, **facts)

    monkeypatch.setattr(peer_client, "check_safetensors_header", unlink)
    if times > peer_client.PARTS_VANISHED_MAX:
        with pytest.raises(DiskError, match="something deletes the files of"):
            await africa.fetch(offer, network.inbox())
    else:
        path = await africa.fetch(offer, network.inbox())
        assert path.read_bytes() == sample.path.read_bytes()


@pytest.mark.parametrize(
    ("change", "part_bytes", "reason"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), 0, "{size} bytes came whose digest is not the"),
        (lambda content: content + b"x", 0, "more than the {size} bytes of the manifest came"),
        (lambda content: content[:1_000_000], 0, "the stream ended after 1000000 of {size} bytes"),
        (lambda content: content[:1_000_000], 1000, "the stream ended after 1000000 of {size} bytes"),
    ],
    ids=["other", "more", "fewer", "fewer behind a part"],
)
async def test_other_bytes_than_promised_are_refused_and_deleted(network, wanted, change, part_bytes, reason):
    _, africa, sample, offer = await offered(network, wanted)
    content = sample.path.read_bytes()
    if part_bytes:
        write_part(network.inbox(), sample.artifact, content[:part_bytes])
    sample.path.write_bytes(change(content))
    with pytest.raises(Misbehaved, match=f"europe: .*{reason.format(size=len(content))}"):
        await africa.fetch(offer, network.inbox())
    assert names(network.inbox()) == []


async def test_a_file_with_other_tensors_than_the_manifest_is_refused_and_deleted(network, europe, africa, wanted):
    sample = network.sample()
    (tensor,) = read_tensors(sample.path)
    europe.service.publish(sample, tensors=(replace(tensor, name="v"),))
    offer = await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    with pytest.raises(Misbehaved, match="europe: tensor 'v' is missing in the file"):
        await africa.fetch(offer, network.inbox())
    assert names(network.inbox()) == []


class Staller:
    """Stops in the middle of a stream from the beginning without an end, and completes the others."""

    def __init__(self, content):
        self.content = content
        self.offsets = []

    async def stream(self, request, context):
        self.offsets.append(request.offset)
        if not request.offset:
            yield pb.Chunk(data=self.content[:777_777])
            while True:
                yield pb.Chunk()  # an empty chunk is no byte
        yield pb.Chunk(data=self.content[request.offset :][: limits.CHUNK_BYTES])


async def test_a_stream_that_stalls_is_broken_off_and_resumed_at_its_offset(network, wanted):
    europe, _, sample, offer = await offered(network, wanted, numbers=400_000)
    staller = Staller(sample.path.read_bytes())
    server = grpc.aio.server(options=tls.SERVER_OPTIONS)
    serve_artifacts(server, staller.stream)
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(europe.service.pki))
    await server.start()
    network.addresses["europe"] = f"127.0.0.1:{port}"
    path = await network.dial("asia", stall_s=0.5).fetch(offer, network.inbox())
    assert path.read_bytes() == staller.content
    assert staller.offsets[-1] == 777_777
    assert set(staller.offsets[:-1]) == {0}, "more than one where a handshake takes longer than a stall"
    await server.stop(None)


async def test_a_peer_that_stays_away_is_unreachable_and_the_part_is_kept(network, wanted):
    europe, _, sample, offer = await offered(network, wanted)
    africa = network.dial("africa", stall_s=0.5)
    left = iter([1_000_000])
    await network.cut(europe, lambda: next(left, 0))
    with pytest.raises(Unreachable):
        await africa.fetch(offer, network.inbox())
    (part,) = network.inbox().iterdir()
    assert part.suffix == ".part"
    content, left_behind = sample.path.read_bytes(), part.read_bytes()
    (arrived,) = ARRIVED.unpack(left_behind[len(content) :])
    assert arrived > 0
    assert left_behind[:arrived] == content[:arrived]


async def test_a_cancelled_fetch_ends_the_stream_at_the_other_side(network, wanted):
    europe, africa, _, offer = await offered(network, wanted, numbers=8_000_000)
    moving = asyncio.Event()
    fetching = asyncio.create_task(africa.fetch(offer, network.inbox(), lambda _: moving.set()))
    await moving.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await asyncio.wait_for(europe.service.ended.wait(), 30)
    assert europe.service.ledger[1][3] == "broken"


@pytest.mark.e2e
async def test_a_hundred_cuts_lose_no_byte_no_task_and_no_descriptor(network):
    """grpc.aio's client is known as unstable where connections drop often."""
    drawn = random.Random(20)
    europe = await network.serve("europe")
    cutter = await network.cut(europe, lambda: drawn.randrange(20_000, 3_000_000))
    clients = [network.dial("africa"), network.dial("asia")]
    samples = [network.sample(numbers=numbers) for numbers in (1_000, 100_000, 500_000, 1_000_000)]
    signed = [europe.service.publish(sample) for sample in samples]
    before, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    moved = 0

    async def transfer(lane):
        nonlocal moved
        inbox = network.inbox() / str(lane)
        inbox.mkdir()
        while cutter.cuts < 100:
            chosen = drawn.randrange(len(samples))
            offer = await offer_of(clients[lane % 2], signed[chosen])
            path = await clients[lane % 2].fetch(offer, inbox)
            assert hashlib.sha256(path.read_bytes()).hexdigest() == samples[chosen].artifact.sha256
            path.unlink()
            moved += 1

    async def offer_of(client, manifest):
        while True:
            europe.service.reply = manifest
            try:
                offer = await client.get_manifest(
                    europe.name, ArtifactRequest("model", 3, "train", europe.name), wait_s=0.0
                )
            except Unreachable:
                await asyncio.sleep(0.02)
            else:
                if offer.signed == manifest:
                    return offer

    await asyncio.wait_for(asyncio.gather(*(transfer(lane) for lane in range(8))), 60)
    assert moved >= 20
    for client in clients:
        await client.close()
    await cutter.stop()
    await europe.server.stop()
    rows = europe.service.ledger
    intents = {number for number, row in enumerate(rows, start=1) if row[0] == "intent"}
    assert {row[1] for row in rows if row[0] == "outcome"} == intents
    assert len(rows) == 2 * len(intents)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(asyncio.all_tasks()) <= tasks
