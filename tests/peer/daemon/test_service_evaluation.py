"""What is lent for evaluation, to whom, and the reports that come back."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fakes.peer_service import AFRICA, ASIA, FEDERATION, GLOBAL, SiteUnderTest, asked
from peer.core import events
from peer.core.artifacts import EvaluationResult
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import to_json
from peer.net.transport.server import Refusal, Status
from peer.net.transport.wire import ArtifactRequest


@pytest.fixture
def lender(open_site: Callable[..., SiteUnderTest]) -> SiteUnderTest:
    """Europe's service in a federation with Global Test, which its policy permits."""
    return open_site("evaluate = true", federation=GLOBAL)


def borrowed(round: int, **changes: Any) -> ArtifactRequest:
    return asked(round, purpose="evaluate", **changes)


async def test_every_peer_may_borrow_what_is_lent_and_each_time_is_in_the_ledger(lender: SiteUnderTest) -> None:
    artifact = lender.lend(2)
    for caller in (ASIA, AFRICA):
        signed = await lender.service.manifest(caller, borrowed(2), wait_s=0.0)
        assert lender.described(signed) == (2, artifact, True)
        grant = lender.service.open_artifact(caller, borrowed(2), sha256=artifact.sha256, offset=0)
        lender.service.record_sent(grant, size=1000, outcome="complete")
    assert [(row["peer"], row["purpose"], row["kind"], row["round"]) for row in lender.ledger.transfers()] == [
        ("asia", "evaluate", "model", 2),
        ("africa", "evaluate", "model", 2),
    ]


async def test_what_is_published_and_lent_in_one_round_has_two_manifests(lender: SiteUnderTest) -> None:
    artifact = lender.publish(2)
    lender.lend(2)
    trained = await lender.service.manifest(lender.receiver(2), asked(2), wait_s=0.0)
    lent = await lender.service.manifest(lender.receiver(2), borrowed(2), wait_s=0.0)
    assert lender.described(trained) == (2, artifact, False)
    assert lender.described(lent) == (2, artifact, True)


async def test_what_is_lent_is_no_artifact_to_train_with(lender: SiteUnderTest) -> None:
    artifact = lender.lend(2)
    caller = lender.receiver(2)
    assert await lender.service.manifest(caller, asked(2), wait_s=0.0) == Unavailable.NOT_YET
    with pytest.raises(Refusal) as refused:
        lender.open(2, artifact)
    assert refused.value.status is Status.MISSING


async def test_a_site_that_has_left_gets_no_lent_model_and_takes_it_for_no_fault(lender: SiteUnderTest) -> None:
    artifact, rules = lender.lend(2), lender.machine.rules
    lender.machine.rules = rules.amended(replace(rules.epochs, leaving=frozenset({ASIA})))
    assert await lender.service.manifest(ASIA, borrowed(2), wait_s=0.0) == Unavailable.RETIRED
    with pytest.raises(Refusal) as refused:
        lender.service.open_artifact(ASIA, borrowed(2), sha256=artifact.sha256, offset=0)
    assert refused.value.status is Status.MISSING
    assert (lender.denied(), lender.ledger.transfers()) == ([], [])


@pytest.mark.parametrize(("round", "caller"), [(3, ASIA), (6, ASIA), (2, SiteName("mars"))])
async def test_other_rounds_and_strangers_are_denied(lender: SiteUnderTest, round: int, caller: SiteName) -> None:
    lender.lend(2)
    with pytest.raises(Refusal) as refused:
        await lender.service.manifest(caller, borrowed(round), wait_s=0.0)
    assert refused.value.status is Status.DENIED


