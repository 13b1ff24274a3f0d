"""Questions for amendments: beside calls, without an error that ends a daemon, and before a start acts."""

import asyncio
from pathlib import Path

import pytest

from peer.core import events
from peer.core.messages import AmendmentsReply
from peer.core.roster import SiteName
from peer.daemon.amendment_fetcher import AmendmentFetcher
from peer.daemon.chain_keeper import ChainKeeper
from peer.errors import DiskError, PeerError
from peer.net.transport.client import NotAdmitted, Unreachable
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from tests.fakes.chains import GENESIS_KEY, AmendedFederation, identity

FEDERATION = AmendedFederation("africa", "asia", "europe")
HELD = FEDERATION.extend(FEDERATION.chain(), hold=True)
ASIA, EUROPE = SiteName("asia"), SiteName("europe")


class FetchingSite:
    """Africa's fetcher, over a client that answers once the test lets it."""

    def __init__(self, folder: Path, name: str = "africa") -> None:
        self.folder = MembershipFolder(folder / "membership")
        self.events: list[events.Event] = []
        self.faults: list[PeerError] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.chain = ChainKeeper(
            self.folder,
            FEDERATION.toml,
            own=lambda: identity(name),
            round_key=GENESIS_KEY,
            opened_round=lambda: 0,
            report=self.report,
            clock=lambda: 0.0,
        )
        self.fetcher = AmendmentFetcher(
            self.chain,
            client=self,  # type: ignore[arg-type]
            report=self.report,
            fail=self.faults.append,
        )

    def report(self, event: events.Event) -> None:
        if not self.fetcher.holds(event):
            self.events.append(event)

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return AmendmentsReply(tuple(link.signed for link in HELD.links[after:]))

    async def settle(self) -> None:
        """Wait for the questions under way, and for what follows from them."""
        await asyncio.gather(*self.fetcher._tasks)
        await asyncio.sleep(0)


@pytest.fixture
def site(tmp_path: Path) -> FetchingSite:
    return FetchingSite(tmp_path)


async def test_a_start_hears_its_peers_after_the_amendments_that_they_stated(site: FetchingSite) -> None:
    site.fetcher.note_head(EUROPE, HELD.head.head)
    site.report(events.PeerHeard(EUROPE))
    site.report(events.PeerRefused(ASIA, "of another federation"))
    await asyncio.sleep(0)
    assert [type(event) for event in site.events] == [events.PeerRefused]
    site.answers.set()
    await site.settle()
    assert [type(event) for event in site.events[1:]] == [events.EpochsLearned, events.PeerHeard]
    assert site.chain.head == HELD.head.head


async def test_later_a_peer_is_heard_beside_a_question(site: FetchingSite) -> None:
    site.answers.set()
    site.fetcher.note_head(EUROPE, HELD.head.head)
    await site.settle()
    site.answers.clear()
    longer: Chain = FEDERATION.extend(HELD, hold=False)
    site.fetcher.note_head(EUROPE, longer.head.head)
    site.report(events.PeerHeard(ASIA))
    assert site.events[-1] == events.PeerHeard(ASIA)
    await site.fetcher.close()


async def test_the_head_that_a_site_has_is_not_looked_into(site: FetchingSite) -> None:
    site.fetcher.note_head(EUROPE, None)
    assert not site.fetcher._tasks


@pytest.mark.parametrize(
    ("error", "fatal"), [(Unreachable(EUROPE, "no answer"), False), (DiskError("the disk is full"), True)]
)
async def test_only_a_fault_of_this_site_ends_it_and_the_log_says_so(
    site: FetchingSite, caplog: pytest.LogCaptureFixture, error: Exception, fatal: bool
) -> None:
    site.error = error
    site.answers.set()
    await site.fetcher.follow(EUROPE, HELD.head.head)
    assert bool(site.faults) == fatal
    assert ("amendments cannot be kept" in caplog.messages) == fatal
    assert site.chain.head is None


async def test_what_was_held_is_heard_when_the_peer_does_not_answer(site: FetchingSite) -> None:
    site.error = Unreachable(EUROPE, "no answer")
    site.fetcher.note_head(EUROPE, HELD.head.head)
    site.report(events.PeerHeard(EUROPE))
    site.answers.set()
    await site.settle()
    assert site.events == [events.PeerHeard(EUROPE)]


async def test_a_newcomer_logs_once_for_each_peer_that_it_is_not_admitted_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    oslo = FetchingSite(tmp_path, "oslo")
    oslo.answers.set()
    for _ in range(3):
        for peer in (ASIA, EUROPE):
            oslo.error = NotAdmitted(peer, "'oslo' is not in the roster")
            await oslo.fetcher.follow(peer, None)
    assert caplog.messages == ["peer does not admit this site yet"] * 2
    assert [record.__dict__["peer"] for record in caplog.records] == [ASIA, EUROPE]


async def test_a_question_that_ends_before_it_begins_is_not_asked(site: FetchingSite) -> None:
    """Pytest counts a coroutine that nobody awaited as an error."""
    site.fetcher.ask_why(EUROPE)
    await site.fetcher.close()
    assert site.events == site.faults == []
