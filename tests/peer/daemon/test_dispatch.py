"""Whole daemons in one process: real journals, real TLS on loopback, workers without torch."""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fakes.databases import write_as_0_3_0
from fakes.drafts import DERANGEMENT, draft, site_text
from fakes.running_daemons import LIMIT_S, Running, until
from peer.core import commands, events, limits
from peer.core.artifacts import EvaluationResult
from peer.core.messages import Hello, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.status_document import PeerStatus, SiteStatus
from peer.daemon.dispatch import Daemon, now
from peer.errors import DiskError, PortInUse
from peer.files import STRAYS_MAX
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport import tls, wire
from peer.net.transport.client import SERVICE, ExchangeClient, Offer, Refused
from peer.net.transport.transfer import UNSYNCED_SUFFIX
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates
from peer.site.records import folder_documents
from peer.site.records.kept_configuration import find_change

SITES = ("asia", "europe")


@contextlib.asynccontextmanager
async def client_of(running: Running, name: str, **addresses: str) -> AsyncIterator[ExchangeClient]:
    """A client with a site's certificate, without its daemon."""
    folder, federation = running.loopback.folder(name), running.loopback.federation
    pki = tls.Pki(folder.pki, SiteName(name), federation.ca_certificate or "", now)
    where = {**federation.addresses, **addresses}
    client = ExchangeClient(pki=pki, federation=federation.digest, address=where.get)
    try:
        yield client
    finally:
        await client.close()


async def gathering(running: Running) -> Daemon:
    """Start asia, which then waits for europe."""
    asia = await running.start("asia")
    await until(asia, lambda status: status["phase"] == "gathering")
    return asia


