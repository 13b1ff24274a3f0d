"""A member that sends the same useless bytes in every round, and before it is asked for them in earnest.

The honest sites refuse the bytes in one round while they receive them for the next one. That costs the
member its rounds, and nobody else anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from adversary import attacks
from adversary.member import Artifact, safetensors

from peer.lab.demo.local_federation import LocalFederation
from tests.e2e.hostile import ALIKE, HONEST, MALLORY, Mallory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 10
PACE = "wait_max_s = 60\ndeadline_floor_s = 60\nbeat_s = 0.5\nsilence_s = 10\ngather_s = 60"
TENSORS = 3000
"""So many take the honest sites long enough to look through that much happens meanwhile."""


def useless() -> Artifact:
    """A file of many numbers that no network has; file and manifest agree."""
    names = [f"t{number:05}" for number in range(TENSORS)]
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(names)
    }
    content = safetensors(json.dumps(header).encode(), bytes(4 * TENSORS))
    spec = json.dumps({"name": "resnet10", "classes": 2, "in_channels": 1, "spatial_dims": 2})
    return Artifact(content, spec, [(name, "F32", (1,)) for name in names])


class Repeater(Mallory):
    useless = useless()

    def artifact(self, site: str, asked: Any) -> Artifact:
        return self.useless

    def manifest(self, site: str, asked: Any) -> bytes:
        return attacks.honest(self.member, self.useless, asked.for_round)


def test_bytes_that_are_refused_in_every_round_cost_their_sender_alone(
    found: Callable[..., LocalFederation], tools: Any
) -> None:
    loopback = found(sites=(*HONEST, MALLORY), rounds=ROUNDS, steps=1, pace=PACE, linger_s=2, **ALIKE)
    after = Repeater(loopback).play(tools).after
    after.check(rounds=ROUNDS)
    for name in HONEST:
        assert all(record["missing"] == {MALLORY: "refused"} for record in after.records[name])
        assert all(record["contributors"] == list(HONEST) for record in after.records[name])
        assert {body["origin"] for body in after.refusals(name)} == {MALLORY}
        reasons = [body["reason"] for body in after.refusals(name)]
        assert all("its spec is not this site's resnet10, with which it is averaged" in reason for reason in reasons)
        shown = after.status[name]["refusals"]
        assert {(refusal["site"], refusal["reason"]) for refusal in shown} == {(MALLORY, reason) for reason in reasons}
        assert "work_failed" not in [kind for kind, _, _ in after.rows[name]]
        received = [body for kind, _, body in after.rows[name] if kind == "received"]
        forged = {body["sha256"] for body in received if body["peer"] == MALLORY}
        kept = {path.stem for path in (after.folders[name].generation(1) / "artifacts").iterdir()}
        assert forged
        assert not forged & kept
    means = {tuple(record["aggregate_sha256"] for record in after.records[name]) for name in HONEST}
    assert len(means) == 1, "who refuses the same has the same mean"
