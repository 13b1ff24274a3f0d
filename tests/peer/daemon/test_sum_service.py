"""Whom this site shows its statements on a sum, when its seeds leave, and what the ledger says of that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft
from fakes.peer_service import AFRICA, ASIA, EUROPE, SITES, SiteUnderTest
from peer.core import events
from peer.core.artifacts import Artifact
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.state import SiteState
from peer.core.sum_messages import SumOpening, SumStatements, commitment
from peer.core.worker_protocol import to_json
from peer.daemon.sum_service import SumService
from peer.net.transport.server import Refusal, Status
from peer.net.transport.sum_statements import SumRequest, decode_statements, encode_statements, statements_digest
from peer.site.records.ledger import Ledger
from peer.site.sums.secret_files import SumSecretFiles

AVERAGING = draft(
    "trial", rounds=5, method="fedavg", shared_model={"name": "resnet10"}, site=[{"name": name} for name in SITES]
)
REQUEST = SumRequest(1, "train")
KEYED = SumStatements(key=b"k" * 32)
SETS = replace(KEYED, shown={ASIA: Sha256("ab" * 32), EUROPE: Sha256("cd" * 32)})
SEED = b"s" * 32
Shown = tuple[SumStatements, tuple[SiteName, ...] | None] | None


class SummingSite:
    """Europe's service in a federation that sums securely; the test says what the state machine shows."""

    def __init__(self, site: SiteUnderTest, folder: Path) -> None:
        self.site = site
        site.machine.rules = replace(site.machine.rules, secure=True)
        self.secrets = SumSecretFiles(folder / "sums")
        self.shown: Shown = KEYED, None
        self.asked: list[tuple[int, SiteName]] = []
        self.service = SumService(
            service=site.service,
            machine=site.machine,
            ledger=site.ledger,
            secrets=self.secrets,
            report=site.events.append,
            shown_to=self._shown_to,
        )

    def _shown_to(self, machine: SiteState, round: int, caller: SiteName) -> Shown:
        self.asked.append((round, caller))
        return self.shown

    async def ask(
        self, request: SumRequest = REQUEST, *, caller: SiteName = ASIA, wait_s: float = 0.0
    ) -> bytes | Unavailable:
        return await self.service.sum(caller, request, wait_s)

    async def refused(self, request: SumRequest = REQUEST, *, caller: SiteName = ASIA) -> tuple[Status, str]:
        with pytest.raises(Refusal) as refused:
            await self.ask(request, caller=caller)
        return refused.value.status, refused.value.reason

    async def statements(self, *, caller: SiteName = ASIA) -> SumStatements:
        content = await self.ask(caller=caller)
        assert isinstance(content, bytes)
        return decode_statements(content)

    def mask(self, round: int = 1, *, partners: tuple[SiteName, ...] = (AFRICA, ASIA)) -> Artifact:
        """Publish a masked artifact, and keep its seeds."""
        self.secrets.draw(round)
        self.secrets.keep_pair_seeds(round, dict.fromkeys(partners, SEED))
        secrets = self.secrets.load(round)
        assert secrets is not None
        commitments = dict.fromkeys(partners, commitment(SEED)) | {EUROPE: commitment(secrets.own_seed)}
        artifact = replace(self.site.write_artifact(round), commitments=commitments)
        self.site.remember("published", round, artifact=to_json(artifact))
        self.site.service.publish(round, artifact, self.site.service.sign(round, artifact))
        return artifact

    def openings(self) -> list[dict[str, Any]]:
        return [row for row in self.site.ledger.transfers() if row["kind"] == "opening"]


@pytest.fixture
def open_summing(open_site: Callable[..., SiteUnderTest], tmp_path: Path) -> Callable[..., SummingSite]:
    """Opens the service: ``open_summing(egress="bytes_per_round_max = 1")``."""
    return lambda egress="": SummingSite(open_site(egress, federation=AVERAGING), tmp_path)


@pytest.fixture
def summing(open_summing: Callable[..., SummingSite]) -> SummingSite:
    return open_summing()


