"""A member that keeps no rule, against real daemons: the rounds go on, and what went wrong has its name.

The member (``tests/adversary``) was written from ``proto/`` and has a real certificate. Each round
it serves its artifact in another wrong way, and meanwhile calls in every wrong way.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from adversary import attacks
from adversary.member import MODEL, Artifact, Member, Server

from peer.audit.verification import verify
from peer.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HONEST = ("asia", "europe")
MALLORY = "mallory"
PACE = "wait_max_s = 6\ndeadline_floor_s = 1\nbeat_s = 0.5\nsilence_s = 10\ngather_s = 60"
NAMES = list(attacks.LIES)
"""A daemon's peak; deploy/guarantees.md has the measured figures."""


@dataclass
class Aftermath:
    """What the honest sites hold, and how each wrong call was answered."""

    rows: dict[str, list[tuple[str, int, Any]]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    folders: dict[str, Any] = field(default_factory=dict)


class Mallory:
    """Serves one lie a round, and attacks both sites meanwhile."""

    def __init__(self, loopback: LocalFederation) -> None:
        folder = loopback.folder(MALLORY)
        self.member = Member(folder.pki, folder.federation_toml, MALLORY, kind=MODEL, method="fedavg")
        self._artifact: Artifact | None = None
        self._lock, self._over, self.tried_all = threading.Lock(), threading.Event(), threading.Event()
        self.chains = attacks.amendments(self.member, HONEST[0])
        self.shown = itertools.cycle(self.chains)
        self._caller: threading.Thread | None = None
        self.server = Server(
            self.member,
            {
                "Hello": lambda site, request, context: self.member.greeting().SerializeToString(),
                "Beat": lambda site, request, context: self._pulse(request),
                "GetManifest": self._manifest,
                "FetchArtifact": self._chunks,
                "GetAmendments": self._amendments,
            },
        )

    def _pulse(self, request: bytes) -> bytes:
        """As far as the site that asks, and no further; with the head of a chain that nobody has."""
        beat = pb.Pulse.FromString(request)
        head = pb.Head(number=random.choice((1, 2, 10_000)), digest=random.randbytes(32))
        rounds = {"round": beat.round, "published_round": beat.round, "committed_round": max(0, beat.round - 1)}
        return self.member.pulse(**rounds, head=head).SerializeToString()

    def _amendments(self, site: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self.chains[next(self.shown)]

    def artifact(self) -> Artifact:
        """The first model of europe, under another name."""
        with self._lock:
            while self._artifact is None:
                try:  # an attack's greeting may have been the last one: europe serves only who greets in order
                    self.member.call("europe", "Hello", self.member.greeting().SerializeToString())
                    self._artifact = Artifact.of(*self.member.take("europe", 1))
                except (grpc.RpcError, ValueError):
                    if self._over.wait(0.1):
                        raise
            return self._artifact

    def _manifest(self, site: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        round = pb.ManifestRequest.FromString(request).for_round
        return attacks.LIES[NAMES[round - 1]].manifest(self.member, self.artifact(), round)

    def _chunks(self, site: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        asked = pb.FetchRequest.FromString(request)
        chunks = attacks.LIES[NAMES[asked.for_round - 1]].chunks or attacks.whole
        for chunk in chunks(self.artifact(), asked.offset):
            if not context.is_active() or self._over.is_set():
                return
            yield chunk

    def begin(self, after: Aftermath) -> None:
        """Attack in a thread of its own, until :meth:`close`."""
        self._caller = threading.Thread(target=self._attack, args=(after,), daemon=True)
        self._caller.start()

    def _attack(self, after: Aftermath) -> None:
        """Call both sites in every wrong way, again and again, until the end.

        ``tried_all`` is set once each of these calls has been answered: quick rounds may be over sooner.
        """
        while not self._over.is_set():
            for victim in HONEST:
                for call in attacks.calls(self.member, victim, 1):
                    if self._over.wait(0.03):
                        return
                    after.allowed[call.name] = call.answers
                    answers = after.answers.setdefault((victim, call.name), set())
                    answers.add(attacks.run(self.member, victim, call))
            self.tried_all.set()

    def close(self) -> None:
        self._over.set()
        if self._caller is not None:
            self._caller.join(30)  # first: a closed channel ends a call that is under way as CANCELLED
        self.server.stop()
        self.member.close()


@pytest.fixture(scope="module")
def after(found: Callable[..., LocalFederation], tools: Any) -> Aftermath:
    loopback = found(
        sites=(*HONEST, MALLORY),
        rounds=len(NAMES),
        method="fedavg",
        steps=1,
        pace=PACE,
        linger_s=2,
        shared='[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2',
        models=dict.fromkeys((*HONEST, MALLORY), 'name = "resnet10"\n[model.parameters]\nwidth = 8\nstem_stride = 2'),
    )
    after = Aftermath()
    mallory = Mallory(loopback)
    with loopback:
        try:
            for name in HONEST:
                loopback.start(name, "--stay")
            mallory.begin(after)
            tools.until_done(loopback, HONEST, limit_s=400)
            assert mallory.tried_all.wait(300)
            for name in HONEST:
                after.status[name] = loopback.show(name, "status")
                after.rows[name], after.records[name] = tools.rows(loopback, name), tools.records(loopback, name)
            after.asked = mallory.server.asked["GetAmendments"]
        finally:
            mallory.close()
    after.folders = {name: loopback.folder(name) for name in HONEST}
    return after


@pytest.mark.parametrize("name", NAMES)
def test_each_lie_costs_its_round_and_has_its_author(after: Aftermath, name: str) -> None:
    lie, round = attacks.LIES[name], NAMES.index(name) + 1
    for site in HONEST:
        record = after.records[site][round - 1]
        assert record["round"] == round
        refused = [body for kind, at, body in after.rows[site] if kind == "refused" and at == round]
        artifacts = [body["reason"] for body in refused if body["origin"] == MALLORY]
        if lie.missing:
            assert record["missing"].get(MALLORY) == lie.missing, artifacts
            assert MALLORY not in record["contributors"]
        else:
            assert MALLORY in record["contributors"]
        assert any(lie.reason in reason for reason in artifacts) or not lie.reason, artifacts
        assert {body["origin"] for body in refused} <= {MALLORY}


def test_no_wrong_call_is_answered_or_shows_the_inside(after: Aftermath) -> None:
    wrong = {
        f"{site}: {name}": answers - after.allowed[name]
        for (site, name), answers in after.answers.items()
        if answers - after.allowed[name] - {"UNAVAILABLE"}  # busy: over the rate
    }
    assert not wrong
    assert set(after.answers) == {(site, name) for site in HONEST for name in after.allowed}


def test_the_honest_sites_end_and_keep_their_ledgers(after: Aftermath) -> None:
    for site in HONEST:
        assert [record["round"] for record in after.records[site]] == list(range(1, len(NAMES) + 1))
        assert all(set(record["missing"]) <= {MALLORY} for record in after.records[site])
        assert after.status[site]["failure"] in ("", None)
        assert verify(after.folders[site])["problems"] == []


def test_no_amendment_that_a_member_made_up_counts_and_each_question_has_its_refusal(after: Aftermath) -> None:
    reasons = set()
    for site in HONEST:
        assert not [kind for kind, _, _ in after.rows[site] if kind == "amended"]
        assert not (after.folders[site].membership / "chain.json").exists()
        assert not (after.folders[site].membership / "notices.json").exists()
        refused = [body["reason"] for kind, _, body in after.rows[site] if kind == "refused"]
        reasons |= {reason for reason in refused if reason.startswith("its amendments: ")}
    assert after.asked > 1
    assert reasons
