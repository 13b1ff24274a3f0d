"""The tasks of secure sums: what is heard of each member, and that masks, openings and files add up."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import struct
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.local_network import LocalNetwork, authority, network
from peer.core import events
from peer.core.artifacts import Artifact, Source
from peer.core.commands import AddMasked, DrawSumKey, EndSum, ForgetSums, HearSum, MaskArtifact
from peer.core.machine import SiteMachine
from peer.core.messages import Unavailable
from peer.core.ring import Ring
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.core.sum_messages import SumOpening, SumStatements, commitment
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.sums import SumTasks
from peer.errors import CertificateError, DiskError, PeerError
from peer.methods.registry import PLANS
from peer.net.transport.client import Misbehaved, NotAdmitted, Refused, Unreachable
from peer.net.transport.sum_statements import SumRequest, encode_statements, statements_digest
from peer.site.sums.pair_keys import SumSecrets
from peer.site.sums.secret_files import SumSecretFiles

__all__ = ["authority", "network"]

SITES = AFRICA, ASIA, EUROPE, OCEANIA = tuple(map(SiteName, ("africa", "asia", "europe", "oceania")))
EPOCH = Sha256("ee" * 32)
LIMIT_S = 10.0
ANSWER = (1, 3, 7)
HEAR = HearSum(*ANSWER, EPOCH, (ASIA,))
KEYED = SumStatements(key=SumSecrets(b"p" * 32, b"o" * 32).public_key)
SETS = replace(KEYED, shown={ASIA: Sha256("ab" * 32)})
SMALL_ORDER = SumStatements(key=(1).to_bytes(32, "little"))
RING = Ring.of(members=4, clip=8.0, weighted=False, whole=False)

Reply = bytes | SumStatements | Unavailable | Exception


class FakeMember:
    """A member with prepared replies; without one, the call lasts until it is cancelled."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[tuple[SiteName, SumRequest]] = []
        self.idle = asyncio.Event()

    async def get_sum(self, peer: SiteName, request: SumRequest) -> bytes | Unavailable:
        self.asked.append((peer, request))
        if not self.replies:
            self.idle.set()
            await asyncio.Event().wait()
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return encode_statements(reply) if isinstance(reply, SumStatements) else reply


class TaskedSite:
    """A site's tasks, with the events that they report and the errors that end a daemon."""

    plain: Artifact
    masked: Artifact

    def __init__(self, folder: Path, name: SiteName = EUROPE, client: Any = None) -> None:
        self.name, self.client = name, FakeMember() if client is None else client
        home = folder / name
        (home / "artifacts").mkdir(parents=True)
        rules = Rules(
            site=name,
            roster=Roster.of(list(SITES)),
            federation=Sha256("fe" * 32),
            round_key=RoundKey(b"\0" * 32),
            method="fedavg",
            plan=PLANS["fedavg"],
            rounds=5,
            secure=True,
        )
        self.machine = SiteMachine(rules)
        self.events: asyncio.Queue[events.Event] = asyncio.Queue()
        self.faults: list[PeerError] = []
        self.epochs: list[SiteName] = []
        self.needed: set[Sha256] = set()
        self.store = ArtifactStore(home / "artifacts", needed=lambda: self.needed, fail=self.faults.append)
        self.secrets = SumSecretFiles(home / "sums")
        self.tasks = SumTasks(
            machine=self.machine,
            client=self.client,
            store=self.store,
            secrets=self.secrets,
            report=self.events.put_nowait,
            fail=self.faults.append,
            on_epoch=self.epochs.append,
            refused_again_s=0.0,
        )

    async def event(self) -> Any:
        """The next event other than ``PeerHeard``."""
        while True:
            event = await asyncio.wait_for(self.events.get(), LIMIT_S)
            if not isinstance(event, events.PeerHeard):
                return event

    async def hear(self, *replies: Reply, command: HearSum = HEAR) -> list[events.Event]:
        """What is reported of these replies, until the member is asked once more."""
        self.client.replies += replies
        self.tasks.carry_out(command)
        await asyncio.wait_for(self.client.idle.wait(), LIMIT_S)
        reported = [self.events.get_nowait() for _ in range(self.events.qsize())]
        return [event for event in reported if not isinstance(event, events.PeerHeard)]

    def write(self, values: list[float]) -> Artifact:
        """Write a plain artifact of one float32 vector."""
        return self._write(np.array(values, "<f4").tobytes(), len(values))

    def _write(self, data: bytes, size: int) -> Artifact:
        header = json.dumps({"w": {"dtype": "F32", "shape": [size], "data_offsets": [0, len(data)]}}).encode()
        content = struct.pack("<Q", len(header)) + header + data
        digest = Sha256(hashlib.sha256(content).hexdigest())
        self.store.path(digest).write_bytes(content)
        return Artifact("model", self.name, digest, len(content), 20, {"name": "resnet10"}, training_samples=12)

    async def draw(self) -> bytes:
        self.tasks.carry_out(DrawSumKey(*ANSWER))
        drawn = await self.event()
        assert isinstance(drawn, events.SumKeyDrawn)
        return drawn.key

    async def mask(self, plain: Artifact, keys: dict[SiteName, bytes]) -> events.ArtifactMasked:
        self.tasks.carry_out(MaskArtifact(*ANSWER, plain, keys, RING, 12, None))
        masked = await self.event()
        assert isinstance(masked, events.ArtifactMasked), masked
        return masked

    def opening(self, *dropped: SiteName) -> SumOpening:
        """What the service would send."""
        secrets, pairs = self.secrets.load(3), self.secrets.pair_seeds(3)
        assert secrets is not None
        return SumOpening(secrets.own_seed, {name: pairs[name] for name in dropped})

    def files(self) -> set[str]:
        return {path.stem for path in self.store.folder.glob("*.safetensors")}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[TaskedSite]:
    site = TaskedSite(tmp_path)
    yield site
    await site.tasks.close()
    await site.store.close()


