"""How a notice that a site leaves reaches every peer."""

import asyncio

import pytest

from peer.core import events
from peer.core.messages import SignedNotice
from peer.core.roster import SiteName
from peer.daemon import notice_spread
from peer.daemon.notice_spread import NoticeSpread, NoticeWait

AFRICA, ASIA, EUROPE, OSLO = map(SiteName, ("africa", "asia", "europe", "oslo"))
LIMIT_S = 15.0
Notices = dict[SiteName, SignedNotice]


def notice(site: str) -> SignedNotice:
    return SignedNotice(site.encode(), b"signature", b"certificate")


@pytest.fixture
def known() -> Notices:
    return {AFRICA: notice("africa"), OSLO: notice("oslo")}


def test_each_notice_travels_until_the_peer_has_it_and_again_once_it_greets(known: Notices) -> None:
    spread = NoticeSpread(ASIA, lambda: known)
    assert {spread.next(EUROPE), spread.next(EUROPE)} == {*known.values()}
    spread.confirm(EUROPE, OSLO)
    assert [spread.next(EUROPE), spread.next(EUROPE)] == [notice("africa")] * 2
    spread.confirm(EUROPE, AFRICA)
    assert spread.next(EUROPE) is None
    spread.forget(EUROPE)
    assert spread.lacks(EUROPE) == [AFRICA, OSLO]
    del known[OSLO]  # an amendment took it out
    assert spread.lacks(EUROPE) == [AFRICA]


@pytest.mark.parametrize(("own", "receiver"), [(OSLO, EUROPE), (EUROPE, OSLO)])
def test_the_sender_s_and_the_receiver_s_own_notice_travel_first(
    known: Notices, own: SiteName, receiver: SiteName
) -> None:
    spread = NoticeSpread(own, lambda: known)
    assert [spread.next(receiver), spread.next(receiver)] == [notice("oslo")] * 2
    spread.confirm(receiver, OSLO)
    assert spread.next(receiver) == notice("africa")
    assert spread.unreached([ASIA, receiver]) == ({ASIA} if own == OSLO else set())


def test_an_answer_has_the_notice_of_the_call_even_if_the_caller_has_it(known: Notices) -> None:
    spread = NoticeSpread(ASIA, lambda: known)
    for name in known:
        spread.confirm(EUROPE, name)
    assert spread.next(EUROPE, echo=OSLO) == notice("oslo")
    del known[OSLO]
    assert spread.next(EUROPE, echo=OSLO) is None


async def stay(wait: NoticeWait, queue: asyncio.Queue[events.Event]) -> None:
    await asyncio.wait_for(wait.stay(queue, poll_s=LIMIT_S), LIMIT_S)


async def test_who_leaves_stays_until_every_peer_has_its_notice(known: Notices) -> None:
    spread, queue = NoticeSpread(OSLO, lambda: known), asyncio.Queue[events.Event]()
    wait = NoticeWait(spread, lambda: [ASIA, EUROPE], linger_s=3600.0)
    assert [each["deadline_s"] for each in wait.waits()] == [None, None]
    staying = asyncio.create_task(wait.stay(queue, poll_s=LIMIT_S))
    await asyncio.sleep(0)  # the task has begun to wait
    assert [(each["site"], each["kind"]) for each in wait.waits()] == [("asia", "notice"), ("europe", "notice")]
    assert wait.waits()[0]["deadline_s"] == pytest.approx(3600.0, abs=LIMIT_S)
    spread.confirm(ASIA, OSLO)
    assert wait.waits()[0]["deadline_s"] <= 10.0  # the others get it from asia
    spread.confirm(EUROPE, OSLO)
    queue.put_nowait(events.PeerHeard(EUROPE))
    await asyncio.wait_for(staying, LIMIT_S)
    assert wait.waits() == []


async def test_the_last_peers_have_their_time_from_the_first_answer_on(
    known: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(notice_spread, "loop_time", lambda: now_s)
    spread, queue = NoticeSpread(OSLO, lambda: known), asyncio.Queue[events.Event]()
    wait = NoticeWait(spread, lambda: [ASIA, EUROPE], linger_s=3600.0)
    staying = asyncio.create_task(wait.stay(queue, poll_s=LIMIT_S))
    await asyncio.sleep(0)  # the task has begun to wait
    now_s += 60.0  # nobody was within reach
    spread.confirm(ASIA, OSLO)
    assert [(each["site"], each["deadline_s"]) for each in wait.waits()] == [("europe", 10.0)]
    queue.put_nowait(events.PeerHeard(ASIA))
    await asyncio.sleep(0)
    now_s += 9.0
    assert wait.waits()[0]["deadline_s"] == 1.0
    assert not staying.done()
    now_s += 1.0
    queue.put_nowait(events.Ticked())
    await asyncio.wait_for(staying, LIMIT_S)


async def test_the_operator_s_stop_ends_the_stay_and_so_does_its_time(
    known: Notices, caplog: pytest.LogCaptureFixture
) -> None:
    spread, queue = NoticeSpread(OSLO, lambda: known), asyncio.Queue[events.Event]()
    queue.put_nowait(events.StopRequested())
    await stay(NoticeWait(spread, lambda: [ASIA, EUROPE], linger_s=3600.0), queue)
    assert caplog.messages == []
    await stay(NoticeWait(spread, lambda: [ASIA, EUROPE], linger_s=0.01), queue)
    assert caplog.messages == ["left before every peer knew; those that know tell the others"]


async def test_a_site_that_does_not_leave_stays_for_nobody(known: Notices) -> None:
    await stay(NoticeWait(NoticeSpread(EUROPE, lambda: known), lambda: [ASIA], linger_s=3600.0), asyncio.Queue())
