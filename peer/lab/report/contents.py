"""The sections of a report, in order: results, data, diagnoses, costs, reproduction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.core.metrics import METRICS_OF
from peer.core.tasks import CLASSIFYING
from peer.lab.experiments.result_files import UNDISTURBED
from peer.lab.report import (
    calibration,
    choice,
    comparison,
    confidence,
    costs,
    cross_site,
    curves,
    diagnosis,
    disturbed,
    gain_by_setting,
    panels,
    plotting,
    room,
    rounds_to_target,
    site_samples,
    subgroups,
    survival_curves,
    tsne,
    worst_site,
)
from peer.lab.report.comparison import Comparison
from peer.lab.report.measurements import Measurements, Setting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.published import Published, choose_comparison, reference_tables
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Column, Table, TableRow, text_cells

ReportPart = str | Table | ReportFigure
"""A paragraph, a table or a figure."""
Builder = Callable[["SectionSource"], Iterable[ReportPart | None]]
"""Builds the parts of a section for one setting."""
Progress = Callable[[str], None]
"""Called with the title of the section that is being built."""


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[ReportPart]

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class ReportContents:
    """The content of a report, in any format.

    Attributes:
        lead: paragraphs at the top.
        sections: in order; none is empty.
    """

    title: str
    lead: Sequence[str]
    missing: Sequence[str]
    sections: Sequence[Section]
    comparisons: Mapping[Setting, Mapping[str, Comparison]] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]

    @property
    def figures(self) -> list[ReportFigure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, ReportFigure)]


@dataclass(frozen=True)
class SectionSource:
    """The data from which the sections of one setting are built.

    Attributes:
        suffix: of the names of files, if there is more than one setting.
        comparisons: by metric.
    """

    results: Results
    setting: Setting
    suffix: str
    comparisons: Mapping[str, Comparison]
    styles: Mapping[str, Style]
    targets: Sequence[float]
    resamples: int

    @property
    def main(self) -> Comparison:
        """The comparison by the task's own metric."""
        return self.comparisons[self.results.metric]

    @property
    def shown_runs(self) -> list[RunResult]:
        """One run of each method, of the same fold and seed where all methods have one."""
        runs_by_label = {label: self.results.select(self.setting, label) for label in self.main.labels}
        common = set.intersection(*({(run.fold, run.seed) for run in runs} for runs in runs_by_label.values()))
        if not common:
            return [runs[0] for runs in runs_by_label.values()]
        return [next(run for run in runs if (run.fold, run.seed) == min(common)) for runs in runs_by_label.values()]

    def name(self, stem: str) -> str:
        return stem + self.suffix


def build_report(
    results: Results, *, resamples: int, targets: Sequence[float] = (), progress: Progress
) -> ReportContents:
    """Build the whole report; its figures have the style of ``plotting``."""
    styles = plotting.assign_styles({label: results.method_of(label) for label in results.methods})
    published = reference_tables(results.experiment.get("reference"))
    with_models = results.with_models()
    measured = Measurements(with_models)
    suffixes = {setting: "-" + slug("-".join(setting)) if results.settings[1:] else "" for setting in results.settings}
    sources = []
    for setting in with_models.settings:
        comparisons = _compare(measured, setting, published, suffixes[setting])
        sources.append(SectionSource(with_models, setting, suffixes[setting], comparisons, styles, targets, resamples))
    sections = []
    with plotting.plot_style():
        for title, builder in BUILDERS.items():
            progress(title)
            sections.append(Section(title, _build_parts(sources, builder)))
        progress("Cost")
        sections.append(Section("Cost", list(_costs(results, suffixes, styles))))
        sections.insert(1, Section("Gains by setting", list(_gains_by_setting(with_models, sources, styles))))
        sections.insert(2, Section("Published figures", list(_published(published, sources))))
        sections.insert(3, Section("Data", [part for part in _data(results) if part is not None]))
    sections.append(Section("Reproduction", list(_reproduction(results))))
    experiment = results.experiment
    return ReportContents(
        title=str(experiment.get("title") or experiment["name"]),
        lead=[*_verdicts(sources), *_lead(results)],
        missing=_missing(results),
        sections=[section for section in sections if section.parts],
        comparisons={source.setting: source.comparisons for source in sources},
    )


def slug(text: str) -> str:
    """Convert the text to a form for the names of files and anchors."""
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold()).strip("-")


def _compare(
    measured: Measurements, setting: Setting, published: Sequence[Published], suffix: str
) -> dict[str, Comparison]:
    """Compare the methods of a setting by each metric, beside the published tables that have it."""
    unit = next((table.unit for table in published if table.kind == "comparison"), None)
    return {
        metric: comparison.compare(
            measured,
            setting,
            metric,
            choose_comparison(published, setting, metric),
            published_unit=unit,
            name=f"{metric}{suffix}",
        )
        for metric in measured.results.metrics
    }


def _build_parts(sources: Sequence[SectionSource], builder: Builder) -> list[ReportPart]:
    """Build a section's parts for all settings; if there are several, each has a heading."""
    parts: list[ReportPart] = []
    for source in sources:
        setting_parts = [part for part in builder(source) if part is not None]
        parts += _with_heading(setting_parts, source.results.title(source.setting) if source.suffix else "")
    return parts


