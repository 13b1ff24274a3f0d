"""``mhfl-peer data import``: convert a table, a folder or a PACS export into a datalist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, GIVEN_PATH, output
from peer.cli.site_command import SiteCall, site_command
from peer.core.targets import CLASS
from peer.errors import UsageError
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.train.data.datalist import SPLITS

PATH = click.Path(path_type=Path)
ROLES = (
    "file", "label", "subject", "split", "PatientID", "AccessionNumber", "StudyInstanceUID", "SeriesInstanceUID",
)  # fmt: skip


def _columns(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Group the columns of all ``--column ROLE=COLUMN`` options by role."""
    columns: dict[str, tuple[str, ...]] = {}
    for value in values:
        role, equals, name = value.partition("=")
        if not role or not equals:
            raise UsageError(f"--column {value}: write ROLE=COLUMN", f"roles are {', '.join(ROLES)}")
        columns[role] = (*columns.get(role, ()), name)
    return columns


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split names at commas; raise ``UsageError`` if a name repeats or is empty, or there is only one."""
    names = tuple(name.strip() for name in (value or "").split(",")) if value else ()
    if len({name.casefold() for name in names}) < len(names) or "" in names or len(names) == 1:
        raise UsageError(f"--classes {value}: name two or more classes, each once", "separate them by commas")
    return names


def _pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check a regular expression."""
    try:
        re.compile(value or "")
    except re.error as error:
        raise UsageError(f"--subject-pattern {value}: {error}", "such as '(P[0-9]+)_'") from error
    return value


