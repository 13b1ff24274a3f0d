"""Whole daemons of a federation whose members change."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemons import LIMIT_S, Running, until
from peer.core import commands, events
from peer.core.messages import Heartbeat, SignedAmendment, SignedNotice
from peer.core.phases import Phase
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.daemon import startup
from peer.daemon.dispatch import Daemon, now
from peer.daemon.member_relay import make_relay
from peer.daemon.notice_spread import NoticeWait
from peer.errors import DiskError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig
from peer.site.identity.enrolment import Authority
from peer.site.membership.amendment import Amendment, Newcomer
from peer.site.membership.round_keys import amendment_tag, seal_key
from peer.site.membership.signatures import endorse_as_founder, sign_notice


@pytest.fixture
def notice(enrolled: LocalFederation) -> SignedNotice:
    """The notice of europe, which leaves."""
    federation, _, leaver = startup.load(enrolled.folder("europe"))
    return sign_notice(leaver, federation=federation.digest, issued=1)


@pytest.fixture
def founder(founders_ca: Path) -> Authority:
    return Authority.load(founders_ca, now=now())


async def test_a_site_that_leaves_tells_the_others_with_its_last_heartbeats(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.daemon.heartbeat.FAREWELL_S", LIMIT_S)
    asia, europe = await running.start("asia"), await running.start("europe")
    await until(europe, lambda status: status["committed"] >= 1)
    await until(europe, lambda status: status["peers"]["asia"]["called_s"] is not None)
    asia.chain.leave(sign_notice(asia.own, federation=asia.federation.digest, issued=1))
    assert await running.end("asia") == [commands.Exit(reason="this site left the federation")]
    await until(europe, lambda status: europe.chain.epochs().leaving == {"asia"})
    await running.end("europe")
    assert running.kinds("europe").count("committed") == 3
    assert {row["gone"][0] for kind, _, row in running.rows("europe") if kind == "amended"} == {"asia"}


async def test_a_site_that_leaves_stays_until_a_peer_that_was_down_has_its_notice(running: Running) -> None:
    asia = await running.start("asia")
    await until(asia, lambda status: status["phase"] == Phase.GATHERING)  # its worker owes nothing
    asia.notice_wait = NoticeWait(asia.service.notices, asia.heartbeats.peers, linger_s=3600.0)
    asia.chain.leave(sign_notice(asia.own, federation=asia.federation.digest, issued=1))
    await until(
        asia,
        lambda status: (
            [(wait["kind"], wait["deadline_s"] is None) for wait in status["waiting_for"]] == [("notice", False)]
        ),
    )
    assert asia.status()["worker_pid"] is None, "it keeps the device no longer"
    europe = await running.start("europe", stay=True)  # alone, its rounds could be over before asia's next call
    assert await running.end("asia") == [commands.Exit(reason="this site left the federation")]
    await until(europe, lambda status: europe.chain.epochs().leaving == {"asia"})


async def test_a_member_hands_the_notice_of_another_one_on(daemon: Daemon, notice: SignedNotice) -> None:
    africa = SiteName("africa")
    daemon.service.hear(africa, Heartbeat(1, 1, "train", notice=notice))
    assert daemon.chain.epochs().leaving == {"europe"}
    assert daemon.service.pulse(africa).notice is None
    assert daemon.service.pulse(SiteName("oslo")).notice == notice


async def test_a_notice_that_cannot_be_written_ends_the_daemon_by_name(running: Running, notice: SignedNotice) -> None:
    asia = await running.start("asia")
    await until(asia, lambda status: status["phase"] == Phase.GATHERING)
    asia.folder.membership.touch()  # no folder can be made there
    await asia.service.beat(SiteName("europe"), Heartbeat(1, 1, "train", notice=notice))
    with pytest.raises(DiskError, match="membership is not a folder"):
        await running.end("asia")
    del running.tasks["asia"]
    assert asia.chain.notices == {}


async def test_a_peer_has_a_notice_once_its_own_last_word_shows_it(daemon: Daemon, notice: SignedNotice) -> None:
    """The notice of europe, which leaves, as asia and europe tell it to each other."""
    europe, service, plain = SiteName("europe"), daemon.service, Heartbeat(1, 1, "train")
    told = dataclasses.replace(plain, notice=notice)
    service.hear(europe, told, sent=service.pulse(europe))  # in an answer: europe has not heard that asia has it
    call = service.pulse(europe)
    assert call.notice == notice
    service.hear(europe, plain, sent=call)  # europe was restored meanwhile, or does not take its notice yet
    assert service.notices.lacks(europe) == ["europe"]
    service.hear(europe, told, sent=service.pulse(europe))
    assert service.pulse(europe).notice is None
    assert (await service.beat(europe, told)).notice == notice  # the answer before was lost
    service.accept_greeting(europe, service.greeting(europe))
    assert service.notices.lacks(europe) == ["europe"]


async def test_a_notice_that_a_peer_has_otherwise_than_this_site_counts_as_the_same(
    daemon: Daemon, enrolled: LocalFederation
) -> None:
    _, _, leaver = startup.load(enrolled.folder("europe"))
    first, second = (sign_notice(leaver, federation=daemon.federation.digest, issued=issued) for issued in (1, 2))
    africa, pulse = SiteName("africa"), Heartbeat(1, 1, "train")
    daemon.chain.take_notices([first])
    answer = await daemon.service.beat(africa, dataclasses.replace(pulse, notice=second))
    assert answer.notice == first
    assert daemon.service.notices.lacks(africa) == []


async def test_a_notice_that_this_site_does_not_take_is_not_confirmed(daemon: Daemon) -> None:
    forged = SignedNotice(b"{}", b"signature", b"certificate")
    answer = await daemon.service.beat(SiteName("africa"), Heartbeat(1, 1, "train", notice=forged))
    assert answer.notice is None


def enact(daemon: Daemon, authority: Authority, *, from_round: int = 2, **changes: Any) -> None:
    """The founder's next amendment, with a new round key where it expels a site."""
    head, own = daemon.chain.chain.head, daemon.own
    round_key = RoundKey(b"\x2a" * 32) if "expel" in changes else authority.round_key
    tag = amendment_tag(round_key, head.federation)
    sealed = seal_key(round_key, own.key.public_key(), federation=head.federation, site=own.name)
    place: Any = {"federation": head.federation, "number": head.number + 1, "previous": head.digest, "issued": 1}
    body = Amendment(**place, from_round=from_round, round_key_tag=tag, **changes).encode()
    daemon.chain.enact(SignedAmendment(body, (endorse_as_founder(authority.key, body),)), sealed=sealed)