def _with_heading(parts: list[ReportPart], title: str) -> list[ReportPart]:
    return [f"## {title}", *parts] if parts and title else parts


def _results(source: SectionSource) -> Iterator[ReportPart | None]:
    main = source.main
    yield comparison.spread_of_steps(main.measured, source.setting)
    for compared in source.comparisons.values():
        yield compared.table
    for metric, compared in source.comparisons.items():
        yield room.table(compared, name=source.name(f"room-{metric}"))
    yield worst_site.table(main, name=source.name("worst-site"))
    yield choice.table(source.results, source.setting, name=source.name("choice"))
    yield confidence.paired_table(main, name=source.name("paired"))
    if source.resamples:
        yield confidence.bootstrap_table(main, resamples=source.resamples, name=source.name("bootstrap"))


def _gains_by_setting(
    results: Results, sources: Sequence[SectionSource], styles: Mapping[str, Style]
) -> Iterator[ReportPart]:
    for metric in METRICS_OF.get(results.kind, ())[:2]:  # macro F1 would show the same as accuracy
        compared = {source.setting: source.comparisons[metric] for source in sources}
        for varied in gain_by_setting.variations(compared):
            name = slug(f"gain-{metric}-{varied.kind}-{varied.where}")
            yield gain_by_setting.figure(varied, styles, name=name)
            yield gain_by_setting.table(varied, name=name)


def _published(published: Sequence[Published], sources: Sequence[SectionSource]) -> Iterator[ReportPart]:
    """Yield the paper's tables that our comparisons do not show in full, and remarks on its errors."""
    if not published:
        return
    for index, table in enumerate(published):
        is_whole = any(
            choose_comparison(published, source.setting, metric) is table
            and comparison.match_sites(table, source.results.sites(source.setting), metric) is not None
            for source in sources
            for metric in source.comparisons
        )
        if not is_whole:
            yield table.table(f"published-{index + 1}")
    remarks = dict.fromkeys(remark for table in published for remark in table.remarks())
    for remark in remarks:
        yield f"What does not agree in the paper: {remark}"


def _data(results: Results) -> Iterator[ReportPart | None]:
    for partition in dict.fromkeys(setting[0] for setting in results.settings):
        yield site_samples.figure(results, partition)
        yield site_samples.table(results, partition, name=f"samples-{slug(partition)}")


def _learning(source: SectionSource) -> Iterator[ReportPart | None]:
    figure = curves.learning(source.results, source.setting, source.styles, name=source.name("learning"))
    yield figure or "The runs were evaluated after their last round only (evaluation_every = 0): there is no curve."
    yield from rounds_to_target.figure_and_table(
        source.main, source.styles, targets=source.targets, name=source.name("target")
    )


def _disconnection(source: SectionSource) -> Iterator[ReportPart | None]:
    yield disturbed.lost_links(source.main, name=source.name("disconnection") + "-links")
    yield disturbed.removed_sites(source.main, name=source.name("disconnection") + "-sites")
    for metric, compared in source.comparisons.items():
        yield from disturbed.insiders(compared, name=source.name(f"insiders-{slug(metric)}"))
    yield disturbed.link_loss_figure(source.main, source.styles, name=source.name("link-loss"))


def _calibration(source: SectionSource) -> Iterator[ReportPart | None]:
    yield calibration.table(source.main, name=source.name("calibration"))
    yield calibration.diagram(source.main, source.styles, name=source.name("reliability"))
    yield survival_curves.figure(source.main, source.styles, name=source.name("survival"))
    yield survival_curves.calibration_table(source.main, name=source.name("survival-calibration"))


def _subgroups(source: SectionSource) -> Iterator[ReportPart | None]:
    results, setting = source.results, source.setting
    if results.kind not in CLASSIFYING:
        return
    yield from subgroups.gaps(source.comparisons["auc"], name=source.name("fairness"))
    against = subgroups.baseline(results, setting)
    for key, gained in subgroups.gains(results, setting).items():
        name = source.name(f"gain-{slug(key)}")
        yield subgroups.gains_figure(gained, source.styles, baseline=str(against), key=key, name=name)
        yield subgroups.gains_table(gained, key=key, against=str(against), name=name)


def _insight(source: SectionSource) -> Iterator[ReportPart | None]:
    runs = source.shown_runs
    for run in runs:
        yield diagnosis.similarities(run, name=source.name(f"similarity-{slug(run.method)}"))
    for run in runs:
        yield diagnosis.experts(run, name=source.name(f"experts-{slug(run.method)}"))
    yield diagnosis.consensus(source.main, source.styles, name=source.name("consensus"))
    basis_errors: dict[str, dict[str, float]] = {}
    for run in runs:
        for key, value in run.arrays("diagnosis").items():
            if key.startswith("basis/"):
                basis_errors.setdefault(run.method, {})[key.partition("/")[2]] = float(value)
    yield diagnosis.bases(basis_errors, source.styles, name=source.name("basis"))


