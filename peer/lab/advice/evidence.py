"""What the simulator measured: the shipped table, and an operator's own results.

``deploy/evidence.py`` writes the shipped table from RESULTS.md. A gain is a method's main metric minus that of training
alone, in points, or in the metric's unit. Its interval is one of three:

- Student's 95 % interval of the differences paired by fold, split or seed, where the source has it;
- else, of means and standard deviations (by n) of n seeds, the difference of the means ± 2 standard errors, as if the
  two were independent: ``2 sqrt((sd² + sd_alone²) / (n - 1))``;
- none of a single run.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from peer.core.plan import Value
from peer.core.tasks import objective_of
from peer.lab.experiments.result_files import CENTRALISED
from peer.site.config.schema import FederationConfig

if TYPE_CHECKING:
    from peer.lab.report.comparison import Comparison

SHIPPED = Path(__file__).with_name("evidence.csv")
POINTS = 100.0
"""From a metric between 0 and 1 to points."""
CLASSES_ALIKE = {"equal": True, "ratio": True, "resolution": True, "dirichlet": False, "shards": False}
"""Whether sites have like shares of the classes, by the kind of a partition; of others it is not known."""
PAIRED, UNPAIRED, SINGLE = "95 %, paired", "± 2 standard errors, not paired", "none: a single run"


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """A method against training alone, and its share of the room in per cent; ``None`` where there is no value."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None

    @property
    def sign(self) -> int | None:
        """1 if the interval is above 0, -1 if it is below, 0 if 0 is in it; ``None`` without an interval."""
        return None if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A row of a study, as ``peer.documents`` describes it: a method as it was configured there."""

    row: str
    method: str
    local_test: MeasuredGain
    global_test: MeasuredGain
    epsilon: float | None = None
    shared_noise: bool = False
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Study:
    """Methods that were compared at the same sites, as ``peer.documents`` describes them."""

    name: str
    source: str
    kind: str
    objective: str
    sites: int
    people: float | None
    classes_alike: bool | None
    networks_differ: bool
    metric: str
    interval: str
    rows: tuple[StudyRow, ...]


def read_table(path: Path = SHIPPED) -> list[Study]:
    """Read a table that ``deploy/evidence.py`` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return [_read_study(list(group)) for _, group in groupby(lines, lambda line: line["study"])]


def _read_study(lines: Sequence[Mapping[str, str]]) -> Study:
    first, repetitions = lines[0], int(lines[0]["repetitions"])
    tuned = {line["row"].removesuffix("-tuned") for line in lines if line["row"].endswith("-tuned")}
    alone = next(line for line in lines if line["method"] == "local")
    rows = [
        StudyRow(
            line["row"],
            line["method"],
            _read_gain(line, alone, "local", repetitions),
            _read_gain(line, alone, "global", repetitions),
            _number(line["epsilon"]),
            line["shared_noise"] == "yes",
            {"visits": int(line["visits"])} if line["visits"] else {},
        )
        for line in lines
        if line["method"] not in ("local", CENTRALISED) and line["row"] not in tuned
    ]
    return Study(
        first["study"],
        first["command"],
        first["kind"],
        objective_of(first["kind"], first["target"]),
        int(first["sites"]),
        _number(first["people"]),
        {"alike": True, "differ": False}.get(first["classes"]),
        first["networks"] == "differ",
        first["metric"],
        SINGLE if repetitions < 2 else PAIRED if any(line["local_low"] for line in lines) else UNPAIRED,
        tuple(rows),
    )


def _read_gain(line: Mapping[str, str], alone: Mapping[str, str], test: str, repetitions: int) -> MeasuredGain:
    if line[f"{test}_gain"]:
        return MeasuredGain(*(_number(line[f"{test}_{part}"]) for part in ("gain", "low", "high", "share")))
    if not line[test] or not alone[test]:
        return MeasuredGain()
    mean = POINTS * (float(line[test]) - float(alone[test]))
    deviations = [float(each[f"{test}_deviation"]) for each in (line, alone) if each[f"{test}_deviation"]]
    if repetitions < 2 or len(deviations) < 2:
        return MeasuredGain(mean)
    half = 2 * POINTS * math.hypot(*deviations) / math.sqrt(repetitions - 1)
    return MeasuredGain(mean, mean - half, mean + half)


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def read_results(folder: Path) -> list[Study]:
    """Read what ``simulate`` left in a folder: a study for each partition with each set of networks.

    Raises:
        UsageError: the folder holds no experiment.
        StateError: a file is damaged, or no run has finished.
    """
    from peer.lab.report.choice import choose
    from peer.lab.report.comparison import Comparison
    from peer.lab.report.measurements import Measurements
    from peer.lab.report.results import read
    from peer.lab.report.table import unit_of

    results = choose(read(folder))
    measured, unit = Measurements(results), unit_of(results.metric)
    compared = [Comparison(measured, setting, results.metric, unit) for setting in results.settings]
    return [_own_study(each, each.local) for each in compared if each.local is not None]


def _own_study(comparison: Comparison, alone: str) -> Study:
    results, (partition, _) = comparison.results, comparison.setting
    sites = [site for run in results.select(comparison.setting, alone) for site in run.sites.values()]
    people = [site["samples"]["training"] for site in sites if "samples" in site]
    rows = tuple(_own_row(comparison, label, alone) for label in comparison.ranked if label != alone)
    return Study(
        " ".join(filter(None, (str(results.experiment["name"]), results.title(comparison.setting)))),
        str(results.folder),
        str(results.experiment["task"]["kind"]),
        results.kind,
        len(results.sites(comparison.setting)),
        float(median(people)) if people else None,
        CLASSES_ALIKE.get(str(results.experiment["partitions"][partition]["kind"])),
        any(site["model"] != sites[0]["model"] for site in sites),
        comparison.unit.name,
        PAIRED if any(row.local_test.low is not None for row in rows) else SINGLE,
        rows,
    )


def _own_row(comparison: Comparison, label: str, alone: str) -> StudyRow:
    results = comparison.results
    plan = results.select(comparison.setting, label)[0].folder / "federation.toml"
    noise = FederationConfig.load(plan).noise if plan.exists() else None
    return StudyRow(
        label,
        results.method_of(label),
        _own_gain(comparison, label, alone, "local"),
        _own_gain(comparison, label, alone, "global"),
        None if noise is None else noise.epsilon,
        noise is not None and noise.sharers > 1,
        results.experiment["methods"][label]["parameters"],
    )


def _own_gain(comparison: Comparison, label: str, alone: str, test: str) -> MeasuredGain:
    paired, factor = comparison.paired(label, alone, test), comparison.unit.point[0]
    ends = (paired.difference, paired.low, paired.high)
    mean, low, high = (None if end is None else factor * end for end in ends)
    room = comparison.share(label, test) if comparison.has_bounds else None
    if room is None or room.share.value is None or not room.has_room(comparison.unit.room_min):
        return MeasuredGain(mean, low, high)
    return MeasuredGain(mean, low, high, POINTS * room.share.value)
