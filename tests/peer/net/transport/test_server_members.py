"""Who may call changes while the server runs: members come and go, keys and CAs change."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from fakes.exchange_calls import exchange_stub
from fakes.local_network import Authority, LocalNetwork
from peer.core.messages import AmendmentsReply, Heartbeat
from peer.core.roster import SiteName
from peer.net.transport import server, tls, wire
from peer.net.transport.client import NotAdmitted
from peer.site.identity import certificates

AFRICA, EUROPE = SiteName("africa"), SiteName("europe")
PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)


async def test_a_newcomer_may_call_and_an_expelled_site_may_not_any_more(network: LocalNetwork) -> None:
    roster = {EUROPE}
    europe = await network.serve("europe", roster=roster)
    africa = network.dial("africa")
    with pytest.raises(NotAdmitted, match="'africa' is not in the roster"):
        await africa.beat(EUROPE, PULSE)
    roster.add(AFRICA)
    europe.server.follow_roster()
    assert await africa.beat(EUROPE, PULSE) == PULSE
    roster.remove(AFRICA)
    with pytest.raises(NotAdmitted):
        await africa.beat(EUROPE, PULSE)


async def test_an_expelled_site_is_told_why_and_may_ask_for_amendments_alone(network: LocalNetwork) -> None:
    asked: list[tuple[SiteName, int]] = []

    def answer(caller: SiteName, certificate: bytes, after: int) -> AmendmentsReply:
        asked.append((caller, after))
        return AmendmentsReply(())

    await network.serve("europe", roster={EUROPE}, expelled={AFRICA: 3}, chain=answer)
    africa = network.dial("africa")
    with pytest.raises(NotAdmitted, match="'africa' was expelled from this federation by amendment 3"):
        await africa.beat(EUROPE, PULSE)
    assert await africa.get_amendments(EUROPE, after=2) == AmendmentsReply(())
    assert asked == [(AFRICA, 2)]


async def test_a_site_whose_key_was_replaced_may_ask_for_amendments_alone(network: LocalNetwork) -> None:
    """It may not have heard of the amendment: nobody else tells it."""
    asked: list[SiteName] = []

    def answer(caller: SiteName, certificate: bytes, after: int) -> AmendmentsReply:
        asked.append(caller)
        return AmendmentsReply(())

    former, stranger = network.authority.admit("africa"), network.authority.admit("africa", into="stranger")
    had = {(AFRICA, certificates.key_digest(former.load().key.public_key()))}
    pki = replace(network.authority.admit("europe"), pinned={AFRICA: "ab" * 32})
    await network.serve("europe", pki=pki, had_key=lambda *site_and_key: site_and_key in had, chain=answer)
    africa = network.dial("africa", pki=former)
    assert await africa.get_amendments(EUROPE, after=2) == AmendmentsReply(())
    assert asked == [AFRICA]
    with pytest.raises(NotAdmitted, match="pins the key"):
        await africa.beat(EUROPE, PULSE)
    with pytest.raises(NotAdmitted, match="pins the key"):
        await network.dial("africa", pki=stranger).get_amendments(EUROPE, after=2)
    assert asked == [AFRICA]


async def test_a_stream_to_a_site_that_is_expelled_is_cut(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READMIT_S", 0.0)  # else a fast machine could send all of it within that time
    roster = {AFRICA, EUROPE}
    europe = await network.serve("europe", roster=roster)
    pki = network.authority.admit("africa")
    sample = network.sample(numbers=8_000_000)
    europe.service.publish(sample)
    asked = wire.ArtifactRequest("model", 3, "train", EUROPE)
    request = wire.encode_fetch_request(asked, sha256=sample.artifact.sha256, offset=0)
    options = tls.channel_options(EUROPE)
    address = f"127.0.0.1:{europe.port}"
    async with grpc.aio.secure_channel(address, tls.channel_credentials(pki.load()), options=options) as channel:
        call = exchange_stub(channel).FetchArtifact(request, timeout=30)
        received = len((await call.read()).data)
        roster.remove(AFRICA)

        async def read_rest() -> None:
            nonlocal received
            while chunk := await call.read():
                received += len(chunk.data)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_rest()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await asyncio.wait_for(europe.service.ended.wait(), 5)
    assert received < sample.artifact.bytes
    assert [outcome[3] for outcome in europe.service.ledger[1:]] == ["broken"]


async def test_a_key_that_an_amendment_changed_counts_at_once(network: LocalNetwork) -> None:
    first, second = network.authority.admit("africa"), network.authority.admit("africa", into="renewed")
    pins = {AFRICA: certificates.key_digest(first.load().key.public_key())}
    europe = network.authority.admit("europe")
    await network.serve("europe", pki=replace(europe, pinned=pins))
    before, after = network.dial("africa", pki=first), network.dial("africa", pki=second)
    assert await before.beat(EUROPE, PULSE) == PULSE
    with pytest.raises(NotAdmitted, match="pins the key"):
        await after.beat(EUROPE, PULSE)
    pins[AFRICA] = certificates.key_digest(second.load().key.public_key())
    assert await after.beat(EUROPE, PULSE) == PULSE
    with pytest.raises(NotAdmitted, match="pins the key"):
        await before.beat(EUROPE, PULSE)


async def test_a_certificate_of_a_ca_that_an_amendment_added_counts_from_then_on(
    network: LocalNetwork, foreign_authority: Authority
) -> None:
    """Africa's certificate is of the new CA; both sites trust both."""
    genesis = certificates.certificate_pem(network.authority.certificate)
    added: list[str] = []
    africa = foreign_authority.admit("africa")
    (africa.folder / certificates.CA_FILE).write_bytes(genesis)
    africa = replace(africa, ca_certificate=genesis.decode(), later_authorities=lambda: added)
    europe = replace(network.authority.admit("europe"), later_authorities=lambda: added)
    await network.serve("europe", pki=europe)
    client = network.dial("africa", pki=africa)
    with pytest.raises(certificates.CertificateError, match=r"cert\.pem"):
        await client.beat(EUROPE, PULSE)
    added.append(certificates.certificate_pem(foreign_authority.certificate).decode())
    assert await client.beat(EUROPE, PULSE) == PULSE
