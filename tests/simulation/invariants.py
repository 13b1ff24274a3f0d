"""What must hold at every step of every site, whatever fails and whoever lies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography import x509
from google.protobuf.message import DecodeError

from peer.core import commands, events, exchange
from peer.core.messages import Manifest, SignedManifest, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.secure_sum import OTHER_SEED
from peer.core.site_memory import Row
from peer.net.transport import wire
from peer.net.transport.manifest import decode_manifest, verify_manifest
from peer.net.transport.sum_statements import decode_statements, decode_sum_reply
from peer.net.transport.transfer import UNSYNCED_SUFFIX
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates
from peer.site.records.ledger import Ledger
from peer.site.sums.masking import quantise
from simulation.audit import Audit
from simulation.loop import START_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulation.sites import Site


FORK = "has another amendment"
NO_COMMON_VERSION = "no protocol version is common"
GREETED_S = 8.0
"""So long after a greeting both know that they have no version in common."""
PINNED = "the federation pins the key"
AFTER_THE_LAST = "claims a round after the last one"
TWO_KEYS = "gave two keys for one sum"
SECOND_ARTIFACT = ("sent another artifact for round", "signed two artifacts for round")
TASKS_PER_SITE = 40
ROWS_MAX = 250
ROWS_PER_ROUND_MAX = 30
ROWS_PER_VISIT_MAX = 60
ROW_S = 5.0
"""Rows of a journal or a ledger: so many, more for each round that amendments add and for each further visit in all
rounds, and one more in each such time, whatever others do."""
BLATANT_MIN = 3
"""So many lies that cannot be believed reach a receiver that asks again after a crash."""


def speak_alike(one: Site, two: Site) -> bool:
    """Whether two sites' newest two programs all have a version of the protocol in common."""
    pairs = [(a, b) for a in one.programs[-2:] for b in two.programs[-2:]]
    return all(a.speaks_with(b) for a, b in pairs)


@functools.cache
def certificate_key_digest(pem: bytes) -> Sha256:
    """The digest of a certificate's key, as chains pin it."""
    return certificates.key_digest(certificates.certificate_key(x509.load_pem_x509_certificate(pem)))


@dataclass
class Records:
    """What a site's daemon was told to be on disk: it must be there after every crash."""

    rows: list[tuple[str, int, str]] = field(default_factory=list)
    head: tuple[int, str] = (0, "")
    committed: list[int] = field(default_factory=list)
    epoch: str | None = None
    chosen: set[int] = field(default_factory=set)

    def follow(self, kind: str, round: int, body: Mapping[str, Any]) -> None:
        """Remember the epoch of the open round, and of which rounds the sources were chosen."""
        if kind == "opened" or (kind == "amended" and body["reopened"]):
            self.epoch = body.get("epoch")
            self.chosen.discard(round)
        elif kind == "chosen":
            self.chosen.add(round)


