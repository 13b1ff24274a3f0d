"""Fetches and reports: each ends with exactly one event, whatever peer, wire or disk does."""

import asyncio
import base64
import dataclasses
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from peer.core import events
from peer.core.artifacts import Artifact, EvaluationResult, TensorSpec
from peer.core.commands import Fetch, SendReport
from peer.core.epochs import PaceRules
from peer.core.machine import SiteMachine
from peer.core.messages import Manifest, SignedManifest, Unavailable
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.fetcher import ArtifactFetcher, backoff_s
from peer.errors import CertificateError, DiskError, PeerError
from peer.methods.registry import PLANS
from peer.net.transport.client import Misbehaved, Missing, Offer, Refused, Unreachable
from peer.net.transport.server import Refusal, Status
from peer.net.transport.transfer import UNSYNCED_SUFFIX, InsufficientSpace
from peer.net.transport.wire import ArtifactRequest
from peer.site.records.journal import Journal

ASIA, EUROPE = SiteName("asia"), SiteName("europe")
ORDER = Fetch(1, 3, 7, ASIA, "model", "train", ASIA)
ANSWER = (1, 3, 7, ASIA)
LIMIT_S = 10.0
CONTENT = b"weights"
DIGEST = Sha256(hashlib.sha256(CONTENT).hexdigest())
MANIFEST = Manifest(
    federation=Sha256("fe" * 32),
    generation=2,
    method="fedskd",
    origin=ASIA,
    round=3,
    artifact=Artifact("model", ASIA, DIGEST, len(CONTENT), 20, {"name": "resnet10"}),
    tensors=(TensorSpec("w", "F32", (1,)),),
    egress_count=5,
    egress_head="ab" * 32,
)
SIGNED = SignedManifest(b"body", b"signature", b"certificate")
REPORT = EvaluationResult(2, 3, DIGEST, 12, {"auc": 0.75})

Reply = Offer | Unavailable | Exception


class FakeClient:
    """A peer with prepared replies; a transfer goes on when the test sets ``go_on``."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.transfers: list[Exception | None] = []
        self.reports: list[tuple[SiteName, EvaluationResult]] = []
        self.asked: list[tuple[SiteName, ArtifactRequest]] = []
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def get_manifest(self, peer: SiteName, request: ArtifactRequest) -> Offer | Unavailable:
        self.asked.append((peer, request))
        reply = self.replies.pop(0) if self.replies else Offer(request, SIGNED, MANIFEST)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def put_report(self, peer: SiteName, report: EvaluationResult) -> None:
        self.began.set()
        await self.go_on.wait()
        error = self.transfers.pop(0) if self.transfers else None
        if error is not None:
            raise error
        self.reports.append((peer, report))

    async def fetch(self, offer: Offer, folder: Path, on_bytes: Callable[[int], None], *, durable: bool) -> Path:
        on_bytes(3)
        self.began.set()
        await self.go_on.wait()
        error = self.transfers.pop(0) if self.transfers else None
        if error is not None:
            raise error
        path = folder / f"{offer.manifest.artifact.sha256}.safetensors"
        path.write_bytes(CONTENT)
        if not durable:
            path.with_suffix(UNSYNCED_SUFFIX).touch()
        return path


class FakeService:
    """Lets reports leave, and records them in a ledger; raises ``refusal`` if it is set."""

    def __init__(self) -> None:
        self.ledger: list[tuple[object, ...]] = []
        self.refusal: Refusal | None = None

    def open_report(self, peer: SiteName, report: EvaluationResult, *, size: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.ledger.append(("intent", peer, report.round, size))
        return len(self.ledger)

    def record_report_sent(self, intent: int, *, size: int, outcome: str) -> None:
        self.ledger.append(("outcome", intent, size, outcome))


class FetchingSite:
    """Europe's fetcher with its journal, the events that it reports, and the errors that end a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "artifacts"
        self.folder.mkdir()
        self.client = FakeClient()
        self.journal = Journal(folder / "journal.db")
        self.events: asyncio.Queue[events.Event] = asyncio.Queue()
        self.faults: asyncio.Queue[PeerError] = asyncio.Queue()
        rules = Rules(
            site=EUROPE,
            roster=Roster.of(["asia", "europe"]),
            federation=Sha256("fe" * 32),
            round_key=RoundKey(b"\0" * 32),
            method="fedskd",
            plan=PLANS["fedskd"],
            rounds=5,
            pace=PaceRules(wait_max_s=100.0),
        )
        self.service = FakeService()
        self.needed: set[Sha256] = set()
        self.store = ArtifactStore(self.folder, needed=lambda: self.needed, fail=self.faults.put_nowait)
        self.fetcher = ArtifactFetcher(
            machine=SiteMachine(rules),
            client=self.client,  # type: ignore[arg-type]
            service=self.service,
            journal=self.journal,
            store=self.store,
            report=self.events.put_nowait,
            fail=self.faults.put_nowait,
            examine=lambda signed, manifest: None,
        )

    async def answer(self) -> Any:
        """The next event other than ``PeerHeard``."""
        while True:
            event = await asyncio.wait_for(self.events.get(), LIMIT_S)
            if not isinstance(event, events.PeerHeard):
                return event

    async def fetch(self, order: Fetch = ORDER) -> Any:
        """How an order ends."""
        self.fetcher.fetch(order)
        return await self.answer()

    async def begin(self, order: Fetch = ORDER) -> None:
        """Fetch until the transfer waits for ``go_on``."""
        self.client.go_on.clear()
        self.client.began.clear()
        self.fetcher.fetch(order)
        await asyncio.wait_for(self.client.began.wait(), LIMIT_S)

    async def send(self, report: EvaluationResult = REPORT) -> Any:
        """How a report to asia ends."""
        self.fetcher.send_report(SendReport(5, ASIA, report))
        return await self.answer()

    async def begin_report(self) -> None:
        """Send a report until it waits for ``go_on``."""
        self.client.go_on.clear()
        self.fetcher.send_report(SendReport(5, ASIA, REPORT))
        await asyncio.wait_for(self.client.began.wait(), LIMIT_S)

    @property
    def path(self) -> Path:
        return self.store.path(DIGEST)

    def received(self) -> list[dict[str, Any]]:
        return [row["body"] for row in self.journal.records(("received",))]


