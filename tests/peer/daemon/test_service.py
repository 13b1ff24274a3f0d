"""The answers to peers: who gets which artifact, what is journalled, and which calls wait."""

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
from peer.core.limits import COPIES_PER_ARTIFACT_MAX, PROTOCOL_VERSION, STEPS_MAX, TRANSFERS_PER_ARTIFACT_MAX
from peer.core.machine import SiteMachine
from peer.core.messages import (
    FEATURES,
    Artifact,
    EvaluationResult,
    Heartbeat,
    Hello,
    Manifest,
    Seen,
    SignedManifest,
    TensorSpec,
    Unavailable,
)
from peer.core.roster import RoundKey, Sha256, SiteName, round_key_tag
from peer.core.rows import decode
from peer.core.worker_protocol import to_json
from peer.daemon.service import DENIED_AGAIN_S, DENIED_ROWS_MAX, PeerService, common_protocol
from peer.errors import CertificateError
from peer.identity import certificates
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.transport.manifest import encode_manifest, sign_manifest, to_base64, verify_manifest
from peer.transport.round_proof import RoundClaim, sign_round, verify_round
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
GLOBAL = FEDERATION.replace("rounds = 5", "rounds = 5\nglobal_test = true\nevaluation_every = 2")
SITE = """
[data]
input_size = [8]
[egress]
"""
KEY = RoundKey(b"\x07" * 32)
EUROPE, ASIA, AFRICA = SiteName("europe"), SiteName("asia"), SiteName("africa")
NOW = Heartbeat(1, 1, "train", 0.5, 1, 0)


class Clock:
    """A clock that only the test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakePki:
    """Europe's key and certificate, without files; ``load`` raises the fault if there is one."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.authority_key, self.ca = certificates.new_authority("trial", now=now)
        self.identity = self.admit(EUROPE)
        self.fault: CertificateError | None = None

    def admit(self, name: SiteName) -> certificates.Identity:
        key, now = certificates.new_key(), datetime.now(UTC)
        certificate = certificates.issue(self.authority_key, self.ca, name=name, public_key=key.public_key(), now=now)
        return certificates.Identity(name, key, certificate, self.ca, KEY)

    def clock(self) -> datetime:
        return datetime.now(UTC)

    def load(self) -> certificates.Identity:
        if self.fault is not None:
            raise self.fault
        return self.identity