# --- who may ask ------------------------------------------------------------------------------------------------------
async def test_a_member_gets_what_the_state_machine_shows_it(summing: SummingSite) -> None:
    summing.shown = SETS, None
    assert await summing.ask() == encode_statements(SETS)
    assert summing.asked == [(1, ASIA)]
    assert summing.site.events == [events.PeerHeard(ASIA)]
    assert summing.openings() == []


async def test_a_round_without_a_sum_here_is_retired(summing: SummingSite) -> None:
    summing.shown = None
    assert await summing.ask() == Unavailable.RETIRED


async def test_another_epoch_is_told_and_nothing_is_shown(summing: SummingSite) -> None:
    assert await summing.ask(replace(REQUEST, epoch=Sha256("ab" * 32))) == Unavailable.EPOCH
    assert summing.asked == []


@pytest.mark.parametrize(
    ("request_", "caller", "reason"),
    [
        (replace(REQUEST, stage="commit"), ASIA, "stage is 'commit', this federation sums after 'train'"),
        (replace(REQUEST, round=6), ASIA, "round 6 is outside this federation's 1 to 5"),
        (REQUEST, SiteName("mars"), "'mars' is not a peer of this federation"),
        (REQUEST, EUROPE, "'europe' is not a peer of this federation"),
    ],
)
async def test_who_has_no_part_in_the_sum_is_refused(
    summing: SummingSite, request_: SumRequest, caller: SiteName, reason: str
) -> None:
    status = Status.MALFORMED if "stage" in reason else Status.DENIED
    assert await summing.refused(request_, caller=caller) == (status, reason)
    assert summing.asked == []
    rows = [{"caller": caller, "call": f"statements on the sum of round {request_.round}", "reason": reason}]
    assert summing.site.denied() == (rows if status is Status.DENIED else [])


async def test_a_federation_without_secure_sums_shows_nothing(summing: SummingSite) -> None:
    summing.site.machine.rules = replace(summing.site.machine.rules, secure=False)
    assert await summing.refused() == (Status.DENIED, "sites do not add up under masks in round 1")


@pytest.mark.parametrize(
    "policy", ['receivers = ["atlantis"]', "kinds = []"], ids=["another receiver", "no kind of artifact"]
)
async def test_the_policy_of_the_site_applies(open_summing: Callable[..., SummingSite], policy: str) -> None:
    status, reason = await open_summing(policy).refused()
    assert (status, reason) == (Status.DENIED, "europe's policy sends no model to asia")


async def test_a_caller_of_another_federation_is_refused(summing: SummingSite) -> None:
    summing.site.service.note_mismatch(ASIA, "the federation digest differs")
    assert await summing.refused() == (Status.MISMATCH, "the federation digest differs")


# --- waiting ----------------------------------------------------------------------------------------------------------
async def test_a_caller_that_knows_the_statements_waits_for_others(summing: SummingSite) -> None:
    known = replace(REQUEST, known=statements_digest(encode_statements(KEYED)))
    waiting = asyncio.create_task(summing.ask(known, wait_s=20.0))
    await asyncio.sleep(0)
    summing.site.service.wake_waiting_calls()  # something else changed
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await summing.ask(wait_s=20.0) == encode_statements(KEYED)  # who knows none does not wait
    summing.shown = SETS, None
    summing.site.service.wake_waiting_calls()
    assert await asyncio.wait_for(waiting, 5) == encode_statements(SETS)


async def test_nothing_said_is_a_statement_too(summing: SummingSite) -> None:
    summing.shown = SumStatements(), None
    assert await summing.ask(wait_s=20.0) == b""
    known = replace(REQUEST, known=statements_digest(b""))
    assert await summing.ask(known, wait_s=0.01) == b""


async def test_a_wait_ends_with_the_sum(summing: SummingSite) -> None:
    known = replace(REQUEST, known=statements_digest(encode_statements(KEYED)))
    waiting = asyncio.create_task(summing.ask(known, wait_s=20.0))
    await asyncio.sleep(0)
    summing.shown = None
    summing.site.service.wake_waiting_calls()
    assert await asyncio.wait_for(waiting, 5) == Unavailable.RETIRED