@pytest.fixture
async def europe(tmp_path: Path) -> AsyncIterator[FetchingSite]:
    europe = FetchingSite(tmp_path)
    yield europe
    await europe.fetcher.close()
    europe.journal.close()
    while not europe.events.empty():
        assert isinstance(europe.events.get_nowait(), events.PeerHeard), "an event that no test expects"
    assert europe.faults.empty()


async def test_an_artifact_that_arrives_is_journalled_with_its_signed_manifest_first(europe: FetchingSite) -> None:
    assert await europe.fetch() == events.ArtifactArrived(*ANSWER, 2, 3, "train", MANIFEST.artifact)
    (row,) = europe.received()
    assert {key: row[key] for key in ("peer", "sha256", "bytes", "outcome", "egress_count", "egress_head")} == {
        "peer": "asia",
        "sha256": DIGEST,
        "bytes": 7,
        "outcome": "complete",
        "egress_count": 5,
        "egress_head": "ab" * 32,
    }
    assert [base64.b64decode(row[part]) for part in ("body", "signature", "certificate_der")] == [
        b"body",
        b"signature",
        b"certificate",
    ]
    assert europe.client.asked == [(ASIA, ArtifactRequest("model", 3, "train", ASIA, earlier=False))]


@pytest.mark.parametrize(
    ("where", "first", "questions"),
    [
        ("replies", Unavailable.NOT_YET, 2),
        ("replies", Unreachable(ASIA, "down"), 2),
        ("replies", CertificateError("expired"), 2),
        ("transfers", Unreachable(ASIA, "reset"), 1),
        ("transfers", CertificateError("expired"), 1),
    ],
)
async def test_it_asks_again_until_there_is_an_answer_and_goes_on_with_a_broken_transfer(
    europe: FetchingSite, where: str, first: Reply, questions: int
) -> None:
    setattr(europe.client, where, [first])
    assert isinstance(await europe.fetch(), events.ArtifactArrived)
    assert len(europe.client.asked) == questions
    assert len(europe.received()) == 1


