"""Errands: each ends with exactly one event, whatever the peer, the wire or the disk does."""

from __future__ import annotations

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
from peer.core.commands import Fetch, SendReport
from peer.core.messages import Artifact, EvaluationResult, Manifest, SignedManifest, TensorSpec, Unavailable
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import PaceRules, Rules
from peer.daemon.fetcher import ArtifactFetcher, backoff_s
from peer.errors import CertificateError, DiskError, PeerError
from peer.methods.registry import PLANS
from peer.records.journal import Journal
from peer.transport.client import Misbehaved, Offer, Refused, Unreachable
from peer.transport.server import Refusal, Status
from peer.transport.transfer import InsufficientSpace
from peer.transport.wire import ArtifactRequest

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
    artifact=Artifact("model", ASIA, DIGEST, len(CONTENT), 20, {"name": "resnet10"}, (TensorSpec("w", "F32", (1,)),)),
    egress_count=5,
    egress_head="ab" * 32,
)
SIGNED = SignedManifest(b"body", b"signature", b"certificate")

Said = Offer | Unavailable | Exception


class Peer:
    """A peer behind the client: says in turn what a test gave it; a transfer goes on when the test lets it."""

    def __init__(self) -> None:
        self.says: list[Said] = []
        self.transfers: list[Exception | None] = []
        self.taken: list[tuple[SiteName, EvaluationResult]] = []
        self.asked: list[tuple[SiteName, ArtifactRequest]] = []
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def get_manifest(self, peer: SiteName, request: ArtifactRequest) -> Offer | Unavailable:
        self.asked.append((peer, request))
        said = self.says.pop(0) if self.says else Offer(request, SIGNED, MANIFEST)
        if isinstance(said, Exception):
            raise said
        return said

    async def put_report(self, peer: SiteName, report: EvaluationResult) -> None:
        self.began.set()
        await self.go_on.wait()
        ended = self.transfers.pop(0) if self.transfers else None
        if ended is not None:
            raise ended
        self.taken.append((peer, report))

    async def fetch(self, offer: Offer, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        on_bytes(3)
        self.began.set()
        await self.go_on.wait()
        ended = self.transfers.pop(0) if self.transfers else None
        if ended is not None:
            raise ended
        path = folder / f"{offer.manifest.artifact.sha256}.safetensors"
        path.write_bytes(CONTENT)
        return path


class OpenDoor:
    """Lets reports out, and keeps a ledger of them; ``refusal`` closes it."""

    def __init__(self) -> None:
        self.ledger: list[tuple[object, ...]] = []
        self.refusal: Refusal | None = None

    def open_report(self, peer: SiteName, report: EvaluationResult, *, size: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.ledger.append(("intent", peer, report.round, size))
        return len(self.ledger)

    def report_sent(self, intent: int, *, size: int, outcome: str) -> None:
        self.ledger.append(("outcome", intent, size, outcome))


class Errands:
    """A courier of europe with its journal, the events it reported, and the faults that end a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "artifacts"
        self.folder.mkdir()
        self.peer = Peer()
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
        self.door = OpenDoor()
        self.fetcher = ArtifactFetcher(
            rules=rules,
            client=self.peer,  # type: ignore[arg-type]
            door=self.door,
            journal=self.journal,
            artifacts=self.folder,
            report=self.events.put_nowait,
            fail=self.faults.put_nowait,
        )

    async def answer(self) -> Any:
        """The next event that is more than a sign of life."""
        while True:
            event = await asyncio.wait_for(self.events.get(), LIMIT_S)
            if not isinstance(event, events.PeerHeard):
                return event

    def received(self) -> list[dict[str, Any]]:
        return [row["body"] for row in self.journal.records(("received",))]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncIterator[Errands]:
    tasks = Errands(tmp_path)
    yield tasks
    await tasks.fetcher.close()
    tasks.journal.close()
    while not tasks.events.empty():
        assert isinstance(tasks.events.get_nowait(), events.PeerHeard), "an event that no test expects"
    assert tasks.faults.empty()


async def test_an_artifact_that_arrives_is_journalled_with_its_signed_manifest_first(tasks: Errands) -> None:
    tasks.fetcher.fetch(ORDER)
    assert await tasks.answer() == events.ArtifactArrived(*ANSWER, 2, 3, "train", MANIFEST.artifact)
    (row,) = tasks.received()
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
    assert tasks.peer.asked == [(ASIA, ArtifactRequest("model", 3, "train", ASIA, earlier=False))]


@pytest.mark.parametrize("first", [Unavailable.NOT_YET, Unreachable(ASIA, "down"), CertificateError("expired")])
async def test_it_asks_again_until_there_is_an_answer(tasks: Errands, first: Said) -> None:
    tasks.peer.says = [first]
    tasks.fetcher.fetch(ORDER)
    assert isinstance(await tasks.answer(), events.ArtifactArrived)
    assert len(tasks.peer.asked) == 2


@pytest.mark.parametrize("first", [Unreachable(ASIA, "reset"), CertificateError("expired")])
async def test_a_broken_transfer_goes_on(tasks: Errands, first: Exception) -> None:
    tasks.peer.transfers = [first]
    tasks.fetcher.fetch(ORDER)
    assert isinstance(await tasks.answer(), events.ArtifactArrived)
    assert len(tasks.received()) == 1


@pytest.mark.parametrize("answer", [Unavailable.RETIRED, Unavailable.SKIPPED])
async def test_what_will_never_come_is_said_at_once(tasks: Errands, answer: Unavailable) -> None:
    tasks.peer.says = [answer]
    tasks.fetcher.fetch(ORDER)
    assert await tasks.answer() == events.ArtifactUnavailable(*ANSWER, "train", answer)


@pytest.mark.parametrize("error", [Refused(ASIA, "not its turn"), Misbehaved(ASIA, "not its turn")])
@pytest.mark.parametrize("where", ["says", "transfers"])
async def test_a_refusal_carries_its_reason(tasks: Errands, error: Exception, where: str) -> None:
    setattr(tasks.peer, where, [error])
    tasks.fetcher.fetch(ORDER)
    assert await tasks.answer() == events.ArtifactRefused(*ANSWER, "train", "not its turn")
    assert tasks.received() == []


async def test_an_artifact_of_another_method_is_refused_before_its_transfer(tasks: Errands) -> None:
    other = dataclasses.replace(MANIFEST, method="fedcross")
    tasks.peer.says = [Offer(ArtifactRequest("model", 3, "train", ASIA, earlier=False), SIGNED, other)]
    tasks.fetcher.fetch(ORDER)
    answer = await tasks.answer()
    assert answer == events.ArtifactRefused(*ANSWER, "train", "sent an artifact of method 'fedcross'")
    assert not tasks.peer.began.is_set()
    assert not tasks.received()


@pytest.mark.parametrize("error", [DiskError("disk is full"), OSError(28, "disk is full")])
async def test_a_disk_that_fails_ends_the_daemon_and_blames_no_peer(tasks: Errands, error: Exception) -> None:
    tasks.peer.transfers = [error]
    tasks.fetcher.fetch(ORDER)
    fault = await asyncio.wait_for(tasks.faults.get(), LIMIT_S)
    assert isinstance(fault, DiskError)
    assert "disk is full" in fault.message


async def test_an_artifact_larger_than_the_free_space_is_refused_and_the_daemon_goes_on(tasks: Errands) -> None:
    tasks.peer.transfers = [InsufficientSpace("larger than the free space: 9 bytes are needed, 8 are free")]
    tasks.fetcher.fetch(ORDER)
    reason = "asia's artifact is larger than the free space: 9 bytes are needed, 8 are free"
    assert await tasks.answer() == events.ArtifactRefused(*ANSWER, "train", reason)
    assert tasks.received() == []


@pytest.mark.parametrize("where", ["says", "transfers"])
async def test_a_bug_ends_the_errand_and_not_in_silence(
    tasks: Errands, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(tasks.peer, where, [KeyError("a secret place")])
    tasks.fetcher.fetch(ORDER)
    refused = await tasks.answer()
    assert refused == events.ArtifactRefused(*ANSWER, "train", "it could not be fetched here: KeyError")
    assert [record.getMessage() for record in caplog.records] == ["artifact not fetched"]
    assert caplog.records[0].exc_info is not None


async def test_progress_is_shown_and_a_moving_transfer_is_alive(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.fetch(ORDER)
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    what = {"direction": "in", "peer": ASIA, "purpose": "train", "kind": "model", "round": 3}
    shown = {**what, "bytes": 7, "received": 3}
    assert tasks.fetcher.receiving == {(ASIA, "train"): shown}
    assert tasks.events.get_nowait() == events.PeerHeard(ASIA)
    tasks.peer.go_on.set()
    await tasks.answer()
    assert tasks.fetcher.receiving == {}


async def test_a_cancelled_errand_says_nothing_and_does_not_hide_the_next(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.fetch(ORDER)
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    tasks.fetcher.cancel(ASIA, "train")
    tasks.fetcher.cancel(ASIA, "train")
    tasks.peer.began.clear()
    tasks.fetcher.fetch(Fetch(1, 4, 8, ASIA, "model", "train", ASIA))
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    assert tasks.fetcher.receiving[(ASIA, "train")]["received"] == 3
    tasks.peer.go_on.set()
    assert (await tasks.answer()).attempt == 8
    assert len(tasks.received()) == 1


async def test_a_new_order_to_the_same_site_replaces_the_old(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.fetch(ORDER)
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    tasks.fetcher.fetch(Fetch(1, 3, 9, ASIA, "model", "train", ASIA))
    tasks.peer.go_on.set()
    assert (await tasks.answer()).attempt == 9


async def test_parts_that_nobody_can_wait_for_any_more_are_deleted(tasks: Errands) -> None:
    old, fresh = tasks.folder / f"{'0a' * 32}.part", tasks.folder / f"{'0b' * 32}.part"
    for part, age_s in ((old, 101), (fresh, 50)):
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age_s,) * 2)
    tasks.fetcher.fetch(ORDER)
    await tasks.answer()
    assert not old.exists()
    assert fresh.exists()


async def test_no_part_is_deleted_while_one_may_be_written(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.fetch(ORDER)
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    old = tasks.folder / f"{DIGEST}.part"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    tasks.fetcher.fetch(Fetch(1, 3, 8, SiteName("africa"), "model", "train", SiteName("africa")))
    assert old.exists()


def test_the_waits_between_questions_grow_to_a_bound() -> None:
    waits = [backoff_s(failures) for failures in range(100)]
    assert waits == sorted(waits)
    assert waits[0] < 1
    assert waits[-1] <= 5


# --- reports ---------------------------------------------------------------------------------------------------------
REPORT = EvaluationResult(2, 3, DIGEST, 12, {"auc": 0.75})


async def test_a_report_leaves_after_its_intent_and_its_answer_is_told(tasks: Errands) -> None:
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    assert await tasks.answer() == events.ReportAnswered(5, ASIA, "taken")
    assert tasks.peer.taken == [(ASIA, REPORT)]
    intent, outcome = tasks.door.ledger
    assert intent[:3] == ("intent", ASIA, 3)
    assert outcome == ("outcome", 1, intent[3], "complete")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Refused(ASIA, "no model of round 3 is lent"), "complete"), (Misbehaved(ASIA, "nonsense"), "broken")],
)
async def test_a_report_that_is_refused_is_told_with_the_reason(tasks: Errands, error: Exception, outcome: str) -> None:
    tasks.peer.transfers = [error]
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    assert await tasks.answer() == events.ReportAnswered(5, ASIA, "refused", str(error))
    assert tasks.door.ledger[-1][-1] == outcome


@pytest.mark.parametrize("error", [Unreachable(ASIA, "the line is dead"), CertificateError("expired")])
async def test_a_report_that_nobody_takes_has_no_answer(tasks: Errands, error: Exception) -> None:
    tasks.peer.transfers = [error]
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    answer = await tasks.answer()
    assert (answer.answer, answer.reason) == ("none", str(error))
    assert tasks.door.ledger[-1][-1] == "broken"


async def test_a_report_that_the_policy_keeps_here_is_not_sent(tasks: Errands) -> None:
    tasks.door.refusal = Refusal(Status.DENIED, "this site's policy tells asia no metrics")
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    assert (await tasks.answer()).answer == "refused"
    assert tasks.peer.taken == []


async def test_a_report_that_no_message_can_carry_does_not_leave(tasks: Errands) -> None:
    tasks.fetcher.carry(SendReport(5, ASIA, EvaluationResult(2, 3, DIGEST, 12, {"auc": float("nan")})))
    answer = await tasks.answer()
    assert answer.answer == "refused"
    assert "metrics.values[auc]" in answer.reason
    assert tasks.door.ledger == []


async def test_a_report_that_is_under_way_at_the_end_is_on_record_as_broken(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    await tasks.fetcher.close()
    assert tasks.door.ledger[-1][-1] == "broken"


async def test_a_new_report_to_the_same_site_ends_the_former(tasks: Errands) -> None:
    tasks.peer.go_on.clear()
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    await asyncio.wait_for(tasks.peer.began.wait(), LIMIT_S)
    tasks.fetcher.carry(SendReport(6, ASIA, REPORT))
    tasks.peer.go_on.set()
    assert await tasks.answer() == events.ReportAnswered(6, ASIA, "taken")
    assert sorted(row[-1] for row in tasks.door.ledger if row[0] == "outcome") == ["broken", "complete"]


async def test_a_bug_while_reporting_ends_the_errand_and_not_in_silence(
    tasks: Errands, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.peer.transfers = [KeyError("a secret place")]
    tasks.fetcher.carry(SendReport(5, ASIA, REPORT))
    answer = await tasks.answer()
    assert (answer.answer, answer.reason) == ("refused", "it could not be sent from here: KeyError")
    assert "report not sent" in caplog.text
