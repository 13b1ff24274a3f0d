"""What a site's journal knows of every round as scalars: a generation is a run, a round a step.

The time of a scalar is that of the journal's row: a second look finds the same numbers, beside those that are new.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peer import __version__
from peer.config.schema import FederationConfig
from peer.config.site_folder import SiteFolder
from peer.core import global_test_memory
from peer.records.journal import Journal
from peer.records.ledger import UNKNOWN, Ledger

EXPORT = "export"
"""The purpose of a ledger row that sent nothing to a peer."""
OTHER_SPLIT = global_test_memory.OTHER_SPLIT
KINDS = (
    "began",
    "committed",
    "configured",
    "evaluated",
    "finished",
    "lapsed",
    "left",
    "received",
    "regenerated",
    "report",
)
PATHS = frozenset({"data.datalist", "data.root", "data.regions"})
"""Settings that say where this site's data lie; a table of runs is shown to others."""
Place = tuple[str, int]
"""Tag and step: what there is at most once in a run."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of a round; ``time_s`` is Unix time."""

    tag: str
    step: int
    value: float
    time_s: float


@dataclass(frozen=True, slots=True)
class GenerationScalars:
    """A generation of a site: its scalars by time, and the facts of its configuration.

    ``ended_s`` is when the site left after its last round; nothing before.
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


def runs(folder: SiteFolder) -> list[GenerationScalars]:
    """Every generation of a site that has begun, oldest first; the daemon may be running.

    Tags are ``<stage>/<number>`` for what training told, ``test/`` and ``validation/`` for the site's own splits,
    ``evaluation/<site>/`` and ``global_test/`` for remote evaluation, ``round/duration_s``, ``round/contributors``,
    ``round/missing``, and ``traffic/received_bytes`` and ``traffic/sent_bytes``: artifacts whose transfer ended between
    the end of the round before and the round's own.

    Raises:
        ConfigError: federation.toml cannot be read.
        StateError: journal or ledger is damaged.
    """
    federation = FederationConfig.load(folder.federation_toml)
    begun: dict[int, list[dict[str, Any]]] = {}
    for number in folder.generations():
        path = folder.generation(number) / "journal.db"
        if path.exists():
            with contextlib.closing(Journal(path, read_only=True)) as journal:
                begun[number] = journal.records(KINDS)
    sent = _sent(folder)  # after the journals: what ended before a commit that was seen must be seen, too
    found = []
    for number, rows in begun.items():
        counted = {number, *(row["body"]["generation"] for row in rows if row["kind"] == "regenerated")}
        found.append((number, rows, [transfer for each in sorted(counted) for transfer in sent.get(each, [])]))
    return [_run(folder, federation, *each) for each in found if each[1]]


def stamp(folder: SiteFolder) -> tuple[tuple[str, int, int], ...]:
    """A value that changes when journal or ledger do."""
    databases = [folder.generation(number) / "journal.db" for number in folder.generations()]
    found = []
    for database in (*databases, folder.egress_db):
        for path in (database, database.with_name(f"{database.name}-wal")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _run(
    folder: SiteFolder,
    federation: FederationConfig,
    number: int,
    rows: list[dict[str, Any]],
    sent: list[tuple[float, int]],
) -> GenerationScalars:
    settings: Mapping[str, Any] = next((row["body"] for row in reversed(rows) if row["kind"] == "configured"), {})
    facts = {key: str(value) for key, value in settings.items() if key not in PATHS}
    if settings.get("federation", federation.digest) == federation.digest:
        facts |= _facts(federation)
    over = any(row["kind"] == "finished" for row in rows)
    last = next((row for row in reversed(rows) if row["kind"] in ("began", "left")), None)
    return GenerationScalars(
        site=folder.site,
        federation=folder.federation,
        digest=str(settings.get("federation", federation.digest)),
        generation=number,
        began_s=rows[0]["time"],
        ended_s=last["time"] if over and last is not None and last["kind"] == "left" else None,
        scalars=tuple(
            sorted(
                (scalar for scalar in _scalars(folder.site, federation, rows, sent) if math.isfinite(scalar.value)),
                key=lambda scalar: (scalar.time_s, scalar.tag),
            )
        ),
        facts={"version": __version__, **facts},
    )


def _facts(federation: FederationConfig) -> dict[str, str]:
    """What the federation's file says of the training, as ``table.key``."""
    document = federation.model_dump(mode="json", include={"rounds", "seed", "weighting", "task", "schedule"})
    nested = {"task": document.pop("task"), "schedule": document.pop("schedule"), "method": federation.parameters}
    nested |= {f"stages.{name}": work.model_dump() for name, work in federation.stages.items()}
    flat = {f"{table}.{key}": value for table, keys in nested.items() for key, value in keys.items()}
    every = {**document, "method": federation.method.name, **flat}
    return {key: str(value) for key, value in every.items()}