def _costs(results: Results, suffixes: Mapping[Setting, str], styles: Mapping[str, Style]) -> Iterator[ReportPart]:
    """Yield what every row cost in each setting, also rows without a model."""
    measured = Measurements(results)
    for setting, suffix in suffixes.items():
        parts = [
            costs.traffic_figure(costs.sent(measured, setting), styles, name=f"traffic{suffix}"),
            costs.traffic_table(measured, setting, name=f"traffic{suffix}"),
            costs.footprint(results, setting, name=f"networks{suffix}"),
        ]
        yield from _with_heading([part for part in parts if part is not None], results.title(setting) if suffix else "")


BUILDERS: Mapping[str, Builder] = {
    "Results": _results,
    "Learning curves": _learning,
    "Disconnection": _disconnection,
    "Members who join late and leave": lambda source: disturbed.coming_and_going(
        source.main, name=source.name("members")
    ),
    "Sites that did not take part": lambda source: [
        disturbed.left_out_sites(source.main, name=source.name("left-out"))
    ],
    "Every model on every site's data": lambda source: cross_site.figure_and_table(
        source.main, name=source.name("cross-site")
    ),
    "Calibration": _calibration,
    "Fairness and subgroups": _subgroups,
    "Inside the methods": _insight,
    "Features": lambda source: [
        tsne.features(source.shown_runs, source.results.sites(source.setting)[-1], name=source.name("features"))
    ],
    "Samples": lambda source: [panels.panels(source.shown_runs, kind=source.results.kind, name=source.name("panels"))],
}
"""The sections of a setting, in order."""


def _verdicts(sources: Sequence[SectionSource]) -> Iterator[str]:
    """Yield a sentence for each setting, which the reader of a page sees first."""
    for source in sources:
        if (text := comparison.verdict(source.main)) is not None:
            yield f"{source.results.title(source.setting)}: {text}" if source.suffix else text


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
    finished, total = len(results.runs), len(results.runs) + len(results.unfinished)
    sentences = [f"{finished} of {total} runs are there."]
    if results.unfinished:
        missing_counts = Counter(name.rpartition(".fold-")[0] for name in results.unfinished)
        sentences.append(f"Missing: {', '.join(f'{name} ({count})' for name, count in missing_counts.items())}.")
    for setting in results.settings:
        where = f" in {results.title(setting)}" if results.title(setting) else ""
        without: dict[str, list[str]] = {}
        for label in results.methods:
            if label not in results.labels(setting):
                without.setdefault(results.reason_without_runs(setting, label), []).append(label)
        for reason, labels in without.items():
            sentences.append(f"No run of {', '.join(labels)}{where}{f': {reason}' if reason else ''}.")
    if results.without_model:
        sentences.append(
            f"Tables of a model's metrics leave out {', '.join(results.without_model)}: no model is trained there. "
            "`mhfl-peer statistics --file` shows a site's statistics.json of such a run."
        )
    unseen = sorted({run.setting for run in results.runs} - set(results.settings))
    if unseen:
        sentences.append(f"Runs of settings that the experiment does not name are left out: {unseen}.")
    empty = [name for name in results.links if not any(run.links == name for run in results.runs)]
    if empty and empty != [UNDISTURBED]:
        sentences.append(f"No run with the links {', '.join(empty)}.")
    return sentences


def _reproduction(results: Results) -> Iterator[ReportPart]:
    experiment = results.experiment
    yield (
        f"Experiment {experiment['name']}, made with mhfl-peer {experiment['version']}: `mhfl-peer simulate "
        "experiment.toml --out DIR`, then `mhfl-peer report DIR`; experiment.toml is in the folder of the results."
    )
    rows = [
        TableRow(
            label,
            text_cells(
                (
                    facts.get("method"),
                    _join_pairs(facts.get("parameters")),
                    facts.get("batch_size"),
                    _join_stages(facts.get("stages")),
                )
            ),
        )
        for label, facts in experiment["methods"].items()
    ]
    method_columns = tuple(map(Column, ("method", "parameters", "batch", "stages")))
    yield Table("methods", "The methods", "row", method_columns, tuple(rows))
    keys = ("seconds", "threads", "digest", "source", "platform")
    rows = [
        TableRow(
            run.id,
            text_cells((_join_pairs(run.manifest.get("versions")), *(_shorten(run.manifest.get(key)) for key in keys))),
        )
        for run in results.runs
        if run.manifest
    ]
    if rows:
        columns = tuple(map(Column, ("versions", "seconds", "threads", "settings", "program", "platform")))
        notes = ("Digests are cut to 12 digits; each run's manifest.json has them in full.",)
        yield Table("runs", "The runs", "run", columns, tuple(rows), notes)


def _join_pairs(values: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{key} {value}" for key, value in values.items()) if values else None


def _join_stages(stages: Mapping[str, Any] | None) -> str | None:
    if not stages:
        return None
    return "; ".join(
        f"{name}: {_join_pairs(keys) if isinstance(keys, Mapping) else keys}" for name, keys in stages.items()
    )


def _shorten(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.0f}"
    text = str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{40,64}", text) else text
