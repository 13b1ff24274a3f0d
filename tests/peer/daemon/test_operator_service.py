"""The control socket's answers for a running daemon."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import TRANSFER
from peer.core import events, rows
from peer.core.messages import Heartbeat
from peer.core.roster import SiteName
from peer.daemon import operator_service
from peer.daemon.control_server import ControlServer
from peer.daemon.dispatch import Daemon
from peer.daemon.operator_service import OperatorService
from peer.errors import DaemonDown, MembershipError, StateError
from peer.net.transport.control import ACTIONS, DOCUMENTS, ControlClient
from peer.site.identity.certificates import read_key
from peer.site.membership.amendment import notice_to_base64
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.proposal import make
from peer.site.membership.signatures import endorse_as_founder, sign_notice

HOURS_S = 7200.0


@pytest.fixture
async def ask(daemon: Daemon, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Calls over a real socket: ``await ask("show", "status")``."""
    path = daemon.folder.prepare_control_socket()
    server = ControlServer(OperatorService(daemon))
    await server.start(path)

    def call(method: str, *words: Any, **arguments: Any) -> Any:
        answer = getattr(ControlClient(path), method)(*words, **arguments)
        return next(answer) if method == "follow" else answer

    async def in_a_thread(method: str, *words: Any, **arguments: Any) -> Any:
        return await asyncio.to_thread(call, method, *words, **arguments)

    yield in_a_thread
    await server.stop()


async def test_every_document_is_shown_over_the_socket(daemon: Daemon, ask: Callable[..., Any]) -> None:
    daemon.journal.append("began", 0, {"generation": 1})
    daemon.journal.append("opened", 1, {"sources": []})
    arguments: dict[str, dict[str, int]] = {"plan": {"rounds": 2, "first": 1}, "why": {"round": 1}}
    shown = {topic: await ask("show", topic, **arguments.get(topic, {})) for topic in DOCUMENTS}
    assert shown["status"]["phase"] == "new"
    assert shown["peers"] == shown["status"]["peers"]
    assert shown["rounds"] == shown["evaluation"] == shown["transfers"] == shown["egress"] == []
    assert [row["kind"] for row in shown["events"]] == ["began", "opened"]
    assert [row["text"] for row in shown["why"]["story"]][-1] == "asia began round 1."
    assert [round["round"] for round in shown["plan"]["rounds"]] == [1, 2]
    assert shown["plan"]["federation"] == "trial"


async def test_a_daemon_without_a_round_key_shows_no_plan(
    daemon: Daemon, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "own", replace(daemon.own, round_key=None))
    monkeypatch.setattr(daemon.chain, "_round_key", None)
    with pytest.raises(StateError, match="asia has no round key for round 1"):
        await ask("show", "plan", rounds=2, first=1)


async def test_documents_are_read_from_the_disk_that_the_daemon_writes(daemon: Daemon) -> None:
    intent = daemon.ledger.intend(**TRANSFER, bytes=9)
    service = OperatorService(daemon)
    (open_row,) = await service.show("egress", {})
    daemon.ledger.settle(intent, bytes=4, outcome="broken")
    (broken,) = await service.show("transfers", {})
    assert [(row["bytes"], row["outcome"]) for row in (open_row, broken)] == [(9, "open"), (4, "broken")]
    for kind in ("began", "ignored", "left"):
        daemon.journal.append(kind, 0, {})
    assert [row["kind"] for row in await service.show("events", {"last": 2})] == ["began", "left"]
    assert [row["kind"] for row in await service.show("events", {"last": 2, "everything": True})] == ["ignored", "left"]


async def test_empty_cells_of_an_evaluation_have_the_reason_of_this_moment(daemon: Daemon) -> None:
    stored = {"sha256": "ab" * 32, "bytes": 9, "steps": 0, "spec": {}}
    artifact = {"kind": "model", "owner": "asia", **stored}
    for round in (1, 2):
        body = {"metrics": {"auc": 0.5, "samples": 30.0}, "artifact": artifact}
        daemon.journal.append("evaluated", round, body)
        daemon.machine.memory.apply(rows.decode("evaluated", round, body))
    daemon.journal.append("lapsed", 1, {"reasons": {"europe": "paused"}, "retired": True})
    daemon.machine.memory.apply(rows.LapsedRow(1, reasons={}, retired=True))
    daemon.machine.now_s = 1000.0
    records = await OperatorService(daemon).show("evaluation", {})
    assert [record["cells"]["europe"] for record in records] == [{"reason": "paused"}, {"reason": "silent"}]
    assert [record["cells"]["asia"]["metrics"] for record in records] == [{"auc": 0.5}] * 2


@pytest.mark.parametrize(
    ("action", "event"),
    [("pause", events.PauseRequested), ("resume", events.ResumeRequested), ("stop", events.StopRequested)],
)
async def test_wishes_become_events(daemon: Daemon, ask, action: str, event: type[events.Event]) -> None:
    answer = await ask("act", action)
    assert (answer["site"], answer["action"]) == ("asia", action)
    assert [type(reported) for reported in daemon.reported] == [event]
    assert action in ACTIONS


async def test_what_there_is_not_is_refused(daemon: Daemon, ask: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="no document 'secrets'"):
        await OperatorService(daemon).show("secrets", {})
    with pytest.raises(StateError, match="nothing to show called 'secrets'"):
        await ask("show", "secrets")
    with pytest.raises(StateError, match="no action 'destroy'"):
        await ask("act", "destroy")