def _scalars(
    site: str, federation: FederationConfig, rows: Sequence[Mapping[str, Any]], sent: list[tuple[float, int]]
) -> Iterator[Scalar]:
    stages = federation.plan.stages
    commits = [(row["time"], row["round"]) for row in rows if row["kind"] == "committed"]
    told: set[Place] = set()
    for row in rows:
        step, at_s, body = row["round"], row["time"], row["body"]
        if row["kind"] == "committed":
            yield Scalar("round/duration_s", step, float(body["duration_s"]), at_s)
            yield Scalar("round/contributors", step, float(len(body["contributors"])), at_s)
            yield Scalar("round/missing", step, float(len(body["missing"])), at_s)
        if row["kind"] in ("committed", "evaluated"):  # what was measured before the commit is in both
            for name, value in body["metrics"].items():
                tag = _tag(name, stages)
                if (tag, step) not in told:
                    told.add((tag, step))
                    yield Scalar(tag, step, float(value), at_s)
    received = [(row["time"], int(row["body"]["bytes"])) for row in rows if row["kind"] == "received"]
    for direction, transfers in (("received", received), ("sent", sent)):
        for (at_s, step), total in zip(commits, _between(commits, transfers), strict=True):
            yield Scalar(f"traffic/{direction}_bytes", step, float(total), at_s)
    yield from _evaluation(site, federation, rows)


def _tag(metric: str, stages: Mapping[str, Any]) -> str:
    """Where a metric of `rounds` stands: under its stage, or under the split that it was measured on."""
    stage = next((name for name in sorted(stages, key=len, reverse=True) if metric.startswith(f"{name}_")), None)
    if stage is not None:
        return f"{stage}/{metric.removeprefix(f'{stage}_')}"
    if metric.startswith(OTHER_SPLIT):
        return f"validation/{metric.removeprefix(OTHER_SPLIT)}"
    return f"test/{metric}"


def _between(commits: Sequence[tuple[float, int]], transfers: Sequence[tuple[float, int]]) -> list[int]:
    """Bytes by commit: of the transfers that ended after the commit before and not after it."""
    ends_s = [at_s for at_s, _ in commits]
    totals = [0] * (len(commits) + 1)
    for at_s, size in transfers:
        totals[bisect.bisect_left(ends_s, at_s)] += size
    return totals[:-1]


def _evaluation(site: str, federation: FederationConfig, rows: Sequence[Mapping[str, Any]]) -> Iterator[Scalar]:
    """How the site's models did elsewhere, each when it was told, and the mean once every site has."""
    known = [row for row in rows if row["kind"] in ("evaluated", "report", "lapsed")]
    told_s: dict[tuple[int, str], float] = {}
    for row in known:
        if row["kind"] == "report":
            told_s.setdefault((row["round"], row["body"]["site"]), row["time"])
    plain = [(row["kind"], row["round"], row["body"]) for row in known]
    for record in global_test_memory.evaluation_records(plain, own=site, sites=federation.roster.names):
        step = record["round"]
        for other, cell in record["cells"].items():
            if (step, other) in told_s:
                for name, value in cell.get("metrics", {}).items():
                    yield Scalar(f"evaluation/{other}/{name}", step, float(value), told_s[(step, other)])
        reports_s = [at_s for (round, _), at_s in told_s.items() if round == step]
        if record["global_test"] is not None and reports_s:
            for name, value in record["global_test"].items():
                yield Scalar(f"global_test/{name}", step, float(value), max(reports_s))


def _sent(folder: SiteFolder) -> dict[int, list[tuple[float, int]]]:
    """By generation, when each transfer to a peer ended and how many bytes left, or may have left."""
    found: dict[int, list[tuple[float, int]]] = {}
    if not folder.egress_db.exists():
        return found
    with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
        for record in ledger.transfers():
            if record["outcome"] == "open" or record["purpose"] == EXPORT:
                continue
            size = record["bytes"] if record["outcome"] == UNKNOWN else record["sent_bytes"]
            ended_s = record["time"] + record["seconds"]
            found.setdefault(record["generation"], []).append((ended_s, int(size)))
    return found