# --- a federation from beginning to end ------------------------------------------------------------------------------
async def test_two_sites_do_their_rounds_and_account_for_every_transfer(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asia = await running.start("asia")
    status = await until(asia, lambda status: status["phase"] == "gathering")
    assert [wait["site"] for wait in status["waiting_for"]] == ["europe"]
    await running.start("europe")
    assert await running.end() == [commands.Exit(), commands.Exit()]
    for name, other in (SITES, SITES[::-1]):
        rows = running.rows(name)
        done = [(round, body["sources"]) for kind, round, body in rows if kind == "committed"]
        assert [(round, [source["site"] for source in sources]) for round, sources in done] == [
            (round, [other]) for round in (1, 2, 3)
        ]
        sent = [(record["peer"], record["round"], record["outcome"]) for record in running.sent(name)]
        assert sent == [(other, round, "complete") for round in (1, 2, 3)]
        assert running.kinds(name)[-2:] == ["left", "spoken"]
        spoken = rows[-1][2]
        assert spoken.keys() == {other}
        assert spoken[other]["messages"] >= 1 + 1 + 3, "a greeting, a heartbeat, and a manifest for each round"
        assert spoken[other]["bytes"] > 10 * spoken[other]["messages"]
        for at, (kind, round, body) in enumerate(rows):
            if kind == "manifest":
                before = [row for row in rows[:at] if row[0] == "published" and row[1] == round]
                assert [row[2]["artifact"]["sha256"] for row in before] == [body["artifact"]]
    log_text = "\n".join(str(vars(record)) for record in caplog.records)
    bodies = [body["body"] for kind, _, body in running.rows("asia") if kind in ("manifest", "received")]
    secret = certificates.read_round_key(running.loopback.folder("asia").pki / certificates.ROUND_KEY_FILE)
    assert len(bodies) == 6
    for text in (secret.hex(), str(secret), repr(secret), "PRIVATE KEY", *bodies):
        assert text not in log_text


async def test_the_status_of_a_running_site_has_the_keys_of_a_stopped_one(running: Running) -> None:
    asia = await running.start("asia", stay=True)
    await running.start("europe", stay=True)
    status = await until(
        asia, lambda status: status["phase"] == "done" and status["peers"]["europe"]["phase"] == "done"
    )
    down = folder_documents.status_when_down(asia.folder)
    assert status.keys() == down.keys() == SiteStatus.__annotations__.keys()
    assert status["peers"]["europe"].keys() == down["peers"]["europe"].keys() == PeerStatus.__annotations__.keys()
    assert status["certificate_days"] == down["certificate_days"]
    assert (status["daemon"], status["committed"], down["phase"]) == ("running", 3, "finished")
    assert abs(status["peers"]["europe"]["clock_skew_s"]) < 5


async def test_a_site_that_starts_again_goes_on_where_it_was(running: Running) -> None:
    asia = await gathering(running)
    asia.report(events.StopRequested())
    asia.report(events.StopRequested())
    assert await running.end("asia") == [commands.Exit()]
    await running.start("asia")
    await running.start("europe")
    await running.end()
    kinds = running.kinds("asia")
    assert kinds.count("began") == 2
    assert kinds.count("initialised") == 1
    assert kinds.count("committed") == 3


async def test_a_folder_of_release_0_3_0_goes_on_in_the_midst_of_the_rounds(running: Running) -> None:
    asia = await gathering(running)
    asia.report(events.StopRequested())
    await running.end("asia")
    path = asia.home / "journal.db"
    before = running.rows("asia")
    assert {"initialised", "published"} <= {kind for kind, _, _ in before}
    write_as_0_3_0(path)
    assert running.rows("asia") == before
    assert find_change(asia.folder, asia.federation, asia.site) is None, "a look changes nothing"
    await running.start("asia")
    await running.start("europe")
    await running.end()
    assert running.rows("asia")[: len(before)] == before
    assert running.kinds("asia").count("initialised") == 1
    assert running.kinds("asia").count("committed") == 3


# --- workers that fail -----------------------------------------------------------------------------------------------
async def test_a_worker_that_dies_is_replaced_and_the_round_done_again(running: Running) -> None:
    await running.start("asia", "dies once")
    await running.start("europe")
    assert await running.end() == [commands.Exit(), commands.Exit()]
    failed = [body for kind, _, body in running.rows("asia") if kind == "work_failed"]
    assert [(body["fault"], body["count"]) for body in failed] == [("crash", 1)]
    assert "signal 9" in failed[0]["reason"]
    assert running.kinds("asia").count("committed") == 3


async def test_what_would_only_fail_again_stops_the_training_until_the_operator_resumes(running: Running) -> None:
    asia = await running.start("asia", "always fails")
    await running.start("europe")
    status = await until(asia, lambda status: status["phase"] == "failed")
    assert status["failure"] == "memory: out of\n memory"
    asia.report(events.ResumeRequested())
    await until(asia, lambda status: status["phase"] == "train")
    await until(asia, lambda status: status["phase"] == "failed")


async def test_data_that_cannot_be_used_end_a_first_start_with_the_reason(running: Running) -> None:
    await running.start("asia", "bad data")
    assert await running.end() == [commands.Exit("data", "no data here")]


async def test_stop_does_not_wait_for_the_first_model(running: Running) -> None:
    asia = await running.start("asia", "mute")
    assert asia.status()["phase"] == "initialising"
    asia.report(events.StopRequested())
    assert await running.end() == [commands.Exit()]
    assert "initialised" not in running.kinds("asia")


# --- the end ---------------------------------------------------------------------------------------------------------
async def test_a_transfer_that_is_open_at_the_end_is_on_record_as_broken(running: Running) -> None:
    """A receiver that stops reading: flow control holds the transfer open until the site leaves."""
    asia = await running.start("asia", numbers=4 << 20)
    await until(asia, lambda status: status["phase"] == "gathering")
    async with client_of(running, "europe") as client:
        offer = await client.get_manifest(SiteName("asia"), wire.ArtifactRequest("model", 1, "train", SiteName("asia")))
        artifact = offer.manifest.artifact
        own = certificates.Identity.load(
            running.loopback.folder("europe").pki,
            name=SiteName("europe"),
            ca_certificate=running.loopback.federation.ca_certificate,
            now=now(),
        )
        address = running.loopback.federation.addresses[SiteName("asia")]
        options = tls.channel_options(SiteName("asia"))
        async with grpc.aio.secure_channel(address, tls.channel_credentials(own), options=options) as channel:
            fetch = channel.unary_stream(
                SERVICE + "FetchArtifact", pb.FetchRequest.SerializeToString, pb.Chunk.FromString
            )
            call = fetch(wire.encode_fetch_request(offer.request, sha256=artifact.sha256, offset=0))
            first = await call.read()
            assert len(first.data) > 0
            assert [transfer["peer"] for transfer in asia.status()["transfers"]] == ["europe"]
            asia.report(events.StopRequested())
            assert await running.end("asia") == [commands.Exit()]
    (record,) = running.sent("asia")
    assert record["outcome"] == "broken"
    assert len(first.data) <= record["sent_bytes"] < artifact.bytes


async def test_the_last_beat_says_that_the_site_is_gone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.daemon.heartbeat.FAREWELL_S", LIMIT_S)
    asia = await running.start("asia")
    europe = await running.start("europe", stay=True)
    await running.end("asia")
    status = await until(europe, lambda status: status["peers"]["asia"]["phase"] == "gone")
    assert status["peers"]["asia"]["round"] == 3
    assert asia.service.account("europe").spoken.messages > 0


async def test_a_port_in_use_ends_the_start_and_frees_everything(running: Running) -> None:
    listen = running.loopback.federation.addresses[SiteName("asia")]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(listen.rpartition(":")[2])))
        taken.listen()
        asia = await running.start("asia")
        with pytest.raises(PortInUse, match=listen):
            await running.end()
    assert asia.worker_process.pid is None
    assert running.kinds("asia") == []
    running.tasks.clear()
    again = await running.start("asia")
    await until(again, lambda status: status["phase"] == "gathering")


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "a file"])
async def test_a_disk_that_takes_no_artifact_ends_the_daemon_by_name(running: Running, there: bool) -> None:
    asia = await gathering(running)
    shutil.rmtree(asia.artifacts)
    if there:
        asia.artifacts.touch()
    await running.start("europe")
    with pytest.raises(DiskError, match=r"artifacts.* cannot be (written|used)"):
        await running.end("asia")
    del running.tasks["asia"]


