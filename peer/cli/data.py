"""``mhfl-peer data``: import, inspect and validate datalists, and convert public data sets into datalists."""

from __future__ import annotations

import inspect as inspection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, GIVEN_PATH, output, shared_options
from peer.cli.data_import import import_command
from peer.cli.site_command import SiteCall, site_command
from peer.core.tasks import CLASSIFYING
from peer.errors import DataError, UsageError
from peer.extras import missing_package
from peer.lab.datasets import PUBLISHED, dataset_module, installed_datasets
from peer.site.config.site_folder import must_be_new_or_page

PATH = click.Path(path_type=Path)
COUNT_COLUMNS = (
    "patients", "nodules", "malignant", "malignant_share", "subjects", "maps", "cases", "classes", "images", "patches",
    "slices", "pixel_shares",
)  # fmt: skip
"""Columns in the table of a prepared set, shown if its summary has these counts."""

root_option = click.option("--root", type=GIVEN_PATH, help="Folder that its paths are relative to  [default: its own].")
task_option = click.option(
    "--task", default="classification", show_default=True, help="The federation's task kind ([task] kind)."
)
nan_option = click.option(
    "--nan", type=click.Choice(("background",)), help="As [data] nan: a NaN is background, not a fault."
)
classes_option = click.option("--classes", type=click.IntRange(min=2), help="Number of classes ([task] classes).")
out_option = click.option("--out", type=PATH, required=True, help="The folder to fill.")
source_option = click.option(
    "--source", type=PATH, required=True, help="The folder that the downloaded set was unpacked into."
)
seed_option = click.option(
    "--seed", default=0, show_default=True, type=int, help="Seed of every random choice; the same seed, the same bytes."
)


@click.group(short_help="Import, inspect, validate and prepare datalists.")
@shared_options
def data() -> None:
    """Import, inspect, validate and prepare datalists: MONAI's JSON files, with lists of training and of
    test samples.
    """


data.add_command(import_command)


@site_command(group=data)
@click.argument("datalist", type=GIVEN_FILE, required=False)
@root_option
@task_option
@classes_option
@click.option(
    "--out",
    "--html",
    "page",
    metavar="FILE",
    type=PATH,
    help="Write a page of samples as the network sees them; an older page is replaced.",
)
@click.option("--samples", default=3, show_default=True, type=click.IntRange(1, 20), help="Of each split and class.")
@click.option("--input-size", metavar="NxN", help="Without a site: as [data] input_size  [default: the images' own].")
@click.option("--in-channels", type=click.IntRange(min=1), help="Without a site  [default: the images' own].")
@click.option("--orientation", metavar="RAS", help="Without a site: as [data] orientation.")
@click.option("--spacing", metavar="MMxMM", help="Without a site: as [data] spacing, such as 1x1x2.")
@click.option(
    "--intensity",
    nargs=3,
    metavar="KIND NUMBER NUMBER",
    help="Without a site: as [data] intensity, such as window 40 400.",
)
@click.option("--normalise", type=click.Choice(("none", "zscore", "unit")), help="Without a site: as [data] normalise.")
@nan_option
def inspect(
    call: SiteCall,
    /,
    datalist: Path | None,
    root: Path | None,
    task: str,
    classes: int | None,
    page: Path | None,
    **options: Any,
) -> None:
    """Show counts, classes, subjects and shapes of a datalist; of images, only the headers are
    read.

    --out also writes one page with some samples of each split and class: read, prepared and
    augmented by the trainer, with labels, orientation, histograms and gaps; of a table with the
    distribution of each column by split and class. The page shows patients' images or values and
    stays in the hospital. With --site, the site's own settings and datalist count; without one, the
    options.

    \b
    mhfl-peer data inspect datalist.json
    mhfl-peer data inspect labels.json --task segmentation --json
    mhfl-peer data inspect --site europe --out sheet.html
    mhfl-peer data inspect datalist.json --out sheet.html
    mhfl-peer data inspect ct.json --orientation RAS --spacing 1x1x2 --intensity window 40 400 --out sheet.html
    """
    from peer.cli import contact_sheet
    from peer.train.data.survey import survey

    if page is not None:
        must_be_new_or_page(page)
    samples = options.pop("samples")
    document: Any
    setting = None
    if call.site_name is not None or datalist is None:
        for name in (name for name, value in options.items() if value is not None):
            raise UsageError(f"--{name.replace('_', '-')} and --site", "leave it out: the site's own settings count")
        folder = call.folder
        setting = contact_sheet.setting_of_site(folder, datalist, root)
        arguments = contact_sheet.survey_arguments(setting)
    else:
        _refuse_table(task)
        arguments = {"path": datalist, "root": root, "task": task, "classes": classes}
    document = survey(**arguments)
    if page is not None:
        if setting is None:
            assert datalist is not None
            setting = contact_sheet.setting_of_options(document, datalist, root, task, classes, **options)
        document["sheet"] = contact_sheet.write(page, setting, document, samples=samples)
    call.emit(document, _render_survey)
    if page is not None:
        shown = "distributions of patients' values" if arguments["task"] == "tabular" else "patients' images"
        click.echo(f"{page} shows {shown}: it stays in the hospital.", err=True)
    if not any(split["samples"] for split in document["splits"].values()):
        raise DataError(f"{arguments['path']} holds no usable sample", "correct the problems listed above")


