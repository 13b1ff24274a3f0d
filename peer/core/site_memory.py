"""A site's memory as the fold of its journal: what a restart knows is what the running site knew.

The round machine changes its memory only by the rows that it persists, so recovery is the same code and not a second
reading of the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peer.core import global_test_memory
from peer.core.commands import Source
from peer.core.global_test_memory import Evaluation, Lent
from peer.core.messages import Artifact
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import from_json, to_json

Row = tuple[str, int, Mapping[str, Any]]
"""Kind, round and body of a journal row."""

WAITS_KEPT = 10


@dataclass(slots=True)
class OpenRound:
    """The round in progress. ``position`` counts the plan's phases that are over, ``exchanged`` names the exchange."""

    number: int
    state: str
    sources: tuple[Source, ...] = ()
    position: int = 0
    exchanged: int = -1
    missing: dict[str, str] = field(default_factory=dict)
    artifact: Artifact | None = None
    aggregate: Sha256 | None = None
    contributors: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    threads: int = 0
    duration_s: float = 0.0
    below_quorum: bool = False
    evaluated: bool = False


@dataclass(slots=True)
class Memory:
    """All that must survive a crash. ``state`` names the checkpoint that the next stage starts from.

    ``aggregate`` is the mean that the last committed round ended with, ``compared`` who said what his was.
    """

    generation: int = 1
    state: str = ""
    artifact: Artifact | None = None
    committed: int = 0
    home: bool = False
    measured: bool = False
    next: tuple[int, Artifact] | None = None
    open: OpenRound | None = None
    published: dict[tuple[int, SiteName], Artifact] = field(default_factory=dict)
    held: dict[Sha256, Source] = field(default_factory=dict)
    first_digests: dict[tuple[str, int, int, str], str] = field(default_factory=dict)
    aggregate: Sha256 | None = None
    compared: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    finished: bool = False
    evaluation: Evaluation = field(default_factory=Evaluation)

    def apply(self, kind: str, round: int, body: Mapping[str, Any]) -> None:
        """Remember one row; kinds that only inform a reader change nothing."""
        change = APPLY.get(kind)
        if change is not None:
            change(self, round, body)
        elif kind in global_test_memory.KINDS:
            self.evaluation.apply(kind, round, body)

    def names(self) -> set[Sha256]:
        """Digests of every artifact that a row still needs: all other files may go."""
        kept = {artifact.sha256 for artifact in self.published.values()} | set(self.held) | self.evaluation.names()
        if self.artifact is not None:
            kept.add(self.artifact.sha256)
        if self.next is not None:
            kept.add(self.next[1].sha256)
        if self.open is not None:
            kept |= {source.artifact.sha256 for source in self.open.sources}
            if self.open.artifact is not None:
                kept.add(self.open.artifact.sha256)
        return kept

    def keep(self, present: set[Sha256]) -> None:
        """Forget what cannot be used without files that are gone."""
        self.held = {digest: source for digest, source in self.held.items() if digest in present}
        self.published = {key: value for key, value in self.published.items() if value.sha256 in present}
        if self.artifact is not None and self.artifact.sha256 not in present:
            self.artifact = None
        if self.next is not None and self.next[1].sha256 not in present:
            self.next = None
        if self.open is not None:
            self._reopen(self.open, present)
        self.evaluation.keep(present)

    def _reopen(self, current: OpenRound, present: set[Sha256]) -> None:
        """Go back in the open round to where the files that it needs can be had again: the exchange, or the start."""
        if current.artifact is not None and current.artifact.sha256 not in present:
            self.open = None
        elif current.position == current.exchanged + 1 and any(
            source.artifact.sha256 not in present for source in current.sources
        ):
            current.position, current.sources = max(current.exchanged, 0), ()


def recover(rows: Iterable[Row], *, present: set[Sha256] | None = None) -> Memory:
    """The memory after these rows.

    Args:
        rows: the journal, oldest first.
        present: digests of the artifact files on disk; what needs a file that is gone is forgotten.
    """
    memory = Memory()
    for kind, round, body in rows:
        memory.apply(kind, round, body)
    if present is not None:
        memory.keep(present)
    return memory


def _artifact(body: Mapping[str, Any]) -> Artifact | None:
    found = body.get("artifact")
    return from_json(Artifact, found) if found is not None else None


def _make_due(memory: Memory, body: Mapping[str, Any], artifact: Artifact | None) -> None:
    if artifact is not None and body.get("publish") is not None:
        memory.next = (body["publish"], artifact)


