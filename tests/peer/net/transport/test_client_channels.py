"""The client's channels: who is talked to at an address, renewals, and what a channel may hold."""

import asyncio
import contextlib
import datetime
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fakes.exchange_calls import exchange_stub
from fakes.two_sites import offered
from peer.core import limits
from peer.core.messages import Heartbeat
from peer.errors import CertificateError
from peer.net.transport import server, tls, wire
from peer.net.transport.client import Refused, Unreachable
from peer.net.transport.server import Refusal, Status
from peer.site.identity import certificates

pytestmark = pytest.mark.e2e

PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)
BENCH = Path(__file__).parents[3] / "bench" / "transfer.py"


async def test_an_unknown_address_is_unreachable(network):
    with pytest.raises(Unreachable, match="europe: its address is not known"):
        await network.dial("africa").beat("europe", PULSE)


async def test_nobody_at_the_address_is_unreachable_at_once(europe, africa):
    await europe.server.stop()
    with pytest.raises(Unreachable, match="europe: "):
        await africa.beat(europe.name, PULSE)


async def test_another_site_at_the_address_is_not_talked_to(network):
    asia, africa = await network.serve("asia"), network.dial("africa")
    network.addresses["europe"] = f"127.0.0.1:{asia.port}"
    with pytest.raises(Unreachable):
        await africa.beat("europe", PULSE)
    assert asia.service.calls == []


async def test_a_server_of_another_federation_is_not_talked_to(network, foreign_authority):
    await network.serve("europe", pki=foreign_authority.admit("europe"))
    with pytest.raises(Unreachable):
        await network.dial("africa").beat("europe", PULSE)


async def test_a_peer_that_moved_is_dialled_at_its_new_address(network):
    first, africa = await network.serve("europe"), network.dial("africa")
    await africa.beat("europe", PULSE)
    second = await network.serve("europe")
    await africa.beat("europe", PULSE)
    assert (len(first.service.calls), len(second.service.calls)) == (1, 1)


async def test_a_transfer_goes_on_while_another_address_is_tried(network, wanted):
    europe, africa, sample, offer = await offered(network, wanted, numbers=4_000_000)
    moving = asyncio.Event()
    fetching = asyncio.create_task(africa.fetch(offer, network.inbox(), lambda _: moving.set()))
    await moving.wait()
    network.addresses["europe"] = "127.0.0.1:1"
    with pytest.raises(Unreachable):
        await africa.beat(europe.name, PULSE)
    network.addresses["europe"] = f"127.0.0.1:{europe.port}"
    await africa.beat(europe.name, PULSE)
    assert (await fetching).read_bytes() == sample.path.read_bytes()
    assert len(europe.service.ledger) == 2, "one intent, one outcome"


async def test_a_restarted_peer_is_reached_again(europe, africa):
    await africa.beat(europe.name, PULSE)
    await europe.server.stop()
    for _ in range(8):
        with pytest.raises(Unreachable):
            await africa.beat(europe.name, PULSE)
        await asyncio.sleep(0.1)  # long enough for the channel's backoff to grow
    await europe.server.start(f"127.0.0.1:{europe.port}")
    while True:
        try:
            await africa.beat(europe.name, PULSE)
            break
        except Unreachable:
            await asyncio.sleep(0.05)


async def test_a_renewed_certificate_is_dialled_with_and_the_open_transfer_goes_on(network, europe, wanted):
    pki = network.authority.admit("africa")
    africa = network.dial("africa", pki=pki)
    sample = network.sample(numbers=4_000_000)
    europe.service.publish(sample)
    offer = await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    old = certificates.certificate_sha256(certificates.certificate_der(pki.load().certificate))
    moving = asyncio.Event()
    fetching = asyncio.create_task(africa.fetch(offer, network.inbox(), lambda _: moving.set()))
    await moving.wait()
    network.authority.admit("africa")
    await africa.beat(europe.name, PULSE)
    path = await fetching
    assert path.read_bytes() == sample.path.read_bytes()
    assert len(europe.service.ledger) == 2
    strict = await network.serve("asia", refused={old})
    await africa.beat(strict.name, PULSE)


async def test_a_renewal_that_is_half_written_does_not_interrupt_the_talk(network):
    europe, pki = await network.serve("europe"), network.authority.admit("africa")
    africa = network.dial("africa", pki=pki)
    await africa.beat(europe.name, PULSE)
    (pki.folder / certificates.CERTIFICATE_FILE).write_text("-----BEGIN CERTIFICATE-----\n")
    await africa.beat(europe.name, PULSE)
    await network.serve("asia")
    with pytest.raises(CertificateError, match=r"cert\.pem"):
        await africa.beat("asia", PULSE)