# --- secrets ----------------------------------------------------------------------------------------------------------
async def test_a_key_is_on_disk_when_the_state_machine_hears_of_it(site: TaskedSite) -> None:
    site.tasks.carry_out(DrawSumKey(*ANSWER))
    drawn = await site.event()
    secrets = SumSecretFiles(site.secrets.folder).load(3)
    assert secrets is not None
    assert drawn == events.SumKeyDrawn(*ANSWER, secrets.public_key)
    site.tasks.carry_out(ForgetSums(4))
    assert site.secrets.rounds() == frozenset()


async def test_a_disk_that_keeps_no_secrets_ends_the_daemon(site: TaskedSite) -> None:
    site.secrets.folder.write_text("no folder")
    site.tasks.carry_out(DrawSumKey(*ANSWER))
    (fault,) = site.faults
    assert isinstance(fault, DiskError)
    assert site.events.empty()


# --- statements of the others -----------------------------------------------------------------------------------------
async def test_each_change_is_reported_once_and_the_member_is_asked_for_others(site: TaskedSite) -> None:
    reported = await site.hear(SumStatements(), KEYED, KEYED, SETS)
    shown = [SumStatements(), KEYED, SETS]
    assert reported == [events.SumShown(*ANSWER, ASIA, statements) for statements in shown]
    known = [None, SumStatements(), KEYED, KEYED, SETS]
    digests = [None if each is None else statements_digest(encode_statements(each)) for each in known]
    assert site.client.asked == [(ASIA, SumRequest(3, "train", EPOCH, digest)) for digest in digests]


async def test_every_member_is_asked(site: TaskedSite) -> None:
    await site.hear(command=replace(HEAR, members=(AFRICA, ASIA, OCEANIA)))
    assert {peer for peer, _ in site.client.asked} == {AFRICA, ASIA, OCEANIA}


async def test_a_member_without_the_sum_is_asked_no_more(site: TaskedSite) -> None:
    site.client.replies += [KEYED, Unavailable.RETIRED, SETS]
    site.tasks.carry_out(HEAR)
    assert await site.event() == events.SumShown(*ANSWER, ASIA, KEYED)
    assert await site.event() == events.SumShown(*ANSWER, ASIA, SumStatements(), over=True)
    (task,) = site.tasks._hearing
    await asyncio.wait_for(task, LIMIT_S)
    assert len(site.client.asked) == 2


async def test_a_member_of_another_epoch_is_asked_again_after_a_nudge(site: TaskedSite) -> None:
    assert await site.hear(Unavailable.EPOCH, KEYED) == [events.SumShown(*ANSWER, ASIA, KEYED)]
    assert site.epochs == [ASIA]


@pytest.mark.parametrize("failure", [Unreachable(ASIA, "no answer"), CertificateError("cert.pem has expired")])
async def test_a_member_that_cannot_be_reached_is_asked_again(site: TaskedSite, failure: Exception) -> None:
    assert await site.hear(failure, KEYED) == [events.SumShown(*ANSWER, ASIA, KEYED)]