def _began(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.generation = body["generation"]


def _initialised(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.state, memory.artifact, memory.samples = body["state"], _artifact(body), dict(body["samples"])
    _make_due(memory, body, memory.artifact)


def _opened(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    sources = from_json(tuple[Source, ...], list(body["sources"]))
    memory.open = OpenRound(round, memory.state, sources)


def _arrived(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    source = from_json(Source, body["source"])
    key = (source.origin, body["origin_generation"], source.round, source.artifact.owner)
    memory.first_digests.setdefault(key, source.artifact.sha256)
    known = memory.held.setdefault(source.artifact.sha256, source)
    if known.origin == source.origin:  # who sends another's bytes as its own must not take their place
        memory.held[source.artifact.sha256] = source


def _chosen(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    if memory.open is not None:
        memory.open.sources = from_json(tuple[Source, ...], list(body["sources"]))
        memory.open.missing = dict(body["missing"])
        memory.open.position = body["position"] + 1
        memory.open.exchanged = body["position"]
        memory.open.below_quorum = memory.open.below_quorum or body["below_quorum"]
    if body["waited_s"] is not None:
        memory.waits_s = [*memory.waits_s, float(body["waited_s"])][-WAITS_KEPT:]


def _trained(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    if memory.open is None:
        return
    memory.open.position = body["position"] + 1
    memory.open.state = body["state"]
    memory.open.artifact = _artifact(body) or memory.open.artifact
    memory.open.metrics.update(body["metrics"])
    memory.open.threads = body["threads"]
    memory.open.duration_s += body["duration_s"]
    _make_due(memory, body, memory.open.artifact)


def _aggregated(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    if memory.open is not None:
        memory.open.position = body["position"] + 1
        memory.open.state = body["state"]
        memory.open.aggregate = Sha256(body["sha256"])
        memory.open.contributors = tuple(body["contributors"])


def _evaluated(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.measured = memory.open is None
    lent = _artifact(body)
    if lent is not None:
        memory.evaluation.lent[round] = Lent(lent)
    if memory.open is not None:
        memory.open.metrics.update(body["metrics"])
        memory.open.evaluated = True


def _committed(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.committed, memory.state, memory.open, memory.skipped = round, body["state"], None, []
    memory.aggregate, memory.compared = body.get("aggregate_sha256"), set()
    found = _artifact(body)
    _make_due(memory, body, found)
    if found is not None and not body["visiting"]:
        memory.artifact = found


def _compared(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.compared.add(body["site"])


def _skipped(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.skipped = [*memory.skipped, *range(memory.committed + 1, round)]
    memory.committed, memory.aggregate = round - 1, None
    _make_due(memory, body, memory.artifact)


def _published(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    artifact = from_json(Artifact, body["artifact"])
    memory.published[(round, artifact.owner)] = artifact
    memory.next = None


def _retired(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    kept = tuple(body.get("kept") or ())
    memory.published = {key: value for key, value in memory.published.items() if key[0] > round or key == kept}


def _discarded(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.held.pop(Sha256(body["sha256"]), None)


def _regenerated(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.generation = body["generation"]


def _adopted(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.home = True
    memory.state = body["state"] or memory.state
    memory.artifact = _artifact(body) or memory.artifact
    _make_due(memory, body, memory.artifact)


def _finished(memory: Memory, round: int, body: Mapping[str, Any]) -> None:
    memory.finished = True


APPLY = {
    "began": _began,
    "initialised": _initialised,
    "opened": _opened,
    "arrived": _arrived,
    "chosen": _chosen,
    "trained": _trained,
    "aggregated": _aggregated,
    "evaluated": _evaluated,
    "committed": _committed,
    "compared": _compared,
    "skipped": _skipped,
    "published": _published,
    "retired": _retired,
    "discarded": _discarded,
    "regenerated": _regenerated,
    "adopted": _adopted,
    "finished": _finished,
}
REMEMBERED = (*APPLY, *global_test_memory.KINDS)
"""Kinds of rows that change memory."""


def used_sources(rows: Iterable[Row]) -> tuple[Source, ...]:
    """What the last committed round used of other sites; a model that predicts with their heads needs them again."""
    chosen: list[Any] = []
    used: list[Any] = []
    for kind, _, body in rows:
        if kind in ("opened", "chosen"):
            chosen = body["sources"]
        elif kind == "committed":
            used = chosen
    sources: tuple[Source, ...] = from_json(tuple[Source, ...], used)
    return sources


def body_of(value: Any) -> Any:
    """A domain value as the JSON that a row holds."""
    return to_json(value)
