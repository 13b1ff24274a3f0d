"""A member that keeps no rule, against real daemons: the rounds go on, and what went wrong has its name.

Each round it serves its artifact in another wrong way, and meanwhile calls in every wrong way.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest
from adversary import attacks
from adversary.member import Artifact

from peer.lab.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb
from tests.e2e.hostile import ALIKE, HONEST, MALLORY, Mallory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PACE = "wait_max_s = 10\ndeadline_floor_s = 10\nbeat_s = 0.5\nsilence_s = 10\ngather_s = 60"
NAMES = list(attacks.LIES)


class Liar(Mallory):
    """Serves one lie a round, and attacks both sites meanwhile."""

    def __init__(self, loopback: LocalFederation) -> None:
        self._artifact: Artifact | None = None
        self.tried_all = threading.Event()
        self.statuses: dict[tuple[str, str], set[str]] = {}
        self.allowed: dict[str, frozenset[str]] = {}
        super().__init__(loopback)
        self.shown = itertools.cycle(attacks.amendments(self.member, HONEST[0]).values())

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        return {**super().answers(), "GetAmendments": lambda site, request, context: next(self.shown)}

    def pulse(self, beat: Any, **more: Any) -> bytes:
        """With the head of a chain that nobody has."""
        head = pb.Head(number=random.choice((1, 2, 10_000)), digest=random.randbytes(32))
        return super().pulse(beat, head=head)

    def artifact(self, site: str, asked: Any) -> Artifact:
        """The first model of europe, under another name."""
        with self.lock:
            self._artifact = self._artifact or self.take("europe", 1)
            return self._artifact

    def manifest(self, site: str, asked: Any) -> bytes:
        round = asked.for_round
        return attacks.LIES[NAMES[round - 1]].manifest(self.member, self.artifact(site, asked), round)

    def chunks(self, site: str, asked: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        chunks = attacks.LIES[NAMES[asked.for_round - 1]].chunks or attacks.whole
        for chunk in chunks(self.artifact(site, asked), asked.offset):
            if not context.is_active() or self.over.is_set():
                return
            yield chunk

    def attack(self) -> None:
        """Call both sites in every wrong way, again and again, until the end.

        ``tried_all`` is set once each of these calls has been answered; from then on, it calls more slowly.
        """
        while not self.over.is_set():
            for victim in HONEST:
                for call in attacks.calls(self.member, victim, 1):
                    if self.over.wait(0.3 if self.tried_all.is_set() else 0.03):
                        return
                    self.allowed[call.name] = call.answers
                    statuses = self.statuses.setdefault((victim, call.name), set())
                    statuses.add(attacks.run(self.member, victim, call))
            self.tried_all.set()

    def finish(self) -> None:
        assert self.tried_all.wait(300)


@pytest.fixture(scope="module")
def mallory(found: Callable[..., LocalFederation], tools: Any) -> Liar:
    """The member, after the last round."""
    sites = (*HONEST, MALLORY)
    return Liar(found(sites=sites, rounds=len(NAMES), steps=1, pace=PACE, linger_s=2, **ALIKE)).play(tools)


@pytest.mark.parametrize("name", NAMES)
def test_each_lie_costs_its_round_and_has_its_author(mallory: Liar, name: str) -> None:
    lie, round, after = attacks.LIES[name], NAMES.index(name) + 1, mallory.after
    for site in HONEST:
        record = after.records[site][round - 1]
        reasons = [body["reason"] for body in after.refusals(site, round) if body["origin"] == MALLORY]
        if lie.missing:
            assert record["missing"].get(MALLORY) == lie.missing, reasons
            assert MALLORY not in record["contributors"]
        else:
            assert MALLORY in record["contributors"]
        assert any(lie.reason in reason for reason in reasons) or not lie.reason, reasons


def test_no_wrong_call_is_answered_or_shows_the_inside(mallory: Liar) -> None:
    wrong = {
        f"{site}: {name}": statuses - mallory.allowed[name]
        for (site, name), statuses in mallory.statuses.items()
        if statuses - mallory.allowed[name] - {"UNAVAILABLE"}  # busy: over the rate
    }
    assert not wrong
    assert set(mallory.statuses) == {(site, name) for site in HONEST for name in mallory.allowed}


def test_the_honest_sites_end_and_keep_their_ledgers(mallory: Liar) -> None:
    mallory.after.check(rounds=len(NAMES))


def test_no_amendment_that_a_member_made_up_counts_and_each_question_has_its_refusal(mallory: Liar) -> None:
    reasons = set()
    for site in HONEST:
        assert not [kind for kind, _, _ in mallory.after.rows[site] if kind == "amended"]
        membership = mallory.after.folders[site].membership
        assert not (membership / "chain.json").exists()
        assert not (membership / "notices.json").exists()
        refused = [body["reason"] for body in mallory.after.refusals(site)]
        reasons |= {reason for reason in refused if reason.startswith("its amendments: ")}
    assert mallory.server.asked["GetAmendments"] > 1
    assert reasons