# --- openings ---------------------------------------------------------------------------------------------------------
async def test_an_opening_has_the_own_seed_and_those_of_the_pairs_with_dropped_members(summing: SummingSite) -> None:
    artifact = summing.mask()
    secrets = summing.secrets.load(1)
    assert secrets is not None
    summing.shown = SETS, (AFRICA,)
    assert await summing.statements() == replace(SETS, opening=SumOpening(secrets.own_seed, {AFRICA: SEED}))
    (row,) = summing.openings()
    expected = {"peer": ASIA, "purpose": "train", "round": 1, "generation": 1, "sha256": artifact.sha256, "bytes": 64}
    assert expected.items() <= row.items()
    assert (row["outcome"], row["sent_bytes"]) == ("complete", 64)


async def test_an_opening_is_on_record_once_for_each_caller_and_round(summing: SummingSite) -> None:
    summing.mask()
    summing.mask(2)
    summing.shown = SETS, ()
    for caller in (ASIA, AFRICA, ASIA):
        assert (await summing.statements(caller=caller)).opening is not None
    await summing.ask(replace(REQUEST, round=2))
    assert [(row["peer"], row["round"], row["bytes"]) for row in summing.openings()] == [
        (ASIA, 1, 32),
        (AFRICA, 1, 32),
        (ASIA, 2, 32),
    ]


async def test_a_caller_that_knows_the_opening_waits_and_costs_no_row(summing: SummingSite) -> None:
    summing.mask()
    summing.shown = SETS, ()
    content = await summing.ask()
    assert isinstance(content, bytes)
    known = replace(REQUEST, known=statements_digest(content))
    assert await summing.ask(known, wait_s=0.01) == content
    assert len(summing.openings()) == 1


async def test_the_rows_of_an_opening_are_on_disk_before_it_leaves(summing: SummingSite, tmp_path: Path) -> None:
    summing.mask()
    summing.shown = SETS, ()
    await summing.ask()
    witness = Ledger(tmp_path / "egress.db", read_only=True)
    assert [row["kind"] for row in witness.transfers()] == ["opening"]
    assert witness.verify() == []
    witness.close()


async def test_an_opening_beyond_the_round_s_limit_stays_here(open_summing: Callable[..., SummingSite]) -> None:
    summing = open_summing("bytes_per_round_max = 63")
    summing.mask()
    summing.shown = SETS, (AFRICA,)
    assert await summing.refused() == (Status.DENIED, "europe's policy lets at most 63 bytes leave in a round")
    summing.shown = SETS, ()
    assert (await summing.statements()).opening is not None
    assert [row["bytes"] for row in summing.openings()] == [32]


@pytest.mark.parametrize("fault", ["no secrets", "no seed", "another seed", "not published"])
async def test_seeds_to_which_this_site_has_not_committed_do_not_leave(summing: SummingSite, fault: str) -> None:
    """Other sites would take them for a breach."""
    summing.mask()
    if fault == "no secrets":
        summing.secrets.forget(2)
    elif fault == "no seed":
        summing.shown = SETS, (AFRICA, SiteName("atlantis"))
    elif fault == "another seed":
        summing.secrets.keep_pair_seeds(1, {AFRICA: b"t" * 32})
    else:
        summing.site.machine.memory.published.clear()
    if fault != "no seed":
        summing.shown = SETS, (AFRICA,)
    assert await summing.statements() == SETS
    assert summing.openings() == []


# --- masked artifacts -------------------------------------------------------------------------------------------------
async def test_a_masked_artifact_leaves_whatever_it_may_leak_and_the_ledger_says_that_it_is_masked(
    open_summing: Callable[..., SummingSite],
) -> None:
    summing = open_summing('leak_auc_max = 0.65\nleak_unknown = "refuse"')
    artifact = summing.mask()
    site = summing.site
    site.service.record_sent(site.open(1, artifact, caller=ASIA), size=1000, outcome="complete")
    (row,) = site.ledger.transfers()
    assert (row["sha256"], row["masked"], row["kind"]) == (artifact.sha256, True, "model")
    plain = site.publish(2)
    with pytest.raises(Refusal, match="keeps this model"):
        site.open(2, plain, caller=ASIA)


async def test_a_plain_artifact_s_row_says_nothing_of_masks(summing: SummingSite) -> None:
    plain = summing.site.publish(1)
    summing.site.open(1, plain, caller=ASIA)
    (row,) = summing.site.ledger.transfers()
    assert "masked" not in row
