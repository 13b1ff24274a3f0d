"""The door through which bytes leave: who gets what, what is written down, and what waits."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from peer.config.rules import make_rules
from peer.config.schema import FederationConfig, SiteConfig
from peer.core import events
from peer.core.limits import PROTOCOL_VERSION, STEPS_MAX
from peer.core.machine import SiteMachine
from peer.core.messages import Artifact, EvaluationResult, Heartbeat, Hello, SignedManifest, TensorSpec, Unavailable
from peer.core.roster import RoundKey, Sha256, SiteName, round_key_tag
from peer.core.rows import decode
from peer.core.worker_protocol import to_json
from peer.daemon.service import DENIED_AGAIN_S, DENIED_ROWS_MAX, PeerService
from peer.errors import CertificateError
from peer.identity import certificates
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.transport.manifest import to_base64, verify_manifest
from peer.transport.server import Refusal, Status
from peer.transport.wire import ArtifactRequest

FEDERATION = """
name = "trial"
rounds = 5
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "fedskd"
[schedule]
kind = "derangement"
[[site]]
name = "africa"
[[site]]
name = "asia"
[[site]]
name = "europe"
"""
SITE = """
[data]
input_size = [8]
[egress]
"""
KEY = RoundKey(b"\x07" * 32)
EUROPE = SiteName("europe")
NOW = Heartbeat(1, 1, "train", 0.5, 1, 0)


class Clock:
    """Stands still until a test moves it."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakePki:
    """Europe's key and certificate, without files; ``load`` raises the fault while there is one."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        authority_key, ca = certificates.new_authority("trial", now=now)
        key = certificates.new_key()
        certificate = certificates.issue(authority_key, ca, name=EUROPE, public_key=key.public_key(), now=now)
        self.identity = certificates.Identity(EUROPE, key, certificate, ca, KEY)
        self.fault: CertificateError | None = None

    def load(self) -> certificates.Identity:
        if self.fault is not None:
            raise self.fault
        return self.identity


class Office:
    """Europe's desk on a real journal and a real ledger; memory changes by rows, as in the daemon."""

    def __init__(self, folder: Path, egress: str = "", *, federation: str = FEDERATION) -> None:
        (folder / "site.toml").write_text(SITE + egress)
        self.federation = FederationConfig.parse(federation, "federation.toml")
        self.journal, self.ledger = Journal(folder / "journal.db"), Ledger(folder / "egress.db")
        site = SiteConfig.load(folder / "site.toml")
        rules = make_rules(self.federation, EUROPE, KEY, egress=site.egress)
        self.round = SiteMachine(rules)
        self.clock = Clock()
        self.events: list[events.Event] = []
        self.pki = FakePki()
        self.service = PeerService(
            federation=self.federation,
            site=site,
            machine=self.round,
            journal=self.journal,
            ledger=self.ledger,
            artifacts=folder / "artifacts",
            pki=self.pki,
            report=self.events.append,
            clock=self.clock,
        )

    def described(self, signed: SignedManifest) -> tuple[int, Artifact, bool]:
        """The round, the artifact and the purpose that a manifest names, once its signature is verified."""
        manifest = verify_manifest(signed, self.pki.identity.certificate)
        return manifest.round, manifest.artifact, manifest.evaluation

    def remember(self, kind: str, round: int, **body: Any) -> None:
        self.round.memory.apply(decode(kind, round, body))

    def publish(self, round: int, *, size: int = 1000, steps: int | None = None) -> Artifact:
        """What the daemon does with ``Persist("published")`` and ``Publish``."""
        artifact = make_artifact(round, size)
        if steps is not None:
            artifact = dataclasses.replace(artifact, steps=steps)
        self.remember("published", round, artifact=to_json(artifact))
        self.service.publish(round, artifact)
        return artifact

    def lend(self, round: int) -> Artifact:
        """What the daemon does with an ``Evaluated`` whose artifact may be lent."""
        artifact = make_artifact(round)
        self.remember("evaluated", round, metrics={}, artifact=to_json(artifact))
        self.service.publish(round, artifact, evaluation=True)
        return artifact

    def receiver(self, round: int) -> SiteName:
        """Who receives europe's model in a round."""
        rules = self.round.rules
        order = rules.order(round)
        return rules.roster.names[order.index(rules.index)]

    def stranger(self, round: int) -> SiteName:
        """Who does not."""
        return next(name for name in self.round.rules.others if name != self.receiver(round))

    def open(self, round: int, artifact: Artifact, *, offset: int = 0, caller: SiteName | None = None) -> Any:
        return self.service.open_artifact(
            caller or self.receiver(round), asked(round), sha256=artifact.sha256, offset=offset
        )

    def denied(self) -> list[dict[str, Any]]:
        return [row["body"] for row in self.journal.records(("denied",))]


