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
from adversary.member import MODEL, Artifact, Member, Server, safetensors

from peer.audit.verification import verify
from peer.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HONEST = ("asia", "europe")
MALLORY = "mallory"
ROUNDS = 20
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


def test_bytes_that_are_refused_in_every_round_cost_their_sender_alone(
    found: Callable[..., LocalFederation], tools: Any
) -> None:
    loopback = found(
        sites=(*HONEST, MALLORY),
        rounds=ROUNDS,
        method="fedavg",
        steps=1,
        pace="wait_max_s = 60\ndeadline_floor_s = 60\nbeat_s = 0.5\nsilence_s = 10\ngather_s = 60",
        linger_s=2,
        shared='[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2',
        models=dict.fromkeys((*HONEST, MALLORY), 'name = "resnet10"\n[model.parameters]\nwidth = 8\nstem_stride = 2'),
    )
    folder, artifact = loopback.folder(MALLORY), useless()
    member = Member(folder.pki, folder.federation_toml, MALLORY, kind=MODEL, method="fedavg")

    def pulse(request: bytes) -> bytes:
        """As far as the site that asks."""
        beat = pb.Pulse.FromString(request)
        rounds = {"round": beat.round, "published_round": beat.round, "committed_round": max(0, beat.round - 1)}
        return member.pulse(**rounds).SerializeToString()

    def manifest(request: bytes) -> bytes:
        return attacks.honest(member, artifact, pb.ManifestRequest.FromString(request).for_round)

    server = Server(
        member,
        {
            "Hello": lambda site, request, context: member.greeting().SerializeToString(),
            "Beat": lambda site, request, context: pulse(request),
            "GetManifest": lambda site, request, context: manifest(request),
            "FetchArtifact": lambda site, request, context: attacks.whole(
                artifact, pb.FetchRequest.FromString(request).offset
            ),
        },
    )
    with loopback:
        try:
            for name in HONEST:
                loopback.start(name, "--stay")
            tools.until_done(loopback, HONEST, limit_s=300)
            for name in HONEST:
                records = tools.records(loopback, name)
                assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
                assert all(record["missing"] == {MALLORY: "refused"} for record in records)
                refused = [body for kind, _, body in tools.rows(loopback, name) if kind == "refused"]
                assert {body["origin"] for body in refused} == {MALLORY}
        finally:
            server.stop()
            member.close()
    assert all(verify(loopback.folder(name))["problems"] == [] for name in HONEST)
