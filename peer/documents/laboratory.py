"""The documents of ``simulate``, ``report`` and ``plugin``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class RunOutcome(TypedDict):
    """One run of an experiment."""

    id: Annotated[str, "name of its folder"]
    finished: Annotated[bool, "whether it is over"]
    failed: Annotated[str | None, "the reason"]


class RowWithoutRuns(TypedDict):
    """A row of an experiment that has no runs in a partition with some networks."""

    partition: Annotated[str, "partition of the samples"]
    models: Annotated[str, "set of networks"]
    method: Annotated[str, "name of the row"]
    reason: Annotated[str, "why"]


class SimulationResult(TypedDict):
    """The runs of an experiment, finished or not."""

    out: Annotated[str, "folder of results"]
    runs: Annotated[list[RunOutcome], "all runs of the experiment"]
    without_runs: Annotated[list[RowWithoutRuns], "rows that are left out with some networks"]
    seconds: Annotated[float | None, "estimate for the unfinished runs; null before the first has finished"]


class ReportTableRow(TypedDict):
    """A row of a table, as the report shows it."""

    label: Annotated[str, "name of the row"]
    published: Annotated[bool, "the paper's figures"]
    cells: Annotated[list[str], "one for each column"]
    ranks: Annotated[list[int], "for each column: 1 the best, 2 the second, 0 neither"]


class ReportTable(TypedDict):
    """A table, as the report shows it."""

    title: Annotated[str, "heading"]
    columns: Annotated[list[str], "their headings"]
    rows: Annotated[list[ReportTableRow], "the rows"]


class SettingResults(TypedDict):
    """The results of one partition with one set of networks."""

    partition: Annotated[str, "its name"]
    models: Annotated[str, "name of the set of networks"]
    methods: Annotated[dict[str, Mapping[str, Any]], "means of Local and Global Test, by metric and method"]
    room: Annotated[
        dict[str, Mapping[str, Any]], "the room, and each method's gain and share of it, by metric and test"
    ]
    tables: Annotated[list[ReportTable], "the report's tables"]


class ReportWritten(TypedDict):
    """The files of the report, and its main tables as numbers."""

    folder: Annotated[str, "the folder of runs"]
    title: Annotated[str, "of the experiment"]
    page: Annotated[str, "the HTML page"]
    text: Annotated[str, "the Markdown file"]
    files: Annotated[list[str], "all files that were written"]
    runs: Annotated[int, "number of runs"]
    missing: Annotated[list[str], "runs that are not finished"]
    notes: Annotated[list[str], "results that could not be shown"]
    metric: Annotated[str, "the main metric"]
    over: Annotated[str, "the repetitions that the means are over, such as folds or seeds"]
    results: Annotated[list[SettingResults], "by setting"]


class PluginCreated(TypedDict):
    """The files of a new package."""

    folder: Annotated[str, "folder of the package"]
    files: Annotated[list[str], "what was written, relative to it"]


class PluginPart(TypedDict):
    """One part of an installed package: its interface, or what an entry point names."""

    kind: Annotated[str, "`interface`, `method`, `network`, `data set`, `metric` or `group`"]
    name: Annotated[str, "of the entry point"]
    trial: Annotated[str, "what was tried"]
    problem: Annotated[str | None, "what is wrong"]


class PluginChecked(TypedDict):
    """The check of an installed package."""

    package: Annotated[str, "distribution and version"]
    interface: Annotated[int, "the version of this program's interface to packages"]
    parts: Annotated[list[PluginPart], "in the order of the groups"]


class GainFigures(TypedDict):
    """A method against training alone, in points of the metric, or in its unit."""

    mean: Annotated[float | None, "over folds, splits or seeds"]
    low: Annotated[float | None, "lower end of the interval; null without one"]
    high: Annotated[float | None, "upper end"]
    share: Annotated[float | None, "of the room, in per cent; null where it is not stated"]


class AdviceRow(TypedDict):
    """A row of a study."""

    row: Annotated[str, "its name"]
    method: Annotated[str, "the method"]
    local_test: Annotated[GainFigures, "the gain on Local Test"]
    global_test: Annotated[GainFigures, "the gain on Global Test"]
    epsilon: Annotated[float | None, "of the noise on what leaves; null without noise"]
    shared_noise: Annotated[bool, "whether sites share that noise under masks"]
    parameters: Annotated[Mapping[str, Any], "of own results: those that are not at their default"]


class AdviceStudy(TypedDict):
    """Methods that were compared at the same sites."""

    name: Annotated[str, "of the data"]
    source: Annotated[str, "the command that repeats it, or the folder of own results"]
    kind: Annotated[str, "of the task"]
    objective: Annotated[str, "the kind, or the target where that is no class"]
    sites: Annotated[int, "how many"]
    people: Annotated[float | None, "of a site, for training: people, recordings or images; null: not known"]
    classes_alike: Annotated[bool | None, "whether sites have like shares of the classes; null: not known"]
    networks_differ: Annotated[bool, "whether sites have networks of their own"]
    metric: Annotated[str, "of which gains are"]
    interval: Annotated[str, "what the intervals are"]
    rows: Annotated[list[AdviceRow], "all methods but training alone and the pooled bound"]


class Advice(TypedDict):
    """Which method suits a federation, and whether joining is likely to pay."""

    federation: Annotated[str, "its name"]
    planned: Annotated[str, "the method that its plan names"]
    kind: Annotated[str, "of its task"]
    objective: Annotated[str, "the kind, or the target where that is no class"]
    sites: Annotated[int, "in the plan"]
    people: Annotated[float | None, "of a site; null: not known"]
    people_from: Annotated[str, "where that number stands"]
    classes_alike: Annotated[bool | None, "whether this site has the others' shares of the classes; null: not known"]
    networks_differ: Annotated[bool, "whether a site may have a network of its own"]
    epsilon: Annotated[float | None, "of the plan's noise; null without noise"]
    answer: Annotated[str, "whether joining is `likely` or `not likely` to pay, or the program `does not know`"]
    reason: Annotated[str, "why"]
    row: Annotated[str | None, "the row with the highest mean gain on Local Test in the like studies"]
    method: Annotated[str | None, "its method"]
    visits: Annotated[int | None, "sites that train a copy of each model in a round; null where no model visits"]
    studies: Annotated[list[AdviceStudy], "the like studies, on which the answer rests"]
    relaxed: Annotated[list[str], "conditions of likeness that no study meets"]
    excluded: Annotated[Mapping[str, str], "by row of studies of this task: why it does not count"]
    noise_costs: Annotated[list[str], "what noise cost the rows that count"]
    not_stated: Annotated[list[str], "what is not known, and what would say it"]
    find_out: Annotated[list[str], "commands that answer on own data"]


DOCUMENTS: Mapping[str, Any] = {
    "simulate": SimulationResult,
    "report": ReportWritten,
    "advise": Advice,
    "plugin new": PluginCreated,
    "plugin check": PluginChecked,
}
"""By command, the type of the document that ``--json`` prints."""