def make_artifact(round: int, size: int = 1000) -> Artifact:
    digest = Sha256(hashlib.sha256(f"{round}".encode()).hexdigest())
    return Artifact("model", EUROPE, digest, size, round, {"name": "resnet10"}, (TensorSpec("w", "F32", (2,)),))


def asked(round: int, **changes: Any) -> ArtifactRequest:
    return replace(ArtifactRequest("model", round, "train", EUROPE), **changes)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Callable[..., Office]]:
    """Opens europe's desk: ``office(egress="bytes_per_round_max = 1")``."""
    made: list[Office] = []

    def open_office(egress: str = "", **options: Any) -> Office:
        made.append(Office(tmp_path, egress, **options))
        return made[-1]

    yield open_office
    for each in made:
        each.journal.close()
        each.ledger.close()


# --- manifests -------------------------------------------------------------------------------------------------------
async def test_a_published_manifest_goes_to_whose_turn_it_is(office: Callable[..., Office]) -> None:
    service = office()
    artifact = service.publish(1)
    signed = await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0)
    assert service.described(signed) == (1, artifact, False)
    assert service.events == [events.PeerHeard(service.receiver(1))]


async def test_a_manifest_has_the_ledger_s_head_and_is_in_the_journal(office: Callable[..., Office]) -> None:
    service = office()
    first = service.publish(1)
    service.service.sent(service.open(1, first), size=1000, outcome="complete")
    artifact = service.publish(2)
    signed = await service.service.manifest(service.receiver(2), asked(2), wait_s=0.0)
    assert isinstance(signed, SignedManifest)
    manifest, head = verify_manifest(signed, service.pki.identity.certificate), service.ledger.head
    assert (manifest.egress_count, manifest.egress_head) == (head.count, head.hash) == (2, head.hash)
    assert (manifest.federation, manifest.method) == (service.federation.digest, "fedskd")
    assert (manifest.origin, manifest.generation, manifest.reexport) == (EUROPE, 1, False)
    rows = [(row["round"], row["body"]) for row in service.journal.records(("manifest",))]
    assert [(round, body["artifact"]) for round, body in rows] == [(1, first.sha256), (2, artifact.sha256)]
    assert rows[1][1] == {"artifact": artifact.sha256, **to_base64(signed)}