async def test_a_peer_that_kept_it_waiting_is_asked_again_without_a_pause(
    europe: FetchingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication between two requests would wait for the pause, and the transfer with it."""
    pauses: list[float] = []
    monkeypatch.setattr("peer.daemon.fetcher.backoff_s", lambda failures: pauses.append(0.0) or 0.0)
    monkeypatch.setattr("peer.daemon.fetcher.PATIENT_S", 0.0)
    europe.client.replies = [Unavailable.NOT_YET, Unavailable.NOT_YET]
    assert isinstance(await europe.fetch(), events.ArtifactArrived)
    assert (len(europe.client.asked), pauses) == (3, [])


@pytest.mark.parametrize("answer", [Unavailable.RETIRED, Unavailable.SKIPPED])
async def test_what_will_never_come_is_said_at_once(europe: FetchingSite, answer: Unavailable) -> None:
    europe.client.replies = [answer]
    assert await europe.fetch() == events.ArtifactUnavailable(*ANSWER, "train", answer)


@pytest.mark.parametrize("error", [Refused(ASIA, "not its turn"), Misbehaved(ASIA, "not its turn")])
@pytest.mark.parametrize("where", ["replies", "transfers"])
async def test_a_refusal_carries_its_reason(europe: FetchingSite, error: Exception, where: str) -> None:
    setattr(europe.client, where, [error])
    declined = isinstance(error, Refused)
    assert await europe.fetch() == events.ArtifactRefused(*ANSWER, "train", "not its turn", declined=declined)
    assert europe.received() == []


async def test_a_peer_that_retired_an_artifact_after_its_offer_is_not_at_fault(europe: FetchingSite) -> None:
    """Seed 3193 of the simulation: on a slow line, the peer was three rounds ahead before the first byte."""
    europe.client.transfers = [Missing(ASIA, "no artifact of round 3 here")]
    assert await europe.fetch() == events.ArtifactUnavailable(*ANSWER, "train", Unavailable.RETIRED)


async def test_an_artifact_of_another_method_is_refused_before_its_transfer(europe: FetchingSite) -> None:
    other = dataclasses.replace(MANIFEST, method="fedcross")
    europe.client.replies = [Offer(ArtifactRequest("model", 3, "train", ASIA, earlier=False), SIGNED, other)]
    answer = await europe.fetch()
    assert answer == events.ArtifactRefused(*ANSWER, "train", "sent an artifact of method 'fedcross'")
    assert not europe.client.began.is_set()
    assert not europe.received()


async def test_an_artifact_above_the_site_s_bound_is_refused_before_its_transfer(europe: FetchingSite) -> None:
    europe.client.replies = [Offer(ArtifactRequest("model", 3, "train", ASIA, earlier=False), SIGNED, MANIFEST)]
    size = MANIFEST.artifact.bytes
    reason = f"its artifact has {size} bytes, this site takes {size - 1} at most ([limits] received_ratio_max)"
    assert await europe.fetch(dataclasses.replace(ORDER, bytes_max=size - 1)) == events.ArtifactRefused(
        *ANSWER, "train", reason
    )
    assert not europe.client.began.is_set()


@pytest.mark.parametrize("error", [DiskError("disk is full"), OSError(28, "disk is full")])
async def test_a_disk_that_fails_ends_the_daemon_and_blames_no_peer(europe: FetchingSite, error: Exception) -> None:
    europe.client.transfers = [error]
    europe.fetcher.fetch(ORDER)
    fault = await asyncio.wait_for(europe.faults.get(), LIMIT_S)
    assert isinstance(fault, DiskError)
    assert "disk is full" in fault.message


async def test_an_artifact_without_room_is_left_out_and_nobody_is_named(europe: FetchingSite) -> None:
    europe.client.transfers = [InsufficientSpace("9 bytes are needed, 8 are free")]
    refused = events.ArtifactRefused(*ANSWER, "train", "9 bytes are needed, 8 are free", blameless=True)
    assert await europe.fetch() == refused
    assert europe.received() == []


@pytest.mark.parametrize("where", ["replies", "transfers"])
async def test_a_bug_ends_the_errand_and_not_in_silence(
    europe: FetchingSite, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(europe.client, where, [KeyError("a secret place")])
    refused = await europe.fetch()
    reason = "it could not be fetched here: KeyError"
    assert refused == events.ArtifactRefused(*ANSWER, "train", reason, blameless=True)
    assert [record.getMessage() for record in caplog.records] == ["artifact not fetched"]
    assert caplog.records[0].exc_info is not None


async def test_progress_is_shown_and_a_moving_transfer_is_alive(europe: FetchingSite) -> None:
    await europe.begin()
    transfer = {"direction": "in", "peer": ASIA, "purpose": "train", "kind": "model", "round": 3}
    shown = {**transfer, "bytes": 7, "received": 3}
    assert europe.fetcher.receiving == {(ASIA, "train"): shown}
    assert europe.events.get_nowait() == events.PeerHeard(ASIA)
    assert not europe.store.quiet.is_set(), "the store is told while this site receives"
    europe.client.go_on.set()
    await europe.answer()
    assert europe.fetcher.receiving == {}
    assert europe.store.quiet.is_set()


async def test_a_cancelled_errand_says_nothing_and_does_not_hide_the_next(europe: FetchingSite) -> None:
    await europe.begin()
    europe.fetcher.cancel(ASIA, "train")
    europe.fetcher.cancel(ASIA, "train")
    await europe.begin(Fetch(1, 4, 8, ASIA, "model", "train", ASIA))
    assert europe.fetcher.receiving[(ASIA, "train")]["received"] == 3
    europe.client.go_on.set()
    assert (await europe.answer()).attempt == 8
    assert len(europe.received()) == 1


async def test_a_new_order_to_the_same_site_replaces_the_old(europe: FetchingSite) -> None:
    await europe.begin()
    europe.fetcher.fetch(Fetch(1, 3, 9, ASIA, "model", "train", ASIA))
    europe.client.go_on.set()
    assert (await europe.answer()).attempt == 9


async def test_parts_that_nobody_can_wait_for_any_more_are_deleted(europe: FetchingSite) -> None:
    old = europe.folder / f"{'0a' * 32}.part"
    old.write_bytes(b"half")
    os.utime(old, (time.time() - 101,) * 2)
    await europe.fetch()
    assert not old.exists()


async def test_no_part_is_deleted_while_one_may_be_written(europe: FetchingSite) -> None:
    await europe.begin()
    old = europe.folder / f"{DIGEST}.part"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    europe.fetcher.fetch(Fetch(1, 3, 8, SiteName("africa"), "model", "train", SiteName("africa")))
    assert old.exists()


def test_the_waits_between_questions_grow_to_a_bound() -> None:
    waits = [backoff_s(failures) for failures in range(100)]
    assert waits == sorted(waits)
    assert waits[0] < 1
    assert waits[-1] <= 5


# --- reports ---------------------------------------------------------------------------------------------------------
async def test_a_report_leaves_after_its_intent_and_its_answer_is_told(europe: FetchingSite) -> None:
    assert await europe.send() == events.ReportAnswered(5, ASIA, "taken")
    assert europe.client.reports == [(ASIA, REPORT)]
    intent, outcome = europe.service.ledger
    assert intent[:3] == ("intent", ASIA, 3)
    assert outcome == ("outcome", 1, intent[3], "complete")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Refused(ASIA, "no model of round 3 is lent"), "complete"), (Misbehaved(ASIA, "nonsense"), "broken")],
)
async def test_a_report_that_is_refused_is_told_with_the_reason(
    europe: FetchingSite, error: Exception, outcome: str
) -> None:
    europe.client.transfers = [error]
    assert await europe.send() == events.ReportAnswered(5, ASIA, "refused", str(error))
    assert europe.service.ledger[-1][-1] == outcome


@pytest.mark.parametrize("error", [Unreachable(ASIA, "the line is dead"), CertificateError("expired")])
async def test_a_report_that_nobody_takes_has_no_answer(europe: FetchingSite, error: Exception) -> None:
    europe.client.transfers = [error]
    answer = await europe.send()
    assert (answer.answer, answer.reason) == ("none", str(error))
    assert europe.service.ledger[-1][-1] == "broken"


async def test_a_report_that_the_policy_keeps_here_is_not_sent(europe: FetchingSite) -> None:
    europe.service.refusal = Refusal(Status.DENIED, "this site's policy tells asia no metrics")
    assert (await europe.send()).answer == "refused"
    assert europe.client.reports == []


async def test_a_report_that_no_message_can_carry_does_not_leave(europe: FetchingSite) -> None:
    answer = await europe.send(EvaluationResult(2, 3, DIGEST, 12, {"auc": float("nan")}))
    assert answer.answer == "refused"
    assert "metrics.values[auc]" in answer.reason
    assert europe.service.ledger == []


async def test_a_report_that_is_under_way_at_the_end_is_on_record_as_broken(europe: FetchingSite) -> None:
    await europe.begin_report()
    await europe.fetcher.close()
    assert europe.service.ledger[-1][-1] == "broken"


async def test_a_new_report_to_the_same_site_ends_the_former(europe: FetchingSite) -> None:
    await europe.begin_report()
    europe.fetcher.send_report(SendReport(6, ASIA, REPORT))
    europe.client.go_on.set()
    assert await europe.answer() == events.ReportAnswered(6, ASIA, "taken")
    assert sorted(row[-1] for row in europe.service.ledger if row[0] == "outcome") == ["broken", "complete"]


async def test_a_bug_while_reporting_ends_the_errand_and_not_in_silence(
    europe: FetchingSite, caplog: pytest.LogCaptureFixture
) -> None:
    europe.client.transfers = [KeyError("a secret place")]
    answer = await europe.send()
    assert (answer.answer, answer.reason) == ("refused", "it could not be sent from here: KeyError")
    assert "report not sent" in caplog.text


# --- what is on disk --------------------------------------------------------------------------------------------------
async def test_what_has_arrived_stays_until_the_state_machine_has_judged_it(europe: FetchingSite) -> None:
    """A member that sends the same useless bytes for two rounds: what is refused for one is here for the next."""
    arrived = await europe.fetch()
    europe.store.discard(DIGEST)
    assert europe.path.exists()
    europe.store.release(arrived.artifact.sha256)
    assert not europe.path.exists()


async def test_what_is_awaited_is_not_discarded_meanwhile(europe: FetchingSite) -> None:
    europe.path.write_bytes(CONTENT)
    await europe.begin()
    europe.store.discard(DIGEST)
    assert europe.path.exists()
    europe.client.go_on.set()
    assert isinstance(await europe.answer(), events.ArtifactArrived)
    assert europe.path.exists()


@pytest.mark.parametrize("ends", ["cancelled", "refused"])
async def test_a_fetch_that_ends_without_an_artifact_holds_nothing(europe: FetchingSite, ends: str) -> None:
    europe.path.write_bytes(CONTENT)
    if ends == "refused":
        europe.client.transfers = [Refused(ASIA, "not its turn")]
    await europe.begin()
    if ends == "refused":
        europe.client.go_on.set()
        assert isinstance(await europe.answer(), events.ArtifactRefused)
    else:
        task = europe.fetcher._tasks[ASIA, "train"]
        europe.fetcher.cancel(ASIA, "train")
        await asyncio.wait([task])
    assert not europe.path.exists()


async def test_a_model_that_comes_home_is_on_disk_before_it_has_arrived(europe: FetchingSite) -> None:
    assert isinstance(await europe.fetch(dataclasses.replace(ORDER, purpose="handback")), events.ArtifactArrived)
    assert list(europe.folder.glob(f"*{UNSYNCED_SUFFIX}")) == []


async def test_discarded_artifacts_make_room_for_a_new_one(europe: FetchingSite) -> None:
    former = Sha256("00" * 32)
    europe.store.path(former).write_bytes(b"old")
    europe.store.discard(former)
    europe.client.transfers = [InsufficientSpace("no room")]
    assert isinstance(await europe.fetch(), events.ArtifactArrived)
    await europe.store.sync()
    assert [file.name for file in europe.folder.iterdir()] == [f"{DIGEST}.safetensors"]
