"""What the service serves where amendments changed the members: by the epoch of the asked round."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fakes.peer_service import AFRICA, ASIA, NOW, SiteUnderTest, asked
from peer.core import access
from peer.core.artifacts import EvaluationResult
from peer.core.epochs import Epochs
from peer.core.limits import AMENDMENT_CALLS_BURST
from peer.core.messages import AmendmentsReply, ChainHead, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.net.transport.server import Refusal, Status

DIGEST, AMERICA = Sha256("ab" * 32), SiteName("america")


def amend(site: SiteUnderTest, *, from_round: int = 1, **changes: Any) -> None:
    """Follow one more amendment, whose digest is ``DIGEST``."""
    rules = site.machine.rules
    head = rules.epochs.head
    added = dataclasses.replace(head, number=head.number + 1, digest=DIGEST, from_round=from_round, **changes)
    site.machine.rules = rules.amended(Epochs((*rules.epochs.all, added)))
    site.service.wake_waiting_calls()


async def test_a_caller_of_another_epoch_is_told_so_and_not_denied(site: SiteUnderTest) -> None:
    artifact = site.publish(1)
    amend(site)
    behind = site.receiver(1)
    assert await site.service.manifest(behind, asked(1), wait_s=0.0) == Unavailable.EPOCH
    with pytest.raises(Refusal, match="another epoch for round 1") as refusal:
        site.open(1, artifact)
    assert refusal.value.status == Status.EPOCH
    signed = await site.service.manifest(behind, asked(1, epoch=DIGEST), wait_s=0.0)
    assert site.described(signed) == (1, artifact, False)
    assert site.denied() == []


async def test_a_site_that_is_behind_says_so_before_it_denies(site: SiteUnderTest) -> None:
    assert await site.service.manifest(site.stranger(1), asked(1, epoch=DIGEST), wait_s=0.0) == Unavailable.EPOCH
    assert site.denied() == []


async def test_a_wait_ends_when_the_epoch_changes(site: SiteUnderTest) -> None:
    waiting = asyncio.create_task(site.service.manifest(site.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    amend(site)
    assert await asyncio.wait_for(waiting, 5) == Unavailable.EPOCH


async def test_a_newcomer_gets_nothing_before_the_operator_accepts_it(open_site: Callable[..., SiteUnderTest]) -> None:
    waits = "sends no model to america before its operator runs `mhfl-peer federation accept america`"
    for egress, reason in (("", waits), ('newcomers = "accept"', None)):
        site = open_site(egress)
        rules = site.machine.rules
        members = tuple(sorted((*rules.roster.names, AMERICA)))
        amend(site, members=members, newcomers=frozenset({AMERICA}))
        round = next(round for round in range(1, 6) if site.machine.rules.turn(round, AMERICA) == "europe")
        artifact = site.publish(round)
        assert access.epoch_digest(site.machine.rules, caller=AMERICA, for_round=round) == DIGEST
        call = site.service.manifest(AMERICA, asked(round, epoch=DIGEST), wait_s=0.0)
        if reason is None:
            assert site.described(await call) == (round, artifact, False)
        else:
            with pytest.raises(Refusal, match=reason):
                await call


@pytest.mark.parametrize(
    ("caller", "changes", "epoch", "reason"),
    [
        (ASIA, {"members": ("africa", "europe"), "expelled": frozenset({ASIA})}, DIGEST, "was expelled"),
        (
            AMERICA,
            {"members": ("africa", "america", "asia", "europe"), "from_round": 3},
            None,
            "is no member of round 1",
        ),
    ],
)
async def test_an_expelled_site_and_a_newcomer_before_its_round_get_nothing(
    open_site: Callable[..., SiteUnderTest], caller: SiteName, changes: Any, epoch: Sha256 | None, reason: str
) -> None:
    site = open_site('newcomers = "accept"')
    artifact = site.publish(1)
    amend(site, **changes)
    request = asked(1, epoch=epoch)
    with pytest.raises(Refusal, match=reason):
        await site.service.manifest(caller, request, wait_s=0.0)
    with pytest.raises(Refusal, match=reason):
        site.service.open_artifact(caller, request, sha256=artifact.sha256, offset=0)
    with pytest.raises(Refusal) as refusal:
        await site.service.report(caller, EvaluationResult(1, 1, artifact.sha256, 3, {"auc": 0.5}))
    assert refusal.value.status == Status.DENIED
    assert {row["caller"] for row in site.denied()} == {caller}
    assert site.ledger.transfers() == []


def test_an_intent_says_which_epoch_and_route_it_has(site: SiteUnderTest) -> None:
    first = site.publish(1)
    site.open(1, first)
    amend(site, from_round=2)
    second, request = site.publish(2), asked(2, epoch=DIGEST)
    site.service.open_artifact(site.receiver(2), request, sha256=second.sha256, offset=0, relayed=True)
    intents = site.ledger.transfers()
    assert [(intent.get("epoch"), intent.get("route")) for intent in intents] == [(None, None), (DIGEST, "relay")]


async def test_greetings_and_heartbeats_state_the_head_and_report_the_caller_s(site: SiteUnderTest) -> None:
    assert (site.service.greeting(ASIA).head, site.service.pulse(ASIA).head) == (None, None)
    amend(site)
    head = ChainHead(1, DIGEST)
    assert (site.service.greeting(ASIA).head, site.service.pulse(ASIA).head) == (head, head)
    heard: list[tuple[SiteName, ChainHead | None]] = []
    site.service._note_head = lambda peer, stated: heard.append((peer, stated))
    await site.service.beat(ASIA, dataclasses.replace(NOW, head=head))
    assert heard == [(ASIA, head)]


def test_roster_and_round_key_are_compared_only_without_amendments(site: SiteUnderTest) -> None:
    other = dataclasses.replace(site.service.greeting(ASIA), round_key_tag=Sha256("cd" * 32))
    assert "round key's tag differs" in (site.service.difference(other) or "")
    assert site.service.difference(dataclasses.replace(other, head=ChainHead(1, DIGEST))) is None
    assert site.service.difference(dataclasses.replace(other, federation=DIGEST)) is not None


def test_a_caller_that_asks_for_amendments_too_often_is_told_to_wait(site: SiteUnderTest) -> None:
    calls: list[tuple[Any, ...]] = []

    class Chain:
        def answer(self, *call: Any) -> AmendmentsReply:
            calls.append(call)
            return AmendmentsReply()

    site.service._chain = Chain()  # type: ignore[assignment]
    for _ in range(AMENDMENT_CALLS_BURST):
        site.service.amendments(ASIA, b"", 3)
    with pytest.raises(Refusal, match=r"over 0\.5 questions for amendments a second") as refusal:
        site.service.amendments(ASIA, b"", 3)
    assert refusal.value.status == Status.BUSY
    site.service.amendments(AFRICA, b"", 3)
    assert len(calls) == AMENDMENT_CALLS_BURST + 1