async def test_the_worker_gets_the_stages_of_the_epoch_of_its_order(daemon: Daemon, founder: Authority) -> None:
    stages = {"train": {"count": 7, "unit": "step"}}
    enact(daemon, founder, settings={"stages": stages})
    daemon.machine.rules = daemon.machine.rules.amended(daemon.chain.epochs())
    counts = []
    for round in (1, 2):
        order = commands.Evaluate(1, round, 1, "state", ())
        counts.append(daemon._setting_of(order).federation["stages"])
    assert counts[0] == daemon.federation.model_dump(mode="json")["stages"]
    assert counts[1]["train"]["count"] == 7


async def test_the_sites_of_a_member_s_relay_follow_the_amendments(daemon: Daemon, founder: Authority) -> None:
    connect = daemon.site.connect.model_copy(update={"relay_listen": "127.0.0.1:0"})
    site = daemon.site.model_copy(update={"connect": connect})
    relay = make_relay(site, pki=daemon._pki, chain=daemon.chain, server=daemon.server, refused=frozenset())
    assert relay is not None
    before = set(daemon.machine.rules.others)
    assert set(relay.sites) == before != set()
    added = Newcomer(SiteName("oslo"), Sha256("ab" * 32), None)
    enact(daemon, founder, add=(added,))
    assert set(relay.sites) == {*before, "oslo"} == set(relay.traffic())


async def test_the_connections_of_who_is_expelled_or_has_a_new_key_are_cut(daemon: Daemon, founder: Authority) -> None:
    cut: list[set[SiteName]] = []
    daemon.server.follow_roster = lambda dismissed=(): cut.append(set(dismissed))  # type: ignore[method-assign]
    europe = SiteName("europe")
    enact(daemon, founder, rekey={europe: Sha256("ab" * 32)})
    daemon._follow_roster()
    assert cut == [{europe}, set()]


async def newcomer(running: Running) -> Daemon:
    """Asia's daemon, which waits for its amendment: its federation.toml has africa in its place."""
    folder = running.loopback.folder("asia")
    _, site, own = startup.load(folder)
    text = folder.federation_toml.read_text().replace('name = "asia"', 'name = "africa"')
    folder.federation_toml.write_text(text)
    federation = FederationConfig.load(folder.federation_toml)
    own = dataclasses.replace(own, round_key=None)
    folder.logs.mkdir(exist_ok=True)
    generation = folder.create_generation()
    daemon = Daemon(folder=folder, federation=federation, site=site, own=own, generation=generation)
    ready = asyncio.Event()

    async def serving(port: int) -> None:
        ready.set()

    running.daemons["asia"] = daemon
    running.tasks["asia"] = asyncio.create_task(daemon.run(serving))
    await asyncio.wait_for(ready.wait(), LIMIT_S)
    assert daemon.status()["phase"] == Phase.NEW
    return daemon


async def test_a_site_that_no_amendment_added_yet_waits_and_can_be_stopped(running: Running) -> None:
    daemon = await newcomer(running)
    assert "the amendment that adds this site has not arrived" in daemon.status()["held"]
    daemon.report(events.StopRequested())
    assert await running.end("asia") == [commands.Exit()]


async def test_a_site_that_waits_for_its_amendment_ends_where_it_cannot_keep_one(running: Running) -> None:
    daemon = await newcomer(running)
    daemon._fail(DiskError("the disk is full"))
    with pytest.raises(DiskError, match="the disk is full"):
        await running.end("asia")
    del running.tasks["asia"]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_site_that_was_expelled_while_it_was_down_learns_so_after_its_start(
    running: Running, founder: Authority, leaves: bool
) -> None:
    """Its own chain has an amendment, and no peer has told it of a later one before it refuses the site."""
    asia, europe = await running.start("asia"), await running.start("europe", stay=True)
    for daemon in (asia, europe):
        enact(daemon, founder, from_round=3, add=(Newcomer(SiteName("oslo"), Sha256("ab" * 32), None),))
    if leaves:
        asia.chain.leave(sign_notice(asia.own, federation=asia.federation.digest, issued=1))
    else:
        asia.report(events.StopRequested())
    await running.end("asia")
    europe.chain._opened_round = lambda: 2
    enact(europe, founder, from_round=3, expel=SiteName("asia"))
    asia = await running.start("asia")
    await running.end("asia")
    assert asia.chain.expelled == {"asia": 2}
