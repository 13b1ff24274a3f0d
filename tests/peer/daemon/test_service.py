"""The answers to peers: who gets which artifact, what is journalled, and which calls wait."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.peer_service import AFRICA, ASIA, EUROPE, FEDERATION, GLOBAL, NOW, SiteUnderTest, asked, make_artifact
from peer.core import events
from peer.core.leak import Leak, leak_facts
from peer.core.limits import COPIES_PER_ARTIFACT_MAX, STEPS_MAX, TRANSFERS_PER_ARTIFACT_MAX
from peer.core.messages import SignedManifest, Unavailable
from peer.core.privacy import Spending, mu_of, spending_facts
from peer.core.roster import SiteName
from peer.core.worker_protocol import to_json
from peer.daemon.service import DENIED_AGAIN_S, DENIED_ROWS_MAX
from peer.errors import CertificateError, DiskError
from peer.net.transport.manifest import to_base64, verify_manifest
from peer.net.transport.server import Refusal, Status
from peer.site.identity.certificates import key_digest
from peer.site.records.ledger import Ledger


async def test_a_manifest_has_the_ledger_s_head_and_is_in_the_journal(site: SiteUnderTest) -> None:
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


async def test_a_manifest_is_waited_for_until_memory_changes_or_the_caller_s_patience_ends(site: SiteUnderTest) -> None:
    waiting = asyncio.create_task(site.service.manifest(site.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    site.service.wake_waiting_calls()  # something else changed
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.01) == Unavailable.NOT_YET
    artifact = site.publish(1)
    site.service.wake_waiting_calls()
    assert site.described(await asyncio.wait_for(waiting, 5)) == (1, artifact, False)
    assert site.events == [events.PeerHeard(site.receiver(1))] * 2


async def test_a_wait_ends_when_there_will_be_none(site: SiteUnderTest) -> None:
    waiting = asyncio.create_task(site.service.manifest(site.receiver(1), asked(1), wait_s=20.0))
    await asyncio.sleep(0)
    site.remember("initialised", 0, state="initial", artifact=None, samples={}, publish=None)
    site.service.wake_waiting_calls()
    assert await asyncio.wait_for(waiting, 5) == Unavailable.SKIPPED


async def test_nothing_is_served_between_memory_and_journal(site: SiteUnderTest) -> None:
    """Memory has the artifact once the machine has decided; row and manifest come later."""
    artifact = make_artifact(1)
    site.remember("published", 1, artifact=to_json(artifact))
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    with pytest.raises(Refusal) as refused:
        site.open(1, artifact)
    assert refused.value.status is Status.MISSING
    assert site.ledger.transfers() == []


async def test_a_manifest_is_signed_again_once_an_amendment_has_changed_this_site_s_key(site: SiteUnderTest) -> None:
    """The former key's signature counts at no peer that knows the amendment."""
    artifact = site.publish(1)
    renewed = site.pki.admit(EUROPE)
    site.pki.pinned[EUROPE] = key_digest(renewed.key.public_key())
    site.pki.fault = CertificateError("cert.pem has another key than the pinned one")
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    site.pki.identity, site.pki.fault = renewed, None
    signed = await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert isinstance(signed, SignedManifest)
    assert verify_manifest(signed, renewed.certificate).artifact == artifact
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == signed


async def test_an_expired_certificate_delays_the_manifest_and_ends_nothing(site: SiteUnderTest) -> None:
    site.pki.fault = CertificateError("cert.pem has expired")
    artifact = site.publish(1)
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET
    site.pki.fault = None
    signed = await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert site.described(signed) == (1, artifact, False)


async def test_a_manifest_that_cannot_be_written_ends_no_daemon(site: SiteUnderTest) -> None:
    site.publish(1, steps=STEPS_MAX + 1)
    assert await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0) == Unavailable.NOT_YET


# --- policy and schedule ---------------------------------------------------------------------------------------------
async def test_whose_turn_it_is_not_is_denied_and_written_down(site: SiteUnderTest) -> None:
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


LEAK_MAX = "leak_auc_max = 0.65\n"
WITHIN = Leak("loss", 0.52, 150, 100, 20, 0.53, 0.53, 4, bound=0.65)
ABOVE, UNKNOWN = replace(WITHIN, receiver_auc=0.8), replace(WITHIN, members=20, others=20, detected=2)


