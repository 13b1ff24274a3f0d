"""A host that keeps no rule: its returns are refused with its name, or missing, and the owners' rounds go on.

It hosts the models of two real sites, and each round it gives them back in another wrong way.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from adversary.attacks import REFUSED
from adversary.member import COME_HOME, MODEL, NOT_YET, RETURN, SKIPPED, Artifact, safetensors

from peer.lab.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb
from tests.e2e.hostile import HONEST, MALLORY, RESNET, Mallory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PACE = "wait_max_s = 30\ndeadline_floor_s = 30\nbeat_s = 0.5\nsilence_s = 10\ngather_s = 60"
MODELS = {"asia": RESNET, "europe": 'name = "vgg11"\nparameters = {width = 4}', MALLORY: RESNET}


def numbers(change: Callable[[float], float]) -> Callable[[Artifact, Artifact], Artifact]:
    """The owner's model with every floating number changed."""

    def forge(model: Artifact, other: Artifact) -> Artifact:
        (length,) = struct.unpack_from("<Q", model.content)
        header = json.loads(model.content[8 : 8 + length])
        data = bytearray(model.content[8 + length :])
        for name, tensor in header.items():
            if name != "__metadata__" and tensor["dtype"] == "F32":
                start, end = tensor["data_offsets"]
                values = struct.unpack(f"<{(end - start) // 4}f", data[start:end])
                data[start:end] = struct.pack(f"<{len(values)}f", *map(change, values))
        return Artifact(safetensors(model.content[8 : 8 + length], bytes(data)), model.spec, model.tensors)

    return forge


@dataclass(frozen=True)
class Return:
    """How the host gives a model back in one round.

    Attributes:
        reason: words of the owner's refusal; empty where the return is only missing, or good.
        missing: why the owner goes on without it; empty where it merges it.
        forge: the artifact, from the owner's model and the other site's.
        claims: fields of the manifest in place of the truth, from the owner and the round.
        unavailable: the answer in place of a manifest.
    """

    reason: str = ""
    missing: str = "refused"
    forge: Callable[[Artifact, Artifact], Artifact] = lambda model, other: model
    claims: Callable[[str, int], Mapping[str, Any]] = lambda owner, round: {}
    unavailable: int = 0


RETURNS: Mapping[str, Return] = {
    "the truth": Return(missing=""),
    "another owner": Return("owner", claims=lambda owner, round: {"owner": MALLORY}),
    "the round before": Return("round", claims=lambda owner, round: {"round": round - 1}),
    "a later round": Return("round", claims=lambda owner, round: {"round": round + 1}),
    "another kind": Return("kind", claims=lambda owner, round: {"kind": MODEL}),
    "for evaluation": Return("evaluation", claims=lambda owner, round: {"evaluation": True}),
    "another site's model": Return("it is not of this site's [model]", forge=lambda model, other: other),
    "every number tenfold": Return("", forge=numbers(lambda value: 10 * value)),
    "no number": Return("", forge=numbers(lambda value: float("nan"))),
    "zeros": Return("all its weights are zero", forge=numbers(lambda value: 0.0)),
    "never there": Return(missing="slow", unavailable=NOT_YET),
    "never made": Return(missing="skipped", unavailable=SKIPPED),
    "the truth again": Return(missing=""),
}
NAMES = list(RETURNS)


class Host(Mallory):
    """Serves a model of its own, and one lie a round about each model that visited."""

    def __init__(self, loopback: LocalFederation) -> None:
        self._models: dict[tuple[str, int], Artifact] = {}
        self.statuses: set[str] = set()
        super().__init__(loopback)

    def model(self, site: str, round: int) -> Artifact:
        """The model of a site that visits in a round."""
        with self.lock:
            if (site, round) not in self._models:
                self._models[site, round] = self.take(site, round)
            return self._models[site, round]

    def artifact(self, site: str, asked: Any) -> Artifact:
        other = self.model("asia", 1)
        if asked.kind != RETURN:  # perhaps asked early, before the site has a model of that round
            return other
        foreign = other if site != "asia" else self.model("europe", 1)
        return RETURNS[NAMES[asked.for_round - 1]].forge(self.model(site, asked.for_round), foreign)

    def manifest(self, site: str, asked: Any) -> bytes:
        artifact, round = self.artifact(site, asked), asked.for_round
        claims: dict[str, Any] = {}
        if asked.kind == RETURN:
            lie = RETURNS[NAMES[round - 1]]
            if lie.unavailable:
                time.sleep(0.2)
                return pb.ManifestReply(unavailable=lie.unavailable).SerializeToString()
            claims = {"kind": RETURN, "owner": site, **lie.claims(site, round)}
        round = claims.pop("round", round)
        signed = self.member.manifest(round, Artifact(artifact.content, artifact.spec, artifact.tensors, claims))
        return pb.ManifestReply(manifest=signed).SerializeToString()

    def attack(self) -> None:
        """Ask the honest sites for what is not the host's, again and again until the end."""
        while not self.over.wait(0.3):
            for victim in HONEST:
                (third,) = set(HONEST) - {victim}
                for owner, kind, purpose in (
                    (third, RETURN, COME_HOME), (victim, RETURN, COME_HOME), (MALLORY, MODEL, COME_HOME),
                    (MALLORY, RETURN, 1), (MALLORY, RETURN, 3), (third, MODEL, 1),
                ):  # fmt: skip
                    asked = self.member.asks(1, owner=owner, kind=kind, purpose=purpose)
                    self.statuses.add(self.member.status(victim, "GetManifest", asked.SerializeToString()))


@pytest.fixture(scope="module")
def host(found: Callable[..., LocalFederation], tools: Any) -> Host:
    """The host, after the last round."""
    options = {
        "method": "fedvisit",
        "parameters": "visits = 2",
        "steps": 1,
        "pace": PACE,
        "linger_s": 2,
        "models": MODELS,
    }
    return Host(found(sites=(*HONEST, MALLORY), rounds=len(NAMES), **options)).play(tools)


@pytest.mark.parametrize("name", NAMES)
def test_each_wrong_return_costs_itself_and_has_its_author(host: Host, name: str) -> None:
    lie, round = RETURNS[name], NAMES.index(name) + 1
    for site in HONEST:
        (other,) = set(HONEST) - {site}
        record = host.after.records[site][round - 1]
        reasons = [body["reason"] for body in host.after.refusals(site, round) if body["origin"] == MALLORY]
        assert record["missing_returns"].get(MALLORY, "") == lie.missing, reasons
        assert other in {source["site"] for source in record["returned"]}, record
        assert bool(reasons) == (lie.missing == "refused"), reasons
        assert any(lie.reason in reason for reason in reasons) or not lie.reason, reasons


def test_the_rounds_go_on_and_nobody_else_is_named(host: Host) -> None:
    host.after.check(rounds=len(NAMES))
    assert host.statuses & REFUSED
    assert host.statuses <= REFUSED | {"UNAVAILABLE"}
