"""A daemon of an enrolled site that does not run, its service to peers alone, and its chain alone."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.kept_sites import KeptSite, MakeSite
from fakes.peer_service import SiteUnderTest
from fakes.running_daemons import Running
from peer.core import events
from peer.daemon import startup
from peer.daemon.dispatch import Daemon
from peer.lab.demo.local_federation import LocalFederation


class RecordingDaemon(Daemon):
    """A daemon that does not run, and records its events."""

    reported: list[events.Event]

    def report(self, event: events.Event) -> None:
        self.reported.append(event)


@pytest.fixture
async def daemon(enrolled: LocalFederation) -> AsyncIterator[RecordingDaemon]:
    folder = enrolled.folder("asia")
    federation, site, own = startup.load(folder)
    folder.create_generation()
    daemon = RecordingDaemon(folder=folder, federation=federation, site=site, own=own, generation=1)
    daemon.reported = []
    yield daemon
    await daemon.client.close()
    daemon.journal.close()
    daemon.ledger.close()


@pytest.fixture
async def running(enrolled: LocalFederation, fake_worker: Callable[..., tuple[str, ...]]) -> AsyncIterator[Running]:
    running = Running(enrolled, fake_worker)
    yield running
    await running.stop()


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


@pytest.fixture
def site(open_site: Callable[..., SiteUnderTest]) -> SiteUnderTest:
    """Europe's service, with the policy that a site has unless it says another."""
    return open_site()


@pytest.fixture
def keep(tmp_path: Path) -> MakeSite:
    """Makes sites whose chain a keeper keeps: ``keep("europe", opened=10)``."""
    return lambda name, **options: KeptSite(tmp_path, name, **options)