@pytest.mark.parametrize(
    ("policy", "leak", "leaves"),
    [
        (LEAK_MAX, WITHIN, True),
        (LEAK_MAX, ABOVE, False),
        (LEAK_MAX, UNKNOWN, True),
        (LEAK_MAX, None, True),
        (LEAK_MAX + 'leak_unknown = "refuse"', WITHIN, True),
        (LEAK_MAX + 'leak_unknown = "refuse"', UNKNOWN, False),
        (LEAK_MAX + 'leak_unknown = "refuse"', None, False),
        ("", ABOVE, True),
    ],
)
async def test_an_artifact_that_leaks_too_much_stays_here(
    tmp_path: Path, policy: str, leak: Leak | None, *, leaves: bool
) -> None:
    site = SiteUnderTest(tmp_path, policy)
    artifact = site.publish(1, leak=leak)
    if leaves:
        assert isinstance(await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0), SignedManifest)
        site.open(1, artifact)
        (sent,) = site.ledger.transfers()
        assert sent.get("leak") == (None if leak is None else leak_facts(leak))
        return
    with pytest.raises(Refusal) as refused:
        await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert refused.value.status is Status.DENIED
    with pytest.raises(Refusal):
        site.open(1, artifact)
    reason = "europe's policy keeps this model: its measured leak is not within the bound"
    assert site.denied() == [{"caller": site.receiver(1), "call": "model for round 1", "reason": reason}]
    assert site.ledger.transfers() == []


SPENDING = Spending(mu_of(3.0, 1e-4), 1e-4, epsilon_max=3.0)  # no attack exceeds an AUC of 0.72
CONTRADICTION = replace(WITHIN, auc=0.95)


@pytest.mark.parametrize(
    ("spent", "leak", "reason"),
    [
        (SPENDING, None, None),
        (SPENDING, replace(WITHIN, auc=0.8), None),
        (SPENDING, replace(CONTRADICTION, members=10, others=10, detected=1), None),
        (SPENDING, CONTRADICTION, "an attack here contradicts the guarantee of its noise"),
        (None, CONTRADICTION, None),
        (replace(SPENDING, exceeded=True), WITHIN, "what this site's people may lose is spent"),
    ],
)
async def test_what_is_spent_or_contradicts_its_noise_stays_here(
    site: SiteUnderTest,
    caplog: pytest.LogCaptureFixture,
    spent: Spending | None,
    leak: Leak | None,
    reason: str | None,
) -> None:
    """Ten and ten people cannot contradict anything; 0.8 of 150 and 100 people may be chance."""
    artifact = site.publish(1, leak=leak, spent=spent)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in errors] == (
        ["the artifact stays here: an attack contradicts its noise"] if leak is CONTRADICTION and spent else []
    )
    if reason is None:
        site.open(1, artifact)
        (sent,) = site.ledger.transfers()
        assert sent.get("spent") == (None if spent is None else spending_facts(spent))
        return
    with pytest.raises(Refusal):
        site.open(1, artifact)
    denied = f"europe's policy keeps this model: {reason}"
    assert site.denied() == [{"caller": site.receiver(1), "call": "model for round 1", "reason": denied}]
    assert site.ledger.transfers() == []


@pytest.mark.parametrize(("added", "stays"), [(0.5, False), (0.9, True)])
async def test_what_was_spent_before_and_only_a_peer_knows_counts_for_what_is_already_there(
    site: SiteUnderTest, added: float, stays: bool
) -> None:
    member = f"{site.federation.digest}/{site.machine.rules.site}"
    site.budget.charge("1", member, 0.36, ["ann"], mu_max=mu_of(3.0, 1e-4))
    artifact = site.publish(1, spent=replace(SPENDING, mu=0.6))
    assert site.service.policy.kept_for(artifact) is None
    site.budget.claim(member, 1, (0.36 + added**2) ** 0.5)
    assert (site.service.policy.kept_for(artifact) is not None) == stays
    site.budget.standing(member, ["ann"])  # as a worker settles the claim, after a restart of the daemon
    assert (site.service.policy.kept_for(artifact) is not None) == stays
    (site.home / ".privacy" / "budget.json").write_text("{")
    assert site.service.policy.kept_for(artifact) is not None, "nobody knows what was spent"


async def test_an_untrained_artifact_leaves_unmeasured(tmp_path: Path) -> None:
    site = SiteUnderTest(tmp_path, LEAK_MAX + 'leak_unknown = "refuse"')
    site.publish(1, steps=0)
    assert isinstance(await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0), SignedManifest)


