"""Tables of costs (bytes, steps, time, size of the networks) and of the sites' samples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from peer.lab.report.results import Results
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow

MIB = 1 << 20


def sent(results: Results, setting: tuple[str, str]) -> dict[str, list[float]]:
    """By method, the bytes that each site sent in a whole run, mean over runs."""
    bytes_by_method = {}
    for label in results.labels(setting):
        runs = results.select(setting, label)
        sites = sorted(runs[0].sites)
        bytes_by_method[label] = [
            statistics.fmean(float(run.sites[site]["sent_bytes"]) for run in runs) for site in sites
        ]
    return bytes_by_method


def traffic(results: Results, setting: tuple[str, str], *, name: str) -> Table:
    rows = []
    links_a_site = len(results.sites(setting)) - 1
    for label in results.labels(setting):
        runs = results.select(setting, label)
        facts = [site for run in runs for site in run.sites.values()]
        sent_bytes, received_bytes = (
            statistics.fmean(float(site[key]) for site in facts) for key in ("sent_bytes", "received_bytes")
        )
        rounds = max(int(results.experiment["rounds"]), 1)
        steps = [int(site["steps"]) for site in facts]
        seconds = statistics.fmean(float(site.get("training_s") or 0.0) for site in facts)
        numbers = (
            sent_bytes / MIB,
            received_bytes / MIB,
            sent_bytes / rounds / MIB,
            len(runs[0].sites) * sent_bytes / MIB,
        )
        cells = (*map(Cell, numbers), Cell(statistics.fmean(steps)), Cell(seconds))
        rows.append(TableRow(label, cells))
    columns = (
        Column("sent", "MiB by a site", 2),
        Column("received", "MiB by a site", 2),
        Column("sent in a round", "MiB by a site", 3),
        Column("sent by all", "MiB", 1),
        Column("steps", digits=0),
        Column("training, s", digits=1),
    )
    notes = (
        f"Means over sites and runs, of {results.experiment['rounds']} rounds; a site has {links_a_site} others. "
        "Steps: optimiser steps that the evaluated model has seen. Training time depends on the machine.",
    )
    return Table(name, "Bytes exchanged, steps and time", "method", columns, tuple(rows), notes)


def footprint(results: Results, setting: tuple[str, str], *, name: str) -> Table:
    """The networks of each site: parameters and multiply-accumulates."""
    models: dict[tuple[str, str], Mapping[str, object]] = {}
    for run in (run for run in results.runs if run.setting == setting):
        for site, facts in run.sites.items():
            models.setdefault((site, str(facts["model"]["name"])), facts)
    rows = []
    for (site, model), facts in sorted(models.items()):
        operations, parameters = facts.get("multiply_accumulates"), facts.get("parameters")
        model_facts = facts["model"]
        assert isinstance(model_facts, Mapping)
        hyper = ", ".join(f"{key} {value}" for key, value in model_facts.items() if key != "name" and value is not None)
        rows.append(
            TableRow(
                site,
                (
                    Cell(text=model),
                    Cell(text=hyper or EMPTY),
                    Cell(None if parameters is None else float(str(parameters)) / 1e6),
                    Cell(None if operations is None else float(str(operations)) / 1e6),
                ),
            )
        )
    columns = (
        Column("model"),
        Column("made with"),
        Column("parameters, million", digits=3),
        Column("multiply-accumulates, million", digits=2),
    )
    notes = ("Of one forward pass of one sample at the site's input size; one multiply-accumulate is two FLOPs.",)
    return Table(name, "The sites' networks", "site", columns, tuple(rows), notes)


def samples(results: Results, partition: str, *, name: str) -> Table | None:
    run = results.representative_run(partition)
    if run is None:
        return None
    sites = sorted(run.sites)
    splits = [
        split for split in ("training", "validation", "test") if any(run.sites[s]["samples"].get(split) for s in sites)
    ]
    classes = sorted(
        {name for s in sites for class_counts in run.sites[s].get("classes", {}).values() for name in class_counts},
        key=lambda name: (len(name), name),
    )
    columns = [Column(split, "samples", 0) for split in splits]
    columns += [Column(name, f"class, {split}", 0) for split in splits for name in classes]
    rows = []
    for site in sites:
        facts = run.sites[site]
        counts = [facts["samples"].get(split) for split in splits]
        counts += [facts.get("classes", {}).get(split, {}).get(name) for split in splits for name in classes]
        rows.append(TableRow(site, tuple(Cell(None if count is None else float(count)) for count in counts)))
    note = f"Of fold {run.fold}, seed {run.seed}." if results.experiment["folds"] else f"Of seed {run.seed}."
    return Table(name, f"Samples: {partition}", "site", tuple(columns), tuple(rows), (note,))
