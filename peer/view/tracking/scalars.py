"""The numbers of a site's rounds as scalars for trackers: a generation is a run, a round a step.

The time of a scalar is that of its journal row: reading the journal again gives the same scalars,
and the new ones.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peer import __version__
from peer.core import cross_evaluation_memory
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import OPEN, CommittedRound, History, HistoryRow, Transfer
from peer.site.records.members import MembersOf, members_of

EXPORT = "export"
"""The purpose of a ledger row of an export, which sends nothing to a peer."""
OTHER_SPLIT = cross_evaluation_memory.OTHER_SPLIT
KINDS = ("began", "committed", "configured", "evaluated", "finished", "lapsed", "left", "regenerated", "report")
PATHS = frozenset({"data.datalist", "data.root", "data.regions"})
"""Settings with paths of this site's data, which are left out: operators show a table of runs to
others.
"""
TagAndStep = tuple[str, int]
"""Unique among the scalars of a run."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of a round; ``time_s`` is Unix time."""

    tag: str
    step: int
    value: float
    time_s: float


@dataclass(frozen=True, slots=True)
class GenerationScalars:
    """The scalars of one generation of a site by time, and its configuration as texts.

    ``ended_s`` is the time when the site left after its last round, and ``None`` before.
    """

    site: str
    federation: str
    digest: str
    generation: int
    began_s: float
    ended_s: float | None
    scalars: tuple[Scalar, ...]
    facts: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"gen-{self.generation:04d}"

    @property
    def rounds(self) -> int:
        return len({scalar.step for scalar in self.scalars if scalar.tag == "round/duration_s"})


def read_runs(folder: SiteFolder) -> list[GenerationScalars]:
    """Read every generation of a site that has begun, oldest first; the daemon may be running.

    Tags are ``<stage>/<number>`` for losses and steps of training, ``test/`` and ``validation/``
    for the site's own splits, ``evaluation/<site>/`` and ``global_test/`` for remote evaluation,
    ``round/duration_s``, ``round/contributors``, ``round/missing``, and ``traffic/received_bytes``
    and ``traffic/sent_bytes``: artifacts whose transfer ended between the end of the round before
    and the round's own.

    Raises:
        ConfigError: federation.toml cannot be read.
        StateError: journal or ledger is damaged.
    """
    federation = FederationConfig.load(folder.federation_toml)
    # The ledger is read after the journals: of each commit in them, it has every transfer that ended before.
    history = History(folder, rounds=True, received=True, sent=True, kinds=KINDS).read_all()
    sent: dict[int, list[Transfer]] = {}
    for transfer in history.sent:
        if transfer.outcome != OPEN and transfer.purpose != EXPORT:
            sent.setdefault(transfer.generation, []).append(transfer)
    runs, members = [], members_of(folder, federation.roster.names)
    for number, rows in history.rows_of.items():
        generations = {number, *(row.body["generation"] for row in rows if row.kind == "regenerated")}
        transfers = [transfer for generation in sorted(generations) for transfer in sent.get(generation, [])]
        if rows:
            runs.append(_read_run(folder, federation, members, number, history, transfers))
    return runs


def stamp(folder: SiteFolder) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes when a journal or the ledger changes."""
    databases = [folder.generation(number) / "journal.db" for number in folder.generations()]
    files = []
    for database in (*databases, folder.egress_db):
        for path in (database, database.with_name(f"{database.name}-wal")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(files)


def _read_run(
    folder: SiteFolder,
    federation: FederationConfig,
    members: MembersOf,
    number: int,
    history: History,
    sent: Sequence[Transfer],
) -> GenerationScalars:
    rows = history.rows_of[number]
    settings: Mapping[str, Any] = next((row.body for row in reversed(rows) if row.kind == "configured"), {})
    configuration = {key: str(value) for key, value in settings.items() if key not in PATHS}
    if settings.get("federation", federation.digest) == federation.digest:
        configuration |= _flatten(federation)
    finished = any(row.kind == "finished" for row in rows)
    last = next((row for row in reversed(rows) if row.kind in ("began", "left")), None)
    traffic = {"received": history.received_of[number], "sent": sent}
    scalars = [
        *_scalars(federation, rows, list(history.rounds_of[number].values()), traffic),
        *_evaluation_scalars(folder.site, members, rows),
    ]
    return GenerationScalars(
        site=folder.site,
        federation=folder.federation,
        digest=str(settings.get("federation", federation.digest)),
        generation=number,
        began_s=rows[0].time_s,
        ended_s=last.time_s if finished and last is not None and last.kind == "left" else None,
        scalars=tuple(
            sorted(
                (scalar for scalar in scalars if math.isfinite(scalar.value)),
                key=lambda scalar: (scalar.time_s, scalar.tag),
            )
        ),
        facts={"version": __version__, **configuration},
    )


def _flatten(federation: FederationConfig) -> dict[str, str]:
    """Return the federation's settings of the training, as ``table.key``."""
    document = federation.model_dump(mode="json", include={"rounds", "seed", "weighting", "task", "schedule"})
    nested = {"task": document.pop("task"), "schedule": document.pop("schedule"), "method": federation.parameters}
    nested |= {f"stages.{name}": work.model_dump() for name, work in federation.stages.items()}
    flat = {f"{table}.{key}": value for table, keys in nested.items() for key, value in keys.items()}
    every = {**document, "method": federation.method.name, **flat}
    return {key: str(value) for key, value in every.items()}