async def test_a_member_that_will_learn_of_this_newcomer_is_asked_again(
    site: TaskedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = NotAdmitted(ASIA, "'europe' is not in the roster")
    assert await site.hear(refusal, KEYED) == [
        events.PeerRefused(ASIA, refusal.reason, declined=True),
        events.SumShown(*ANSWER, ASIA, KEYED),
    ]
    monkeypatch.setattr(site.machine, "is_ahead_of", lambda peer: True)
    site.client.idle.clear()
    assert await site.hear(refusal, KEYED) == [events.SumShown(*ANSWER, ASIA, KEYED)]


@pytest.mark.parametrize(
    ("reply", "reason", "declined"),
    [
        (SMALL_ORDER, "its statements on a sum: ", False),
        (b"\xff\xff", "its statements on a sum: statements are not a message", False),
        (b"\x0a\x01k", "its statements on a sum: statements.key has 1 bytes, not 32", False),
        (Misbehaved(ASIA, "its answer is no message"), "its answer is no message", False),
        (Refused(ASIA, "this site takes part in no secure sums"), "this site takes part in no secure sums", True),
    ],
    ids=["small order", "no message", "short key", "breach", "declined"],
)
async def test_a_breach_or_a_refusal_is_named_once_and_nothing_of_it_is_shown(
    site: TaskedSite, reply: Reply, reason: str, *, declined: bool
) -> None:
    refused, shown = await site.hear(reply, reply, KEYED)
    assert isinstance(refused, events.PeerRefused)
    assert (refused.site, refused.declined) == (ASIA, declined)
    assert refused.reason.startswith(reason)
    assert shown == events.SumShown(*ANSWER, ASIA, KEYED)


async def test_our_own_fault_is_nobody_s_breach(site: TaskedSite, caplog: pytest.LogCaptureFixture) -> None:
    site.client.replies.append(TypeError("a bug"))
    site.tasks.carry_out(HEAR)
    (task,) = site.tasks._hearing
    await asyncio.wait_for(task, LIMIT_S)
    assert site.events.empty()
    assert "statements not heard" in caplog.text


async def test_a_newer_command_asks_from_the_start_and_the_end_asks_nobody(site: TaskedSite) -> None:
    await site.hear(KEYED)
    (former,) = site.tasks._hearing
    site.client.idle.clear()
    newer = replace(HEAR, attempt=8)
    assert await site.hear(KEYED, command=newer) == [events.SumShown(1, 3, 8, ASIA, KEYED)]
    assert former.cancelled()
    (task,) = site.tasks._hearing
    site.tasks.carry_out(EndSum())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert site.tasks._hearing == []


async def test_what_a_real_server_shows_over_tls_is_reported(network: LocalNetwork, tmp_path: Path) -> None:
    replies: list[bytes | Unavailable] = [encode_statements(KEYED), encode_statements(SETS), Unavailable.RETIRED]
    asked: list[tuple[SiteName, Sha256 | None]] = []

    async def answer(caller: SiteName, request: SumRequest, wait_s: float) -> bytes | Unavailable:
        asked.append((caller, request.known))
        return replies[len(asked) - 1]

    await network.serve("asia", sums=answer)
    site = TaskedSite(tmp_path, client=network.dial("europe"))
    site.tasks.carry_out(HEAR)
    shown = [await site.event() for _ in replies]
    assert [(event.statements, event.over) for event in shown] == [
        (KEYED, False),
        (SETS, False),
        (SumStatements(), True),
    ]
    known = [None, *(statements_digest(reply) for reply in replies if isinstance(reply, bytes))]
    assert asked == [(EUROPE, digest) for digest in known]
    await site.tasks.close()


# --- masks and sums ---------------------------------------------------------------------------------------------------
async def close(*sites: TaskedSite) -> None:
    for each in sites:
        await each.tasks.close()
        await each.store.close()


async def test_a_masked_artifact_has_other_bytes_and_the_commitments_to_its_seeds(site: TaskedSite) -> None:
    key, plain = await site.draw(), site.write([1.0, -2.0, 99.0])
    other = SumSecrets.draw()
    masked = await site.mask(plain, {ASIA: other.public_key})
    artifact, secrets = masked.artifact, site.secrets.load(3)
    assert secrets is not None
    assert secrets.public_key == key
    assert masked == events.ArtifactMasked(*ANSWER, artifact, 1)
    seeds = {ASIA: site.secrets.pair_seeds(3)[ASIA], EUROPE: secrets.own_seed}
    assert artifact.commitments == {name: commitment(seed) for name, seed in seeds.items()}
    content = site.store.path(artifact.sha256).read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (artifact.sha256, artifact.bytes)
    assert (artifact.kind, artifact.owner, artifact.steps, artifact.spec) == ("model", EUROPE, 20, plain.spec)
    assert (artifact.training_samples, artifact.leak) == (None, None)


async def test_both_sites_of_a_pair_commit_to_one_seed_in_each_epoch(tmp_path: Path) -> None:
    sites = [TaskedSite(tmp_path, name) for name in (ASIA, EUROPE)]
    keys = {each.name: await each.draw() for each in sites}
    seeds = []
    for epoch in (None, EPOCH):
        for each, other in zip(sites, reversed(sites), strict=True):
            plain = each.write([1.0])
            command = MaskArtifact(*ANSWER, plain, {other.name: keys[other.name]}, RING, 1, epoch)
            each.tasks.carry_out(command)
            masked = await each.event()
            seeds.append(masked.artifact.commitments[other.name])
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    await close(*sites)


async def masked_sites(folder: Path, values: dict[SiteName, list[float]]) -> dict[SiteName, TaskedSite]:
    """Sites that have masked their values with the keys of all; each site has the others' masked artifacts."""
    sites = {name: TaskedSite(folder, name) for name in values}
    keys = {name: await each.draw() for name, each in sites.items()}
    for name, each in sites.items():
        each.plain = each.write(values[name])
        others = {other: key for other, key in keys.items() if other != name}
        each.needed.add(each.plain.sha256)
        each.masked = (await each.mask(each.plain, others)).artifact
    for each in sites.values():
        for other in sites.values():
            sha256 = other.masked.sha256
            each.store.path(sha256).write_bytes(other.store.path(sha256).read_bytes())
            each.needed |= {sha256, each.plain.sha256}
    return sites


def addition(at: TaskedSite, sites: dict[SiteName, TaskedSite], *dropped: SiteName) -> AddMasked:
    """The command at one site once all but the dropped ones have opened."""
    others = [each for name, each in sites.items() if name != at.name and name not in dropped]
    sources = tuple(Source(each.name, 3, each.masked) for each in others)
    openings = {each.name: each.opening(*dropped) for each in others}
    return AddMasked(*ANSWER, sources, at.masked, at.plain, openings, RING)


VALUES = {AFRICA: [1.0, -2.0], ASIA: [0.5, 0.25], EUROPE: [-4.0, 7.0], OCEANIA: [3.0, 3.0]}


@pytest.mark.parametrize("dropped", [(), (AFRICA,), (OCEANIA,)], ids=["all", "without the first", "without the last"])
async def test_each_contributor_learns_the_sum_also_where_a_masking_member_is_dropped(
    tmp_path: Path, dropped: tuple[SiteName, ...]
) -> None:
    sites = await masked_sites(tmp_path, VALUES)
    expected = np.sum([values for name, values in VALUES.items() if name not in dropped], axis=0)
    for name in VALUES.keys() - set(dropped):
        site = sites[name]
        site.tasks.carry_out(addition(site, sites, *dropped))
        added = await site.event()
        assert isinstance(added, events.MaskedAdded), added
        total = added.artifact
        content = site.store.path(total.sha256).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (total.sha256, total.bytes)
        size = struct.unpack("<Q", content[:8])[0]
        first, last = json.loads(content[8 : 8 + size])["w"]["data_offsets"]
        sums = np.frombuffer(content[8 + size :][first:last], "<f8")
        np.testing.assert_allclose(sums, expected, atol=1e-6)
        assert total == replace(site.plain, sha256=total.sha256, bytes=total.bytes, training_samples=None)
    await close(*sites.values())


async def test_the_own_seeds_of_dropped_members_are_those_committed_to(tmp_path: Path) -> None:
    sites = await masked_sites(tmp_path, VALUES)
    site = sites[EUROPE]
    command = addition(site, sites, AFRICA)
    site.secrets.keep_pair_seeds(3, {AFRICA: b"x" * 32})
    site.tasks.carry_out(command)
    assert await site.event() == events.SumFailed(*ANSWER, "the secrets of this site's sum are gone")
    await close(*sites.values())


async def test_an_artifact_stays_until_the_state_machine_has_judged_its_event(site: TaskedSite) -> None:
    await site.draw()
    plain = site.write([1.0])
    masked = (await site.mask(plain, {ASIA: SumSecrets.draw().public_key})).artifact
    site.store.discard(masked.sha256)
    assert masked.sha256 in site.files()
    site.store.release(masked.sha256)  # as the daemon does after it
    assert masked.sha256 not in site.files()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no secrets", "the secrets of this site's sum are gone"),
        ("not finite", "infinite or no number"),
        ("no file", "No such file"),
        ("small order", "."),
    ],
)
async def test_what_cannot_be_masked_is_a_failure_with_its_reason(site: TaskedSite, fault: str, reason: str) -> None:
    if fault != "no secrets":
        await site.draw()
    plain = site.write([float("nan") if fault == "not finite" else 1.0])
    if fault == "no file":
        site.store.path(plain.sha256).unlink()
    key = bytes(32) if fault == "small order" else SumSecrets.draw().public_key
    before = site.files()
    site.tasks.carry_out(MaskArtifact(*ANSWER, plain, {ASIA: key}, RING, 1, None))
    failed = await site.event()
    assert isinstance(failed, events.SumFailed)
    assert (failed.generation, failed.round, failed.attempt) == ANSWER
    assert reason in failed.reason or fault == "small order"
    assert site.files() <= before