@site_command(group=data)
@click.argument("datalist", type=GIVEN_FILE, required=False)
@root_option
@task_option
@classes_option
@nan_option
def validate(
    call: SiteCall, /, datalist: Path | None, root: Path | None, task: str, classes: int | None, nan: str | None
) -> None:
    """Read every image of a datalist to the end; exit 0 only if a site could train on all of them.

    With --site, the site's own settings and datalist count, and each sample is also prepared as
    training prepares it: turned, resampled, scaled, resized. So `check` and this command have one
    verdict; `check` also accepts the share of samples that unreadable_share_max lets training leave out.

    \b
    mhfl-peer data validate datalist.json
    mhfl-peer data validate datalist.json --classes 3
    mhfl-peer data validate --site europe
    """
    from peer.cli import contact_sheet
    from peer.train.data.survey import survey

    document: Any
    if call.site_name is not None or datalist is None:
        setting = contact_sheet.setting_of_site(call.folder, datalist, root)
        document = contact_sheet.survey_prepared(setting)
        datalist = Path(document["datalist"])
    else:
        _refuse_table(task)
        document = survey(datalist, root=root, task=task, classes=classes, whole=True, nan=nan)
    call.emit(document, _render_survey)
    problems = document["problems"]
    if not call.as_json and not problems:
        warned = "; see the warnings above" if document["warnings"] else ": a site could train on all of them"
        read = "image" if any(split["shapes"] for split in document["splits"].values()) else "row"
        click.echo(f"Every {read} could be read{warned}.")
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise DataError(f"{datalist} has {count}", "correct the problems listed above")


def _refuse_table(task: str) -> None:
    """Raise ``UsageError`` for a table, whose columns only a federation's sites know."""
    if task == "tabular":
        raise UsageError("--task tabular: a table's columns are those of its federation", "give --site NAME")


