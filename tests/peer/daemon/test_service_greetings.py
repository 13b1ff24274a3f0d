"""Greetings and beats: which versions two sites speak, what is believed, and what is named."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.peer_service import ASIA, EUROPE, KEY, NOW, SiteUnderTest, asked, make_artifact
from peer.core import events
from peer.core.artifacts import TensorSpec
from peer.core.class_numbering import digest_names
from peer.core.limits import PROTOCOL_VERSION
from peer.core.messages import FEATURES, Hello, Manifest, Seen
from peer.core.privacy import Spending
from peer.core.roster import Sha256, round_key_tag
from peer.daemon.service import common_protocol
from peer.net.transport.manifest import encode_manifest, sign_manifest
from peer.net.transport.round_proof import RoundClaim, sign_round, verify_round
from peer.net.transport.server import Refusal, Status


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


async def test_a_greeting_is_answered_reported_and_its_clock_compared(site: SiteUnderTest) -> None:
    theirs = greeting(site)
    answer = await site.service.hello(ASIA, theirs)
    assert site.events == [events.PeerGreeted(ASIA, theirs)]
    assert (answer.federation, answer.generation) == (site.federation.digest, 1)
    assert site.service.difference(answer) is None
    skew_s = site.service.account("asia").clock_skew_s
    assert skew_s is not None
    assert 59 < skew_s < 61


async def test_a_question_is_answered_and_counts_as_nobody_s_presence(site: SiteUnderTest) -> None:
    await site.service.hello(ASIA, greeting(site, generation=0))
    assert site.events == []
    assert site.service.account("asia").clock_skew_s is None


@pytest.mark.parametrize(
    ("protocol", "protocol_max", "common"), [(1, 0, 1), (1, 1, 1), (1, 7, 1), (2, 7, None), (2, 0, None)]
)
def test_two_sites_speak_the_highest_common_version(protocol: int, protocol_max: int, common: int | None) -> None:
    digest = Sha256("fe" * 32)
    assert common_protocol(Hello(protocol, digest, digest, 1, 0.0, protocol_max=protocol_max)) == common


async def test_a_greeting_without_versions_and_features_is_of_the_first_release_and_is_known(
    site: SiteUnderTest,
) -> None:
    seen = Seen(7, 5, "ab" * 32)
    answer = await site.service.hello(ASIA, greeting(site, software="mhfl-peer 0.2.0", seen=seen))
    assert (answer.protocol, answer.protocol_max, answer.features) == (1, 1, FEATURES)
    known = site.service.account("asia").greeting
    assert known is not None
    assert (known.software, known.features) == ("mhfl-peer 0.2.0", ())
    (greeted,) = site.events
    assert isinstance(greeted, events.PeerGreeted)
    assert greeted.greeting.seen is None, "what it says it has is neither believed nor a breach"


@pytest.mark.parametrize("proven", [False, True])
async def test_only_this_site_s_own_signature_shows_that_a_backup_was_restored_here(
    site: SiteUnderTest, proven: bool
) -> None:
    """A lie cost the site its open round and a thousand generations at each start."""
    artifact = make_artifact(5)
    manifest = Manifest(site.federation.digest, 1, "fedskd", EUROPE, 5, artifact, (TensorSpec("w", "F32", (2,)),))
    signed = sign_manifest(site.pki.identity, encode_manifest(manifest))
    seen = Seen(1 if proven else 1001, 5, artifact.sha256, signed)
    await site.service.hello(ASIA, greeting(site, seen=seen))
    *refusals, greeted = site.events
    assert isinstance(greeted, events.PeerGreeted)
    assert greeted.greeting.seen == (seen if proven else None)
    reason = "claims to have an artifact of this site: the manifest is of another artifact"
    assert refusals == ([] if proven else [events.PeerRefused(ASIA, reason)])


async def test_what_was_spent_is_believed_by_this_site_s_own_signature_alone(site: SiteUnderTest) -> None:
    """A restored site begins at what its newest manifest at a peer says; no peer can make it spend out."""
    artifact = make_artifact(5)
    manifest = Manifest(site.federation.digest, 1, "fedskd", EUROPE, 5, artifact, (TensorSpec("w", "F32", (2,)),))
    member = f"{site.federation.digest}/{EUROPE}"
    here = site.publish(1, spent=Spending(0.2, 1e-4, epsilon_max=1.0))
    for signer, mu in (site.pki.admit(ASIA), 19.0), (site.pki.identity, 0.7):
        signed = sign_manifest(signer, encode_manifest(replace(manifest, mu=mu)))
        await site.service.hello(ASIA, greeting(site, seen=Seen(1, 5, artifact.sha256, signed)))
        spent_out = site.service.policy.kept_for(here) is not None
        assert spent_out == (signer is site.pki.identity), "with 0.7 before it, it exceeds what epsilon 1 permits"
    refusal, _, greeted = site.events
    assert refusal == events.PeerRefused(
        ASIA, "claims to have an artifact of this site: the certificate names asia, not europe"
    )
    assert isinstance(greeted, events.PeerGreeted)
    assert site.budget.standing(member, ["ann"]).mu == pytest.approx(0.7)
    assert site.faults == []


async def test_an_account_that_cannot_be_read_ends_the_site_that_learns_of_spending(site: SiteUnderTest) -> None:
    """Going on would forget it."""
    site.budget.charge("1", "x", 1.0, ["ann"], mu_max=2.0)
    (site.home / ".privacy" / "budget.json").write_text("{")
    artifact = make_artifact(5)
    manifest = Manifest(site.federation.digest, 1, "fedskd", EUROPE, 5, artifact, (TensorSpec("w", "F32", (2,)),))
    signed = sign_manifest(site.pki.identity, encode_manifest(replace(manifest, mu=0.7)))
    await site.service.hello(ASIA, greeting(site, seen=Seen(1, 5, artifact.sha256, signed)))
    (fault,) = site.faults
    assert "the account of what this machine's people have lost cannot be used" in str(fault)


async def test_a_round_far_ahead_is_reported_as_proved_only_under_the_peer_s_signature(
    site: SiteUnderTest,
) -> None:
    claim = RoundClaim(site.federation.digest, ASIA, 1, 5)
    pulse = replace(NOW, round=5, proof=sign_round(site.pki.admit(ASIA), claim))
    await site.service.beat(ASIA, pulse)
    heard = events.PeerHeard(ASIA, replace(pulse, proof=None))
    assert site.events == [events.RoundProved(ASIA, 5), heard]
    site.events.clear()
    await site.service.beat(ASIA, replace(pulse, proof=sign_round(site.pki.identity, claim)))
    reason = "its proof of round 5 does not hold: the certificate names europe, not asia"
    assert site.events == [events.PeerRefused(ASIA, reason), heard]


async def test_a_beat_is_answered_with_a_proof_where_the_caller_is_far_behind(
    site: SiteUnderTest,
) -> None:
    site.publish(5)
    site.machine.memory.committed = 5
    site.machine.peers.hear(ASIA, NOW, 0.0)
    answer = await site.service.beat(ASIA, NOW)
    assert answer.proof is not None
    assert verify_round(answer.proof, site.pki.identity.certificate).round == 5


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_what_differs_is_named_to_both_sides(site: SiteUnderTest, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal) as refused:
        await site.service.hello(ASIA, greeting(site, **changes))
    assert refused.value.status is Status.MISMATCH
    assert refused.value.reason.startswith(words)
    assert str(next(iter(changes.values()))) in refused.value.reason
    assert site.events == [events.PeerRefused(ASIA, refused.value.reason)]


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
async def test_a_question_that_differs_is_answered_and_leaves_no_trace(
    site: SiteUnderTest, changes: dict[str, Any], words: str
) -> None:
    """`check` with an edited federation.toml, beside a daemon that runs with the right one."""
    await site.service.hello(ASIA, greeting(site))
    with pytest.raises(Refusal, match=words):
        await site.service.hello(ASIA, greeting(site, generation=0, **changes))
    await site.service.beat(ASIA, NOW)
    assert [type(event) for event in site.events] == [events.PeerGreeted, events.PeerHeard]


@pytest.mark.parametrize("generation", [0, 3])
async def test_a_site_that_numbers_classes_otherwise_is_refused_without_a_name(tmp_path: Path, generation: int) -> None:
    (tmp_path / "datalist.json").write_text('{"labels": {"0": "benign", "1": "malignant"}}')
    site = SiteUnderTest(tmp_path)
    swapped, alike = (
        digest_names(names, site.federation.digest)
        for names in ({0: "Malignant", 1: "Benign"}, {0: "Benign", 1: "Malignant"})
    )
    reason = "the classes' numbers differ: class 0 at europe is class 1 at the other site"
    with pytest.raises(Refusal) as refused:
        await site.service.hello(ASIA, greeting(site, generation=generation, class_names=swapped))
    assert refused.value.reason == reason, "a peer that guesses with shifted numbers learns no name"
    own = f"{reason}; class 0 here is 'benign'"
    assert site.events == [events.PeerRefused(ASIA, own)] * bool(generation), "this site's people read the name"
    if generation:
        with pytest.raises(Refusal) as refused:
            await site.service.beat(ASIA, NOW)
        assert refused.value.reason == reason
    answer = await site.service.hello(ASIA, greeting(site, generation=generation, class_names=alike))
    assert answer.class_names == alike
    await site.service.hello(ASIA, greeting(site, generation=generation))  # of an older program


async def test_a_member_of_another_federation_takes_no_part_until_it_greets_as_ours(site: SiteUnderTest) -> None:
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


async def test_what_was_spoken_is_counted_for_each_peer(site: SiteUnderTest) -> None:
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
