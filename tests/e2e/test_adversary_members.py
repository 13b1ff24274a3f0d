"""A newcomer before its first round, and a site that was expelled, make every call in right and wrong ways."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from adversary import attacks
from adversary.member import MODEL, Member

from fakes.amended_daemons import SITE, AmendedDaemons
from fakes.drafts import draft
from peer.core.limits import AMENDMENT_CALLS_BURST, AMENDMENT_CALLS_PER_SECOND_MAX
from peer.core.roster import SiteName
from peer.pb import peer_pb2 as pb
from peer.site.config.site_folder import SiteFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HONEST = ("asia", "europe")
MALLORY = "mallory"
ROUNDS, FIRST_ROUND = 9000, 8000
PACE = {"beat_s": 0.5, "silence_s": 10, "linger_s": 5, "lead_rounds_max": 4}
BUSY, EXPELLED = "UNAVAILABLE", "UNAUTHENTICATED"
LIMIT_S = 120.0
QUESTIONS = 400
OF_THE_GENESIS = ("Hello roster", "Hello round_key_tag")
"""Fields that two sites compare only while neither has an amendment."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[AmendedDaemons]:
    text = draft("trial", rounds=ROUNDS, method="fedavg", shared_model={"name": "resnet10"}, pace=PACE)
    with AmendedDaemons.create(tmp_path, text, dict.fromkeys(HONEST, SITE)) as daemons:
        assert isinstance(daemons, AmendedDaemons)
        for name in HONEST:
            daemons.start(name)
        for name in HONEST:
            daemons.until(name, lambda status: status["committed"] >= 2)
        yield daemons


def admit(federation: AmendedDaemons, tmp: Path) -> Member:
    """The founder adds mallory, whose first round is far away; no daemon of it ever runs."""
    csr, bundle = tmp / "mallory.csr", tmp / "mallory.bundle"
    place = ("--federation", federation.ca / "federation.toml", "--site", MALLORY, "--out", csr)
    fingerprint = federation.call("site", "init", *place, "--newcomer")["fingerprint"]
    add = ("--add", MALLORY, "--request", csr, "--from-round", FIRST_ROUND)
    federation.govern("europe", "amend", "--ca", federation.ca, *add)
    federation.govern("europe", "admit", "--ca", federation.ca, csr, "--out", bundle, "--fingerprint", fingerprint)
    federation.call("site", "join", bundle)
    federation.follow(1, *HONEST)
    folder = SiteFolder(federation.home, "trial", SiteName(MALLORY))
    (folder.pki / "round.key").write_text("ab" * 32)  # it has none, and makes one up
    return Member(folder.pki, folder.federation_toml, MALLORY, kind=MODEL, method="fedavg")


def ask(member: Member, victim: str, method: str, request: bytes) -> str:
    """The status of a call, asked again while the site is busy."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        call = attacks.Call(method, method, request)
        if (status := attacks.run(member, victim, call)) != BUSY or time.monotonic() > end_s:
            return status
        time.sleep(0.5)


def call_patiently(member: Member, victim: str, method: str, request: bytes) -> bytes:
    """The answer to a call, made again while the site is busy, or the connection begins anew."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return member.call(victim, method, request)
        except grpc.RpcError as error:
            if error.code().name != BUSY or time.monotonic() > end_s:
                raise
        time.sleep(0.5)


def amendments(member: Member, victim: str) -> pb.Amendments:
    request = pb.After(number=0).SerializeToString()
    return pb.Amendments.FromString(call_patiently(member, victim, "GetAmendments", request))


def requests(member: Member, victim: str, round: int, epoch: bytes) -> dict[str, bytes]:
    """For each call, a message that breaks no rule."""
    claims = {"owner": victim, "epoch": epoch}
    messages = {
        "Hello": member.greeting(),
        "Beat": member.pulse(),
        "GetManifest": member.asks(round, **claims),
        "FetchArtifact": member.fetches(round, bytes(32), **claims),
        "PutMetrics": pb.Metrics(generation=1, round=round, sha256=bytes(32), samples=30, values={"auc": 0.5}),
        "CompareManifests": pb.SignedManifests(manifests=[attacks.UNSIGNED]),
        "GetAmendments": pb.After(number=0),
        "GetSum": pb.SumRequest(round=round, stage="train", epoch=epoch),
    }
    assert {*messages} == {*attacks.METHODS}
    return {method: message.SerializeToString() for method, message in messages.items()}