class DatasetGroup(click.Group):
    """One command per data set; commands of installed packages are looked up when a user calls them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *installed_datasets()})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        command = super().get_command(context, name)
        return command or (_installed_command(name) if name in installed_datasets() else None)


@data.group(cls=DatasetGroup)
@shared_options
def prepare() -> None:
    """Turn a public data set into datalists: one folder a site, or one pool for `simulate` to
    divide.
    """


@dataclass(frozen=True)
class _DatasetCommand:
    """The help, the only option and the example's ``--out`` of a data set's command."""

    title: str
    note: str = (
        "Nothing is downloaded: get the set from its publishers, under their terms. Its files stay where they are."
    )
    option: click.Option | None = None
    example: str = ""


def _choice(name: str, *parameter: str, choices: Sequence[str | int], default: str | int, text: str) -> click.Option:
    return click.Option([name, *parameter], type=click.Choice(choices), default=default, show_default=True, help=text)


HOSPITALS_REAL = "The hospitals are real. One pool for `simulate` to divide."
COMMANDS: Mapping[str, _DatasetCommand] = {
    "lidc": _DatasetCommand(
        "Lung nodules of LIDC-IDRI, benign or malignant by shape: four sites with skewed labels.",
        "The sites' names and the share of malignant nodules in training are constructed; tests keep the natural "
        "share.",
        click.Option(
            ["--training-max"],
            default=100,
            show_default=True,
            type=click.IntRange(min=1),
            help="Most training nodules of a site.",
        ),
        "nodules",
    ),
    "atlas-fmri": _DatasetCommand(
        "Real resting-state signals mapped onto the AAL atlas, with SYNTHETIC labels: four sites.",
        "For trying a pipeline: no figure from this set says anything about patients.",
        example="atlas",
    ),
    "eeg": _DatasetCommand(
        "EEG time series of two classes: four sites with skewed labels.",
        "The sites are constructed: the seed decides how many cases of each class a site trains on. Test cases are "
        "divided evenly.",
        _choice(
            "--set",
            "recordings",
            choices=("scp1", "blink"),
            default="scp1",
            text="Slow cortical potentials of one subject, or long and short blinks of six.",
        ),
        "eeg --set scp1",
    ),
    "heart-disease": _DatasetCommand(
        "Heart disease of 920 patients of four hospitals, a row each: Cleveland, Hungary, Switzerland, VA Long Beach.",
        HOSPITALS_REAL,
        click.Option(
            ["--complete"], is_flag=True, help="Without slope, ca and thal, the 740 patients with every other value."
        ),
        "heart",
    ),
    "arizona-cardiac": _DatasetCommand(
        "Length of stay of 3,589 patients of 17 hospitals in Arizona after a bypass or an angioplasty, a row each.",
        "The hospitals are real, and numbered. One pool for `simulate` to divide.",
        _choice(
            "--target", choices=("days", "long"), default="days", text="The days, or whether they are more than 8."
        ),
        "arizona",
    ),
    "bone-marrow": _DatasetCommand(
        "Relapse or death of 137 patients of four hospitals after transplantation of bone marrow, a row each.",
        HOSPITALS_REAL,
    ),
    "pbc3": _DatasetCommand(
        "Transplantation or death of 349 patients of six European hospitals with biliary cirrhosis, a row each.",
        f"{HOSPITALS_REAL} The data is in the Debian package r-cran-pec.",
        click.Option(
            ["--source"],
            type=PATH,
            help="The folder that r-cran-pec was unpacked into, or Pbc3.csv  [default: the installed package].",
        ),
    ),
    "tonsil-cancer": _DatasetCommand(
        "Death of 195 patients of six institutions with carcinoma of the oropharynx, a row each.",
        "The institutions are real, and numbered. One pool for `simulate` to divide.",
        example="tonsil",
    ),
    "mni-tissue": _DatasetCommand(
        "Grey and white matter in slices of ONE brain, the MNI152 template: four sites.",
        "The sites have axial, coronal and sagittal slices, and axial slices with inverted contrast, all of the same "
        "brain. No figure from this set says anything about patients.",
        _choice("--size", choices=(32, 48, 64, 96, 192), default=64, text="Pixels along each side."),
        "tissue",
    ),
    "dermoscopy-sr": _DatasetCommand(
        "Super-resolution of dermoscopy patches: three sites, by 2, 4 and 8. Do not redistribute them.",
        "The sites and the low resolution are constructed: a pixel of an image is the mean of several pixels of the "
        "patch.",
        example="patches",
    ),
    "digits": _DatasetCommand(
        "Handwritten digits of 8 x 8 pixels: small, quick, and not medical. One pool for `simulate` to divide.", ""
    ),
    "abide": _DatasetCommand(
        "ABIDE I (PCP): autism or control from four maps of 871 brains, 17 institutions in four regions.",
        option=_choice(
            "--degree",
            choices=("degree_weighted", "degree_binarize"),
            default="degree_weighted",
            text="The map of degree centrality.",
        ),
    ),
    "breakhis": _DatasetCommand(
        "BreaKHis: microscopy of breast tumours in eight sub-types, 7,909 images of 82 slides.",
        option=_choice(
            "--task",
            choices=("classification", "super_resolution"),
            default="classification",
            text="The task to prepare for; in super-resolution an image has no label.",
        ),
    ),
    "derm7pt": _DatasetCommand("Derm7pt: dermoscopy of 1,011 lesions in five classes."),
    "fed-isic2019": _DatasetCommand(
        "Fed-ISIC2019 (FLamby): dermoscopy in eight classes, six centres, the published split.",
        option=click.Option(
            ["--lesions-apart"],
            is_flag=True,
            help="Leave an image out of training if its lesion is in a test set: FLamby split images, not lesions.",
        ),
    ),
    "fed-ixi": _DatasetCommand("Fed-IXI (FLamby): brain masks of 566 T1 images, three hospitals, the published split."),
    "lung-masks": _DatasetCommand("Lung masks of 704 chest X-rays of Montgomery County and Shenzhen."),
    "oct2017": _DatasetCommand("OCT2017: tomography of the retina in four classes, 84,484 images."),
    "odir": _DatasetCommand("ODIR-5K: the fundus of both eyes in eight classes, 6,392 images."),
    "pneumonia": _DatasetCommand("Chest X-rays of children with and without pneumonia, 5,856 images."),
    "polyp": _DatasetCommand("Polyps in colonoscopy: the masks of four collections, one site each."),
    "sleep-edf": _DatasetCommand(
        "Sleep-EDF: five stages of sleep from 30 s of EEG (Fpz-Cz), nights of 20 or 78 subjects.",
        option=_choice(
            "--subjects", choices=(20, 78), default=20, text="Sleep-EDF-20 (writes 0.5 GB) or Sleep-EDF-78 (2.3 GB)."
        ),
    ),
}


def _add_command(name: str) -> None:
    """Add the command that prepares a data set to the group."""
    dataset, published = COMMANDS[name], name in PUBLISHED

    @out_option
    @(source_option if published else seed_option)
    @output.json_option
    @shared_options
    def callback(out: Path, as_json: bool, **options: Any) -> None:
        _prepare(name, out, as_json=as_json, **options)

    source = f" --source downloads/{name}" if published else ""
    example = f"\b\nmhfl-peer data prepare {name}{source} --out {dataset.example or name}"
    command = click.command(name, help="\n\n".join(filter(None, (dataset.title, dataset.note, example))))(callback)
    if dataset.option is not None:
        command.params.insert(2, dataset.option)
    prepare.add_command(command)


for _name in COMMANDS:
    _add_command(_name)


def _installed_command(name: str) -> click.Command:
    """Build the command of an installed data set, with an option for each argument of ``prepare``."""
    module = dataset_module(name)

    @out_option
    @output.json_option
    @shared_options
    def callback(out: Path, as_json: bool, **options: Any) -> None:
        _prepare(name, out, as_json=as_json, **options)

    command = click.command(name, help=inspection.getdoc(module))(callback)
    _, *arguments = inspection.signature(module.prepare).parameters.values()
    for argument in arguments:
        required = argument.default is argument.empty
        settings: dict[str, Any] = {"required": True}
        if not required:
            settings = {"default": argument.default, "show_default": True}
        kind = PATH if argument.name == "source" else None
        command.params.append(click.Option([f"--{argument.name.replace('_', '-')}"], type=kind, **settings))
    return command


def _prepare(name: str, out: Path, *, as_json: bool, **options: Any) -> None:
    try:
        module = dataset_module(name)
    except ImportError as error:
        raise missing_package(error, f"`data prepare {name}`") from error
    document = {"folder": str(out), **module.prepare(out, **options)}
    output.emit(document, as_json=as_json, render=_render_published if "counts" in document else _render_packaged)


def _render_survey(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    splits = document["splits"]
    labels = sorted({label for split in splits.values() for label in split["classes"]}, key=int)
    rows = [
        *((count, *(split[count] for split in splits.values())) for count in ("samples", "subjects", "unnamed")),
        *(
            (
                f"class {label} {document['class_names'].get(label, '')}".strip(),
                *(split["classes"].get(label, 0) for split in splits.values()),
            )
            for label in labels
        ),
        *((key, *_counted(splits, key)) for key in ("shapes", "orientations", "spacings")),
    ]
    rows = [row for row in rows if row[0] not in ("shapes", "orientations", "spacings") or any(row[1:])]
    notes = [("problem", problem) for problem in document["problems"]]
    notes += [("warning", warning) for warning in document["warnings"]]
    if document["unlabelled"]:
        notes.append(("note", f"{document['unlabelled']} test entries have no label and are not evaluated"))
    if unused := document["unused_keys"]:
        listed = ", ".join(f"{key} ({count})" for key, count in unused.items())
        notes.append(("note", f"keys of entries that training does not use: {listed}"))
    if any(split["unnamed"] for split in splits.values()):
        notes.append(("note", "samples without a subject: this check cannot see whether a patient is in both splits"))
    tables = [output.table(("", *splits), rows, title=document["datalist"])]
    if document["columns"]:
        columns = [_render_column(column) for column in document["columns"]]
        tables.append(output.table(("column", "values", "missing", "from, median and to, or rows by value"), columns))
    return Group(*tables, output.fields(notes))


def _render_column(column: Mapping[str, Any]) -> tuple[object, ...]:
    name = f"{column['name']} ({column['unit']})" if column["unit"] else column["name"]
    numbers = [f"{column[key]:g}" for key in ("lowest", "median", "highest") if column[key] is not None]
    levels = [f"{level} {count}" for level, count in column["levels"].items()]
    return (name, column["values"], column["missing"], ", ".join(levels or numbers))


def _counted(splits: Mapping[str, Any], key: str) -> list[str]:
    return [", ".join(f"{kind} ({count})" for kind, count in split[key].items()) for split in splits.values()]


def _render_packaged(document: Mapping[str, Any]) -> output.RenderableType:
    """Render one row per site and split, then the rest of the summary."""
    from rich.console import Group

    rows = []
    sites = document.get("sites", {})
    present = [name for name in COUNT_COLUMNS if all(name in site["training"] for site in sites.values())]
    for site, splits in sites.items():
        for split in ("training", "test"):
            rows.append((site, split, *(_format(splits[split][name]) for name in present)))
    nested = ("task", "sites", "floors", "floors_are", "dropped")
    facts = [(name, _format(value)) for name, value in document.items() if name not in nested]
    facts += [(f"dropped: {reason}", count) for reason, count in document.get("dropped", {}).items()]
    floors = document.get("floors", {})
    parts: list[Any] = [output.fields(facts)]
    if sites:
        parts.insert(0, output.table(("site", "split", *present), rows, title=document["task"]))
    if floors:
        columns = (f"{document.get('floors_are', 'AUC')} on test of", *next(iter(floors.values())))
        parts.append(output.table(columns, [(name, *aucs.values()) for name, aucs in floors.items()], title="floors"))
    return Group(*parts)


def _render_published(document: Mapping[str, Any]) -> output.RenderableType:
    """Render samples by site and class, published counts beside counts of the source, and warnings."""
    from rich.console import Group

    classes = document.get("classes", []) if document["kind"] in CLASSIFYING else []
    names = [*classes, *{"survival": ["events"], "number": ["median"]}.get(document.get("target", ""), [])]
    rows = [
        (site, side, *({**part, **part.get("classes", {})}.get(name, 0) for name in ("subjects", "samples", *names)))
        for site, sides in document["sites"].items()
        for side, part in sides.items()
        if part["samples"]
    ]
    counts = [
        (count["what"], count["expected"], count["found"], "" if count["expected"] == count["found"] else "differs")
        for count in document["counts"]
    ]
    shown = ("folder", "kind", "spatial_dims", "in_channels", "reference", "licence")
    facts = [(name, document[name]) for name in shown]
    facts += [(f"dropped: {reason}", number) for reason, number in document["dropped"].items()]
    in_table = [f"{name}: {expected} expected, {counted} found" for name, expected, counted, _ in counts]
    facts += [("warning", warning) for warning in document["warnings"] if warning not in in_table]
    return Group(
        output.table(("site", "split", "subjects", "samples", *names), rows, title=document["task"]),
        output.table(("count", "expected", "found", ""), counts, title="published and found"),
        output.fields(facts),
    )


def _format(value: Any) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(value) if isinstance(value, list) else value
