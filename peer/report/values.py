"""From runs to rows: Local and Global Test of a method over folds, or over seeds where there are no folds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from peer.evaluation.statistics import Matrix, Row, average, generalisation, global_test, local_test
from peer.report.results import EVERY_LINK, Results, Run


@dataclass(frozen=True)
class Line:
    """A method in one setting.

    Attributes:
        units: the folds, or the seeds where there are no folds, that have a run; the spreads are in this order.
        local: its Local Test.
        overall: its Global Test; a site whose model cannot be tried on every site's data has none.
        matrix: every model on every site's test data, the mean over units.
        single_model: whether all sites have the same network in the end.
    """

    units: tuple[int, ...]
    local: Row
    overall: Row
    matrix: Mapping[str, Mapping[str, float | None]]
    single_model: bool

    def means(self, test: str) -> dict[int, float | None]:
        """The column "Mean" of ``local`` or ``global`` by fold or seed."""
        row = self.local if test == "local" else self.overall
        return dict(zip(self.units, row.mean.folds, strict=True))


def line(
    results: Results,
    setting: tuple[str, str],
    label: str,
    metric: str,
    *,
    links: str = EVERY_LINK,
    without: Collection[str] = (),
) -> Line | None:
    """A method's values, of all sites but some; nothing where it has no run."""
    runs = results.select(setting, label, links)
    if not runs:
        return None
    by_unit: dict[int, list[Run]] = {}
    for run in runs:
        by_unit.setdefault(run.fold if results.experiment["folds"] else run.seed, []).append(run)
    sites = [site for site in sorted(runs[0].sites) if site not in without]
    if not sites:
        return None
    matrices = [_mean([_matrix(run, metric, sites) for run in found]) for found in by_unit.values()]
    tried = {model: all(run.matrix.get(model, {}).get(split) for run in runs for split in sites) for model in sites}
    whole = [
        {model: (row if tried[model] else dict.fromkeys(row)) for model, row in matrix.items()} for matrix in matrices
    ]
    return Line(
        units=tuple(by_unit),
        local=local_test(matrices),
        overall=global_test(whole),
        matrix={
            model: {split: spread.mean for split, spread in row.items()}
            for model, row in generalisation(matrices).items()
        },
        single_model=all(run.single_model for run in runs),
    )


def _matrix(run: Run, metric: str, sites: Sequence[str]) -> Matrix:
    return {model: {split: run.matrix.get(model, {}).get(split, {}).get(metric) for split in sites} for model in sites}


def _mean(matrices: Sequence[Matrix]) -> Matrix:
    """Over the seeds of one fold."""
    if len(matrices) == 1:
        return matrices[0]
    return {
        model: {split: average(matrix[model][split] for matrix in matrices).value for split in row}
        for model, row in matrices[0].items()
    }