async def test_a_fault_of_this_program_is_a_failure_without_its_text(
    site: TaskedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise KeyError("a text for developers")

    monkeypatch.setattr("peer.site.sums.masked_files.mask_file", fail)
    await site.draw()
    site.tasks.carry_out(MaskArtifact(*ANSWER, site.write([1.0]), {}, RING, 1, None))
    assert await site.event() == events.SumFailed(*ANSWER, "it could not be computed here: KeyError")


class SlowMasks:
    """Lets the first mask end when the test sets ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from peer.site.sums import masked_files

        self.began, self.go_on, self.calls = threading.Event(), threading.Event(), 0
        self._mask = masked_files.mask_file
        monkeypatch.setattr(masked_files, "mask_file", self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        self.began.set()
        assert self.go_on.wait(LIMIT_S)
        return self._mask(*arguments, **options)


async def test_a_newer_command_drops_the_result_of_the_one_before_with_its_file(
    site: TaskedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowMasks(monkeypatch)
    await site.draw()
    first, second = site.write([1.0]), site.write([2.0])
    site.needed.add(second.sha256)
    command = MaskArtifact(*ANSWER, first, {ASIA: SumSecrets.draw().public_key}, RING, 1, None)
    site.tasks.carry_out(command)
    await asyncio.to_thread(slow.began.wait, LIMIT_S)
    site.store.discard(first.sha256)
    assert first.sha256 in site.files(), "the thread still reads it"
    site.tasks.carry_out(dataclasses.replace(command, artifact=second, attempt=8))
    slow.go_on.set()
    masked = await site.event()
    assert isinstance(masked, events.ArtifactMasked)
    assert (masked.attempt, slow.calls) == (8, 2)
    assert site.files() == {second.sha256, masked.artifact.sha256}


async def test_the_end_waits_for_the_thread_and_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, slow = TaskedSite(tmp_path), SlowMasks(monkeypatch)
    await site.draw()
    plain = site.write([1.0])
    site.needed.add(plain.sha256)
    site.tasks.carry_out(MaskArtifact(*ANSWER, plain, {ASIA: SumSecrets.draw().public_key}, RING, 1, None))
    await asyncio.to_thread(slow.began.wait, LIMIT_S)
    closing = asyncio.create_task(site.tasks.close())
    await asyncio.sleep(0)
    assert not closing.done()
    slow.go_on.set()
    await asyncio.wait_for(closing, LIMIT_S)
    assert site.events.empty()
    assert site.files() == {plain.sha256}
    await site.store.close()


async def test_the_end_of_hearing_is_not_the_end_of_the_work(site: TaskedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all have opened, there is nothing more to hear, and the sum is still to be computed."""
    slow = SlowMasks(monkeypatch)
    await site.draw()
    site.tasks.carry_out(MaskArtifact(*ANSWER, site.write([1.0]), {}, RING, 1, None))
    site.tasks.carry_out(EndSum())
    slow.go_on.set()
    assert isinstance(await site.event(), events.ArtifactMasked)