def _label_values(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """Parse all ``--map VALUE=CLASS`` options."""
    classes: dict[int, int] = {}
    for text in values:
        match = re.fullmatch(r"(-?\d{1,9})=(\d{1,4})", text, re.ASCII)
        if match is None or int(match[1]) in classes:
            raise UsageError(f"--map {text}: write VALUE=CLASS, each value once", "such as --map 255=1")
        classes[int(match[1])] = int(match[2])
    return tuple(classes.items())


@site_command("import")
@click.argument("source", type=GIVEN_PATH)
@click.option("--out", type=PATH, required=True, help="The datalist to write; readable by you alone.")
@click.option(
    "--layout",
    type=click.Choice(("table", "folders", "arrays", "bids", "nnunet", "dicom")),
    help="What SOURCE is  [default: as its files show].",
)
@click.option("--task", help="The federation's task kind ([task] kind)  [default: the layout's].")
@click.option(
    "--classes",
    callback=_names,
    metavar="NAME,NAME,...",
    help="The classes in the order that all sites use; needed where labels are words.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_columns,
    metavar="ROLE=COLUMN",
    help="A column of the table. Roles: file (several are channels), label, subject, split, PatientID, ..., and the "
    "columns of --federation.",
)
@click.option(
    "--federation",
    type=GIVEN_FILE,
    help="The federation.toml with task, classes and, for a table of values, columns  [default with --site: its own].",
)
@click.option(
    "--map",
    "label_values",
    multiple=True,
    callback=_label_values,
    metavar="VALUE=CLASS",
    help="Label maps: the class of a value in the files, such as 255=1.",
)
@click.option(
    "--subject-pattern",
    callback=_pattern,
    metavar="REGEX",
    help="Class folders: the subject in a file's path below its class; the first group, if there is one.",
)
@click.option("--keep", multiple=True, metavar="COLUMN", help="Copy this column into the datalist too.")
@click.option("--root", type=GIVEN_PATH, help="Folder that a table's files are relative to  [default: its own].")
@click.option("--encoding", help="The table's encoding  [default: Unicode, else Windows-1252].")
@click.option(
    "--test-share",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Where splits are drawn: share of each class's subjects for testing.",
)
@click.option("--seed", default=0, show_default=True, help="Where splits are drawn: the same seed, the same splits.")
@click.option("--draw", "draws", is_flag=True, help="Draw splits by subject though the source has some.")
@click.option(
    "--leave-out", "leaves_out_faulty", is_flag=True, help="Leave faulty samples out, instead of refusing all."
)
@click.option("--suffix", "suffixes", multiple=True, help="BIDS: suffix of the images; several are channels.")
@click.option("--label-suffix", help="BIDS: suffix of the label maps.")
@click.option(
    "--labels", type=GIVEN_FILE, help="PACS export: the table of labels by patient, accession number, study or series."
)
@click.option(
    "--series", metavar="PATTERN", help="PACS export: only series whose description is like this, with * and ?."
)
@click.option("--each-image", is_flag=True, help="PACS export: each image is a sample, not each series.")
def import_command(
    call: SiteCall, /, source: Path, out: Path, layout: str | None, federation: Path | None, **options: Any
) -> None:
    """Make a checked datalist of a table, class folders, arrays, a BIDS or nnU-Net folder, or a
    PACS export.

    SOURCE is a CSV or TSV file, or a folder. No image is copied or changed; only samples of X.npy
    are written as files of their own. Where the source has no splits, they are drawn by subject,
    alike in each class.

    \b
    mhfl-peer data import labels.csv --out datalist.json --classes benign,malignant
    mhfl-peer data import labels.csv --out datalist.json --column file=Datei --column label=Befund
    mhfl-peer data import patients.csv --out datalist.json --site europe --column label=outcome
    mhfl-peer data import masks.csv --out datalist.json --column label=mask --map 255=1
    mhfl-peer data import pictures --out datalist.json --classes benign,malignant
    mhfl-peer data import arrays --out datalist.json --task time_series
    mhfl-peer data import bids --out datalist.json --suffix T1w --column label=diagnosis --classes control,patient
    mhfl-peer data import Dataset001_Liver --out datalist.json
    mhfl-peer data import export --out datalist.json --labels labels.csv --series '*thin*'
    """
    from peer.train.data.importers.candidates import ImportOptions
    from peer.train.data.importers.datalist_writer import import_datalist

    options |= _table_options(call, federation, options)
    call.emit(import_datalist(source, out, ImportOptions(**options), layout), _render)


def _table_options(call: SiteCall, file: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the federation says of task, classes and columns; raise ``UsageError`` for an unknown role."""
    federation = own_columns = None
    if file is not None:
        federation = FederationConfig.load(file)
    elif call.site_name is not None:
        federation = FederationConfig.load(call.folder.federation_toml)
        own_columns = SiteConfig.load(call.folder.site_toml).data.columns
    columns = [] if federation is None else [column.to_column() for column in federation.task.column]
    target = CLASS if federation is None else federation.task.to_target()
    roles = (*ROLES, *target.roles, *(column.name for column in columns))
    for role in options["columns"].keys() - set(roles):
        raise UsageError(f"--column {role}=...: there is no role {role!r}", f"roles are {', '.join(roles)}")
    if options["task"] == "tabular" and not columns:
        raise UsageError("a table of values needs the federation's columns", "give --federation FILE or --site NAME")
    if federation is None:
        return {}
    return {
        "table": tuple(columns),
        "own_columns": own_columns or {},
        "agreed_classes": federation.task.class_names,
        "target": target,
        "task": options["task"] or federation.task.kind,
    }


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    """Render samples and subjects by class and split, then what was read, drawn and left out."""
    from rich.console import Group

    splits = document["splits"]
    rows: list[tuple[object, ...]] = [
        ("samples", *(splits[split]["samples"] for split in SPLITS)),
        ("subjects", *(splits[split]["subjects"] for split in SPLITS)),
    ]
    for number, name in document["classes"].items():
        counts = (
            f"{splits[split]['classes'].get(number, 0)} of {splits[split]['class_subjects'].get(number, 0)} subjects"
            for split in SPLITS
        )
        if any(number in splits[split]["classes"] for split in SPLITS):
            is_class = document["target"] == "class"
            rows.append((f"class {number} {name}".strip() if is_class else name, *counts))
    facts: list[tuple[str, object]] = [("layout", document["layout"]), ("task", document["task"])]
    if document["encoding"]:
        facts.append(("encoding", document["encoding"]))
    if document["columns"]:
        facts.append(("columns", ", ".join(f"{role} is {name}" for role, name in document["columns"].items())))
    if document["shapes"]:
        facts.append(("shapes", ", ".join(f"{shape} ({count})" for shape, count in document["shapes"].items())))
    drawn = document["drawn"]
    facts.append(("splits", f"drawn by subject with seed {drawn['seed']}" if drawn else "as the source has them"))
    for row in document["left_out"]:
        examples = "; ".join(row["examples"])
        facts.append(("left out", f"{row['count']}: {row['reason']} ({examples}{', ...' * (row['count'] > 5)})"))
    facts += [("note", note) for note in document["notes"]]
    names = list(document["classes"].values())
    if len(set(names)) > 1 and all(names) and document["task"] != "tabular" and document["target"] == "class":
        facts.append(
            ("for [task]", f"class_names = {json.dumps(names, ensure_ascii=False)}, in this order at every site")
        )
    facts.append(("next", _validation(document)))
    return Group(output.table(("", *SPLITS), rows, title=document["datalist"]), output.fields(facts))


def _validation(document: Mapping[str, Any]) -> str:
    if document["task"] == "tabular" or document["target"] != "class":
        return "mhfl-peer data validate --site SITE"
    count = len(document["classes"])
    classes = f" --classes {count}" if count > 1 else ""
    return f"mhfl-peer data validate {shlex.quote(document['datalist'])} --task {document['task']}{classes}"
