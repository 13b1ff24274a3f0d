"""A site that signs two artifacts for one round: who finds it, what is kept, and that nobody honest is accused."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from peer.audit.equivocation import ManifestSubject, proofs_of
from peer.core import events, limits, rows
from peer.core.artifacts import Artifact, TensorSpec
from peer.core.messages import FEATURES, Hello, Manifest, SignedManifest
from peer.core.roster import Sha256, SiteName
from peer.daemon.evidence import EquivocationWatch
from peer.daemon.peer_account import PeerAccount
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.client import Unreachable
from peer.net.transport.manifest import decode_manifest, encode_manifest, sign_manifest, to_base64
from peer.net.transport.server import Refusal, Status
from peer.site.identity import certificates
from peer.site.records.history import History

AFRICA, ASIA, EUROPE = map(SiteName, ("africa", "asia", "europe"))
ONE, OTHER = Sha256("ab" * 32), Sha256("cd" * 32)


class FakeService:
    """Knows which peers compare manifests."""

    def __init__(self, site: SiteName) -> None:
        self.others = tuple(name for name in (AFRICA, ASIA, EUROPE) if name != site)
        digest = Sha256("fe" * 32)
        greeting = Hello(1, digest, digest, 1, 0.0, features=FEATURES)
        self.accounts = {name: PeerAccount(greeting=greeting) for name in self.others}

    def peers(self) -> tuple[SiteName, ...]:
        return self.others

    def account(self, peer: SiteName) -> PeerAccount:
        return self.accounts[peer]


class Member:
    """One site's watch on its real journal; calls reach the other members' watches."""

    def __init__(self, watches: dict[SiteName, Member], books: Any, name: SiteName, refused: frozenset[str]) -> None:
        self.watches, self.books, self.name = watches, books, name
        self.events: list[events.Event] = []
        self.calls: list[tuple[SiteName, int]] = []
        self.down: set[SiteName] = set()
        self.journal = books.journal(name)
        folders = books.loopback.folder(name), books.loopback.folder(EUROPE)
        if not folders[0].federation_toml.exists():  # africa is in the roster, and not enrolled
            shutil.copy(folders[1].federation_toml, folders[0].federation_toml)
        self.service = FakeService(name)
        federation = books.loopback.federation
        self.watch = EquivocationWatch(
            federation=federation.digest,
            authorities=lambda: [certificates.pinned_authority(federation.ca_certificate)],
            site=name,
            roster=federation.roster,
            journal=self.journal,
            service=self.service,  # type: ignore[arg-type]
            client=self,  # type: ignore[arg-type]
            refused=refused,
            report=self.events.append,
        )

    async def compare_manifests(self, peer: SiteName, signed: Sequence[SignedManifest]) -> list[SignedManifest]:
        self.calls.append((peer, len(signed)))
        if peer in self.down:
            raise Unreachable(peer, "down")
        return await self.watches[peer].watch.answer(self.name, list(signed))

    def receive(self, signed: SignedManifest) -> None:
        """Do what the daemon does when an artifact is offered and arrives."""
        manifest = decode_manifest(signed.body)
        self.watch.examine(signed, manifest)
        self.journalise(signed, manifest, manifest.origin)

    def journalise(self, signed: SignedManifest, manifest: Manifest, origin: SiteName) -> None:
        parts = to_base64(signed)
        row = rows.ReceivedRow(
            manifest.round,
            peer=origin,
            purpose="train",
            kind_of_artifact="model",
            sha256=manifest.artifact.sha256,
            bytes=8,
            outcome="complete",
            signed_body=parts["body"],
            signature=parts["signature"],
            certificate_der=parts["certificate_der"],
        )
        self.journal.write(row)

    @property
    def accused(self) -> list[str]:
        return [event.site for event in self.events if isinstance(event, events.PeerRefused)]

    @property
    def proofs(self) -> list[ManifestSubject]:
        """The proofs in the folder, as `evidence` reads them."""
        return [proof.subject for proof in proofs_of(self.books.loopback.folder(self.name))]


@pytest.fixture
def member(books: Any) -> Iterator[Callable[..., Member]]:
    watches: dict[SiteName, Member] = {}

    def make(name: SiteName, *, refused: frozenset[str] = frozenset()) -> Member:
        watches[name] = Member(watches, books, name, refused)
        return watches[name]

    yield make
    for each in watches.values():
        each.journal.close()


@pytest.fixture
def sign(books: Any) -> Callable[..., SignedManifest]:
    """Signs a manifest of asia's."""

    def make(sha256: Sha256 = ONE, *, by: SiteName = ASIA, size: int = 100, **changes: Any) -> SignedManifest:
        artifact = Artifact("model", by, sha256, size, 1, {"name": "resnet10"})
        about = (books.loopback.federation.digest, 1, "fedavg", by, 5, artifact)
        manifest = Manifest(*about, (TensorSpec("w", "F32", (2,)),))
        return sign_manifest(books.identity(by), encode_manifest(replace(manifest, **changes)))

    return make