async def test_a_manifest_is_waited_for_until_memory_changes(office: Callable[..., Office]) -> None:
    service = office()
    waiting = asyncio.create_task(service.service.manifest(service.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    service.service.look_again()  # something else changed
    await asyncio.sleep(0)
    assert not waiting.done()
    artifact = service.publish(1)
    service.service.look_again()
    assert service.described(await asyncio.wait_for(waiting, 5)) == (1, artifact, False)


async def test_a_wait_ends_with_the_caller_s_patience(office: Callable[..., Office]) -> None:
    service = office()
    assert await service.service.manifest(service.receiver(1), asked(1), wait_s=0.01) == Unavailable.NOT_YET


async def test_a_wait_ends_when_there_will_be_none(office: Callable[..., Office]) -> None:
    service = office()
    waiting = asyncio.create_task(service.service.manifest(service.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    service.remember("initialised", 0, state="initial", artifact=None, samples={}, publish=None)
    service.service.look_again()
    assert await asyncio.wait_for(waiting, 5) == Unavailable.SKIPPED


async def test_nothing_is_served_between_memory_and_journal(office: Callable[..., Office]) -> None:
    """Memory knows the artifact as soon as the machine has decided; the row and the manifest come after that."""
    service = office()
    artifact = make_artifact(1)
    service.remember("published", 1, artifact=to_json(artifact))
    assert await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    with pytest.raises(Refusal) as refused:
        service.open(1, artifact)
    assert refused.value.status is Status.MISSING
    assert service.ledger.transfers() == []


async def test_an_expired_certificate_delays_the_manifest_and_ends_nothing(office: Callable[..., Office]) -> None:
    service = office()
    service.pki.fault = CertificateError("cert.pem has expired")
    artifact = service.publish(1)
    assert await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    service.pki.fault = None
    signed = await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0)
    assert service.described(signed) == (1, artifact, False)


async def test_a_manifest_that_cannot_be_written_ends_no_daemon(office: Callable[..., Office]) -> None:
    service = office()
    service.publish(1, steps=STEPS_MAX + 1)
    assert await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET


# --- policy and schedule ---------------------------------------------------------------------------------------------
async def test_whose_turn_it_is_not_is_denied_and_written_down(office: Callable[..., Office]) -> None:
    service = office()
    artifact, stranger = service.publish(1), service.stranger(1)
    with pytest.raises(Refusal) as refused:
        await service.service.manifest(stranger, asked(1), wait_s=0.0)
    assert refused.value.status is Status.DENIED
    with pytest.raises(Refusal):
        service.open(1, artifact, caller=stranger)
    reason = f"round 1 does not give europe's model to {stranger}"
    assert service.denied() == [{"caller": stranger, "call": "model for round 1", "reason": reason}]
    assert service.ledger.transfers() == []
    assert service.events == []


async def test_a_denial_costs_one_row_a_minute(office: Callable[..., Office]) -> None:
    service = office()
    for step_s in (0.0, DENIED_AGAIN_S - 1, 1.0, 1.0):
        service.clock.now_s += step_s
        with pytest.raises(Refusal):
            await service.service.manifest(service.stranger(1), asked(1), wait_s=0.0)
    assert len(service.denied()) == 2


async def test_a_caller_with_ever_new_questions_cannot_fill_the_disk(office: Callable[..., Office]) -> None:
    service = office()
    for minute in range(3):
        for number in range(200):
            with pytest.raises(Refusal):
                await service.service.manifest(SiteName("asia"), asked(1000 + number), wait_s=0.0)
        service.service.turned_away("africa", "Beat", "over the rate")
        assert len(service.denied()) == (DENIED_ROWS_MAX + 1) * (minute + 1)
        service.clock.now_s += DENIED_AGAIN_S


async def test_who_is_turned_away_at_the_door_costs_one_row_a_minute_too(office: Callable[..., Office]) -> None:
    service = office()
    for step_s in (0.0, 2.0, DENIED_AGAIN_S):
        service.clock.now_s += step_s
        service.service.turned_away("unknown", "Hello", "'mars' is not in the roster")
    assert service.denied() == [{"caller": "unknown", "call": "Hello", "reason": "'mars' is not in the roster"}] * 2


@pytest.mark.parametrize("policy", ['receivers = ["atlantis"]', 'kinds = ["head"]'])
async def test_the_site_s_policy_stands_before_the_schedule(office: Callable[..., Office], policy: str) -> None:
    service = office(policy)
    artifact = service.publish(1)
    with pytest.raises(Refusal, match="policy sends no model") as refused:
        await service.service.manifest(service.receiver(1), asked(1), wait_s=0.0)
    assert refused.value.status is Status.DENIED
    with pytest.raises(Refusal, match="policy"):
        service.open(1, artifact)
    assert service.ledger.transfers() == []


# --- transfers and the ledger ----------------------------------------------------------------------------------------
def test_an_intent_is_on_disk_before_the_first_byte_and_an_outcome_after_the_last(
    office: Callable[..., Office], tmp_path: Path
) -> None:
    service = office()
    artifact = service.publish(1)
    grant = service.open(1, artifact)
    witness = Ledger(tmp_path / "egress.db", read_only=True)
    assert [(row["peer"], row["bytes"], row["outcome"]) for row in witness.transfers()] == [
        (service.receiver(1), 1000, "open")
    ]
    assert grant.path == tmp_path / "artifacts" / f"{artifact.sha256}.safetensors"
    assert [what["peer"] for what in service.service.sending.values()] == [service.receiver(1)]
    service.service.sent(grant, size=1000, outcome="complete")
    assert [(row["sent_bytes"], row["outcome"]) for row in witness.transfers()] == [(1000, "complete")]
    assert service.service.sending == {}
    assert witness.verify() == []
    witness.close()


@pytest.mark.parametrize("offset", [1001, 1 << 33])
def test_an_offset_beyond_the_artifact_is_no_row(office: Callable[..., Office], offset: int) -> None:
    service = office()
    artifact = service.publish(1)
    with pytest.raises(Refusal) as refused:
        service.open(1, artifact, offset=offset)
    assert refused.value.status is Status.MALFORMED
    assert service.ledger.transfers() == []


def test_another_digest_than_the_published_one_is_missing(office: Callable[..., Office]) -> None:
    service = office()
    service.publish(1)
    with pytest.raises(Refusal) as refused:
        service.open(1, make_artifact(2))
    assert refused.value.status is Status.MISSING


def test_the_bytes_of_a_round_are_counted_over_its_transfers(office: Callable[..., Office]) -> None:
    """A transfer that broke counts with what left; one whose end nobody knows with all that was meant to."""
    service = office("bytes_per_round_max = 1400")
    artifact = service.publish(1)
    service.service.sent(service.open(1, artifact), size=600, outcome="broken")
    resumed = service.open(1, artifact, offset=600)
    with pytest.raises(Refusal, match="at most 1400 bytes leave in a round"):
        service.open(1, artifact, offset=500)
    service.service.sent(resumed, size=400, outcome="complete")
    service.service.sent(service.open(1, artifact, offset=600), size=0, outcome="broken")
    service.open(1, artifact, offset=600)
    assert service.ledger.close_open_intents() == 1
    with pytest.raises(Refusal, match="at most 1400"):
        service.open(1, artifact, offset=999)
    service.publish(2)
    service.open(2, make_artifact(2))
    service.round.memory.generation = 2
    service.open(1, artifact)


@pytest.mark.parametrize(("limit", "warned"), [(1000, False), (999, True)])
def test_a_bound_below_what_the_method_sends_is_told_when_it_is_published(
    office: Callable[..., Office], caplog: pytest.LogCaptureFixture, limit: int, warned: bool
) -> None:
    service = office(f"bytes_per_round_max = {limit}")
    artifact = service.publish(1)
    assert [record.getMessage() for record in caplog.records] == (
        ["policy lets less leave than the method sends"] if warned else []
    )
    if warned:
        assert "bytes_per_round_max" in caplog.records[0].__dict__["remedy"]
        with pytest.raises(Refusal, match="at most 999 bytes leave in a round"):
            service.open(1, artifact)
        assert service.denied()[0]["reason"] == "this site's policy lets at most 999 bytes leave in a round"


# --- greetings and beats ---------------------------------------------------------------------------------------------
def greeting(service: Office, **changes: Any) -> Hello:
    federation = service.federation
    own = Hello(PROTOCOL_VERSION, federation.digest, federation.roster.digest, 3, time.time() + 60)
    return replace(own, **{"round_key_tag": round_key_tag(KEY, federation.digest), **changes})


DIFFERENCES = [
    ({"protocol": 99}, "the protocol version differs: europe has 1, the other site has 99"),
    ({"federation": Sha256("ab" * 32)}, "the federation digest differs: europe has "),
    ({"roster": Sha256("cd" * 32)}, "the roster digest differs: europe has "),
    ({"round_key_tag": Sha256("ef" * 32)}, "the round key's tag differs: europe has "),
]


async def test_a_greeting_is_answered_reported_and_its_clock_compared(office: Callable[..., Office]) -> None:
    service = office()
    theirs = greeting(service)
    answer = await service.service.hello(SiteName("asia"), theirs)
    assert service.events == [events.PeerGreeted(SiteName("asia"), theirs)]
    assert (answer.federation, answer.generation) == (service.federation.digest, 1)
    assert service.service.difference(answer) is None
    skew_s = service.service.account("asia").clock_skew_s
    assert skew_s is not None
    assert 59 < skew_s < 61


async def test_a_question_is_answered_and_counts_as_nobody_s_presence(office: Callable[..., Office]) -> None:
    service = office()
    await service.service.hello(SiteName("asia"), greeting(service, generation=0))
    assert service.events == []
    assert service.service.account("asia").clock_skew_s is None


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_what_differs_is_named_to_both_sides(
    office: Callable[..., Office], changes: dict[str, Any], words: str
) -> None:
    service = office()
    with pytest.raises(Refusal) as refused:
        await service.service.hello(SiteName("asia"), greeting(service, **changes))
    assert refused.value.status is Status.MISMATCH
    assert refused.value.reason.startswith(words)
    assert str(next(iter(changes.values()))) in refused.value.reason
    assert service.events == [events.PeerRefused(SiteName("asia"), refused.value.reason)]


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_a_question_that_differs_is_answered_and_leaves_no_trace(
    office: Callable[..., Office], changes: dict[str, Any], words: str
) -> None:
    """`check` with an edited federation.toml, beside a daemon that runs with the right one."""
    service = office()
    await service.service.hello(SiteName("asia"), greeting(service))
    with pytest.raises(Refusal, match=words):
        await service.service.hello(SiteName("asia"), greeting(service, generation=0, **changes))
    await service.service.beat(SiteName("asia"), NOW)
    assert [type(event) for event in service.events] == [events.PeerGreeted, events.PeerHeard]


async def test_a_member_of_another_federation_takes_no_part_until_it_greets_as_ours(
    office: Callable[..., Office],
) -> None:
    service = office()
    service.publish(1)
    caller = service.receiver(1)
    with pytest.raises(Refusal):
        await service.service.hello(caller, greeting(service, federation=Sha256("ab" * 32)))
    for call in (service.service.beat(caller, NOW), service.service.manifest(caller, asked(1), wait_s=0.0)):
        with pytest.raises(Refusal, match="federation digest differs"):
            await call
    assert not any(isinstance(event, events.PeerHeard) for event in service.events)
    await service.service.hello(caller, greeting(service))
    await service.service.beat(caller, NOW)
    assert service.events[-1] == events.PeerHeard(caller, NOW)


async def test_what_was_spoken_is_counted_for_each_peer(office: Callable[..., Office]) -> None:
    service = office()
    service.publish(1)
    caller = service.receiver(1)
    await service.service.hello(caller, greeting(service))
    said = service.service.account(caller).spoken.bytes
    await service.service.beat(caller, NOW)
    signed = await service.service.manifest(caller, asked(1), wait_s=0.0)
    manifest = len(signed.body) + len(signed.signature) + len(signed.certificate_der)
    assert said > 100
    assert service.service.account(caller).spoken.messages == 3
    assert service.service.account(caller).spoken.bytes > said + manifest
    assert service.service.account(service.stranger(1)).spoken.messages == 0


# --- remote evaluation -----------------------------------------------------------------------------------------------
GLOBAL = FEDERATION.replace("rounds = 5", "rounds = 5\nglobal_test = true\nevaluation_every = 2")
ASIA, AFRICA = SiteName("asia"), SiteName("africa")


@pytest.fixture
def lender(office: Callable[..., Office]) -> Office:
    """Europe's desk in a federation with Global Test, which its policy permits."""
    return office("evaluate = true", federation=GLOBAL)


def borrowed(round: int, **changes: Any) -> ArtifactRequest:
    return asked(round, purpose="evaluate", **changes)


async def test_every_peer_may_borrow_what_is_lent_and_each_time_is_in_the_ledger(lender: Office) -> None:
    artifact = lender.lend(2)
    for caller in (ASIA, AFRICA):
        signed = await lender.service.manifest(caller, borrowed(2), wait_s=0.0)
        assert lender.described(signed) == (2, artifact, True)
        grant = lender.service.open_artifact(caller, borrowed(2), sha256=artifact.sha256, offset=0)
        lender.service.sent(grant, size=1000, outcome="complete")
    assert [(row["peer"], row["purpose"], row["kind"], row["round"]) for row in lender.ledger.transfers()] == [
        ("asia", "evaluate", "model", 2),
        ("africa", "evaluate", "model", 2),
    ]


async def test_what_is_published_and_lent_in_one_round_has_two_manifests(lender: Office) -> None:
    artifact = lender.publish(2)
    lender.lend(2)
    trained = await lender.service.manifest(lender.receiver(2), asked(2), wait_s=0.0)
    lent = await lender.service.manifest(lender.receiver(2), borrowed(2), wait_s=0.0)
    assert lender.described(trained) == (2, artifact, False)
    assert lender.described(lent) == (2, artifact, True)


async def test_what_is_lent_is_no_artifact_to_train_with(lender: Office) -> None:
    artifact = lender.lend(2)
    caller = lender.receiver(2)
    assert await lender.service.manifest(caller, asked(2), wait_s=0.0) == Unavailable.NOT_YET
    with pytest.raises(Refusal) as refused:
        lender.open(2, artifact)
    assert refused.value.status is Status.MISSING


@pytest.mark.parametrize(("round", "caller"), [(3, ASIA), (6, ASIA), (2, SiteName("mars"))])
async def test_other_rounds_and_strangers_are_denied(lender: Office, round: int, caller: SiteName) -> None:
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
    office: Callable[..., Office], egress: str, federation: str, reason: str
) -> None:
    shared = '\n[shared_model]\nname = "resnet10"\n[[site]]'
    service = office(egress, federation=federation.replace("\n[[site]]", shared, 1))
    service.lend(2)
    with pytest.raises(Refusal, match=reason):
        await service.service.manifest(ASIA, borrowed(2), wait_s=0.0)
    assert service.ledger.transfers() == []


@pytest.mark.parametrize(("egress", "evaluates"), [("evaluate = true", True), ("", False)])
def test_a_greeting_says_whether_the_site_takes_part(
    office: Callable[..., Office], egress: str, evaluates: bool
) -> None:
    assert office(egress, federation=GLOBAL).service.greeting(ASIA).evaluates is evaluates


def test_without_global_test_a_greeting_says_nothing_of_it(office: Callable[..., Office]) -> None:
    assert office("evaluate = true").service.greeting(ASIA).evaluates is None


async def test_a_report_is_acknowledged_once_it_is_in_the_journal(lender: Office) -> None:
    artifact = lender.lend(2)
    report = EvaluationResult(1, 2, artifact.sha256, 20, {"auc": 0.75})
    taking = asyncio.create_task(lender.service.report(ASIA, report))
    await asyncio.sleep(0)
    assert lender.events[-1] == events.ReportArrived(ASIA, report)
    lender.service.look_again()  # something else changed
    await asyncio.sleep(0)
    assert not taking.done()
    lender.remember("report", 2, site="asia", report=to_json(report))
    lender.service.look_again()
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
    lender: Office, caller: str, changes: dict[str, Any], reason: str
) -> None:
    artifact = lender.lend(2)
    report = replace(EvaluationResult(1, 2, artifact.sha256, 20, {"auc": 0.75}), **changes)
    with pytest.raises(Refusal, match=reason) as refused:
        await lender.service.report(SiteName(caller), report)
    assert refused.value.status is Status.DENIED
    assert [row["caller"] for row in lender.denied()] == [caller]
    assert not any(isinstance(event, events.ReportArrived) for event in lender.events)


def test_a_report_leaves_through_the_ledger(lender: Office) -> None:
    report = EvaluationResult(1, 2, Sha256("ab" * 32), 20, {"auc": 0.75})
    intent = lender.service.open_report(ASIA, report, size=60)
    (row,) = lender.ledger.transfers()
    assert (row["peer"], row["purpose"], row["kind"], row["round"], row["bytes"]) == (
        "asia",
        "evaluate",
        "metrics",
        2,
        60,
    )
    assert (row["sha256"], row["outcome"]) == ("ab" * 32, "open")
    lender.service.report_sent(intent, size=60, outcome="complete")
    assert lender.ledger.transfers()[0]["outcome"] == "complete"


def test_figures_count_as_bytes_of_their_round(office: Callable[..., Office]) -> None:
    service = office("evaluate = true\nbytes_per_round_max = 100", federation=GLOBAL)
    report = EvaluationResult(1, 2, Sha256("ab" * 32), 20, {})
    service.service.report_sent(service.service.open_report(ASIA, report, size=60), size=60, outcome="complete")
    with pytest.raises(Refusal, match="at most 100 bytes leave in a round") as refused:
        service.service.open_report(AFRICA, report, size=60)
    assert refused.value.status is Status.DENIED
    assert [row["peer"] for row in service.ledger.transfers()] == ["asia"]


def test_a_policy_without_evaluation_tells_nobody_anything(office: Callable[..., Office]) -> None:
    service = office("", federation=GLOBAL)
    with pytest.raises(Refusal, match="tells asia no metrics"):
        service.service.open_report(ASIA, EvaluationResult(1, 2, Sha256("ab" * 32), 20, {}), size=60)
    assert service.ledger.transfers() == []


async def test_who_called_and_how_long_ago_is_known(office: Callable[..., Office]) -> None:
    service = office()
    caller = service.receiver(1)
    assert service.service.called_s(caller) is None
    await service.service.beat(caller, NOW)
    service.clock.now_s += 12.34
    assert service.service.called_s(caller) == 12.3
    assert service.service.called_s(service.stranger(1)) is None