async def test_an_own_certificate_that_expires_is_not_shown_any_more_until_it_is_renewed(network):
    """The open channel could carry the call, but the peer would refuse it and be blamed."""
    europe, ahead = await network.serve("europe"), datetime.timedelta()
    pki = network.authority.admit("africa", days=30)
    pki = replace(pki, clock=lambda: datetime.datetime.now(datetime.UTC) + ahead)
    africa = network.dial("africa", pki=pki)
    await africa.beat(europe.name, PULSE)
    ahead = datetime.timedelta(days=31)
    with pytest.raises(CertificateError, match=r"cert\.pem: the certificate expired on"):
        await africa.beat(europe.name, PULSE)
    assert len(europe.service.calls) == 1
    network.authority.admit("africa", days=60)
    await africa.beat(europe.name, PULSE)
    assert europe.service.refused_calls == []


async def test_a_certificate_that_expires_on_its_way_to_the_peer_is_renewed_and_no_refusal(network):
    """Else the exchange of the round would go on without the peer's artifact."""
    on_its_way, ahead = False, datetime.timedelta()

    def clock() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + ahead

    def clock_at_arrival() -> datetime.datetime:
        nonlocal ahead
        ahead = datetime.timedelta(days=31 if on_its_way else 0)
        return clock()

    europe = await network.serve(
        "europe", pki=replace(network.authority.admit("europe", days=90), clock=clock_at_arrival)
    )
    africa = network.dial("africa", pki=replace(network.authority.admit("africa", days=30), clock=clock))
    await africa.beat(europe.name, PULSE)
    on_its_way = True
    with pytest.raises(Unreachable, match="the certificate expired on"):
        await africa.beat(europe.name, PULSE)
    with pytest.raises(CertificateError, match=r"cert\.pem: the certificate expired on"):
        await africa.beat(europe.name, PULSE)
    network.authority.admit("africa", days=60)
    await africa.beat(europe.name, PULSE)


async def test_a_transfer_during_which_the_receivers_certificate_expires_goes_on_after_the_renewal(
    network, wanted, monkeypatch
):
    monkeypatch.setattr(server, "READMIT_S", 0.0)  # each chunk looks: else a fast machine is done before the first look
    ahead = datetime.timedelta()

    def clock() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + ahead

    def expire(received: int) -> None:
        nonlocal ahead
        ahead = datetime.timedelta(days=31)

    europe = await network.serve("europe", pki=replace(network.authority.admit("europe", days=90), clock=clock))
    africa = network.dial("africa", pki=replace(network.authority.admit("africa", days=30), clock=clock))
    sample = network.sample(numbers=8_000_000)  # more than a stream's window: the sender is not done by the first chunk
    europe.service.publish(sample)
    offer = await africa.get_manifest(europe.name, wanted())
    with pytest.raises(CertificateError, match=r"cert\.pem: the certificate expired on"):
        await africa.fetch(offer, network.inbox(), expire)
    network.authority.admit("africa", days=60)
    path = await africa.fetch(offer, network.inbox())
    assert path.read_bytes() == sample.path.read_bytes()
    assert [row[3] > 0 for row in europe.service.ledger if row[0] == "intent"] == [False, True], "it was resumed"


async def test_two_peers_that_dial_each_other_at_once_both_succeed(network, wanted):
    europe, africa = await network.serve("europe"), await network.serve("africa")
    to_europe, to_africa = (
        network.dial("africa", pki=africa.service.pki),
        network.dial("europe", pki=europe.service.pki),
    )
    ours, theirs = network.sample(owner="europe"), network.sample(owner="africa")
    europe.service.publish(ours)
    africa.service.publish(theirs)

    async def exchange(client, peer):
        offer = await client.get_manifest(peer, wanted(owner=peer), wait_s=0.0)
        return await client.fetch(offer, network.inbox())

    paths = await asyncio.gather(exchange(to_europe, europe.name), exchange(to_africa, africa.name))
    assert [path.read_bytes() for path in paths] == [ours.path.read_bytes(), theirs.path.read_bytes()]


