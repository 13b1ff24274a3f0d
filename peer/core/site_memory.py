"""A site's memory as the fold of its journal: a restarted site knows what the running site knew.

The state machine changes its memory only by the rows that it persists, so recovery runs the same
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from peer.core import cross_evaluation_memory, limits, rows
from peer.core.artifacts import Artifact, Source
from peer.core.cross_evaluation_memory import Evaluation, LentModel
from peer.core.leak import leak_facts
from peer.core.metrics import validation_loss
from peer.core.privacy import SpendingFacts, spending_facts
from peer.core.roster import Sha256, SiteName
from peer.core.status_document import BestAndNewestRound, MeasuredLeak
from peer.core.sum_rows import SumRow

if TYPE_CHECKING:
    from peer.core.messages import Seen
    from peer.core.sum_messages import SumRecord

Row = tuple[str, int, Mapping[str, Any]]
"""Kind, round and body of a journal row, as stored; ``peer.core.rows`` has the typed rows."""

WAITS_MAX = 10


@dataclass(slots=True)
class OpenRound:
    """The round in progress.

    ``epoch`` is the digest of the amendment that the round follows, ``None`` for the genesis.
    ``position`` counts the plan's phases that are over. ``exchanged`` is the index of the exchange
    that chose the sources, -1 before it. ``returned`` are the copies of the own model that other
    sites trained in this round, ``missing_returns`` the sites whose copy is not among them.
    """

    number: int
    state: str
    sources: tuple[Source, ...] = ()
    epoch: Sha256 | None = None
    position: int = 0
    exchanged: int = -1
    missing: dict[str, str] = field(default_factory=dict)
    returned: tuple[Source, ...] = ()
    missing_returns: dict[str, str] = field(default_factory=dict)
    artifact: Artifact | None = None
    aggregate: Sha256 | None = None
    contributors: tuple[str, ...] = ()
    cut: Mapping[SiteName, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    threads: int = 0
    duration_s: float = 0.0
    below_quorum: bool = False
    evaluated: bool = False
    total: Artifact | None = None


@dataclass(frozen=True, slots=True)
class BestRound:
    """The evaluated round with the best model on the site's own validation data so far.

    ``loss`` is that on the validation data, infinite if it has none. ``received`` are the digests of the received heads
    with which the model predicts.
    """

    round: int
    state: str
    metric: str
    value: float
    loss: float
    received: tuple[Sha256, ...] = ()

    def is_beaten(self, round: int, value: float, loss: float) -> bool:
        """Return whether a round is better, or is this one, evaluated again with a new model.

        Few samples often give equal values. Then the lower loss decides, and after it the later round.
        """
        return value > self.value or (value == self.value and loss <= self.loss) or round == self.round


@dataclass(slots=True)
class Memory:
    """All that must survive a crash.

    ``state`` names the checkpoint that the next round starts from, and ``before`` the one that the
    last committed round started from, with the contributors of that round.

    ``publications_due`` are artifacts by the round that they serve and their owner, until they are
    published. ``waits_s`` and ``return_waits_s`` are how long the site waited in its last rounds.
    ``received`` has the received artifacts on disk. ``first_digests`` has, by origin,
    the digest that the origin sent first for a generation, round and owner: a different one later
    would be a forgery. ``aggregate`` is the digest of the mean that the last committed round ended
    with, and ``aggregate_epoch`` the amendment that this round followed (``None``: the genesis).
    ``compared`` names the peers that told theirs. ``joined`` says that the rounds before
    ``committed`` were not this site's. ``model_is_home`` and ``evaluated_after_handback`` belong to
    the end of circulating rounds. ``weights`` says how the pretrained weights fitted.
    ``newest_published`` is the artifact that was published last. ``sums`` has this site's steps in the secure sums of
    the open round and the last one; in those up to ``restored_round`` it may have taken steps that it has forgotten.
    """

    generation: int = 1
    state: str = ""
    before: tuple[str, tuple[SiteName, ...]] | None = None
    artifact: Artifact | None = None
    committed: int = 0
    joined: bool = False
    model_is_home: bool = False
    evaluated_after_handback: bool = False
    publications_due: dict[tuple[int, SiteName], Artifact] = field(default_factory=dict)
    open: OpenRound | None = None
    published: dict[tuple[int, SiteName], Artifact] = field(default_factory=dict)
    received: dict[Sha256, Source] = field(default_factory=dict)
    first_digests: dict[SiteName, dict[tuple[int, int, SiteName], Sha256]] = field(default_factory=dict)
    aggregate: Sha256 | None = None
    aggregate_epoch: Sha256 | None = None
    compared: set[SiteName] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    return_waits_s: list[float] = field(default_factory=list)
    in_vain_s: dict[SiteName, float] = field(default_factory=dict)
    trained_s: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)
    weights: str | None = None
    skipped: list[int] = field(default_factory=list)
    finished: bool = False
    evaluation: Evaluation = field(default_factory=Evaluation)
    best: BestRound | None = None
    newest_published: Artifact | None = None
    sums: dict[int, list[SumRecord]] = field(default_factory=dict)
    restored_round: int = 0
    newest_validation: tuple[int, float] | None = None  # the newest round with a value of the best round's metric

    def apply(self, row: rows.JournalRow) -> None:
        """Apply one row; kinds that only inform a reader change nothing."""
        change = APPLY.get(type(row))
        if change is not None:
            change(self, row)
        else:
            self.evaluation.apply(row)

    def needed_digests(self) -> set[Sha256]:
        """Digests of every artifact that memory needs; all other files may be deleted."""
        digests = {artifact.sha256 for artifact in self.published.values()}
        digests |= set(self.received) | self.evaluation.needed_digests()
        if self.best is not None:
            digests |= set(self.best.received)
        if self.artifact is not None:
            digests.add(self.artifact.sha256)
        digests |= {artifact.sha256 for artifact in self.publications_due.values()}
        if self.open is not None:
            digests |= {source.artifact.sha256 for source in (*self.open.sources, *self.open.returned)}
            digests |= {each.sha256 for each in (self.open.artifact, self.open.total) if each is not None}
        return digests

    def current_states(self) -> set[str]:
        """The checkpoints without which the site cannot go on."""
        return {self.state, self.open.state if self.open is not None else ""} - {""}

    def kept_states(self) -> set[str]:
        """Those, the one that diverging training returns to, and the best round's, whose files may be gone."""
        before = self.before[0] if self.before is not None else ""
        return self.current_states() | {before, self.best.state if self.best is not None else ""} - {""}

    def received_before(self, round: int) -> list[Source]:
        """Return the artifacts received for the rounds before this one, also those that came for this one again."""
        sources = []
        for source in self.received.values():
            digests = self.first_digests.get(source.origin, {}) if source.round == round else {}
            rounds = [key[1] for key, sha256 in digests.items() if sha256 == source.artifact.sha256]
            earlier = max((each for each in rounds if each < round), default=source.round)
            sources.append(replace(source, round=earlier))
        return sources

    def forget_missing_files(self, present: set[Sha256]) -> None:
        """Forget everything that needs an artifact whose file is gone."""
        self.received = {digest: source for digest, source in self.received.items() if digest in present}
        self.published = {key: value for key, value in self.published.items() if value.sha256 in present}
        if self.artifact is not None and self.artifact.sha256 not in present:
            self.artifact = None
        self.publications_due = {key: value for key, value in self.publications_due.items() if value.sha256 in present}
        if self.open is not None:
            self._reopen(self.open, present)
        self.evaluation.forget_missing_files(present)

    def _reopen(self, current: OpenRound, present: set[Sha256]) -> None:
        """Go back in the open round to where missing files can be had again: the exchange or the start."""
        if current.artifact is not None and current.artifact.sha256 not in present:
            self.open = None
            return
        in_use = [source.artifact for source in current.returned or current.sources]
        if current.total is not None:
            in_use = [current.total]
        if current.position == current.exchanged + 1 and any(each.sha256 not in present for each in in_use):
            current.position, current.total = max(current.exchanged, 0), None
            if current.returned:
                current.returned = ()
            else:
                current.sources = ()

    def lacks(self, seen: Seen) -> bool:
        """Return whether a peer has seen a newer artifact of this site than the site remembers, or another one
        of the newest round, in which a site may publish several.
        """
        last = max((round for round, _ in self.published), default=0)
        if (seen.generation, seen.round) != (self.generation, last):
            return (seen.generation, seen.round) > (self.generation, last)
        return seen.sha256 not in {artifact.sha256 for (round, _), artifact in self.published.items() if round == last}

    def repeats_published(self, present: set[Sha256]) -> bool:
        """Whether, without the missing files, the site would make an artifact again that it has published.

        It made the returns of the open round with artifacts that may not be at hand any more.
        """
        current = self.open
        if current is not None and current.artifact is not None and current.artifact.sha256 not in present:
            served = (artifact for (round, _), artifact in self.published.items() if round == current.number)
            if any(artifact.kind == "return" for artifact in served):
                return True
        return any(artifact.sha256 not in present for artifact in self.published.values())


