"""What must hold at every step of every site, whatever fails and whoever lies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from peer.core import commands
from peer.core.messages import Unavailable
from peer.core.site_memory import Row
from peer.pb import peer_pb2 as pb
from peer.transport import wire
from peer.transport.manifest import decode_manifest
from simulation.audit import Audit

if TYPE_CHECKING:
    from simulation.sites import Site


WORKER_DIED = "the worker failed while it used the artifact"


@dataclass
class Records:
    """What a site's daemon was told to be on disk: it must be there after every crash."""

    rows: list[tuple[str, int, str]] = field(default_factory=list)
    head: tuple[int, str] = (0, "")
    committed: list[int] = field(default_factory=list)


@dataclass
class Referee:
    """Sees every event, message, file and row of a run, and remembers the first violation.

    Args:
        sites: the simulated sites, by name.
        now: the virtual time.
        trace: gets a line for each step.
    """

    sites: Mapping[str, Site]
    now: Callable[[], float]
    trace: Callable[[str], None]
    violation: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    guilty: set[str] = field(default_factory=set)
    refused: dict[str, list[str]] = field(default_factory=dict)
    signed: dict[str, set[tuple[str, int, str]]] = field(default_factory=dict)
    first: dict[tuple[Any, ...], str] = field(default_factory=dict)
    records: dict[str, Records] = field(default_factory=dict)
    bytes_left: Counter[tuple[str, str]] = field(default_factory=Counter)

    def fail(self, reason: str) -> None:
        if not self.violation:
            self.violation = f"at {self.now():.3f} s: {reason}"
            self.trace(f"VIOLATION {self.violation}")
        self.stop.set()

    def require(self, holds: object, reason: str) -> None:
        if not holds:
            self.fail(reason)

    # --- a site's own steps ---
    def watch(self, site: Site) -> None:
        """Check what a starting daemon finds on its disk, then each of its events."""
        daemon = site.daemon
        assert daemon is not None
        stored = list(daemon.journal.rows())
        self._compare_records(site, stored)
        audit = Audit(stored)
        if audit.memory != daemon.machine.memory:
            self.fail(f"{site.name}: a file is gone, or is not whole, that a row names")
        handle, append = daemon.machine.handle, daemon.journal.append

        def handle_and_check(event: Any, *, now_s: float) -> list[commands.Command]:
            out = handle(event, now_s=now_s)
            self.trace(f"{site.name} {type(event).__name__} -> {daemon.machine.phase} {daemon.machine.number}")
            try:
                audit.check(daemon.machine, out, now_s)
            except AssertionError as error:
                self.fail(f"{site.name}: {error}")
            return out

        def append_and_remember(kind: str, round: int, body: Mapping[str, Any], cause: Any = None) -> None:
            append(kind, round, body, cause)
            self._remember(site, kind, round, body)

        daemon.machine.handle = handle_and_check  # type: ignore[method-assign]
        daemon.journal.append = append_and_remember  # type: ignore[method-assign]

    def _compare_records(self, site: Site, stored: Sequence[Row]) -> None:
        """Nothing that was on disk may be lost; the ledger must be whole."""
        known, daemon = self.records.setdefault(site.name, Records()), site.daemon
        assert daemon is not None
        rows = [(kind, round, json.dumps(body, sort_keys=True)) for kind, round, body in stored]
        self.require(rows[: len(known.rows)] == known.rows, f"{site.name}: the journal has lost a row")
        count, hash = known.head
        self.require(not count or daemon.ledger.hash_at(count) == hash, f"{site.name}: the ledger has lost a row")
        problems = daemon.ledger.verify()
        self.require(not problems, f"{site.name}: {problems}")
        committed = [round for kind, round, _ in rows if kind == "committed"]
        self.require(committed == sorted(set(committed)), f"{site.name}: a round was committed twice: {committed}")
        known.rows, known.committed = rows, committed

    def _remember(self, site: Site, kind: str, round: int, body: Mapping[str, Any]) -> None:
        known, daemon = self.records[site.name], site.daemon
        if daemon is None or not site.running:
            return
        known.rows.append((kind, round, json.dumps(json.loads(json.dumps(body)), sort_keys=True)))
        known.head = (daemon.ledger.head.count, daemon.ledger.head.hash)
        self.trace(f"{site.name} row {kind} {round}")
        if kind == "committed":
            known.committed.append(round)
        if kind == "refused" and site.liar is None:
            self._accuse(site, body["origin"], body["reason"])

    def _accuse(self, site: Site, origin: str, reason: str) -> None:
        """Only the guilty may be named. A worker that died while it used an artifact accuses nobody."""
        self.refused.setdefault(origin, []).append(reason)
        if not reason.startswith(WORKER_DIED):
            self.require(origin in self.guilty, f"{site.name} accuses {origin}, who is innocent: {reason}")

    # --- the worker ---
    def made(self, site: str, round: int, kind: str, sha256: str) -> None:
        self.trace(f"{site} made {kind} {round}")

    def used(self, site: str, order: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        """A source must be what its origin signed for that round, and of the round that is due."""
        if self.sites[site].liar is not None:
            return
        origin, round, artifact = source["origin"], source["round"], source["artifact"]
        if origin != site:
            name = (origin, round, artifact["owner"])
            known = self.signed.get(artifact["sha256"], set())
            self.require(name in known, f"{site} trains with {name}, but {origin} signed {known}")
        due = order["round"]
        if order["type"] in ("Train", "Aggregate"):
            right = round == due if not source["fallback"] else round < due
            self.require(right, f"{site} trains in round {due} with an artifact of round {round}: {source['fallback']}")

    # --- the network ---
    def message(self, sender: str, receiver: str, path: str, part: str, data: bytes) -> bytes:
        """A message may leave only after its cause is on disk, and bytes of an artifact after their intent."""
        site, call = self.sites[sender], path.rsplit("/")[-1]
        self.trace(f"{sender} > {receiver} {call} {part} {len(data)}")
        if site.liar is not None:
            data = site.liar.change(receiver, call, part, data)
            if call == "GetManifest" and part == "answer":
                with contextlib.suppress(ValueError, DecodeError):
                    self._manifest(sender, data)
            return data
        if part == "request" and (liar := self.sites[receiver].liar) is not None:
            return liar.receive(sender, call, data)
        if site.daemon is None:
            return data
        for name in site.durable_files:
            self.require(not site.disk.unsynced(name), f"{sender} sends {call} before {Path(name).name} is on disk")
        if call == "GetManifest" and part == "answer":
            self._manifest(sender, data)
        if part == "chunk":
            self.bytes_left[(sender, receiver)] += len(pb.Chunk.FromString(data).data)
            intents = [row for row in site.daemon.ledger.transfers() if row["peer"] == receiver]
            allowed = sum(row["bytes"] for row in intents)
            left = self.bytes_left[(sender, receiver)]
            self.require(left <= allowed, f"{sender} has sent {left} bytes to {receiver}, the ledger has {allowed}")
        return data

    def _manifest(self, sender: str, data: bytes) -> None:
        """An honest site signs one artifact for a round, and only what it has published."""
        reply = wire.decode_reply(pb.ManifestReply.FromString(data))
        if isinstance(reply, Unavailable):
            return
        manifest = decode_manifest(reply.body)
        artifact = manifest.artifact
        key = (sender, manifest.generation, manifest.round, artifact.owner, manifest.evaluation)
        first = self.first.setdefault(key, artifact.sha256)
        self.require(
            sender in self.guilty or first == artifact.sha256,
            f"{sender} signed two artifacts for round {manifest.round}",
        )
        self.signed.setdefault(artifact.sha256, set()).add((sender, manifest.round, artifact.owner))

    def called(self, caller: str, callee: str, path: str, status: str) -> None:
        self.trace(f"{caller} < {callee} {path.rsplit('/')[-1]} {status}")
