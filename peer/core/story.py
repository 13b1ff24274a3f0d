"""The story of a round from its journal rows: which peers the site waited for, what arrived, what
was refused.

A row says what the site decided, its cause names the event that led to it. Rows that the daemon
writes on its own have no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from peer.core import rows
from peer.core.artifacts import Source
from peer.core.exchange import SLOW_FACTOR
from peer.core.json_codec import from_json

Record = Mapping[str, Any]
"""A stored row: ``time``, ``kind``, ``round``, ``body`` and ``cause``."""
Sentences = Callable[[str, Any, rows.Cause | None], list[str]]
"""Makes the sentences of a row: from the site, the row and its cause."""

MISSING: Mapping[str, str] = {
    "absent": "was named absent when this daemon was started",
    "silent": "was not heard for so long that it counts as silent",
    "slow": "did not deliver before the deadline",
    "paused": "was paused",
    "held": "held, as the federation had agreed",
    "leaving": "was leaving",
    "failed": "had failed",
    "gone": "had left, or was expelled",
    "retired": "keeps its artifact of this round no more",
    "skipped": "has no artifact for this round",
    "epoch": "knows other members for this round",
    "refused": "sent what was not acceptable",
    "declined": "did not send it here, by its own policy or plan",
    "lost": "sent a file that this site's disk then lost or damaged",
    "unused": "sent what this site left out, because its own disk or worker had failed with it",
}
"""Why a peer did not contribute: each reason in a row ``chosen``, as the end of a sentence."""
CAUSES: Mapping[str, str] = {
    "Began": "the daemon started",
    "Ticked": "a deadline passed",
    "PauseRequested": "the operator paused the site",
    "ResumeRequested": "the operator let the site go on",
    "StopRequested": "the operator stopped the site",
    "EpochsLearned": "an amendment or a notice became known",
    "PeerGreeted": "{peer} said hello",
    "PeerHeard": "a sign of life came from {peer}",
    "PeerRefused": "{peer} broke the protocol",
    "ArtifactArrived": "an artifact arrived from {peer}",
    "ArtifactUnavailable": "{peer} answered that it has none",
    "ArtifactRefused": "what {peer} sent was not taken",
    "ArtifactRejected": "the worker rejected what {peer} sent",
    "Initialised": "the initial model was made",
    "Queued": "the worker's turn at the GPU was near or there",
    "Trained": "the training was over",
    "Aggregated": "the mean was made",
    "Adopted": "the own model was home",
    "Evaluated": "the evaluation was over",
    "WorkFailed": "the worker failed",
}
"""A clause for each type of event."""


def tell(records: Sequence[Record], *, site: str, round: int) -> dict[str, Any]:
    """Tell the story of a round of a site.

    Args:
        records: the journal's rows since the end of the round before, oldest first.
        site: the site whose journal it is.
        round: the round's number.

    Returns:
        ``round``; ``state``: ``committed``, ``open``, ``skipped`` or ``unknown``; ``waited_for``:
        each ``site`` with its ``outcome``, which is ``came`` or the reason why it is missing;
        ``returns``: the same of the sites that were to return the own model; ``refused``: each
        ``site`` with the ``reason``; ``went_on``: ``because`` of which event and after how long
        (``waited_s``), or ``None`` during the exchange; ``story``: one sentence (``text``) a row,
        with its ``time`` and ``kind``.

    Raises:
        RowError: a row is damaged.
    """
    kinds = {row_type.kind for row_type in SENTENCES}
    every = [
        (record, rows.decode(record["kind"], record["round"], record["body"]))
        for record in records
        if record["kind"] in kinds
    ]
    of_one_round = rows.OpenedRow | rows.ArrivedRow  # an artifact of the next round may arrive in this one
    decoded = [(record, row) for record, row in every if row.round == round or not isinstance(row, of_one_round)]
    chosen = [(record, row) for record, row in decoded if isinstance(row, rows.ChosenRow)]
    outcomes: dict[str, str] = {}
    returns: dict[str, str] = {}
    for _, row in decoded:
        if isinstance(row, rows.ArrivedRow) and row.round == round:
            (returns if row.source.artifact.kind == "return" else outcomes)[row.source.origin] = "came"
        elif isinstance(row, rows.ChosenRow):
            early = {source.origin: "came" for source in row.sources if source.round == round and source.origin != site}
            outcome = returns if row.purpose == "return" else outcomes
            outcome.update(early | dict(row.missing))
    went_on = None
    if chosen:
        record, first = chosen[0]
        went_on = {"because": _because(_cause(record)), "waited_s": _waited_s(first)}
    return {
        "round": round,
        "state": _state([row for _, row in decoded], round),
        "waited_for": [{"site": name, "outcome": outcome} for name, outcome in sorted(outcomes.items())],
        "returns": [{"site": name, "outcome": outcome} for name, outcome in sorted(returns.items())],
        "refused": [
            {"site": row.origin, "reason": row.reason, "declined": row.declined is True}
            for _, row in decoded
            if isinstance(row, rows.RefusedRow)
        ],
        "went_on": went_on,
        "story": [
            {"time": record["time"], "kind": row.kind, "text": text}
            for record, row in decoded
            for text in SENTENCES[type(row)](site, row, _cause(record))
        ],
    }


def _state(decoded: Iterable[rows.JournalRow], round: int) -> str:
    state = "unknown"
    for row in decoded:
        if isinstance(row, rows.SkippedRow) and row.first <= round < row.round:
            state = "skipped"
        elif isinstance(row, rows.OpenedRow) and row.round == round:
            state = "open"
        elif isinstance(row, rows.CommittedRow) and row.round == round:
            state = "committed"
    return state


def _cause(record: Record) -> rows.Cause | None:
    cause: rows.Cause | None = from_json(rows.Cause | None, record["cause"], path="cause")
    return cause


def _because(cause: rows.Cause | None) -> str:
    """Return the clause of the row's cause; empty without one."""
    return "" if cause is None else CAUSES.get(cause.event, cause.event).format(peer=cause.peer)