async def test_an_artifact_that_vanishes_before_the_daemon_has_it_is_made_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asia, losses = running.make("asia"), [True]
    lacks = asia.store.lacks

    def lose_one(digests: Collection[Sha256]) -> list[Sha256]:
        return [losses.pop() and next(iter(digests))] if losses and digests else lacks(digests)

    monkeypatch.setattr(asia.store, "lacks", lose_one)
    await running.run("asia", asia)
    await running.start("europe")
    assert await running.end() == [commands.Exit(), commands.Exit()]
    failed = [body for kind, _, body in running.rows("asia") if kind == "work_failed"]
    assert [body["fault"] for body in failed] == ["disk"]
    assert failed[0]["reason"].endswith("is gone")
    assert running.kinds("asia").count("committed") == 3


async def test_a_manifest_that_a_full_disk_took_back_is_not_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the site trains the round again: peers would have two artifacts that it signed."""
    asia = running.make("asia")
    together = asia.journal.together

    @contextlib.contextmanager
    def full_at_the_end() -> Iterator[None]:
        inside = asia.journal._writing
        with together():
            yield
            if asia.machine.memory.published and not inside:
                raise DiskError("the disk is full")

    monkeypatch.setattr(asia.journal, "together", full_at_the_end)  # before its worker can have made an artifact
    await running.run("asia", asia)
    await running.start("europe")
    with pytest.raises(DiskError, match="the disk is full"):
        await running.end("asia")
    del running.tasks["asia"]
    assert {"published", "manifest"}.isdisjoint(running.kinds("asia"))
    [((round, _), artifact)] = asia.machine.memory.published.items()
    request = wire.ArtifactRequest(artifact.kind, round, "train", artifact.owner)
    assert await asia.service.manifest(SiteName("europe"), request, wait_s=0.0) == Unavailable.NOT_YET


async def test_artifacts_without_room_cost_their_rounds_and_no_daemon(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = shutil.disk_usage(running.loopback.home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: sizes._replace(free=limits.DISK_RESERVE_BYTES + 100))
    await running.start("asia")
    await running.start("europe")
    assert await running.end() == [commands.Exit(), commands.Exit()]
    for name, other in (SITES, SITES[::-1]):
        rows = running.rows(name)
        done = [(round, body["sources"]) for kind, round, body in rows if kind == "committed"]
        assert done == [(1, []), (2, []), (3, [])]
        missing = [body["missing"] for kind, _, body in rows if kind == "chosen"]
        assert missing == [{other: "unused"}] * 3
        assert {"received", "refused"}.isdisjoint(running.kinds(name))


async def test_an_artifact_that_a_loss_of_power_tore_goes_at_the_start(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts, digest = running.make("asia").artifacts, "ab" * 32
    torn = artifacts / f"{digest}.safetensors"
    torn.write_bytes(b"half of")
    torn.with_suffix(UNSYNCED_SUFFIX).touch()
    await running.start("asia")
    assert not list(artifacts.glob(f"{digest}.*"))
    (record,) = [record for record in caplog.records if "loss of power" in record.message]
    assert record.__dict__["artifacts"] == [digest]


async def test_a_superseded_artifact_goes_at_the_start_a_stray_is_put_aside_and_parts_stay(running: Running) -> None:
    daemon = running.make("asia")
    artifacts = daemon.artifacts
    superseded, stray = (artifacts / f"{digest * 32}.safetensors" for digest in ("ab", "ef"))
    part = artifacts / f"{'cd' * 32}.part"
    for path in (superseded, stray, part):
        path.touch()
    daemon.journal.append("discarded", 0, {"sha256": superseded.stem})
    former = daemon.home / "stray"
    former.mkdir()
    for number in range(STRAYS_MAX + 1):
        (former / str(number)).touch()
        os.utime(former / str(number), (number, number))
    await running.start("asia")
    assert [path.exists() for path in (superseded, stray, part)] == [False, False, True]
    assert {path.name for path in former.iterdir()} == {stray.name, *map(str, range(1, STRAYS_MAX + 1))}


# --- peers -----------------------------------------------------------------------------------------------------------
async def test_two_federation_files_that_differ_are_named_at_both_sites(running: Running) -> None:
    file = running.loopback.folder("europe").federation_toml
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 4"))
    asia, europe = await running.start("asia"), await running.start("europe")
    digests = [asia.federation.digest, europe.federation.digest]
    for daemon, other in ((asia, "europe"), (europe, "asia")):
        status = await until(daemon, lambda status: status["refusals"])
        assert {refusal["site"] for refusal in status["refusals"]} == {other}
        assert "federation digest differs" in status["refusals"][0]["reason"]
        assert all(digest in status["refusals"][0]["reason"] for digest in digests)
        assert status["peers"][other]["state"] == "unknown"
        assert status["phase"] in ("initialising", "gathering")
    await until(asia, lambda status: status["phase"] == "gathering")


async def test_a_question_over_the_wire_is_no_presence(running: Running) -> None:
    """`check` at a site that does not run: the other sites still wait for it."""
    asia = await gathering(running)
    mine = asia.service.greeting(SiteName("europe"))
    question = Hello(mine.protocol, mine.federation, mine.roster, 0, 0.0, round_key_tag=mine.round_key_tag)
    async with client_of(running, "europe") as client:
        answer = await client.hello(SiteName("asia"), question)
        status = asia.status()
        assert answer.generation == 1
        assert status["peers"]["europe"]["state"] == "unknown"
        assert [wait["site"] for wait in status["waiting_for"]] == ["europe"]
        await client.hello(SiteName("asia"), mine)
    await until(asia, lambda status: status["peers"]["europe"]["state"] == "heard")


async def test_a_peer_that_never_answers_does_not_keep_a_daemon_from_its_end(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(client: ExchangeClient, *words: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ExchangeClient, "beat", hang)
    asia = await gathering(running)
    asia.report(events.StopRequested())
    await running.end()


# --- remote evaluation -----------------------------------------------------------------------------------------------
GLOBAL = draft(
    "global",
    global_test=True,
    evaluation_every=2,
    schedule=DERANGEMENT,
    pace={"beat_s": 0.2, "silence_s": 15, "linger_s": 30},
)


@pytest.fixture
async def evaluating(
    tmp_path: Path, fake_worker: Callable[..., tuple[str, ...]]
) -> AsyncIterator[Callable[..., Running]]:
    """Two sites that measure each other's models or do not, not started yet."""
    started: list[Running] = []

    def make(**permits: bool) -> Running:
        texts = {name: site_text(egress={"evaluate": permits.get(name, True)}) for name in SITES}
        started.append(Running(LocalFederation.create(tmp_path / "global", GLOBAL, texts), fake_worker))
        return started[-1]

    yield make
    for running in started:
        await running.stop()