async def test_a_manifest_has_what_the_federation_knows_by_its_settings_and_no_figure_of_people(
    site: SiteUnderTest,
) -> None:
    site.publish(1, leak=WITHIN, spent=replace(SPENDING, federation_mu=0.25))
    signed = await site.service.manifest(site.receiver(1), asked(1), wait_s=0.0)
    assert isinstance(signed, SignedManifest)
    described = site.described(signed)[1]
    assert (described.leak, described.spent) == (None, None)
    assert verify_manifest(signed, site.pki.identity.certificate).mu == 0.25


async def test_a_denial_costs_one_row_a_minute(site: SiteUnderTest) -> None:
    for step_s in (0.0, DENIED_AGAIN_S - 1, 1.0, 1.0):
        site.clock.now_s += step_s
        with pytest.raises(Refusal):
            await site.service.manifest(site.stranger(1), asked(1), wait_s=0.0)
    assert len(site.denied()) == 2


async def test_a_caller_with_ever_new_questions_cannot_fill_the_disk(site: SiteUnderTest) -> None:
    for minute in range(3):
        for number in range(200):
            with pytest.raises(Refusal):
                await site.service.manifest(SiteName("asia"), asked(1000 + number), wait_s=0.0)
        site.service.record_refused_call("africa", "Beat", "over the rate")
        assert len(site.denied()) == (DENIED_ROWS_MAX + 1) * (minute + 1)
        site.clock.now_s += DENIED_AGAIN_S


async def test_who_is_turned_away_at_the_door_costs_one_row_a_minute_too(site: SiteUnderTest) -> None:
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
    site: SiteUnderTest, tmp_path: Path
) -> None:
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


def test_a_transfer_whose_end_the_ledger_cannot_keep_ends_the_daemon(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 2245 of the simulation: the disk was full for a while, and the daemon left with an open transfer."""
    grant = site.open(1, site.publish(1))

    def fail(intent: int, *, bytes: int, outcome: str) -> None:
        raise DiskError("the disk is full")

    monkeypatch.setattr(site.ledger, "settle", fail)
    site.service.record_sent(grant, size=1000, outcome="complete")
    assert [fault.message for fault in site.faults] == ["the disk is full"]


async def test_an_artifact_that_is_retired_while_it_leaves_stays_to_its_last_byte(site: SiteUnderTest) -> None:
    artifact = site.publish(1)
    grant = site.open(1, artifact)
    grant.path.write_bytes(b"weights")
    site.machine.memory.published.clear()
    site.store.discard(artifact.sha256)
    assert grant.path.exists()
    site.service.record_sent(grant, size=1000, outcome="complete")
    assert not grant.path.exists()


@pytest.mark.parametrize("offset", [1001, 1 << 33])
def test_an_offset_beyond_the_artifact_is_no_row(site: SiteUnderTest, offset: int) -> None:
    artifact = site.publish(1)
    with pytest.raises(Refusal) as refused:
        site.open(1, artifact, offset=offset)
    assert refused.value.status is Status.MALFORMED
    assert site.ledger.transfers() == []


def test_another_digest_than_the_published_one_is_missing(site: SiteUnderTest) -> None:
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


def test_a_transfer_of_no_bytes_costs_no_row(site: SiteUnderTest) -> None:
    artifact = site.publish(1)
    for _ in range(3):
        site.service.record_sent(site.open(1, artifact, offset=1000), size=0, outcome="complete")
    assert (site.ledger.rows(), site.service.sending) == ([], {})


def test_a_peer_has_so_many_complete_copies_of_an_artifact_in_a_round(site: SiteUnderTest) -> None:
    """More than a peer needs that is killed again and again before its journal has the artifact."""
    artifact = site.publish(1)
    for _ in range(COPIES_PER_ARTIFACT_MAX):
        site.service.record_sent(site.open(1, artifact), size=1000, outcome="complete")
    with pytest.raises(Refusal, match=f"has had {COPIES_PER_ARTIFACT_MAX} complete copies of this artifact") as refused:
        site.open(1, artifact)
    assert refused.value.status is Status.DENIED
    assert len(site.ledger.rows()) == 2 * COPIES_PER_ARTIFACT_MAX
    site.open(2, site.publish(2))


def test_a_peer_begins_so_many_transfers_of_an_artifact_in_a_round(site: SiteUnderTest) -> None:
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
        assert site.denied()[0]["reason"] == "europe's policy lets at most 999 bytes leave in a round"


async def test_who_called_and_how_long_ago_is_known(site: SiteUnderTest) -> None:
    caller = site.receiver(1)
    assert site.service.called_s(caller) is None
    await site.service.beat(caller, NOW)
    site.clock.now_s += 12.34
    assert site.service.called_s(caller) == 12.3
    assert site.service.called_s(site.stranger(1)) is None
