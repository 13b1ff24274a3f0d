"""The choice between a row's candidates, by the sites' validation samples alone.

Each fold and seed chooses for itself: the validation samples of one may be the test samples of
another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from peer.core.metrics import VALIDATION, validation_loss
from peer.errors import StateError
from peer.lab.experiments.result_files import UNDISTURBED
from peer.lab.report.results import CandidateScore, Results, RunResult
from peer.lab.report.table import Cell, Column, Table, lay_out, unit_of
from peer.lab.statistics.means import deviation, mean


def choose(results: Results) -> Results:
    """Put the chosen candidate's run in place of the candidates' runs; the same results if no row has candidates.

    A fold and seed in which a candidate has no result has no choice, and the row has no run there.

    Raises:
        StateError: no row has a choice, and there is none without candidates.
    """
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, facts in results.experiment["methods"].items():
        if "candidate_of" in facts:
            rows.setdefault(facts["candidate_of"], {})[label] = facts
    if not rows:
        return results
    row_of = {label: row for row, candidates in rows.items() for label in candidates}
    runs = [run for run in results.runs if run.method not in row_of]
    scores: list[CandidateScore] = []

    def key(run: RunResult) -> tuple[Any, ...]:
        return row_of[run.method], run.setting, run.links, run.fold, run.seed

    candidate_runs = sorted((run for run in results.runs if run.method in row_of), key=key)
    for (row, *_), group in itertools.groupby(candidate_runs, key=key):
        by_label = {run.method: run for run in group}
        if by_label.keys() != rows[row].keys():
            continue
        tried = [_score(row, by_label[label], results.metric) for label in rows[row]]
        best = max(tried, key=lambda score: (_or_lowest(score.value), -score.loss))  # the first of equal ones
        scores += [replace(score, is_chosen=score is best) for score in tried]
        chosen = by_label[best.candidate]
        runs.append(replace(chosen, document={**chosen.document, "method": row}))
    if not runs:
        raise StateError(f"{results.folder}: no row has all its candidates yet", "let `simulate` finish them")
    methods: dict[str, Any] = {}
    for label, facts in results.experiment["methods"].items():
        row = row_of.get(label, label)
        methods[row] = _shared_facts([*rows[row].values()]) if row in rows else facts
    return replace(results, experiment={**results.experiment, "methods": methods}, runs=runs, scores=scores)


def _score(row: str, run: RunResult, metric: str) -> CandidateScore:
    """Average the last round's validation metric and loss over the sites."""
    last_metrics = [site["rounds"][-1]["metrics"] for site in run.sites.values() if site["rounds"]]
    losses = [validation_loss(metrics) for metrics in last_metrics]
    return CandidateScore(
        row=row,
        candidate=run.method,
        run=run,
        value=mean([metrics.get(VALIDATION + metric) for metrics in last_metrics]),
        loss=sum(losses) / len(losses) if losses else math.inf,
    )


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value


def _shared_facts(candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of a row: of parameters and stages what its candidates have in common."""
    first = candidates[0]
    common = {
        name: {
            key: value
            for key, value in first[name].items()
            if all(other[name].get(key) == value for other in candidates)
        }
        for name in ("parameters", "stages")
    }
    return {**first, **common}


def table(results: Results, setting: tuple[str, str], *, name: str) -> Table | None:
    """Tabulate every candidate's validation metric and how often it was chosen; None without candidates."""
    scores = [score for score in results.scores if score.run.setting == setting and score.run.links == UNDISTURBED]
    if not scores:
        return None
    unit = unit_of(results.metric)
    by_candidate: dict[str, list[CandidateScore]] = {}
    for score in scores:
        by_candidate.setdefault(score.candidate, []).append(score)
    columns = [
        (Column("row"), {label: Cell(text=tried[0].row) for label, tried in by_candidate.items()}),
        (
            Column(f"validation {unit.axis}", digits=unit.digits),
            {
                label: _cell([score.value for score in tried], ddof=results.ddof)
                for label, tried in by_candidate.items()
            },
        ),
        (
            Column("chosen"),
            {
                label: Cell(text=f"{sum(score.is_chosen for score in tried)} of {len(tried)}")
                for label, tried in by_candidate.items()
            },
        ),
    ]
    counts = {row: len({score.candidate for score in scores if score.row == row}) for row in {s.row for s in scores}}
    others = [label for label in results.labels(setting) if label not in counts]
    notes = (
        f"Each fold and seed of a row takes the candidate with the best {unit.name} on the validation samples after "
        "the last round, the mean over the sites; of equal ones that of the lower loss. All other tables show the "
        "chosen candidates' test results. No test sample has a part in the choice.",
        f"Candidates a row: {', '.join(f'{row} {count}' for row, count in sorted(counts.items()))}."
        + (f" Without a choice: {', '.join(others)}." if others else ""),
    )
    title = f"Candidates and the choice between them, validation {unit.axis}"
    return lay_out(name, title, columns, by_candidate, notes=notes, head="candidate")


def _cell(values: Sequence[float | None], *, ddof: int) -> Cell:
    return Cell(mean(values), deviation(values, ddof=ddof) if len(values) > 1 else None)