def _when(cause: rows.Cause | None) -> str:
    return f" when {_because(cause)}" if cause is not None else ""


def _sources(sources: Sequence[Source]) -> str:
    named = [
        f"{source.artifact.owner}'s {source.artifact.kind}"
        + (f" from {source.origin}" if source.origin != source.artifact.owner else "")
        + (f" of round {source.round}, an older copy" if source.fallback else "")
        for source in sources
    ]
    return ", ".join(named)


def _opened(site: str, row: rows.OpenedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{site} began round {row.round}{_when(cause)}."]


def _arrived(site: str, row: rows.ArrivedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{_sources([row.source])} arrived at {site} ({row.source.artifact.bytes} bytes)."]


def _chosen(site: str, row: rows.ChosenRow, cause: rows.Cause | None) -> list[str]:
    fresh = {source.origin for source in row.sources if not source.fallback and source.origin != site}
    again = cause is not None and cause.event == "ArtifactRejected"
    sentences = []
    if (waited_for := fresh | row.missing.keys()) and not again:
        waited_s = _waited_s(row)
        how_long = f" for {waited_s:.3g} s" if waited_s is not None else ""
        sentences.append(f"{site} waited for {', '.join(sorted(waited_for))}{how_long}.")
    its = "'s copy of its model" if row.purpose == "return" else ""
    sentences += [
        f"{site} did without {name}{its}: it {MISSING.get(why, why)}." for name, why in sorted(row.missing.items())
    ]
    nothing = "no copy of its model" if row.purpose == "return" else "nothing from other sites"
    used = _sources(row.sources) if row.sources else nothing
    why = "nothing was left to wait for" if row.missing else "all that it waited for was there"
    sentences.append(f"{site} went on with {used}{_when(cause)}: {why}.")
    if row.below_quorum:
        sentences.append("Fewer peers contributed than the federation's quorum asks for.")
    return sentences


def _discarded(site: str, row: rows.DiscardedRow, cause: rows.Cause | None) -> list[str]:
    lost = f"The file of an artifact that {site} had received was gone, so {site} asked for it again."
    return [lost] if row.lost else []


def _waited_s(row: rows.ChosenRow) -> float | None:
    """Return how long the exchange took: a row counts a wait that ended at the deadline ``SLOW_FACTOR`` times."""
    waits_s = list((row.in_vain_s or {}).values())
    if row.waited_s is not None:
        at_deadline = "slow" in row.missing.values() and row.waited_s >= SLOW_FACTOR * max(waits_s, default=0.0)
        waits_s.append(row.waited_s / (SLOW_FACTOR if at_deadline else 1.0))
    return max(waits_s, default=None)


def _trained(site: str, row: rows.TrainedRow, cause: rows.Cause | None) -> list[str]:
    visited = ", ".join(f"{artifact.owner}'s" for artifact in row.returned or ())
    beside = f", and beside its own the models {visited}" if visited else ""
    return [f"{site} trained ({row.stage}) for {row.duration_s:.3g} s{beside}."]


def _aggregated(site: str, row: rows.AggregatedRow, cause: rows.Cause | None) -> list[str]:
    sentences = [f"{site} averaged the shared part of {', '.join(row.contributors)}."]
    if row.artifact is not None:  # only a merge makes one
        hosts = ", ".join(name for name in row.contributors if name != site)
        sentences = [
            f"{site} averaged its model with the copies from {hosts}."
            if hosts
            else f"{site} kept its own model as it was: no copy of it was there to average with."
        ]
    for name, reason in sorted((row.cut or {}).items()):
        less = "gave less weight to" if name in row.contributors else "left out"
        sentences.append(f"{site} {less} {name}'s contribution: {reason}.")
    return sentences


def _committed(site: str, row: rows.CommittedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{site} committed round {row.round}; contributors: {', '.join(row.contributors)}."]


def _compared(site: str, row: rows.ComparedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{row.site} ended the round with {'the same' if row.agrees else 'another'} mean."]


def _skipped(site: str, row: rows.SkippedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{site} left out rounds {row.first} to {row.round - 1}, because its peers were further{_when(cause)}."]


def _joined(site: str, row: rows.JoinedRow, cause: rows.Cause | None) -> list[str]:
    return [f"{site} joined the federation: the rounds up to {row.round} were never its own."]


def _amended(site: str, row: rows.AmendedRow, cause: rows.Cause | None) -> list[str]:
    what = f"amendment {row.number}, which holds from round {row.from_round} on" if row.number else "a notice"
    gone = f" {', '.join(row.gone)} counted as gone at once." if row.gone else ""
    again = f" Its exchange of round {row.round} began again." if row.reopened else ""
    departs = " It is no member any more." if row.departs else ""
    return [f"{site} learnt of {what}.{gone}{again}{departs}"]


def _refused(site: str, row: rows.RefusedRow, cause: rows.Cause | None) -> list[str]:
    return [
        f"{row.origin} declined to {site}: {row.reason}."
        if row.declined
        else f"{site} refused {row.origin}: {row.reason}."
    ]


def _work_failed(site: str, row: rows.WorkFailedRow, cause: rows.Cause | None) -> list[str]:
    return [f"The worker of {site} failed ({row.fault}): {row.reason}."]


def _reverted(site: str, row: rows.RevertedRow, cause: rows.Cause | None) -> list[str]:
    return [
        f"Training diverged at {site} ({row.reason}): it went back to its state before it used the artifacts of "
        f"{', '.join(row.origins)}. One of these may have caused it, or none."
    ]


def _left(site: str, row: rows.LeftRow, cause: rows.Cause | None) -> list[str]:
    why = f", because of a fault ({row.fault}): {row.reason}" if row.fault else _when(cause)
    return [f"The daemon of {site} ended{why}."]


def _regenerated(site: str, row: rows.RegeneratedRow, cause: rows.Cause | None) -> list[str]:
    known = f"{row.reported_by} knew of a later state, so that a backup must have been restored"
    if row.reported_by == site:
        known = "its operator restored a backup"
    return [f"{site} went on as generation {row.generation}: {known}."]


def _plain(sentence: str) -> Sentences:
    return lambda site, row, cause: [sentence.format(site=site) + f"{_when(cause)}."]


SENTENCES: Mapping[type[rows.JournalRow], Sentences] = {
    rows.BeganRow: lambda site, row, cause: [f"The daemon of {site} started."],
    rows.JoinedRow: _joined,
    rows.AmendedRow: _amended,
    rows.OpenedRow: _opened,
    rows.ArrivedRow: _arrived,
    rows.RefusedRow: _refused,
    rows.ChosenRow: _chosen,
    rows.DiscardedRow: _discarded,
    rows.TrainedRow: _trained,
    rows.AggregatedRow: _aggregated,
    rows.EvaluatedRow: lambda site, row, cause: [f"{site} evaluated its model."],
    rows.CommittedRow: _committed,
    rows.ComparedRow: _compared,
    rows.SkippedRow: _skipped,
    rows.SlotLostRow: _plain("No usable copy of {site}'s model came home"),
    rows.IsolatedRow: _plain("{site} heard no peer any more"),
    rows.PausedRow: _plain("{site} paused"),
    rows.ResumedRow: _plain("{site} went on after the pause"),
    rows.WorkFailedRow: _work_failed,
    rows.RevertedRow: _reverted,
    rows.RegeneratedRow: _regenerated,
    rows.LeftRow: _left,
    rows.FinishedRow: lambda site, row, cause: [f"{site} had finished its last round."],
}
"""The kinds of rows in the story, with their sentences."""