@pytest.mark.parametrize(
    ("least_s", "most_s", "changes", "arrives"),
    [
        pytest.param(0.0, HOURS_S, True, True, id="what happens is shown"),
        pytest.param(0.0, HOURS_S, False, False, id="without a change nothing is"),
        pytest.param(0.0, 0.1, False, True, id="but times of waiting move anyway"),
        pytest.param(HOURS_S, 2 * HOURS_S, True, False, id="and changes are not shown one by one"),
    ],
)
async def test_followers_see_what_happens(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, least_s: float, most_s: float, changes: bool, arrives: bool
) -> None:
    monkeypatch.setattr(operator_service, "FOLLOW_MIN_S", least_s)
    monkeypatch.setattr(operator_service, "FOLLOW_MAX_S", most_s)
    documents = OperatorService(daemon).follow("status", {})
    await anext(documents)  # at once
    following = asyncio.ensure_future(anext(documents))
    if changes:
        daemon.changed.set()
    shown, waiting = await asyncio.wait([following], timeout=60 if arrives else 0.2)
    assert (bool(shown), bool(waiting)) == (arrives, not arrives)
    following.cancel()
    await asyncio.wait([following])
    await documents.aclose()


@pytest.mark.parametrize("topic", ["status", "rounds"])
async def test_a_follower_gets_a_last_document_once_the_daemon_has_ended(daemon: Daemon, topic: str) -> None:
    documents = OperatorService(daemon).follow(topic, {})
    await anext(documents)
    daemon.ended = True
    daemon._wake_followers()
    assert len([document async for document in documents]) == (topic == "status"), "there is no new row"


async def test_a_follower_is_hung_up_on_when_the_daemon_ends(daemon: Daemon) -> None:
    path = daemon.folder.prepare_control_socket()
    server = ControlServer(OperatorService(daemon))
    await server.start(path)
    loop, followed = asyncio.get_running_loop(), asyncio.Event()

    def follow() -> int:
        seen = 0
        with contextlib.suppress(DaemonDown):
            for _ in ControlClient(path).follow("rounds"):
                seen += 1
                loop.call_soon_threadsafe(followed.set)
        return seen

    following = asyncio.create_task(asyncio.to_thread(follow))
    await asyncio.wait_for(followed.wait(), 10)
    daemon.changed.set()
    await asyncio.wait_for(server.stop(), 10)
    assert await asyncio.wait_for(following, 10) >= 1


async def test_a_daemon_whose_port_is_closed_does_not_serve(daemon: Daemon, ask: Callable[..., Any]) -> None:
    """The control socket opens before the port, and answers while the worker writes its checkpoint."""
    assert await ask("show", "health") == {"site": "asia", "serves": False, "trains": True}
    port = await daemon.server.start("127.0.0.1:0")
    daemon.served = f"127.0.0.1:{port}"
    assert (await ask("show", "health"))["serves"]
    await daemon.server.stop()


async def test_amendments_go_to_the_chain_that_the_daemon_follows(
    daemon: Daemon, ask: Callable[..., Any], founders_ca: Path
) -> None:
    changes = {"hold": True}
    own, ca_key = daemon.own, read_key(founders_ca / "ca.key")
    genesis = Genesis.parse(daemon.folder.federation_toml.read_text())
    unsigned = make(daemon.chain.chain, genesis, own, {}, changes, from_round=2, reached_round=0, issued=1)
    with pytest.raises(MembershipError, match="amendment 1 is not signed by the founder's CA key"):
        await ask("act", "enact", proposal=unsigned.encode().decode())
    signed = unsigned.with_signature(endorse_as_founder(ca_key, unsigned.signed.body))
    enacted = await ask("act", "enact", proposal=signed.encode().decode())
    assert (enacted["number"], enacted["signed_by"]) == (1, ["the founder"])
    assert daemon.chain.chain.head.digest == enacted["digest"]
    assert [type(reported) for reported in daemon.reported] == [events.EpochsLearned]
    daemon.machine.peers.hear(SiteName("europe"), Heartbeat(1, 1, "train", head=daemon.chain.head), 0.0)
    shown = await ask("show", "membership")
    assert shown["head"] == shown["heads"]["europe"] == {"number": 1, "digest": enacted["digest"]}
    assert (await ask("show", "peers"))["europe"]["epoch"] == 1
    notice = sign_notice(own, federation=daemon.federation.digest, issued=7)
    assert (await ask("act", "leave", notice=notice_to_base64(notice)))["site"] == "asia"
    assert daemon.chain.notices == {daemon.own.name: notice}


async def test_no_action_on_the_chain_runs_beside_an_approval(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    service, loop = OperatorService(daemon), asyncio.get_running_loop()
    begun, over, order = asyncio.Event(), threading.Event(), list[str]()

    def act(action: str, arguments: Any) -> None:
        if action == "approve":
            loop.call_soon_threadsafe(begun.set)
            over.wait(30)
        order.append(action)

    monkeypatch.setattr(service._membership, "act", act)
    approval = asyncio.create_task(service.act("approve", {}))
    await begun.wait()
    other = asyncio.create_task(service.act("enact", {}))
    await asyncio.sleep(0)
    over.set()
    await asyncio.gather(approval, other)
    assert order == ["approve", "enact"]