class SiteUnderTest:
    """Europe's service on a real journal and ledger; memory changes by rows, as in the daemon."""

    def __init__(self, folder: Path, egress: str = "", *, federation: str = FEDERATION) -> None:
        (folder / "site.toml").write_text(SITE + egress)
        self.federation = FederationConfig.parse(federation, "federation.toml")
        self.journal, self.ledger = Journal(folder / "journal.db"), Ledger(folder / "egress.db")
        site = SiteConfig.load(folder / "site.toml")
        rules = make_rules(self.federation, EUROPE, KEY, egress=site.egress)
        self.machine = SiteMachine(rules)
        self.clock = Clock()
        self.events: list[events.Event] = []
        self.pki = FakePki()
        self.service = PeerService(
            federation=self.federation,
            site=site,
            machine=self.machine,
            journal=self.journal,
            ledger=self.ledger,
            artifacts=folder / "artifacts",
            pki=self.pki,
            report=self.events.append,
            clock=self.clock,
        )

    def described(self, signed: SignedManifest) -> tuple[int, Artifact, bool]:
        """Round, artifact and purpose of a manifest, after its signature is verified."""
        manifest = verify_manifest(signed, self.pki.identity.certificate)
        return manifest.round, manifest.artifact, manifest.evaluation

    def remember(self, kind: str, round: int, **body: Any) -> None:
        self.machine.memory.apply(decode(kind, round, body))

    def publish(self, round: int, *, size: int = 1000, steps: int | None = None) -> Artifact:
        """Do what the daemon does on ``Persist("published")`` and ``Publish``."""
        artifact = make_artifact(round, size)
        if steps is not None:
            artifact = dataclasses.replace(artifact, steps=steps)
        self.remember("published", round, artifact=to_json(artifact))
        self.service.publish(round, artifact)
        return artifact

    def lend(self, round: int) -> Artifact:
        """Do what the daemon does after an ``Evaluated`` whose artifact may be lent."""
        artifact = make_artifact(round)
        self.remember("evaluated", round, metrics={}, artifact=to_json(artifact))
        self.service.publish(round, artifact, evaluation=True)
        return artifact

    def receiver(self, round: int) -> SiteName:
        """The site that receives europe's model in a round."""
        rules = self.machine.rules
        order = rules.order(round)
        return rules.roster.names[order.index(rules.index)]

    def stranger(self, round: int) -> SiteName:
        """A peer that does not receive europe's model in a round."""
        return next(name for name in self.machine.rules.others if name != self.receiver(round))

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
def open_site(tmp_path: Path) -> Iterator[Callable[..., SiteUnderTest]]:
    """Opens europe's service: ``open_site(egress="bytes_per_round_max = 1")``."""
    opened: list[SiteUnderTest] = []

    def open_one(egress: str = "", **options: Any) -> SiteUnderTest:
        opened.append(SiteUnderTest(tmp_path, egress, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.journal.close()
        each.ledger.close()


# --- manifests -------------------------------------------------------------------------------------------------------
async def test_a_published_manifest_goes_to_whose_turn_it_is(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    artifact = site.publish(1)
    signed = await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert site.described(signed) == (1, artifact, False)
    assert site.events == [events.PeerHeard(site.receiver(1))]


async def test_a_manifest_has_the_ledger_s_head_and_is_in_the_journal(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    first = site.publish(1)
    site.service.record_sent(site.open(1, first), size=1000, outcome="complete")
    artifact = site.publish(2)
    signed = await site.service.manifest(site.receiver(2), asked(2), wait_s=0.0)
    assert isinstance(signed, SignedManifest)
    manifest, head = verify_manifest(signed, site.pki.identity.certificate), site.ledger.head
    assert (manifest.egress_count, manifest.egress_head) == (head.count, head.hash) == (2, head.hash)
    assert (manifest.federation, manifest.method) == (site.federation.digest, "fedskd")
    assert (manifest.origin, manifest.generation, manifest.reexport) == (EUROPE, 1, False)
    rows = [(row["round"], row["body"]) for row in site.journal.records(("manifest",))]
    assert [(round, body["artifact"]) for round, body in rows] == [(1, first.sha256), (2, artifact.sha256)]
    assert rows[1][1] == {"artifact": artifact.sha256, **to_base64(signed)}


async def test_a_manifest_is_waited_for_until_memory_changes(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    waiting = asyncio.create_task(site.service.manifest(site.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    site.service.wake_waiting_calls()  # something else changed
    await asyncio.sleep(0)
    assert not waiting.done()
    artifact = site.publish(1)
    site.service.wake_waiting_calls()
    assert site.described(await asyncio.wait_for(waiting, 5)) == (1, artifact, False)


async def test_a_wait_ends_with_the_caller_s_patience(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.01) == Unavailable.NOT_YET


async def test_a_wait_ends_when_there_will_be_none(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    waiting = asyncio.create_task(site.service.manifest(site.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    site.remember("initialised", 0, state="initial", artifact=None, samples={}, publish=None)
    site.service.wake_waiting_calls()
    assert await asyncio.wait_for(waiting, 5) == Unavailable.SKIPPED


async def test_nothing_is_served_between_memory_and_journal(open_site: Callable[..., SiteUnderTest]) -> None:
    """Memory has the artifact once the machine has decided; row and manifest come later."""
    site = open_site()
    artifact = make_artifact(1)
    site.remember("published", 1, artifact=to_json(artifact))
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    with pytest.raises(Refusal) as refused:
        site.open(1, artifact)
    assert refused.value.status is Status.MISSING
    assert site.ledger.transfers() == []


async def test_an_expired_certificate_delays_the_manifest_and_ends_nothing(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site = open_site()
    site.pki.fault = CertificateError("cert.pem has expired")
    artifact = site.publish(1)
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    site.pki.fault = None
    signed = await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert site.described(signed) == (1, artifact, False)


async def test_a_manifest_that_cannot_be_written_ends_no_daemon(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    site.publish(1, steps=STEPS_MAX + 1)
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET


# --- policy and schedule ---------------------------------------------------------------------------------------------
async def test_whose_turn_it_is_not_is_denied_and_written_down(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    artifact, stranger = site.publish(1), site.stranger(1)
    with pytest.raises(Refusal) as refused:
        await site.service.manifest(stranger, asked(1), wait_s=0.0)
    assert refused.value.status is Status.DENIED
    with pytest.raises(Refusal):
        site.open(1, artifact, caller=stranger)
    reason = f"round 1 does not give europe's model to {stranger}"
    assert site.denied() == [{"caller": stranger, "call": "model for round 1", "reason": reason}]
    assert site.ledger.transfers() == []
    assert site.events == []


async def test_a_denial_costs_one_row_a_minute(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    for step_s in (0.0, DENIED_AGAIN_S - 1, 1.0, 1.0):
        site.clock.now_s += step_s
        with pytest.raises(Refusal):
            await site.service.manifest(site.stranger(1), asked(1), wait_s=0.0)
    assert len(site.denied()) == 2


async def test_a_caller_with_ever_new_questions_cannot_fill_the_disk(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    for minute in range(3):
        for number in range(200):
            with pytest.raises(Refusal):
                await site.service.manifest(SiteName("asia"), asked(1000 + number), wait_s=0.0)
        site.service.record_refused_call("africa", "Beat", "over the rate")
        assert len(site.denied()) == (DENIED_ROWS_MAX + 1) * (minute + 1)
        site.clock.now_s += DENIED_AGAIN_S


async def test_who_is_turned_away_at_the_door_costs_one_row_a_minute_too(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site = open_site()
    for step_s in (0.0, 2.0, DENIED_AGAIN_S):
        site.clock.now_s += step_s
        site.service.record_refused_call("unknown", "Hello", "'mars' is not in the roster")
    assert site.denied() == [{"caller": "unknown", "call": "Hello", "reason": "'mars' is not in the roster"}] * 2


@pytest.mark.parametrize("policy", ['receivers = ["atlantis"]', 'kinds = ["head"]'])
async def test_the_site_s_policy_stands_before_the_schedule(
    open_site: Callable[..., SiteUnderTest], policy: str
) -> None:
    site = open_site(policy)
    artifact = site.publish(1)
    with pytest.raises(Refusal, match="policy sends no model") as refused:
        await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert refused.value.status is Status.DENIED
    with pytest.raises(Refusal, match="policy"):
        site.open(1, artifact)
    assert site.ledger.transfers() == []


# --- transfers and the ledger ----------------------------------------------------------------------------------------
def test_an_intent_is_on_disk_before_the_first_byte_and_an_outcome_after_the_last(
    open_site: Callable[..., SiteUnderTest], tmp_path: Path
) -> None:
    site = open_site()
    artifact = site.publish(1)
    grant = site.open(1, artifact)
    witness = Ledger(tmp_path / "egress.db", read_only=True)
    assert [(row["peer"], row["bytes"], row["outcome"]) for row in witness.transfers()] == [
        (site.receiver(1), 1000, "open")
    ]
    assert grant.path == tmp_path / "artifacts" / f"{artifact.sha256}.safetensors"
    assert [transfer["peer"] for transfer in site.service.sending.values()] == [site.receiver(1)]
    site.service.record_sent(grant, size=1000, outcome="complete")
    assert [(row["sent_bytes"], row["outcome"]) for row in witness.transfers()] == [(1000, "complete")]
    assert site.service.sending == {}
    assert witness.verify() == []
    witness.close()


@pytest.mark.parametrize("offset", [1001, 1 << 33])
def test_an_offset_beyond_the_artifact_is_no_row(open_site: Callable[..., SiteUnderTest], offset: int) -> None:
    site = open_site()
    artifact = site.publish(1)
    with pytest.raises(Refusal) as refused:
        site.open(1, artifact, offset=offset)
    assert refused.value.status is Status.MALFORMED
    assert site.ledger.transfers() == []


def test_another_digest_than_the_published_one_is_missing(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    site.publish(1)
    with pytest.raises(Refusal) as refused:
        site.open(1, make_artifact(2))
    assert refused.value.status is Status.MISSING


def test_the_bytes_of_a_round_are_counted_over_its_transfers(open_site: Callable[..., SiteUnderTest]) -> None:
    """A broken transfer counts with its sent bytes; one with an unknown end, with all of them."""
    site = open_site("bytes_per_round_max = 1400")
    artifact = site.publish(1)
    site.service.record_sent(site.open(1, artifact), size=600, outcome="broken")
    resumed = site.open(1, artifact, offset=600)
    with pytest.raises(Refusal, match="at most 1400 bytes leave in a round"):
        site.open(1, artifact, offset=500)
    site.service.record_sent(resumed, size=400, outcome="complete")
    site.service.record_sent(site.open(1, artifact, offset=600), size=0, outcome="broken")
    site.open(1, artifact, offset=600)
    assert site.ledger.close_open_intents() == 1
    with pytest.raises(Refusal, match="at most 1400"):
        site.open(1, artifact, offset=999)
    site.publish(2)
    site.open(2, make_artifact(2))
    site.machine.memory.generation = 2
    site.open(1, artifact)


def test_a_transfer_of_no_bytes_costs_no_row(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    artifact = site.publish(1)
    for _ in range(3):
        site.service.record_sent(site.open(1, artifact, offset=1000), size=0, outcome="complete")
    assert (site.ledger.rows(), site.service.sending) == ([], {})


def test_a_peer_has_so_many_complete_copies_of_an_artifact_in_a_round(open_site: Callable[..., SiteUnderTest]) -> None:
    """More than a peer needs that is killed again and again before its journal has the artifact."""
    site = open_site()
    artifact = site.publish(1)
    for _ in range(COPIES_PER_ARTIFACT_MAX):
        site.service.record_sent(site.open(1, artifact), size=1000, outcome="complete")
    with pytest.raises(Refusal, match=f"has had {COPIES_PER_ARTIFACT_MAX} complete copies of this artifact") as refused:
        site.open(1, artifact)
    assert refused.value.status is Status.DENIED
    assert len(site.ledger.rows()) == 2 * COPIES_PER_ARTIFACT_MAX
    site.open(2, site.publish(2))


def test_a_peer_begins_so_many_transfers_of_an_artifact_in_a_round(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    site.ledger._connection.execute("PRAGMA synchronous = OFF")
    artifact = site.publish(1)
    for _ in range(TRANSFERS_PER_ARTIFACT_MAX):
        site.service.record_sent(site.open(1, artifact), size=1, outcome="broken")
    with pytest.raises(Refusal, match=f"has begun {TRANSFERS_PER_ARTIFACT_MAX} transfers of this artifact"):
        site.open(1, artifact)


ALL_TO_ALL = FEDERATION.replace('"fedskd"', '"fedavg"').replace(
    '[schedule]\nkind = "derangement"', '[shared_model]\nname = "resnet10"'
)


def test_one_peer_s_repeats_never_cost_another_peer_its_copy(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site("bytes_per_round_max = 3500", federation=ALL_TO_ALL)
    artifact = site.publish(1)
    for _ in range(2):
        site.service.record_sent(site.open(1, artifact, caller=ASIA), size=1000, outcome="complete")
    with pytest.raises(
        Refusal, match="asia has had this artifact, and the round's other bytes are for sites that have"
    ):
        site.open(1, artifact, caller=ASIA)
    site.service.record_sent(site.open(1, artifact, caller=AFRICA), size=400, outcome="broken")
    with pytest.raises(Refusal, match="asia has had this artifact"):
        site.open(1, artifact, caller=ASIA)
    site.service.record_sent(site.open(1, artifact, offset=400, caller=AFRICA), size=600, outcome="complete")
    site.service.record_sent(site.open(1, artifact, offset=900, caller=ASIA), size=100, outcome="complete")
    with pytest.raises(Refusal, match="at most 3500 bytes leave in a round"):
        site.open(1, artifact, caller=AFRICA)


def test_copies_for_evaluation_are_kept_free_before_they_are_lent(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site("evaluate = true\nbytes_per_round_max = 2999", federation=GLOBAL)
    artifact = site.publish(2)
    site.service.record_sent(site.open(2, artifact), size=1000, outcome="complete")
    with pytest.raises(Refusal, match="has had this artifact, and the round's other bytes are for sites that have not"):
        site.open(2, artifact)


@pytest.mark.parametrize(("limit", "warned"), [(1000, False), (999, True)])
def test_a_bound_below_what_the_method_sends_is_told_when_it_is_published(
    open_site: Callable[..., SiteUnderTest], caplog: pytest.LogCaptureFixture, limit: int, warned: bool
) -> None:
    site = open_site(f"bytes_per_round_max = {limit}")
    artifact = site.publish(1)
    assert [record.getMessage() for record in caplog.records] == (
        ["policy lets less leave than the method sends"] if warned else []
    )
    if warned:
        assert "bytes_per_round_max" in caplog.records[0].__dict__["remedy"]
        with pytest.raises(Refusal, match="at most 999 bytes leave in a round"):
            site.open(1, artifact)
        assert site.denied()[0]["reason"] == "this site's policy lets at most 999 bytes leave in a round"


# --- greetings and beats ---------------------------------------------------------------------------------------------
def greeting(site: SiteUnderTest, **changes: Any) -> Hello:
    federation = site.federation
    own = Hello(PROTOCOL_VERSION, federation.digest, federation.roster.digest, 3, time.time() + 60)
    return replace(own, **{"round_key_tag": round_key_tag(KEY, federation.digest), **changes})


DIFFERENCES = [
    (
        {"protocol": 98, "protocol_max": 99},
        "no protocol version is common: europe speaks 1 to 1, the other site 98 to 99; update mhfl-peer at europe",
    ),
    ({"federation": Sha256("ab" * 32)}, "the federation digest differs: europe has "),
    ({"roster": Sha256("cd" * 32)}, "the roster digest differs: europe has "),
    ({"round_key_tag": Sha256("ef" * 32)}, "the round key's tag differs: europe has "),
]


async def test_a_greeting_is_answered_reported_and_its_clock_compared(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    theirs = greeting(site)
    answer = await site.service.hello(SiteName("asia"), theirs)
    assert site.events == [events.PeerGreeted(SiteName("asia"), theirs)]
    assert (answer.federation, answer.generation) == (site.federation.digest, 1)
    assert site.service.difference(answer) is None
    skew_s = site.service.account("asia").clock_skew_s
    assert skew_s is not None
    assert 59 < skew_s < 61


async def test_a_question_is_answered_and_counts_as_nobody_s_presence(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    await site.service.hello(SiteName("asia"), greeting(site, generation=0))
    assert site.events == []
    assert site.service.account("asia").clock_skew_s is None


@pytest.mark.parametrize(
    ("protocol", "protocol_max", "common"), [(1, 0, 1), (1, 1, 1), (1, 7, 1), (2, 7, None), (2, 0, None)]
)
def test_two_sites_speak_the_highest_common_version(protocol: int, protocol_max: int, common: int | None) -> None:
    digest = Sha256("fe" * 32)
    assert common_protocol(Hello(protocol, digest, digest, 1, 0.0, protocol_max=protocol_max)) == common


async def test_a_greeting_without_versions_and_features_is_of_the_first_release_and_is_known(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site = open_site()
    answer = await site.service.hello(SiteName("asia"), greeting(site, software="mhfl-peer 0.2.0"))
    assert (answer.protocol, answer.protocol_max, answer.features) == (1, 1, FEATURES)
    known = site.service.account("asia").greeting
    assert known is not None
    assert (known.software, known.features) == ("mhfl-peer 0.2.0", ())


@pytest.mark.parametrize("proven", [False, True])
async def test_only_this_site_s_own_signature_shows_that_a_backup_was_restored_here(
    open_site: Callable[..., SiteUnderTest], proven: bool
) -> None:
    """A lie cost the site its open round and a thousand generations at each start."""
    site, asia = open_site(), SiteName("asia")
    artifact = make_artifact(5)
    manifest = Manifest(site.federation.digest, 1, "fedskd", EUROPE, 5, artifact)
    signed = sign_manifest(site.pki.identity, encode_manifest(manifest))
    seen = Seen(1 if proven else 1001, 5, artifact.sha256, signed)
    await site.service.hello(asia, greeting(site, seen=seen))
    *refusals, greeted = site.events
    assert isinstance(greeted, events.PeerGreeted)
    assert greeted.greeting.seen == (seen if proven else None)
    reason = "claims to have an artifact of this site: the manifest is of another artifact"
    assert refusals == ([] if proven else [events.PeerRefused(asia, reason)])


async def test_what_a_peer_of_0_2_0_says_it_has_is_neither_believed_nor_a_breach(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site = open_site()
    await site.service.hello(SiteName("asia"), greeting(site, seen=Seen(7, 5, "ab" * 32)))
    (greeted,) = site.events
    assert isinstance(greeted, events.PeerGreeted)
    assert greeted.greeting.seen is None


async def test_a_round_far_ahead_is_reported_as_proved_only_under_the_peer_s_signature(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site, asia = open_site(), SiteName("asia")
    claim = RoundClaim(site.federation.digest, asia, 1, 5)
    pulse = replace(NOW, round=5, proof=sign_round(site.pki.admit(asia), claim))
    await site.service.beat(asia, pulse)
    heard = events.PeerHeard(asia, replace(pulse, proof=None))
    assert site.events == [events.RoundProved(asia, 5), heard]
    site.events.clear()
    await site.service.beat(asia, replace(pulse, proof=sign_round(site.pki.identity, claim)))
    reason = "its proof of round 5 does not hold: the certificate names europe, not asia"
    assert site.events == [events.PeerRefused(asia, reason), heard]


async def test_a_beat_is_answered_with_a_proof_where_the_caller_is_far_behind(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site, asia = open_site(), SiteName("asia")
    site.publish(5)
    site.machine.memory.committed = 5
    site.machine.peers.hear(asia, NOW, 0.0)
    answer = await site.service.beat(asia, NOW)
    assert answer.proof is not None
    assert verify_round(answer.proof, site.pki.identity.certificate).round == 5


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_what_differs_is_named_to_both_sides(
    open_site: Callable[..., SiteUnderTest], changes: dict[str, Any], words: str
) -> None:
    site = open_site()
    with pytest.raises(Refusal) as refused:
        await site.service.hello(SiteName("asia"), greeting(site, **changes))
    assert refused.value.status is Status.MISMATCH
    assert refused.value.reason.startswith(words)
    assert str(next(iter(changes.values()))) in refused.value.reason
    assert site.events == [events.PeerRefused(SiteName("asia"), refused.value.reason)]


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_a_question_that_differs_is_answered_and_leaves_no_trace(
    open_site: Callable[..., SiteUnderTest], changes: dict[str, Any], words: str
) -> None:
    """`check` with an edited federation.toml, beside a daemon that runs with the right one."""
    site = open_site()
    await site.service.hello(SiteName("asia"), greeting(site))
    with pytest.raises(Refusal, match=words):
        await site.service.hello(SiteName("asia"), greeting(site, generation=0, **changes))
    await site.service.beat(SiteName("asia"), NOW)
    assert [type(event) for event in site.events] == [events.PeerGreeted, events.PeerHeard]


async def test_a_member_of_another_federation_takes_no_part_until_it_greets_as_ours(
    open_site: Callable[..., SiteUnderTest],
) -> None:
    site = open_site()
    site.publish(1)
    caller = site.receiver(1)
    with pytest.raises(Refusal):
        await site.service.hello(caller, greeting(site, federation=Sha256("ab" * 32)))
    for call in (site.service.beat(caller, NOW), site.service.manifest(caller, asked(1), wait_s=0.0)):
        with pytest.raises(Refusal, match="federation digest differs"):
            await call
    assert not any(isinstance(event, events.PeerHeard) for event in site.events)
    await site.service.hello(caller, greeting(site))
    await site.service.beat(caller, NOW)
    assert site.events[-1] == events.PeerHeard(caller, NOW)


async def test_what_was_spoken_is_counted_for_each_peer(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    site.publish(1)
    caller = site.receiver(1)
    await site.service.hello(caller, greeting(site))
    sent_bytes = site.service.account(caller).spoken.bytes
    await site.service.beat(caller, NOW)
    signed = await site.service.manifest(caller, asked(1), wait_s=0.0)
    manifest = len(signed.body) + len(signed.signature) + len(signed.certificate_der)
    assert sent_bytes > 100
    assert site.service.account(caller).spoken.messages == 3
    assert site.service.account(caller).spoken.bytes > sent_bytes + manifest
    assert site.service.account(site.stranger(1)).spoken.messages == 0


# --- remote evaluation -----------------------------------------------------------------------------------------------


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
    assert site.ledger.transfers() == []


@pytest.mark.parametrize(("egress", "evaluates"), [("evaluate = true", True), ("", False)])
def test_a_greeting_says_whether_the_site_takes_part(
    open_site: Callable[..., SiteUnderTest], egress: str, evaluates: bool
) -> None:
    assert open_site(egress, federation=GLOBAL).service.greeting(ASIA).evaluates is evaluates


def test_without_global_test_a_greeting_says_nothing_of_it(open_site: Callable[..., SiteUnderTest]) -> None:
    assert open_site("evaluate = true").service.greeting(ASIA).evaluates is None


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
    assert (row["peer"], row["purpose"], row["kind"], row["round"], row["bytes"]) == (
        "asia",
        "evaluate",
        "metrics",
        2,
        60,
    )
    assert (row["sha256"], row["outcome"]) == ("ab" * 32, "open")
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


def test_a_policy_without_evaluation_tells_nobody_anything(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site("", federation=GLOBAL)
    with pytest.raises(Refusal, match="tells asia no metrics"):
        site.service.open_report(ASIA, EvaluationResult(1, 2, Sha256("ab" * 32), 20, {}), size=60)
    assert site.ledger.transfers() == []


async def test_who_called_and_how_long_ago_is_known(open_site: Callable[..., SiteUnderTest]) -> None:
    site = open_site()
    caller = site.receiver(1)
    assert site.service.called_s(caller) is None
    await site.service.beat(caller, NOW)
    site.clock.now_s += 12.34
    assert site.service.called_s(caller) == 12.3
    assert site.service.called_s(site.stranger(1)) is None