@dataclass
class Referee:
    """Sees every event, message, file and row of a run, and remembers the first violation.

    Args:
        sites: the simulated sites, by name.
        now: the virtual time.
        trace: gets a line for each step.
        guilty: the sites that lie.
        authorised: the digests of the amendments that those who govern have signed.
        switched: the sites whose operators chose the other body of a fork.
        rekeyed: the sites that get another key.
    """

    sites: Mapping[str, Site]
    now: Callable[[], float]
    trace: Callable[[str], None]
    violation: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    guilty: set[str] = field(default_factory=set)
    authorised: set[str] = field(default_factory=set)
    switched: set[str] = field(default_factory=set)
    refused: dict[str, list[str]] = field(default_factory=dict)
    signed: dict[str, dict[tuple[str, int, str], int]] = field(default_factory=dict)
    used_first: dict[tuple[Any, ...], str] = field(default_factory=dict)
    first: dict[tuple[Any, ...], str] = field(default_factory=dict)
    records: dict[str, Records] = field(default_factory=dict)
    restored_sites: set[str] = field(default_factory=set)
    received: dict[tuple[Any, ...], str] = field(default_factory=dict)
    verified: dict[SignedManifest, Manifest] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    bytes_left: Counter[tuple[str, str]] = field(default_factory=Counter)
    intended: Counter[tuple[str, str]] = field(default_factory=Counter)
    rekeyed: set[str] = field(default_factory=set)
    mended_s: float = float("inf")
    greeted_s: dict[frozenset[str], float] = field(default_factory=dict)
    answered_s: dict[tuple[str, str], float] = field(default_factory=dict)
    visits: int = 0
    numbers: dict[str, bytes] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    sums: int = 0
    commits: dict[tuple[str, int], dict[SiteName, Sha256]] = field(default_factory=dict)

    def fail(self, reason: str) -> None:
        if not self.violation:
            self.violation = f"at {self.now():.3f} s: {reason}"
            self.trace(f"VIOLATION {self.violation}")
        self.stop.set()

    def may_vanish(self, site: str, sha256: str) -> bool:
        """Whether a fault has deleted this file of a site."""
        return sha256 in self.sites[site].vanished

    def require(self, holds: object, reason: str) -> None:
        if not holds:
            self.fail(reason)

    # --- a site's own steps ---
    def watch(self, site: Site) -> None:
        """Check what a starting daemon finds on its disk, then each of its events."""
        daemon = site.daemon
        stored = list(daemon.journal.rows())
        self._compare_records(site, stored)
        audit = Audit(stored)
        on_disk = {Sha256(path.stem) for path in daemon.artifacts.glob("*.safetensors")}
        may_be_gone = not_used_yet(stored) | site.vanished
        site.vanished |= (audit.memory.needed_digests() & may_be_gone) - on_disk  # later starts miss them, too
        audit.memory.forget_missing_files(on_disk | (audit.memory.needed_digests() - may_be_gone))
        if audit.memory != daemon.machine.memory:
            self.fail(f"{site.name}: a file is gone, or is not whole, that a row names")
        for peer in self.sites:
            self.intended.pop((site.name, peer), None)
        self._intend(site, [body for _, body in daemon.ledger.since(0)])
        handle, append, append_to_ledger = daemon.machine.handle, daemon.journal.append, daemon.ledger._append
        together = daemon.journal.together
        open_blocks: list[None] = []
        appended: list[Row] = []

        def handle_and_check(event: Any, *, now_s: float) -> list[commands.Command]:
            out = handle(event, now_s=now_s)
            self.trace(f"{site.name} {type(event).__name__} -> {daemon.machine.phase} {daemon.machine.number}")
            if isinstance(event, events.ArtifactMasked):
                self.masked(site, event)
            try:
                audit.check(daemon.machine, out, now_s)
            except AssertionError as error:
                self.fail(f"{site.name}: {error}")
            return out

        def append_in_block(kind: str, round: int, body: Mapping[str, Any], cause: Any = None) -> None:
            appended.append((kind, round, body))
            append(kind, round, body, cause)

        @contextlib.contextmanager
        def together_and_remember() -> Iterator[None]:
            open_blocks.append(None)
            try:
                with together():
                    yield
            except BaseException:
                appended.clear()
                raise
            finally:
                open_blocks.pop()
            if not open_blocks:
                for kind, round, body in appended:
                    self._require_durable(site, daemon.journal.path, kind)
                    self._remember(site, kind, round, body)
                appended.clear()

        def append_to_ledger_and_remember(body: Mapping[str, Any]) -> int:
            number = append_to_ledger(body)
            self._intend(site, [body])
            self._require_durable(site, daemon.ledger.path, body["type"])
            self.records[site.name].head = (daemon.ledger.head.count, daemon.ledger.head.hash)
            return number

        daemon.machine.handle = handle_and_check  # type: ignore[method-assign]
        daemon.journal.append = append_in_block  # type: ignore[method-assign]
        daemon.journal.together = together_and_remember  # type: ignore[method-assign]
        daemon.ledger._append = append_to_ledger_and_remember  # type: ignore[method-assign]

    def _intend(self, site: Site, bodies: Iterable[Mapping[str, Any]]) -> None:
        for body in bodies:
            if body["type"] == "intent":
                self.intended[(site.name, body["peer"])] += body["bytes"]

    def restored(self, site: Site) -> None:
        """An operator has put an older folder in the site's place, with the ledger in it."""
        self.records.pop(site.name, None)
        site.keeper = None
        self.restored_sites.add(site.name)
        for known in (self.bytes_left, self.used_first, self.received):
            for key in [key for key in known if key[0] == site.name]:
                del known[key]

    def check_ledger(self, site: Site) -> None:
        """The ledger of a site that has left in order: whole, and without a transfer whose end is unknown."""
        with contextlib.closing(Ledger(site.folder.egress_db, read_only=True)) as ledger:
            self.require(not ledger.verify(), f"{site.name}: {ledger.verify()}")
            transfers = ledger.transfers()
        left_open = [transfer for transfer in transfers if transfer["outcome"] == "open"]
        self.require(not left_open, f"{site.name} has left with open intents: {left_open}")
        for (sender, receiver), left in self.bytes_left.items():
            if sender == site.name:
                mine = [transfer for transfer in transfers if transfer["peer"] == receiver]
                told = sum(row["bytes"] if row["outcome"] == "unknown" else row["sent_bytes"] for row in mine)
                self.require(left <= told, f"{sender} has sent {left} bytes to {receiver}, its ledger says {told}")

    def _require_durable(self, site: Site, database: Path, what: str) -> None:
        durable = not site.disk.unsynced(f"{database}-wal")
        self.require(durable, f"{site.name} goes on before {what} is durable in {database.name}")

    def _compare_records(self, site: Site, stored: Sequence[Row]) -> None:
        """Nothing that was on disk may be lost; the ledger must be whole."""
        known, daemon = self.records.setdefault(site.name, Records()), site.daemon
        rows = [(kind, round, json.dumps(body, sort_keys=True)) for kind, round, body in stored]
        self.require(rows[: len(known.rows)] == known.rows, f"{site.name}: the journal has lost a row")
        count, hash = known.head
        self.require(not count or daemon.ledger.hash_at(count) == hash, f"{site.name}: the ledger has lost a row")
        problems = daemon.ledger.verify()
        self.require(not problems, f"{site.name}: {problems}")
        committed = [round for kind, round, _ in rows if kind == "committed"]
        self.require(committed == sorted(set(committed)), f"{site.name}: a round was committed twice: {committed}")
        known.rows, known.committed = rows, committed
        for kind, round, body in stored:
            known.follow(kind, round, body)

    def _remember(self, site: Site, kind: str, round: int, body: Mapping[str, Any]) -> None:
        known, daemon = self.records[site.name], site.daemon
        if daemon is None or not site.running:
            return
        known.rows.append((kind, round, json.dumps(body, sort_keys=True)))
        self.trace(f"{site.name} row {kind} {round}")
        if kind == "committed":
            known.committed.append(round)
            self._check_model(site, body["state"])
            self._check_disk(site)
        self._check_membership(site, kind, round, body)
        known.follow(kind, round, body)
        if kind == "received":
            manifest = decode_manifest(base64.b64decode(body["body"]))
            facts = (manifest.origin, manifest.generation, manifest.round, manifest.artifact.owner, manifest.evaluation)
            self.received.setdefault((site.name, *facts), manifest.artifact.sha256)
        if kind == "opened":
            self.reached[site.name] = max(self.reached[site.name], round)
        if kind == "skipped":
            others = [reached for name, reached in self.reached.items() if name not in self.guilty | {site.name}]
            if not others:  # a liar is the only peer: it is in its daemon's round, or has signed for a later one
                liars = [each for each in self.sites.values() if each.liar is not None]
                rounds = [each.daemon.machine.number for each in liars if each.daemon is not None]
                others = [*rounds, *(each.liar.signed_ahead for each in liars)]
            self.require(
                round <= max(others, default=0), f"{site.name} skips to round {round} that no honest site is in"
            )
        if kind == "refused" and site.liar is None:
            self._accuse(site, body["origin"], body["reason"])

    def _accuse(self, site: Site, origin: str, reason: str) -> None:
        """Only the guilty may be named.

        A worker that died while it used an artifact accuses nobody, nor does the proof of a fork, which names
        its signers. A site whose backup was restored may show another artifact until the receiver greets it,
        and another key of a sum that it has forgotten; one whose operator has switched to a shorter federation
        may be in a round after its end. A site may say that another refuses its calls, if the other's chain
        does not have it, or pins another key of it. Of two origins of one artifact both are named.
        """
        self.refused.setdefault(origin, []).append(reason)
        restored = origin in self.restored_sites and reason.startswith((*SECOND_ARTIFACT, TWO_KEYS, OTHER_SEED))
        keeper = self.sites[origin].keeper
        shut_out = reason.startswith(repr(site.name)) and keeper is not None and site.name not in keeper.callers
        switched = origin in self.switched and reason.startswith(AFTER_THE_LAST)
        rekeyed = site.name in self.rekeyed and reason.startswith(f"{site.name}: {PINNED}")
        others = reason.startswith(NO_COMMON_VERSION) and not speak_alike(site, self.sites[origin])
        excused = others or restored or shut_out or switched or rekeyed
        if not reason.startswith((FORK, exchange.EQUAL)) and not excused:
            self.require(origin in self.guilty, f"{site.name} accuses {origin}, who is innocent: {reason}")

    def _check_model(self, site: Site, state: str) -> None:
        """The model has learnt in each committed round once, and in no other."""
        daemon = site.daemon
        rules, rounds = daemon.machine.rules, self.records[site.name].committed
        history = json.loads((daemon.home / "checkpoints" / state).read_bytes())["history"]
        stages = [(round, stage) for round, stage, _ in history if stage != "home"]
        self.require(len(stages) == len(set(stages)), f"{site.name}: its model has learnt in a stage twice: {stages}")
        learnt = sorted({round for round, _ in stages if not rules.shadows(round)})
        due = [round for round in rounds if rules.pattern(round) != "circulate" and not rules.shadows(round)]
        self.require(learnt == due, f"{site.name}: its model has learnt in the rounds {learnt}, committed are {due}")

    def _check_membership(self, site: Site, kind: str, round: int, body: Mapping[str, Any]) -> None:
        """A site follows the amendments that it knows, until it has chosen a round's sources."""
        known, daemon = self.records[site.name], site.daemon
        rules = daemon.machine.rules
        if kind == "amended":
            known_digest = body.get("digest") is None or body["digest"] in self.authorised
            self.require(known_digest, f"{site.name} follows amendment {body['number']}, which nobody may have signed")
        elif kind == "opened":
            first = rules.first_round - (rules.pattern(round) == "all_to_all")
            self.require(round >= first, f"{site.name} opens round {round}, and joins in round {rules.first_round}")
            self.require(not rules.epoch(round).hold, f"{site.name} opens round {round}, which the federation holds")
            requires = daemon.chain.chain.at(round).requires
            able = site.program is None or site.program.has(requires)
            self.require(able, f"{site.name} opens round {round}, and its program lacks something of {requires}")
        elif kind == "published":
            joined = round >= rules.first_round
            self.require(joined, f"{site.name} publishes for round {round}, and joins in round {rules.first_round}")
        elif kind == "chosen" and round not in known.chosen and body.get("purpose") != "return":
            newest, over = rules.epoch(round).digest, round > rules.rounds
            self.require(
                over or known.epoch == newest or round in daemon.machine.memory.sums,  # a sum keeps its epoch
                f"{site.name} chooses for round {round} in epoch {known.epoch}, not {newest}",
            )
            expelled = {source["origin"] for source in body["sources"]} & rules.epochs.head.expelled
            self.require(not expelled, f"{site.name} uses in round {round} what the expelled {expelled} sent")

    def _check_disk(self, site: Site) -> None:
        daemon = site.daemon
        rules = daemon.machine.rules
        self.visits = max(self.visits, rules.visits)
        kept = (rules.pace.artifact_rounds_max + 1) * (1 + rules.visits)  # of the site itself: published and lent ones
        files = sum(path.suffix != UNSYNCED_SUFFIX for path in daemon.artifacts.iterdir())
        stale = rules.staleness_rounds_max * len(self.sites)
        self.require(files <= 2 * (kept + len(self.sites)) + stale, f"{site.name} keeps {files} artifacts")
        tasks, bound = len(site.process.tasks), TASKS_PER_SITE * len(self.sites)
        if daemon.relay is not None:  # it carries the others' connections, too
            bound *= 2
        self.require(tasks <= bound, f"{site.name} has {tasks} tasks")

    def end(self) -> None:
        """What must hold of the run as a whole."""
        for name, known in self.records.items():
            rows = max(len(known.rows), known.head[0])
            keeper = self.sites[name].keeper
            added = 0 if keeper is None else keeper.chain.head.rounds - keeper.chain.genesis.rounds
            limit = ROWS_MAX + ROWS_PER_ROUND_MAX * max(0, added) + ROWS_PER_VISIT_MAX * max(0, self.visits - 1)
            limit += (self.now() - START_S) / ROW_S
            self.require(rows <= limit, f"{name} has written {rows} rows")
        for name, site in self.sites.items():
            if site.liar is not None and max(site.liar.blatant.values(), default=0) >= BLATANT_MIN:
                self.require(name in self.refused, f"nobody names {name}, who lied to {dict(site.liar.blatant)}")

    # --- the worker ---
    def made(self, site: str, round: int, owner: str, sha256: str, numbers: bytes) -> None:
        self.trace(f"{site} made {owner} {round}")
        self.numbers[sha256] = numbers

    def masked(self, site: Site, event: events.ArtifactMasked) -> None:
        """Remember what a masked artifact hides."""
        current = site.daemon.machine.memory.open if site.daemon is not None else None
        if current is not None and current.artifact is not None:
            self.inputs[event.artifact.sha256] = current.artifact.sha256

    def added_up(self, site: str, order: Mapping[str, Any], own: str, total: NDArray[np.float64]) -> None:
        """A total is the sum of what its contributors have masked, to the bit; liars mask anything."""
        if self.guilty & {site, *(source["origin"] for source in order["sources"])}:
            return
        self.sums += 1
        plain = [own, *(self.inputs[source["artifact"]["sha256"]] for source in order["sources"])]
        values = [np.frombuffer(self.numbers[sha256], "<f4") for sha256 in plain]
        daemon = self.sites[site].daemon
        if daemon is None:
            return
        ring = daemon.machine.rules.ring(order["round"])
        units = sum(quantise(ring, each)[0] for each in values)
        self.require(np.array_equal(total, units / ring.scale), f"{site} has another sum than that of {plain}")

    def used(self, site: str, order: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        """A source must be what its origin signed for that round, and of the round that is due."""
        if self.sites[site].liar is not None:
            return
        origin, round, artifact = source["origin"], source["round"], source["artifact"]
        if origin != site:
            signed = self.signed.get(artifact["sha256"], {})
            name = (origin, round, artifact["owner"])
            self.require(name in signed, f"{site} trains with {name}, but {origin} signed {list(signed)}")
            key = (site, *name, signed.get(name), order["type"] == "Measure")
            first = self.used_first.setdefault(key, artifact["sha256"])
            self.require(first == artifact["sha256"], f"{site} trains with a second artifact of {name}")
        due = order["round"]
        if order["type"] in ("Train", "Aggregate"):
            right = round == due if not source["fallback"] else round < due
            self.require(right, f"{site} trains in round {due} with an artifact of round {round}: {source['fallback']}")

    # --- the network ---
    def message(self, sender: str, receiver: str, path: str, part: str, data: bytes, request: bytes) -> bytes:
        """A message may leave only after its cause is on disk, and bytes of an artifact after their intent."""
        site, call = self.sites[sender], path.rsplit("/")[-1]
        self.trace(f"{sender} > {receiver} {call} {part} {len(data)}")
        if site.liar is not None:
            data = site.liar.change(receiver, call, part, data)
            if call == "GetManifest" and part == "answer":
                with contextlib.suppress(ValueError, DecodeError):
                    self._manifest(sender, receiver, data)
            return data
        if part == "request" and (liar := self.sites[receiver].liar) is not None:
            return liar.receive(sender, call, data)
        if site.daemon is None:
            return data
        if call == "GetManifest" and part == "answer":
            self._manifest(sender, receiver, data)
            self._scheduled(sender, receiver, data)
        if call == "GetSum" and part == "answer":
            self._statements(sender, data, pb.SumRequest.FromString(request).round)
        if part == "chunk":
            self.require(receiver not in site.expelled, f"{sender} sends an artifact to {receiver}, which is expelled")
            self.bytes_left[(sender, receiver)] += len(pb.Chunk.FromString(data).data)
            left, allowed = self.bytes_left[(sender, receiver)], self.intended[(sender, receiver)]
            self.require(left <= allowed, f"{sender} has sent {left} bytes to {receiver}, the ledger has {allowed}")
        return data

    def _statements(self, sender: str, data: bytes, round: int) -> None:
        """An honest site shows one commit of a round's sum for ever, whatever happens to it, and opens for it alone."""
        content = decode_sum_reply(pb.SumReply.FromString(data))
        if isinstance(content, Unavailable) or sender in self.guilty:
            return
        statements = decode_statements(content)
        if statements.commit is not None:
            first = self.commits.setdefault((sender, round), dict(statements.commit))
            self.require(first == statements.commit, f"{sender} commits to a second set in round {round}")
        committed = statements.opening is None or statements.commit is not None
        self.require(committed, f"{sender} opens its masks in round {round} without a commit")

    def _manifest(self, sender: str, receiver: str, data: bytes) -> None:
        """An honest site signs one artifact for a round, and only what it has published."""
        reply = wire.decode_reply(pb.ManifestReply.FromString(data))
        if isinstance(reply, Unavailable):
            return
        manifest = self.verified.get(reply)
        if manifest is None:
            manifest = verify_manifest(reply, x509.load_der_x509_certificate(reply.certificate_der))
            self.verified[reply] = manifest
        artifact = manifest.artifact
        key = (sender, manifest.generation, manifest.round, artifact.owner, manifest.evaluation)
        if sender in self.restored_sites and manifest.evaluation:
            first = ""  # greetings do not tell what was lent: it may train the last round again, and lend another model
        elif sender in self.restored_sites:  # it knows what is newer than its backup once those have greeted who saw it
            daemon = self.sites[sender].daemon
            greeted = sorted(daemon.machine.greeted) if daemon is not None else []
            first = next((self.received[(name, *key)] for name in greeted if (name, *key) in self.received), "")
        else:
            first = self.first.setdefault(key, artifact.sha256)
        right = sender in self.guilty or first in ("", artifact.sha256)
        self.require(right, f"{sender} signed two artifacts for round {manifest.round}")
        bare = self.sites[sender].shape.colluders and artifact.sha256 in self.numbers
        self.require(sender in self.guilty or not bare, f"{sender} offers {receiver} an artifact without masks")
        name = (sender, manifest.round, artifact.owner)
        self.signed.setdefault(artifact.sha256, {})[name] = manifest.generation

    def _scheduled(self, sender: str, receiver: str, data: bytes) -> None:
        """Where the order of a round gives each site one other's model, no other site gets it."""
        reply, daemon = wire.decode_reply(pb.ManifestReply.FromString(data)), self.sites[sender].daemon
        if isinstance(reply, Unavailable) or daemon is None:
            return
        manifest, rules = decode_manifest(reply.body), daemon.machine.rules
        round = manifest.round
        handback = 0 < rules.circulating == round - 1
        if manifest.evaluation or handback or round > rules.rounds:
            return
        if rules.pattern(round) == "visit":
            model = manifest.artifact.kind != "return" and manifest.artifact.owner == sender
            returned = manifest.artifact.kind == "return" and manifest.artifact.owner == receiver
            hosts, visitors = rules.visitors(round, SiteName(receiver)), rules.visitors(round)
            right = (model and sender in hosts) or (returned and receiver in visitors)
            what = f"{manifest.artifact.owner}'s {manifest.artifact.kind}"
            self.require(right, f"{sender} offers {receiver} {what}, which does not visit there in round {round}")
            return
        if rules.pattern(round) != "permutation":
            return
        if receiver not in rules.members(round):
            self.fail(f"{sender} offers {receiver}, no member of round {round}, {manifest.artifact.kind}")
            return
        turn = rules.turn(round, SiteName(receiver))
        self.require(turn == sender, f"{sender} offers {receiver} what round {round} gives it from {turn}")

    def serves(self, callee: str, caller: str, pem: bytes) -> None:
        """A member gets artifacts with the key alone that its sender's chain pins for it."""
        site = self.sites[callee]
        if site.liar is None and site.keeper is not None:
            pinned = site.keeper.pins.get(SiteName(caller))
            own = pinned is None or pinned == certificate_key_digest(pem)
            self.require(own, f"{callee} sends an artifact to {caller} under a key that is not the pinned one")
        ends = site, self.sites[caller]
        greeted_s = self.greeted_s.get(frozenset((callee, caller)), 0.0)
        both_know = greeted_s > max(end.started_s for end in ends) and self.now() > greeted_s + GREETED_S
        running = [end.process.program for end in ends if end.process is not None and end.process.program is not None]
        apart = both_know and len(running) == len(ends) and not running[0].speaks_with(running[1])
        self.require(not apart, f"{callee} sends an artifact to {caller}, whose protocol it does not speak")

    def called(self, caller: str, callee: str, path: str, status: str) -> None:
        self.trace(f"{caller} < {callee} {path.rsplit('/')[-1]} {status}")
        if path.endswith("/Hello") and status in ("OK", "FAILED_PRECONDITION"):
            pair = frozenset((caller, callee))
            if self.greeted_s.get(pair, 0.0) <= max(self.sites[name].started_s for name in pair):
                self.greeted_s[pair] = self.now()
        if status == "OK":
            self.answered_s[(caller, callee)] = self.now()

    def reached_since_mended(self) -> set[tuple[str, str]]:
        """Callers and callees of calls that were answered after the last fault."""
        return {pair for pair, at_s in self.answered_s.items() if at_s >= self.mended_s}


def not_used_yet(stored: Iterable[Row]) -> set[Sha256]:
    """The received artifacts that a loss of power may take: those of no stage that is over, and of other sites' models
    to measure.
    """
    arrived: dict[Sha256, float] = {}
    for kind, round, body in stored:
        if kind in ("arrived", "guest"):
            arrived[body["source"]["artifact"]["sha256"]] = round if kind == "arrived" else math.inf
        elif kind in ("trained", "aggregated", "adopted"):
            arrived = {digest: needed for digest, needed in arrived.items() if needed > round}
    return set(arrived)
