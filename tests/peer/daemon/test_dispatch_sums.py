"""The daemon's part in secure sums: it hands the commands on, keeps a result until it is judged, and serves members."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from peer.core import commands, events
from peer.core.artifacts import Artifact
from peer.core.ring import Ring
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.sum_messages import SumStatements
from peer.daemon import dispatch, startup
from peer.daemon.dispatch import Daemon
from peer.errors import DiskError
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.server import Refusal, Status
from peer.net.transport.sum_statements import SumRequest

ASIA = SiteName("asia")
RING = Ring.of(members=3, clip=8.0, weighted=False, whole=False)


def secure(enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch, *, is_secure: bool) -> Daemon:
    """Asia's daemon, which does not run, in a federation that sums securely, or not."""
    make_rules = dispatch.make_rules

    def make_secure(*arguments: Any, **options: Any) -> Rules:
        return replace(make_rules(*arguments, **options), secure=is_secure)

    monkeypatch.setattr(dispatch, "make_rules", make_secure)
    folder = enrolled.folder("asia")
    federation, site, own = startup.load(folder)
    folder.create_generation()
    return Daemon(folder=folder, federation=federation, site=site, own=own, generation=1)


async def close(daemon: Daemon) -> None:
    await daemon.sums.close()
    await daemon.client.close()
    daemon.journal.close()
    daemon.ledger.close()


@pytest.mark.parametrize("is_secure", [True, False])
async def test_the_folder_of_secrets_is_there_before_a_worker_starts_where_sites_sum_securely(
    enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch, *, is_secure: bool
) -> None:
    daemon = secure(enrolled, monkeypatch, is_secure=is_secure)
    assert (daemon.home / "sums").is_dir() == is_secure
    assert (daemon.server._sums is not None) == is_secure
    await close(daemon)


async def test_commands_on_sums_are_carried_out_and_no_worker_starts_for_them(
    enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = secure(enrolled, monkeypatch, is_secure=True)
    await daemon._carry_out(commands.DrawSumKey(1, 1, 1))
    drawn = daemon._events.get_nowait()
    assert isinstance(drawn, events.SumKeyDrawn)
    assert daemon.sum_secrets.rounds() == {1}
    await daemon._carry_out(commands.MaskArtifact(1, 1, 1, artifact("0" * 64), {}, RING, 1, None))
    assert isinstance(await daemon._events.get(), events.SumFailed)
    await daemon._carry_out(commands.EndSum())
    await daemon._carry_out(commands.ForgetSums(2))
    assert daemon.sum_secrets.rounds() == frozenset()
    assert daemon.worker_process.pid is None
    await close(daemon)


async def test_nothing_is_shown_of_a_step_that_the_disk_does_not_have(
    enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that left and was forgotten would be followed by another one."""
    daemon = secure(enrolled, monkeypatch, is_secure=True)
    request = SumRequest(1, "train")
    service = daemon._sum_service()
    monkeypatch.setattr(service._service, "note_call", lambda caller: None)
    monkeypatch.setattr(service, "_denial", lambda caller, round: None)
    monkeypatch.setattr(service, "_shown_to", lambda machine, round, caller: (SumStatements(key=bytes(32)), None))
    rules = daemon.machine.rules
    daemon.machine.rules = replace(rules, plan=replace(rules.plan, published="train"))
    assert await service.sum(SiteName("europe"), request, 0.0)

    def fail(*arguments: Any, **options: Any) -> None:
        raise DiskError("the disk is full")

    monkeypatch.setattr(daemon.journal, "append", fail)
    with pytest.raises(DiskError):
        await daemon._process(events.Began())
    with pytest.raises(Refusal) as refused:
        await service.sum(SiteName("europe"), request, 0.0)
    assert refused.value.status == Status.BUSY
    await close(daemon)


async def test_the_secrets_of_an_earlier_generation_go_at_the_start(
    enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = secure(enrolled, monkeypatch, is_secure=True)
    daemon.sum_secrets.draw(1)
    await close(daemon)
    folder = daemon.folder
    assert folder.create_generation() == 2
    later = Daemon(folder=folder, federation=daemon.federation, site=daemon.site, own=daemon.own, generation=2)
    assert not daemon.sum_secrets.folder.exists()
    await close(later)


def artifact(sha256: str) -> Artifact:
    return Artifact("model", ASIA, Sha256(sha256), 3, 1, {})


@pytest.mark.parametrize("needed", [True, False])
async def test_a_result_stays_if_the_state_machine_needs_it_and_goes_if_not(
    enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch, *, needed: bool
) -> None:
    daemon = secure(enrolled, monkeypatch, is_secure=True)
    masked = artifact(hashlib.sha256(b"own").hexdigest())
    path = daemon.store.hold(masked.sha256)
    path.write_bytes(b"own")

    def handle(event: events.Event, *, now_s: float) -> list[Any]:
        assert path.exists()
        daemon.machine.memory.artifact = masked if needed else None
        return []

    monkeypatch.setattr(daemon.machine, "handle", handle)
    await daemon._process(events.ArtifactMasked(1, 1, 1, masked, 0))
    assert path.exists() == needed
    await close(daemon)
