"""A member that keeps no rule, beside the real daemons of two honest sites, and what these hold afterwards.

The member (``tests/adversary``) was written from ``proto/`` and has a real certificate.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from adversary.attacks import whole
from adversary.member import MODEL, Artifact, Member, Server

from peer.audit.verification import verify
from peer.lab.demo.local_federation import LocalFederation
from peer.pb import peer_pb2 as pb

HONEST = ("asia", "europe")
MALLORY = "mallory"
RESNET = 'name = "resnet10"\nparameters = {width = 8, stem_stride = 2}'
ALIKE = {
    "method": "fedavg",
    "shared": '[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2',
    "models": dict.fromkeys((*HONEST, MALLORY), RESNET),
}
"""Every site has the same network."""


@dataclass
class Aftermath:
    """What each honest site shows and holds after the last round."""

    status: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[tuple[str, int, Any]]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    folders: dict[str, Any] = field(default_factory=dict)

    def refusals(self, site: str, round: int | None = None) -> list[dict[str, Any]]:
        """What a site has refused, in a round or in all."""
        return [body for kind, at, body in self.rows[site] if kind == "refused" and round in (at, None)]

    def check(self, rounds: int) -> None:
        """Every round is over, nobody but the member is named, and the ledgers hold."""
        for site in HONEST:
            assert [record["round"] for record in self.records[site]] == list(range(1, rounds + 1))
            assert all(set(record["missing"]) <= {MALLORY} for record in self.records[site])
            assert {body["origin"] for body in self.refusals(site)} <= {MALLORY}
            assert self.status[site]["failure"] in ("", None)
            assert verify(self.folders[site])["problems"] == []


class Mallory(abc.ABC):
    """Greets the honest sites, keeps pace with them, and serves the manifests and files of a subclass."""

    def __init__(self, loopback: LocalFederation) -> None:
        self.loopback, folder = loopback, loopback.folder(MALLORY)
        method = loopback.federation.method.name
        self.member = Member(folder.pki, folder.federation_toml, MALLORY, kind=MODEL, method=method)
        self.over, self.lock, self.after = threading.Event(), threading.Lock(), Aftermath()
        self.server = Server(self.member, self.answers())

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """By the call, what answers it."""
        return {
            "Hello": lambda site, request, context: self.member.greeting().SerializeToString(),
            "Beat": lambda site, request, context: self.pulse(pb.Pulse.FromString(request)),
            "GetManifest": lambda site, request, context: self.manifest(site, pb.ManifestRequest.FromString(request)),
            "FetchArtifact": lambda site, request, context: self.chunks(
                site, pb.FetchRequest.FromString(request), context
            ),
        }

    def pulse(self, beat: Any, **more: Any) -> bytes:
        """As far as the site that asks, and no further."""
        rounds = {"round": beat.round, "published_round": beat.round, "committed_round": max(0, beat.round - 1)}
        return self.member.pulse(**rounds, **more).SerializeToString()

    @abc.abstractmethod
    def artifact(self, site: str, asked: Any) -> Artifact:
        """What it serves to a site that asks."""

    @abc.abstractmethod
    def manifest(self, site: str, asked: Any) -> bytes:
        """What it says of that."""

    def chunks(self, site: str, asked: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        return whole(self.artifact(site, asked), asked.offset)

    def take(self, site: str, round: int) -> Artifact:
        """The model of a site, as soon as that gives it."""
        while True:
            try:  # an attack's greeting may have been the last one: a site serves only who greets in order
                self.member.call(site, "Hello", self.member.greeting().SerializeToString())
                return Artifact.of(*self.member.take(site, round))
            except (grpc.RpcError, ValueError):
                if self.over.wait(0.1):
                    raise

    def attack(self) -> None:  # noqa: B027 - not every member calls
        """Call the honest sites while they train, until ``over``."""

    def play(self, tools: Any) -> Self:
        """Let the honest sites do all their rounds."""
        after, caller = self.after, threading.Thread(target=self.attack, daemon=True)
        with self.loopback as loopback:
            tools.start(loopback, HONEST, "--stay")
            caller.start()
            try:
                tools.until_done(loopback, HONEST, limit_s=400)
                self.finish()
                for name in HONEST:
                    after.status[name], after.folders[name] = loopback.show(name, "status"), loopback.folder(name)
                    after.rows[name], after.records[name] = tools.rows(loopback, name), tools.records(loopback, name)
            finally:
                self.over.set()
                caller.join(30)  # first: a closed channel ends a call that is under way as CANCELLED
                self.server.stop()
                self.member.close()
        return self

    def finish(self) -> None:  # noqa: B027 - not every member tries more
        """Wait until all has been tried: quick rounds may be over sooner."""