def later_generation(newest: int, chance: float) -> int:
    """Return a generation after the newest one: one of the next hundredth of those that are left.

    Of two machines on which one backup is restored, each gets one of its own, so that they do not
    sign two artifacts under one generation and round.

    Args:
        chance: a random number in [0, 1).
    """
    return newest + 1 + int(chance * max(1, (limits.ROUNDS_MAX - newest) // 100))


def recover(stored: Iterable[Row], *, present: set[Sha256] | None = None, generation: int = 1) -> Memory:
    """Rebuild the memory from these rows.

    Args:
        stored: the journal, oldest first.
        present: digests of the artifact files on disk; memory forgets everything that needs another
            file. A site that lost a published artifact may make another for its round, and therefore
            takes a new generation.
        generation: the lowest that the site may have: the number of its folder.

    Raises:
        RowError: a row is damaged.
    """
    memory = Memory()
    for kind, round, body in stored:
        if kind in REMEMBERED:
            memory.apply(rows.decode(kind, round, body))
    memory.generation = max(memory.generation, generation)
    if present is not None:
        memory.generation += memory.repeats_published(present)
        memory.forget_missing_files(present)
    return memory


def _make_due(memory: Memory, publish: int | None, artifact: Artifact | None) -> None:
    if artifact is not None and publish is not None:
        memory.publications_due[publish, artifact.owner] = artifact


def _began(memory: Memory, row: rows.BeganRow) -> None:
    memory.generation = row.generation


def _initialised(memory: Memory, row: rows.InitialisedRow) -> None:
    memory.state, memory.artifact, memory.samples = row.state, row.artifact, dict(row.samples)
    memory.weights = row.weights
    _make_due(memory, row.publish, row.artifact)


def _opened(memory: Memory, row: rows.OpenedRow) -> None:
    memory.open = OpenRound(row.round, memory.state, row.sources, row.epoch)
    if row.round in memory.sums:  # a file is gone, and the round began again, perhaps in another epoch
        memory.restored_round = max(memory.restored_round, row.round)
    memory.finished = False  # an amendment may add rounds to a site that had finished
    if row.away:
        memory.model_is_home = memory.evaluated_after_handback = False


def _joined(memory: Memory, row: rows.JoinedRow) -> None:
    memory.joined, memory.committed = True, row.round
    memory.model_is_home = memory.evaluated_after_handback = row.home
    _make_due(memory, row.publish, memory.artifact)


def _amended(memory: Memory, row: rows.AmendedRow) -> None:
    if row.departs:
        memory.open = None
    elif memory.open is not None and row.reopened:
        memory.open.epoch = row.epoch


def _arrived(memory: Memory, row: rows.ArrivedRow) -> None:
    source = row.source
    digests = memory.first_digests.setdefault(source.origin, {})
    digests.setdefault((row.origin_generation, source.round, source.artifact.owner), source.artifact.sha256)
    if len(digests) > limits.FIRST_DIGESTS_PER_PEER_MAX:
        del digests[min(digests)]
    known = memory.received.setdefault(source.artifact.sha256, source)
    if known.origin == source.origin:  # a peer that sends another's bytes must not replace that peer's source
        memory.received[source.artifact.sha256] = source


def _chosen(memory: Memory, row: rows.ChosenRow) -> None:
    if memory.open is not None:
        if row.purpose == "return":
            memory.open.returned, memory.open.missing_returns = row.sources, dict(row.missing)
        else:
            memory.open.sources, memory.open.missing = row.sources, dict(row.missing)
            memory.open.total = row.total
        memory.open.position = row.position + 1
        memory.open.exchanged = row.position
        memory.open.below_quorum = memory.open.below_quorum or row.below_quorum
    if row.waited_s is not None and row.purpose == "return":
        memory.return_waits_s = [*memory.return_waits_s, row.waited_s][-WAITS_MAX:]
    elif row.waited_s is not None:
        memory.waits_s = [*memory.waits_s, row.waited_s][-WAITS_MAX:]
    for name, waited_s in (row.in_vain_s or {}).items():
        memory.in_vain_s[name] = memory.in_vain_s.get(name, 0.0) + waited_s


def _trained(memory: Memory, row: rows.TrainedRow) -> None:
    if memory.open is None:
        return
    memory.open.position = row.position + 1
    memory.open.state = row.state
    memory.open.artifact = row.artifact or memory.open.artifact
    memory.open.metrics.update(row.metrics)
    memory.open.threads = row.threads
    memory.open.duration_s += row.duration_s
    memory.trained_s += row.duration_s
    _make_due(memory, row.publish, memory.open.artifact)
    for artifact in row.returned or ():
        _make_due(memory, row.round, artifact)


def _aggregated(memory: Memory, row: rows.AggregatedRow) -> None:
    if memory.open is not None:
        memory.open.position = row.position + 1
        memory.open.state = row.state
        memory.open.aggregate = row.sha256
        memory.open.contributors = row.contributors
        memory.open.artifact = row.artifact or memory.open.artifact
        memory.open.cut = row.cut or {}


def _evaluated(memory: Memory, row: rows.EvaluatedRow) -> None:
    memory.evaluated_after_handback = memory.open is None
    if row.artifact is not None:
        memory.evaluation.lent[row.round] = LentModel(row.artifact)
    if row.best_by is not None:
        state = memory.state if memory.open is None else memory.open.state
        loss = validation_loss(row.metrics)
        memory.best = BestRound(row.round, state, row.best_by, row.metrics[row.best_by], loss, row.received or ())
    if memory.best is not None and memory.best.metric in row.metrics:
        memory.newest_validation = row.round, row.metrics[memory.best.metric]
    if memory.open is not None:
        memory.open.metrics.update(row.metrics)
        memory.open.evaluated = True


def _committed(memory: Memory, row: rows.CommittedRow) -> None:
    artifact = memory.open.artifact if memory.open is not None else None
    memory.before = (memory.state, row.contributors)
    memory.aggregate_epoch = memory.open.epoch if memory.open is not None else None
    memory.committed, memory.state, memory.open, memory.skipped = row.round, row.state, None, []
    memory.aggregate, memory.compared = row.aggregate_sha256, set()
    memory.sums = {round: records for round, records in memory.sums.items() if round >= row.round}
    _make_due(memory, row.publish, artifact)
    if artifact is not None and not row.visiting:
        memory.artifact = artifact


def _reverted(memory: Memory, row: rows.RevertedRow) -> None:
    memory.state, memory.before = row.state, None
    if memory.open is not None:
        memory.open.position, memory.open.state = row.position, row.state
        memory.open.artifact, memory.open.metrics, memory.open.duration_s = None, {}, 0.0


def _compared(memory: Memory, row: rows.ComparedRow) -> None:
    memory.compared.add(row.site)


def _skipped(memory: Memory, row: rows.SkippedRow) -> None:
    memory.skipped = [*memory.skipped, *range(memory.committed + 1, row.round)]
    memory.committed, memory.aggregate = row.round - 1, None
    _make_due(memory, row.publish, memory.artifact)


def _published(memory: Memory, row: rows.PublishedRow) -> None:
    memory.published[(row.round, row.artifact.owner)] = memory.newest_published = row.artifact
    memory.publications_due.pop((row.round, row.artifact.owner), None)


def _retired(memory: Memory, row: rows.RetiredRow) -> None:
    memory.published = {
        key: artifact for key, artifact in memory.published.items() if key[0] > row.round or key == row.kept
    }


def _discarded(memory: Memory, row: rows.DiscardedRow) -> None:
    memory.received.pop(row.sha256, None)
    if row.lost and memory.open is not None:
        memory._reopen(memory.open, memory.needed_digests() - {row.sha256})


def _regenerated(memory: Memory, row: rows.RegeneratedRow) -> None:
    memory.generation = row.generation
    opened = memory.open.number if memory.open is not None else 0
    forgotten = row.their_round + 1  # a site shows its key for the next round's sum before it publishes for it
    memory.restored_round = max(memory.restored_round, forgotten, opened)


def _added_up(memory: Memory, row: SumRow) -> None:
    memory.sums.setdefault(row.round, []).append(row.record())


def _adopted(memory: Memory, row: rows.AdoptedRow) -> None:
    memory.model_is_home = True
    memory.state = row.state or memory.state
    memory.artifact = row.artifact or memory.artifact
    _make_due(memory, row.publish, memory.artifact)


def _finished(memory: Memory, row: rows.FinishedRow) -> None:
    memory.finished = True


APPLY: Mapping[type[rows.JournalRow], Callable[[Memory, Any], None]] = {
    rows.BeganRow: _began,
    rows.InitialisedRow: _initialised,
    rows.JoinedRow: _joined,
    rows.AmendedRow: _amended,
    rows.OpenedRow: _opened,
    rows.ArrivedRow: _arrived,
    rows.ChosenRow: _chosen,
    rows.TrainedRow: _trained,
    rows.AggregatedRow: _aggregated,
    rows.EvaluatedRow: _evaluated,
    rows.CommittedRow: _committed,
    rows.RevertedRow: _reverted,
    rows.ComparedRow: _compared,
    rows.SkippedRow: _skipped,
    rows.PublishedRow: _published,
    rows.RetiredRow: _retired,
    rows.DiscardedRow: _discarded,
    rows.RegeneratedRow: _regenerated,
    rows.AdoptedRow: _adopted,
    rows.FinishedRow: _finished,
    SumRow: _added_up,
}
REMEMBERED = tuple(row_type.kind for row_type in (*APPLY, *cross_evaluation_memory.ROWS))
"""Kinds of rows that change memory."""


def best_and_newest_round(memory: Memory) -> BestAndNewestRound | None:
    """Return the best round on validation data beside the newest; ``None`` before there is one."""
    if memory.best is None or memory.newest_validation is None:
        return None
    newest_round, newest_value = memory.newest_validation
    best = memory.best
    return {
        "metric": best.metric,
        "round": best.round,
        "value": best.value,
        "newest_round": newest_round,
        "newest_value": newest_value,
    }


def newest_leak(memory: Memory) -> MeasuredLeak | None:
    """Return the measured leak of the artifact that was published last; ``None`` if it was not measured."""
    artifact = memory.newest_published
    if artifact is None or artifact.leak is None:
        return None
    return {"kind": artifact.kind, "owner": artifact.owner, **leak_facts(artifact.leak)}


def newest_spending(memory: Memory) -> SpendingFacts | None:
    """Return what everything up to the artifact that was published last tells of a person; ``None`` without noise."""
    artifact = memory.newest_published
    return None if artifact is None or artifact.spent is None else spending_facts(artifact.spent)


def used_sources(stored: Iterable[Row]) -> tuple[Source, ...]:
    """Return the sources of the last committed round, which a model that predicts with peers' heads needs."""
    chosen: Row | None = None
    used: Row | None = None
    for row in stored:
        if row[0] in (rows.OpenedRow.kind, rows.ChosenRow.kind):
            chosen = row
        elif row[0] == rows.CommittedRow.kind:
            used = chosen
    decoded = rows.decode(*used) if used is not None else None
    return decoded.sources if isinstance(decoded, rows.OpenedRow | rows.ChosenRow) else ()