def _scalars(
    federation: FederationConfig,
    rows: Sequence[HistoryRow],
    rounds: Sequence[CommittedRound],
    traffic: Mapping[str, Sequence[Transfer]],
) -> Iterator[Scalar]:
    stages = federation.plan.stages
    for committed in rounds:
        step, at_s = committed.row.round, committed.time_s
        yield Scalar("round/duration_s", step, committed.row.duration_s, at_s)
        yield Scalar("round/contributors", step, float(len(committed.row.contributors)), at_s)
        yield Scalar("round/missing", step, float(len(committed.row.missing)), at_s)
    yielded: set[TagAndStep] = set()
    for row in rows:
        if row.kind in ("committed", "evaluated"):  # a metric measured before the commit is in both
            for name, value in row.body["metrics"].items():
                tag = _tag(name, stages)
                if (tag, row.round) not in yielded:
                    yielded.add((tag, row.round))
                    yield Scalar(tag, row.round, float(value), row.time_s)
    for direction, transfers in traffic.items():
        for committed, total in zip(rounds, _bytes_by_round(rounds, transfers), strict=True):
            yield Scalar(f"traffic/{direction}_bytes", committed.row.round, float(total), committed.time_s)


def _tag(metric: str, stages: Mapping[str, Any]) -> str:
    """Return the tag of a metric of `rounds`: its stage, or the split of the measurement, and its name."""
    stage = next((name for name in sorted(stages, key=len, reverse=True) if metric.startswith(f"{name}_")), None)
    if stage is not None:
        return f"{stage}/{metric.removeprefix(f'{stage}_')}"
    if metric.startswith(OTHER_SPLIT):
        return f"validation/{metric.removeprefix(OTHER_SPLIT)}"
    return f"test/{metric}"


def _bytes_by_round(rounds: Sequence[CommittedRound], transfers: Sequence[Transfer]) -> list[int]:
    """Bytes of transfers that ended after the commit before, and not after the round's own."""
    ends_s = [committed.time_s for committed in rounds]
    totals = [0] * (len(rounds) + 1)
    for transfer in transfers:
        totals[bisect.bisect_left(ends_s, transfer.ended_s)] += transfer.bytes
    return totals[:-1]


def _evaluation_scalars(site: str, members: MembersOf, rows: Sequence[HistoryRow]) -> Iterator[Scalar]:
    """Metrics of the site's models at other sites, by report, and the mean over all sites."""
    evaluations = [row for row in rows if row.kind in ("evaluated", "report", "lapsed")]
    reported_s: dict[tuple[int, str], float] = {}
    for row in evaluations:
        if row.kind == "report":
            reported_s.setdefault((row.round, row.body["site"]), row.time_s)
    plain_rows = [(row.kind, row.round, row.body) for row in evaluations]
    for record in cross_evaluation_memory.evaluation_records(plain_rows, own=site, sites=members):
        step = record["round"]
        for other, cell in record["cells"].items():
            if (step, other) in reported_s:
                for name, value in cell.get("metrics", {}).items():
                    yield Scalar(f"evaluation/{other}/{name}", step, float(value), reported_s[(step, other)])
        reports_s = [at_s for (round, _), at_s in reported_s.items() if round == step]
        if record["global_test"] is not None and reports_s:
            for name, value in record["global_test"].items():
                yield Scalar(f"global_test/{name}", step, float(value), max(reports_s))