def wrong_answers(member: Member, allowed: frozenset[str]) -> dict[tuple[str, str], str]:
    """The answers to every wrong call that are neither its own nor among ``allowed``."""
    wrong = {}
    for victim in HONEST:
        for call in attacks.calls(member, victim, 1):
            status = attacks.run(member, victim, call)
            answers = call.answers | ({"OK"} if call.name.startswith(OF_THE_GENESIS) else set())
            if status not in answers | allowed | {BUSY}:
                wrong[victim, call.name] = status
    return wrong


def test_a_newcomer_and_an_expelled_site_get_nothing_that_is_not_theirs(
    federation: AmendedDaemons, tmp_path: Path
) -> None:
    member = admit(federation, tmp_path)
    head = bytes.fromhex(federation.show("europe", "membership")["head"]["digest"])
    served = {"Hello": "OK", "Beat": "OK", "GetAmendments": "OK"}
    denied = {"PutMetrics": "UNIMPLEMENTED", "CompareManifests": "INVALID_ARGUMENT", "GetSum": "UNIMPLEMENTED"}
    for victim in HONEST:
        round = federation.show(victim, "status")["round"]
        for epoch in (b"", head):
            answers = {
                method: ask(member, victim, method, request)
                for method, request in requests(member, victim, round, epoch).items()
            }
            manifest, fetched = answers.pop("GetManifest"), answers.pop("FetchArtifact")
            assert answers == served | denied
            assert fetched in ("ABORTED", "PERMISSION_DENIED")
            assert manifest in ("OK", "PERMISSION_DENIED")
            if manifest == "OK":
                request = requests(member, victim, round, epoch)["GetManifest"]
                reply = pb.ManifestReply.FromString(call_patiently(member, victim, "GetManifest", request))
                assert reply.WhichOneof("reply") == "unavailable"
        assert len(amendments(member, victim).keys) == 1, "the round key, for a member to be"
    assert wrong_answers(member, frozenset()) == {}

    flood(federation, member)

    federation.govern("europe", "amend", "--ca", federation.ca, "--expel", MALLORY)
    federation.follow(2, *HONEST)
    for victim in HONEST:
        given = amendments(member, victim)
        assert (len(given.amendments), len(given.keys), len(given.notices)) == (2, 0, 0)
        round = federation.show(victim, "status")["round"]
        for method, request in requests(member, victim, round, b"").items():
            if method != "GetAmendments":
                assert ask(member, victim, method, request) == EXPELLED, method
    assert wrong_answers(member, frozenset({EXPELLED})) == {}
    member.close()
    for victim in HONEST:
        assert federation.call("egress", "--site", victim, "--peer", MALLORY) == []
        federation.call("egress", "verify", "--site", victim)


def flood(federation: AmendedDaemons, member: Member) -> None:
    """So many questions for amendments that most are refused; the rounds go on, and later questions have an answer."""
    before = federation.show("europe", "status")
    began_s = time.monotonic()
    request = pb.After(number=0).SerializeToString()
    answers = [member.status("europe", "GetAmendments", request) for _ in range(QUESTIONS)]
    allowed = AMENDMENT_CALLS_BURST + AMENDMENT_CALLS_PER_SECOND_MAX * (time.monotonic() - began_s) + 1
    assert BUSY in answers
    assert {*answers} <= {"OK", BUSY}, "none is OK if the questions before had used what the rule permits"
    assert answers.count("OK") <= allowed < QUESTIONS
    assert ask(member, "europe", "GetAmendments", request) == "OK"
    after = federation.until("europe", lambda status: status["committed"] >= before["committed"] + 3)
    assert after["pid"] == before["pid"]