def evaluation(running: Running, name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = folder_documents.document(running.loopback.folder(name), "evaluation", {})
    return records


def lent(running: Running, name: str) -> list[tuple[str, str, int, str]]:
    sent = running.sent(name)
    return [(row["kind"], row["peer"], row["round"], row["outcome"]) for row in sent if row["purpose"] == "evaluate"]


async def test_two_sites_measure_each_other_s_models_and_account_for_it(evaluating: Callable[..., Running]) -> None:
    running = evaluating()
    for name in SITES:
        await running.start(name)
    assert await running.end() == [commands.Exit(), commands.Exit()]
    for name, other in (SITES, SITES[::-1]):
        records = evaluation(running, name)
        assert [record["round"] for record in records] == [2, 3]
        for record in records:
            assert record["cells"][name] == {"metrics": {"auc": 0.75}, "counts": {"samples": 30}}
            assert record["cells"][other]["counts"] == {"samples": 20}
            assert record["global_test"] is not None
        assert {("model", other, 3, "complete"), ("metrics", other, 3, "complete")} <= set(lent(running, name))
        memory = running.daemons[name].machine.memory
        left = {path.stem for path in running.daemons[name].artifacts.glob("*.safetensors")}
        assert left <= memory.needed_digests()
        assert not left & {guest.sha256 for guest in memory.evaluation.borrowed.values()}, (
            "a borrowed model is left on disk"
        )
        kinds = running.kinds(name)
        assert "work_failed" not in kinds
        assert kinds.count("report") == kinds.count("measured") == kinds.count("settled") == 2


async def test_a_site_whose_policy_forbids_it_neither_lends_nor_measures(evaluating: Callable[..., Running]) -> None:
    running = evaluating(asia=False)
    for name in SITES:
        await running.start(name)
    await running.end()
    assert lent(running, "asia") == lent(running, "europe") == []
    own = "not permitted by asia: its [egress] evaluate is false"
    assert [record["cells"]["europe"] for record in evaluation(running, "asia")] == [{"reason": own}] * 2
    theirs = {"reason": "not permitted by asia"}
    assert [record["cells"]["asia"] for record in evaluation(running, "europe")] == [theirs] * 2
    assert [record["global_test"] for record in evaluation(running, "europe")] == [None, None]


async def test_a_guest_that_kills_its_process_leaves_the_rounds_alone(evaluating: Callable[..., Running]) -> None:
    running = evaluating()
    await running.start("asia", "guests kill it")
    await running.start("europe")
    await running.end()
    kinds = running.kinds("asia")
    assert kinds.count("committed") == 3
    assert "work_failed" not in kinds
    tries = Counter(round for kind, round, _ in running.rows("asia") if kind == "mislaid")
    assert tries[3] == 2, "the last guest was tried twice"
    assert max(tries.values()) == 2
    last = evaluation(running, "europe")[-1]
    assert last["cells"]["asia"] == {"reason": "could not run the model"}
    assert last["mean"]["auc"]["sites"] == 1


async def test_only_what_was_lent_is_lent_and_reported_on(evaluating: Callable[..., Running]) -> None:
    """A client with asia's certificate, without its daemon, asks europe for more than it may have."""
    running = evaluating()
    europe = await running.start("europe", stay=True)
    await running.start("asia")
    await until(europe, lambda status: status["phase"] == "done" and not europe.machine.evaluation_tasks.fetching)
    async with client_of(running, "asia") as client:
        for request, reason in (
            (wire.ArtifactRequest("model", 1, "evaluate", SiteName("europe")), "no model is lent after round 1"),
            (wire.ArtifactRequest("model", 3, "evaluate", SiteName("asia")), "no model is lent after round 3"),
            (wire.ArtifactRequest("head", 3, "evaluate", SiteName("europe")), "sends no head"),
        ):
            with pytest.raises(Refused, match=reason):
                await client.get_manifest(SiteName("europe"), request, wait_s=0.0)
        request = wire.ArtifactRequest("model", 3, "evaluate", SiteName("europe"))
        offer = await client.get_manifest(SiteName("europe"), request, wait_s=0.0)
        assert isinstance(offer, Offer)
        assert offer.manifest.evaluation
        forged = EvaluationResult(1, 3, Sha256("ab" * 32), 20, {"auc": 1.0})
        with pytest.raises(Refused, match="another one"):
            await client.put_report(SiteName("europe"), forged)
        unasked = EvaluationResult(1, 1, offer.manifest.artifact.sha256, 20, {"auc": 1.0})
        with pytest.raises(Refused, match="no model of round 1 is lent"):
            await client.put_report(SiteName("europe"), unasked)
    denied = [body["call"] for kind, _, body in running.rows("europe") if kind == "denied"]
    assert {"model for round 1", "metrics of round 3", "metrics of round 1"} <= set(denied)
