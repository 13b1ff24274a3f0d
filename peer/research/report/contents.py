"""The report in its order: what was asked for, what was found, what it cost, how to do it again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peer.core.tasks import CLASSIFYING, METRICS
from peer.research.report import (
    bars,
    comparison,
    confidence,
    costs,
    curves,
    heatmaps,
    lost_links,
    panels,
    plotting,
    subgroups,
    tsne,
)
from peer.research.report.comparison import Comparison
from peer.research.report.plotting import ReportFigure, Style
from peer.research.report.published import Published, beside, chosen
from peer.research.report.results import Results, RunResult
from peer.research.report.table import Column, Table, TableRow, texts
from peer.research.result_files import UNDISTURBED

Part = str | Table | ReportFigure
"""A paragraph, a table or a picture."""
Setting = tuple[str, str]
Progress = Callable[[str], None]
"""Told what is being made."""


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class ReportContents:
    """Everything that is written down.

    Attributes:
        title: of the experiment.
        lead: paragraphs above everything else.
        missing: what is not there, in sentences.
        sections: in order; none is empty.
        mains: by setting and metric the comparison.
    """

    title: str
    lead: Sequence[str]
    missing: Sequence[str]
    sections: Sequence[Section]
    mains: Mapping[Setting, Mapping[str, Comparison]] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]

    @property
    def pictures(self) -> list[ReportFigure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, ReportFigure)]


@dataclass(frozen=True)
class ReportSetting:
    """What the chapters of one setting are made from.

    Attributes:
        results: everything.
        setting: partition and set of networks.
        suffix: of the names of files, where there is more than one setting.
        published: tables of papers that stand beside this experiment.
        mains: by metric the comparison.
        styles: of the labels.
    """

    results: Results
    setting: Setting
    suffix: str
    published: Sequence[Published]
    mains: Mapping[str, Comparison]
    styles: Mapping[str, Style]

    @property
    def main(self) -> Comparison:
        """By the metric by which the task is judged."""
        return self.mains[self.results.metric]

    @property
    def shown_runs(self) -> list[RunResult]:
        """One run a method, of the same fold and seed where all have it."""
        ran = {label: self.results.select(self.setting, label) for label in self.results.ran(self.setting)}
        common = set.intersection(*({(run.fold, run.seed) for run in runs} for runs in ran.values()))
        if not common:
            return [runs[0] for runs in ran.values()]
        return [next(run for run in runs if (run.fold, run.seed) == min(common)) for runs in ran.values()]

    def name(self, what: str) -> str:
        return what + self.suffix


def made(results: Results, *, resamples: int, progress: Progress) -> ReportContents:
    """The whole report; pictures are drawn in the style of ``plotting``."""
    styles = plotting.styles({label: results.method_of(label) for label in results.methods})
    published = beside(results.experiment.get("reference"))
    several = len(results.settings) > 1
    chapters = [
        _chapter(results, setting, published, styles, suffix="-" + slug("-".join(setting)) if several else "")
        for setting in results.settings
    ]
    makers: list[tuple[str, Callable[[ReportSetting], Iterator[Part | None]]]] = [
        ("Results", lambda chapter: _results(chapter, resamples)),
        ("Learning curves", _learning),
        ("Disconnection", _disconnection),
        ("Every model on every site's data", _cross_site),
        ("Fairness and subgroups", _subgroups),
        ("Inside the methods", _insight),
        ("Features", _features),
        ("Samples", _panels),
        ("Cost", _costs),
    ]
    sections = []
    with plotting.style():
        for title, maker in makers:
            progress(title)
            sections.append(Section(title, _gathered(chapters, maker)))
        sections.insert(1, Section("Published figures", list(_published(published, chapters))))
        sections.insert(2, Section("Data", [part for part in _data(results) if part is not None]))
    sections.append(Section("Reproduction", list(_reproduction(results))))
    experiment = results.experiment
    return ReportContents(
        title=str(experiment.get("title") or experiment["name"]),
        lead=_lead(results),
        missing=_missing(results),
        sections=[section for section in sections if section.parts],
        mains={chapter.setting: chapter.mains for chapter in chapters},
    )


def slug(text: str) -> str:
    """A name for files and anchors."""
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold()).strip("-")


def _chapter(
    results: Results, setting: Setting, published: Sequence[Published], styles: Mapping[str, Style], *, suffix: str
) -> ReportSetting:
    metrics = dict.fromkeys((results.metric, *METRICS.get(results.kind, ())))
    printed = next((table.unit for table in published if table.kind == "comparison"), None)
    mains = {
        metric: comparison.compare(
            results, setting, metric, chosen(published, setting, metric), printed=printed, name=f"{metric}{suffix}"
        )
        for metric in metrics
    }
    return ReportSetting(results, setting, suffix, published, mains, styles)


def _gathered(chapters: Sequence[ReportSetting], maker: Callable[[ReportSetting], Iterator[Part | None]]) -> list[Part]:
    """The parts of all settings; what they are of stands above them where there are several."""
    parts: list[Part] = []
    for chapter in chapters:
        found = [part for part in maker(chapter) if part is not None]
        if found and chapter.suffix:
            parts.append(f"## {chapter.results.title(chapter.setting)}")
        parts += found
    return parts


def _results(chapter: ReportSetting, resamples: int) -> Iterator[Part | None]:
    yield comparison.spread_of_steps(chapter.results, chapter.setting)
    for found in chapter.mains.values():
        yield found.table
    yield confidence.paired(chapter.results, chapter.main, name=chapter.name("paired"))
    if resamples:
        yield confidence.bootstrap(
            chapter.results, chapter.main, chapter.setting, resamples=resamples, name=chapter.name("bootstrap")
        )


def _published(published: Sequence[Published], chapters: Sequence[ReportSetting]) -> Iterator[Part]:
    """Those tables of the paper that do not stand in ours as a whole, and what is wrong in it."""
    if not published:
        return
    for index, table in enumerate(published):
        whole = any(
            chosen(published, chapter.setting, metric) is table
            and comparison.matched(table, chapter.results.sites(chapter.setting), metric) is not None
            for chapter in chapters
            for metric in chapter.mains
        )
        if not whole:
            yield table.table(f"published-{index + 1}")
    remarks = dict.fromkeys(remark for table in published for remark in table.remarks())
    for remark in remarks:
        yield f"What does not agree in the paper: {remark}"


def _data(results: Results) -> Iterator[Part | None]:
    for partition in dict.fromkeys(setting[0] for setting in results.settings):
        yield bars.distribution(results, partition)
        yield costs.samples(results, partition, name=f"samples-{slug(partition)}")


def _learning(chapter: ReportSetting) -> Iterator[Part | None]:
    drawn = curves.learning(chapter.results, chapter.setting, chapter.styles, name=chapter.name("learning"))
    yield drawn or "The runs were tested after their last round only (evaluation_every = 0): there is no curve."


def _disconnection(chapter: ReportSetting) -> Iterator[Part | None]:
    yield from lost_links.tables(chapter.results, chapter.setting, chapter.main, name=chapter.name("disconnection"))
    yield curves.disconnection(
        lost_links.by_loss(chapter.results, chapter.setting, chapter.main),
        chapter.styles,
        axis=chapter.main.unit.axis,
        name=chapter.name("link-loss"),
    )


def _cross_site(chapter: ReportSetting) -> Iterator[Part | None]:
    main = chapter.main
    sites = chapter.results.sites(chapter.setting)
    if len(sites) < 2:
        return
    matrices = {
        label: np.array(
            [[_or_nan(line.matrix.get(model, {}).get(split)) for split in sites] for model in sites], dtype=np.float64
        )
        for label, line in main.lines.items()
    }
    yield heatmaps.cross_site(matrices, sites, shown=main.unit, name=chapter.name("cross-site"))
    columns = tuple(Column(site, "test data of", main.unit.digits) for site in sites)
    rows = [
        TableRow(f"{label}: {model}", comparison.numbers([line.matrix.get(model, {}).get(s) for s in sites], main.unit))
        for label, line in main.lines.items()
        for model in sites
    ]
    notes = ("The Global Test before it is averaged; mean over runs. MH-pFLID's table 7.",)
    yield Table(chapter.name("cross-site"), f"Cross-site, {main.unit.axis}", "model of", columns, tuple(rows), notes)


def _subgroups(chapter: ReportSetting) -> Iterator[Part | None]:
    results, setting = chapter.results, chapter.setting
    if results.kind not in CLASSIFYING:
        return
    yield from subgroups.gaps(results, setting, chapter.mains["auc"].unit, name=chapter.name("fairness"))
    against = subgroups.baseline(results, setting)
    for key, gained in subgroups.gains(results, setting).items():
        name = chapter.name(f"gain-{slug(key)}")
        yield bars.gains(gained, chapter.styles, baseline=str(against), key=key, name=name)
        yield subgroups.table(gained, key=key, against=str(against), name=name)


def _insight(chapter: ReportSetting) -> Iterator[Part | None]:
    runs = chapter.shown_runs
    for run in runs:
        yield heatmaps.similarities(run, name=chapter.name(f"similarity-{slug(run.method)}"))
    for run in runs:
        yield heatmaps.experts(run, name=chapter.name(f"experts-{slug(run.method)}"))
    yield curves.consensus(chapter.results, chapter.setting, chapter.styles, name=chapter.name("consensus"))
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        for key, value in run.arrays("diagnosis").items():
            if key.startswith("basis/"):
                found.setdefault(run.method, {})[key.partition("/")[2]] = float(value)
    yield bars.bases(found, chapter.styles, name=chapter.name("basis"))


def _features(chapter: ReportSetting) -> Iterator[Part | None]:
    sites = chapter.results.sites(chapter.setting)
    yield tsne.features(chapter.shown_runs, sites[-1], name=chapter.name("features"))


def _panels(chapter: ReportSetting) -> Iterator[Part | None]:
    yield panels.panels(chapter.shown_runs, kind=chapter.results.kind, name=chapter.name("panels"))


def _costs(chapter: ReportSetting) -> Iterator[Part | None]:
    results, setting = chapter.results, chapter.setting
    yield bars.traffic(costs.sent(results, setting), chapter.styles, name=chapter.name("traffic"))
    yield costs.traffic(results, setting, name=chapter.name("traffic"))
    yield costs.footprint(results, setting, name=chapter.name("networks"))


def _lead(results: Results) -> list[str]:
    experiment = results.experiment
    task = experiment["task"]
    channels = f"{task['in_channels']} {'channel' if task['in_channels'] == 1 else 'channels'}"
    budget = ", ".join(f"{key} {value}" for key, value in (experiment.get("budget") or {}).items())
    facts = [
        f"{task['kind'].replace('_', ' ')}, {task['spatial_dims']}-D, {channels}"
        + (f", {task['classes']} classes" if task.get("classes") else ""),
        f"{experiment['rounds']} rounds",
        f"{experiment['folds']} folds" if experiment["folds"] else "no folds",
        f"seeds {', '.join(map(str, experiment['seeds']))}",
    ]
    lead = [str(experiment.get("description") or ""), f"{'; '.join(facts)}. Budget: {budget or 'not given'}."]
    if experiment.get("differs"):
        lead.append(f"Differs from the papers: {experiment['differs']}")
    return [text for text in lead if text]


def _missing(results: Results) -> list[str]:
    there, wanted = len(results.runs), len(results.runs) + len(results.unfinished)
    found = [f"{there} of {wanted} runs are there."]
    if results.unfinished:
        absent = Counter(name.rpartition(".fold-")[0] for name in results.unfinished)
        found.append(f"Missing: {', '.join(f'{name} ({count})' for name, count in absent.items())}.")
    for setting in results.settings:
        without = [label for label in results.methods if label not in results.ran(setting)]
        if without:
            where = f" in {results.title(setting)}" if results.title(setting) else ""
            found.append(f"No run of {', '.join(without)}{where}.")
    unseen = sorted({run.setting for run in results.runs} - set(results.settings))
    if unseen:
        found.append(f"Runs of settings that the experiment does not name are left out: {unseen}.")
    empty = [name for name in results.links if not any(run.links == name for run in results.runs)]
    if empty and empty != [UNDISTURBED]:
        found.append(f"No run with the links {', '.join(empty)}.")
    return found


def _reproduction(results: Results) -> Iterator[Part]:
    experiment = results.experiment
    yield (
        f"Experiment {experiment['name']}, made with mhfl-peer {experiment['version']}: `mhfl-peer simulate "
        "experiment.toml --out DIR`, then `mhfl-peer report DIR`; experiment.toml lies in the folder of the results."
    )
    rows = [
        TableRow(label, texts((facts.get("method"), _pairs(facts.get("parameters")), _stages(facts.get("stages")))))
        for label, facts in experiment["methods"].items()
    ]
    named = tuple(map(Column, ("method", "parameters", "stages")))
    yield Table("methods", "The methods", "row", named, tuple(rows))
    keys = ("seconds", "threads", "digest", "source", "platform")
    rows = [
        TableRow(
            run.id,
            texts(
                (
                    _pairs(run.manifest.get("versions")),
                    *(_short(run.manifest.get(key)) for key in keys),
                )
            ),
        )
        for run in results.runs
        if run.manifest
    ]
    if rows:
        columns = tuple(map(Column, ("versions", "seconds", "threads", "settings", "program", "platform")))
        notes = ("Digests by their first 12 digits; whole in each run's manifest.json.",)
        yield Table("runs", "The runs", "run", columns, tuple(rows), notes)


def _pairs(found: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{key} {value}" for key, value in found.items()) if found else None


def _stages(found: Mapping[str, Any] | None) -> str | None:
    if not found:
        return None
    return "; ".join(f"{name}: {_pairs(keys) if isinstance(keys, Mapping) else keys}" for name, keys in found.items())


def _short(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.0f}"
    text = str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{40,64}", text) else text


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