async def quiet(*members: Member) -> None:
    """Wait until no call is under way."""
    while tasks := [task for each in members for task in each.watch._tasks]:
        await asyncio.wait(tasks)
        await asyncio.sleep(0)


async def test_two_receivers_whose_means_differ_prove_who_told_them_two_things(member: Any, sign: Any) -> None:
    africa, europe = member(AFRICA), member(EUROPE)
    member(ASIA)
    africa.receive(sign(ONE))
    europe.receive(sign(OTHER))
    assert (africa.proofs, europe.proofs) == ([], [])
    africa.watch.compare(EUROPE, 5)
    await quiet(africa, europe)
    subject = ManifestSubject(ASIA, 1, 5, "model", ASIA, False)
    assert africa.proofs == europe.proofs == [subject], "each of them verified and kept it"
    assert set(africa.accused) == set(europe.accused) == {ASIA}
    reason = "signed two artifacts for round 5: `mhfl-peer evidence` has the proof"
    assert africa.events == [events.PeerRefused(ASIA, reason)]
    shown = africa.journal.records(("equivocated",))
    assert [(row["round"], row["body"]["sha256"]) for row in shown] == [(5, [ONE, OTHER])]


async def test_few_peers_whose_means_differ_are_shown_the_manifests_of_a_large_federation(
    member: Any, sign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where means differ for other reasons, too, all pairs of sites would compare all manifests."""
    shown: list[tuple[str, set[bytes]]] = []

    async def ask(watch: EquivocationWatch, peer: SiteName, received: Sequence[SignedManifest]) -> None:
        shown.append((peer, {signed.signature for signed in received}))

    monkeypatch.setattr(EquivocationWatch, "_ask", ask)
    monkeypatch.setattr(EquivocationWatch, "_compares", lambda watch, peer: peer != names[0])  # that is of 0.2.0
    africa, signed = member(AFRICA), sign(ONE)
    manifest = decode_manifest(signed.body)
    names = [SiteName(f"site-{number:02}") for number in range(64)]
    for number, name in enumerate(names):
        africa.journalise(replace(signed, signature=bytes([number])), manifest, name)
    for name in names[:10]:
        africa.watch.compare(name, 5)
    await quiet(africa)
    assert [(peer, len(signatures)) for peer, signatures in shown] == [(name, 16) for name in names[1:5]]
    assert all(bytes([number]) not in signatures for number, (_, signatures) in enumerate(shown, 1)), "its own"
    assert len(set[bytes]().union(*(signatures for _, signatures in shown))) >= 62
    africa.watch.compare(EUROPE, 6)
    await quiet(africa)
    assert shown[4:] == [(EUROPE, set())], "of another round"


async def test_a_proof_reaches_members_that_saw_neither_and_a_restart_keeps_it(member: Any, sign: Any) -> None:
    europe, africa = member(EUROPE), member(AFRICA)
    europe.down = {AFRICA}
    europe.receive(sign(ONE))
    europe.receive(sign(OTHER))
    assert [subject.round for subject in europe.proofs] == [5], "the second manifest is the proof, before any byte"
    await quiet(europe)
    assert africa.proofs == []
    europe.journal.close()
    again = member(EUROPE)
    again.watch.hand_on(AFRICA)
    await quiet(again, africa)
    assert [subject.origin for subject in africa.proofs] == [ASIA]
    again.watch.hand_on(AFRICA)
    await quiet(again)
    assert again.calls == [(AFRICA, 2)], "once a run"
    assert ASIA not in [peer for peer, _ in europe.calls], "its author needs no copy"


async def test_a_peer_of_an_older_program_is_not_asked(member: Any, sign: Any) -> None:
    europe = member(EUROPE)
    for account in europe.service.accounts.values():
        account.greeting = replace(account.greeting, features=())
    europe.receive(sign(ONE))
    europe.receive(sign(OTHER))
    europe.watch.compare(AFRICA, 5)
    await quiet(europe)
    assert europe.calls == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reexport": True},
        {"egress_count": 4, "egress_head": "ef" * 32},
        {"sha256": OTHER, "generation": 2},
        {"sha256": OTHER, "round": 6},
        {"sha256": OTHER, "evaluation": True},
    ],
)
async def test_an_honest_site_that_signs_again_is_accused_by_nobody(
    member: Any, sign: Any, changes: dict[str, Any]
) -> None:
    """A restart signs anew, a policy may have changed, and a restored backup counts as another generation."""
    africa, europe = member(AFRICA), member(EUROPE)
    africa.receive(sign(ONE))
    again = sign(**changes)
    europe.receive(again)
    africa.receive(again)
    africa.watch.compare(EUROPE, 5)
    await quiet(africa, europe)
    assert (africa.proofs, europe.proofs, africa.events, europe.events) == ([], [], [], [])


async def test_what_is_shown_reveals_nothing_but_the_other_half_of_a_proof(member: Any, sign: Any) -> None:
    europe = member(EUROPE)
    europe.receive(sign(ONE))
    assert await europe.watch.answer(AFRICA, [sign(ONE)]) == []
    assert await europe.watch.answer(AFRICA, [sign(ONE, round=4)]) == []
    with pytest.raises(Refusal, match="manifests: ") as refused:
        await europe.watch.answer(AFRICA, [replace(sign(OTHER), signature=b"forged")])
    assert refused.value.status is Status.MALFORMED


async def test_no_two_manifests_of_a_liar_accuse_an_honest_site(member: Any, sign: Any) -> None:
    europe = member(EUROPE, refused=frozenset())
    honest, forged = sign(ONE), replace(sign(ONE), body=sign(OTHER).body)
    for pair in (
        [honest, forged],
        [honest, sign(ONE)],
        [honest, sign(OTHER, round=6)],
        [honest, sign(OTHER, by=EUROPE)],
    ):
        with pytest.raises(Refusal):
            await europe.watch.answer(AFRICA, pair)
    assert (europe.proofs, europe.events) == ([], [])


async def test_a_manifest_under_a_refused_certificate_is_no_half_of_a_proof(member: Any, sign: Any) -> None:
    one = sign(ONE)
    europe = member(EUROPE, refused=frozenset({certificates.certificate_sha256(one.certificate_der)}))
    with pytest.raises(Refusal, match="a certificate is refused here"):
        await europe.watch.answer(AFRICA, [one, sign(OTHER)])


async def test_who_answers_truthfully_is_not_named_for_a_certificate_that_is_refused_here(
    member: Any, sign: Any
) -> None:
    one = sign(ONE)
    europe = member(EUROPE, refused=frozenset({certificates.certificate_sha256(one.certificate_der)}))
    africa = member(AFRICA)
    member(ASIA)
    europe.receive(one)
    africa.receive(sign(OTHER))
    europe.watch.compare(AFRICA, 5)
    await quiet(africa, europe)
    assert europe.calls == [(AFRICA, 1)]
    assert (europe.proofs, europe.events) == ([], [])
    assert await europe.watch.answer(AFRICA, [sign(OTHER)]) == []


async def test_proofs_and_comparisons_are_bounded(member: Any, sign: Any) -> None:
    europe = member(EUROPE)
    for round in range(1, limits.EQUIVOCATIONS_PER_SITE_MAX + 3):
        await europe.watch.answer(AFRICA, [sign(ONE, round=round), sign(OTHER, round=round)])
    assert len(europe.proofs) == limits.EQUIVOCATIONS_PER_SITE_MAX
    calls = [europe.watch.answer(AFRICA, [sign(ONE, round=1)]) for _ in range(2 * limits.COMPARISONS_BURST)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {answer.status for answer in answers if isinstance(answer, Refusal)} == {Status.BUSY}
    assert sum(answer == [] for answer in answers) < 2 * limits.COMPARISONS_BURST
    await europe.watch.close()


async def test_manifests_are_shown_no_faster_than_a_server_takes_requests(
    member: Any, sign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHOWN_BYTES_PER_SECOND_MAX", float(1 << 20))
    europe, africa, loop = member(EUROPE), member(AFRICA), asyncio.get_running_loop()
    artifact = decode_manifest(sign().body).artifact
    artifact = replace(artifact, bytes=1 << 20)
    wide = tuple(TensorSpec(f"{n:0250}", "F32", (2,)) for n in range(250))
    sizes, began_s = [], loop.time()
    for round in range(8):
        signed = sign(round=round + 1, artifact=artifact, tensors=wide)
        europe.watch._start(europe.watch._ask(AFRICA, [signed]))
        sizes.append(len(signed.body))
    await quiet(europe)
    assert europe.calls == [(AFRICA, 1)] * 8
    assert loop.time() - began_s >= (sum(sizes) - limits.SHOWN_BYTES_MAX) / limits.SHOWN_BYTES_PER_SECOND_MAX
    many = tuple(TensorSpec(f"{n:0250}", "F32", (2,)) for n in range(600))
    await europe.watch._ask(AFRICA, [sign(artifact=artifact, tensors=many)])
    assert len(europe.calls) == 8, "too large for a request"
    assert africa.accused == europe.accused == []


async def test_a_round_s_record_names_who_signed_two_artifacts(
    member: Any, sign: Any, enrolled: LocalFederation
) -> None:
    europe = member(EUROPE)
    body = {"generation": 1, "sources": [], "contributors": ["asia", "europe"], "missing": {}, "below_quorum": False}
    body |= {"skipped": [], "artifact_sha256": None, "aggregate_sha256": "ef" * 32, "metrics": {}, "threads": 1}
    europe.journal.append("committed", 5, {**body, "duration_s": 1.0, "state": "s"})
    europe.receive(sign(ONE))
    europe.receive(sign(OTHER))
    with contextlib.suppress(asyncio.CancelledError):
        await europe.watch.close()
    (committed,) = History(enrolled.folder("europe"), rounds=True).read_all().rounds
    assert committed.document()["equivocated"] == ["asia"]