@pytest.mark.parametrize(
    ("egress", "federation", "reason"),
    [
        ("", GLOBAL, r"\[egress\] evaluate is false"),
        ("evaluate = true", FEDERATION, "does not have global_test = true"),
        ('evaluate = true\nreceivers = ["africa"]', GLOBAL, "policy sends no model to asia"),
        ("evaluate = true", GLOBAL.replace("fedskd", "fedbn"), "normalisation layers stay there"),
        ("evaluate = true", GLOBAL.replace('"fedskd"', '"feddal"') + "", "sends no model"),
    ],
)
async def test_policy_federation_and_method_must_permit_it(
    open_site: Callable[..., SiteUnderTest], egress: str, federation: str, reason: str
) -> None:
    shared = '\n[shared_model]\nname = "resnet10"\n[[site]]'
    site = open_site(egress, federation=federation.replace("\n[[site]]", shared, 1))
    site.lend(2)
    with pytest.raises(Refusal, match=reason):
        await site.service.manifest(ASIA, borrowed(2), wait_s=0.0)
    if not egress:
        with pytest.raises(Refusal, match="tells asia no metrics"):
            site.service.open_report(ASIA, EvaluationResult(1, 2, Sha256("ab" * 32), 20, {}), size=60)
    assert site.ledger.transfers() == []


@pytest.mark.parametrize(
    ("egress", "federation", "evaluates"),
    [("evaluate = true", GLOBAL, True), ("", GLOBAL, False), ("evaluate = true", FEDERATION, None)],
)
def test_a_greeting_says_whether_the_site_takes_part(
    open_site: Callable[..., SiteUnderTest], egress: str, federation: str, evaluates: bool | None
) -> None:
    assert open_site(egress, federation=federation).service.greeting(ASIA).evaluates is evaluates


async def test_a_report_is_acknowledged_once_it_is_in_the_journal(lender: SiteUnderTest) -> None:
    artifact = lender.lend(2)
    report = EvaluationResult(1, 2, artifact.sha256, 20, {"auc": 0.75})
    taking = asyncio.create_task(lender.service.report(ASIA, report))
    await asyncio.sleep(0)
    assert lender.events[-1] == events.ReportArrived(ASIA, report)
    lender.service.wake_waiting_calls()  # something else changed
    await asyncio.sleep(0)
    assert not taking.done()
    lender.remember("report", 2, site="asia", report=to_json(report))
    lender.service.wake_waiting_calls()
    await asyncio.wait_for(taking, 5)
    await asyncio.wait_for(lender.service.report(ASIA, report), 5)  # said again, it is taken again


@pytest.mark.parametrize(
    ("caller", "changes", "reason"),
    [
        ("asia", {"round": 4}, "no model of round 4 is lent"),
        ("asia", {"sha256": Sha256("ab" * 32)}, "is another one"),
        ("asia", {"generation": 7}, "generation 7"),
        ("mars", {}, "takes no part"),
    ],
)
async def test_a_report_that_nobody_asked_for_is_denied_and_written_down(
    lender: SiteUnderTest, caller: str, changes: dict[str, Any], reason: str
) -> None:
    artifact = lender.lend(2)
    report = replace(EvaluationResult(1, 2, artifact.sha256, 20, {"auc": 0.75}), **changes)
    with pytest.raises(Refusal, match=reason) as refused:
        await lender.service.report(SiteName(caller), report)
    assert refused.value.status is Status.DENIED
    assert [row["caller"] for row in lender.denied()] == [caller]
    assert not any(isinstance(event, events.ReportArrived) for event in lender.events)


def test_a_report_leaves_through_the_ledger(lender: SiteUnderTest) -> None:
    report = EvaluationResult(1, 2, Sha256("ab" * 32), 20, {"auc": 0.75})
    intent = lender.service.open_report(ASIA, report, size=60)
    (row,) = lender.ledger.transfers()
    assert (row["peer"], row["purpose"], row["kind"]) == ("asia", "evaluate", "metrics")
    assert (row["round"], row["bytes"], row["sha256"], row["outcome"]) == (2, 60, "ab" * 32, "open")
    lender.service.record_report_sent(intent, size=60, outcome="complete")
    assert lender.ledger.transfers()[0]["outcome"] == "complete"


def test_figures_count_as_bytes_of_their_round(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site("evaluate = true\nbytes_per_round_max = 100", federation=GLOBAL)
    report = EvaluationResult(1, 2, Sha256("ab" * 32), 20, {})
    site.service.record_report_sent(site.service.open_report(ASIA, report, size=60), size=60, outcome="complete")
    with pytest.raises(Refusal, match="at most 100 bytes leave in a round") as refused:
        site.service.open_report(AFRICA, report, size=60)
    assert refused.value.status is Status.DENIED
    assert [row["peer"] for row in site.ledger.transfers()] == ["asia"]