async def test_a_peer_s_words_are_shown_without_their_control_characters(europe, africa):
    europe.service.refusal = Refusal(Status.DENIED, "no\x1b[31m\nway" + "!" * 5000)
    with pytest.raises(Refused) as caught:
        await africa.beat(europe.name, PULSE)
    assert caught.value.reason.startswith("no [31m way!!")
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) == limits.TEXT_BYTES_MAX


async def test_a_sender_runs_at_most_one_window_ahead_of_a_reader_that_stops(network, wanted):
    """By default gRPC's window grows without bound, into the memory of a site whose disk is slow."""
    europe, own = await network.serve("europe"), network.authority.admit("africa").load()
    sample = network.sample(numbers=8 << 20)
    europe.service.publish(sample)
    line = await network.lengthen(europe, delay_s=0.02)
    message = wire.encode_fetch_request(wanted(), sha256=sample.artifact.sha256, offset=0)
    options = tls.channel_options(europe.name)
    address = network.addresses[europe.name]
    async with grpc.aio.secure_channel(address, tls.channel_credentials(own), options=options) as channel:
        call, received = exchange_stub(channel).FetchArtifact(message), 0
        while received < sample.artifact.bytes // 2:
            received += len((await call.read()).data)
        await line.quiet()
        call.cancel()
        await asyncio.wait_for(europe.service.ended.wait(), 30)
    _, _, sent, outcome = europe.service.ledger[-1]
    assert outcome == "broken"  # without a window all would have been sent by now
    assert sent - received <= 3 * limits.STREAM_WINDOW_BYTES, "the window, what TCP read ahead, and chunks in work"


def test_memory_does_not_grow_with_the_artifact():
    """Two sizes in processes of their own; the daemon's bound is 120 MiB, with imports and buffers."""
    measure = (
        "import json, sys, transfer; print(json.dumps([transfer.time_transfers(int(mb), 1) for mb in sys.argv[1:]]))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", measure, "16", "96"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{BENCH.parent}{os.pathsep}{BENCH.parents[2]}"},
    )
    small, large = json.loads(finished.stdout)
    for place in ("receiving", "sending"):
        assert max(small[place], large[place]) < 120
        assert large[place] - small[place] < 40


async def test_an_artifact_has_a_connection_of_its_own(network, europe, africa, wanted):
    europe.service.publish(network.sample())
    offer = await africa.get_manifest("europe", wanted())
    await africa.fetch(offer, network.inbox())
    connections = set(europe.server._connections._records)
    assert len(connections) == 2


async def test_a_stream_beside_others_has_its_share_of_the_window_and_the_whole_once_they_have_ended(network, wanted):
    europe, africa = await network.serve("europe"), network.dial("africa", streams=16)
    windows = []
    for number in range(3):
        europe.service.publish(network.sample(numbers=500_000 + number))
        offer = await africa.get_manifest(europe.name, wanted())
        with contextlib.ExitStack() as others:
            if number == 1:
                others.enter_context(africa._windows["exchange"].stream(1 << 30))
            await africa.fetch(offer, network.inbox())
        windows.append(africa._channels[europe.name, "exchange"].window_bytes)
    whole, share = limits.STREAM_WINDOW_BYTES, limits.STREAM_WINDOW_BYTES // 16
    assert windows == [whole, share, whole]
    assert africa._channels[europe.name, "calls"].window_bytes == share


async def test_a_small_artifact_needs_no_channel_with_the_whole_window(network, wanted):
    europe, africa = await network.serve("europe"), network.dial("africa", streams=16)
    europe.service.publish(network.sample(numbers=1000))
    await africa.fetch(await africa.get_manifest(europe.name, wanted()), network.inbox())
    assert africa._channels[europe.name, "exchange"].window_bytes == limits.STREAM_WINDOW_BYTES // 16


async def test_lent_models_take_nothing_of_the_window_of_an_exchange(network, wanted):
    europe, africa = await network.serve("europe"), network.dial("africa", evaluations=31)
    lent, sample = wanted(purpose="evaluate"), network.sample()
    europe.service.publish(sample, evaluation=True)
    offer = await africa.get_manifest(europe.name, lent)
    with africa._windows["evaluation"].stream(1 << 30):
        await africa.fetch(offer, network.inbox())
        europe.service.publish(network.sample(numbers=400_000))
        await africa.fetch(await africa.get_manifest(europe.name, wanted()), network.inbox())
    assert africa._channels[europe.name, "evaluation"].window_bytes == limits.STREAM_WINDOW_BYTES // 31
    assert africa._channels[europe.name, "exchange"].window_bytes == limits.STREAM_WINDOW_BYTES
