"""A daemon of an enrolled site that does not run."""

from collections.abc import AsyncIterator

import pytest

from peer.core import events
from peer.daemon import startup
from peer.daemon.dispatch import Daemon
from peer.demo.local_federation import LocalFederation


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
