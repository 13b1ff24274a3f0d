"""``mhfl-peer data``: look at a datalist, check it, and turn public data sets into one."""

from __future__ import annotations

import inspect as inspection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, shared_options
from peer.core.tasks import CLASSIFYING
from peer.data.adapters import PUBLISHED, dataset_module, installed_datasets
from peer.errors import DataError
from peer.extras import missing_package

if TYPE_CHECKING:
    from rich.console import RenderableType

PATH = click.Path(path_type=Path)
COUNTED = (
    "patients", "nodules", "malignant", "malignant_share", "subjects", "maps", "cases", "classes", "images", "patches",
    "slices", "pixel_shares",
)  # fmt: skip
"""What the table of a prepared set has a column for, where its summary counts it."""

datalist_argument = click.argument("datalist", type=PATH)
root_option = click.option("--root", type=PATH, help="Folder that its paths are relative to [default: its own].")
task_option = click.option(
    "--task", default="classification", show_default=True, help="The federation's task kind ([task] kind)."
)
classes_option = click.option("--classes", type=click.IntRange(min=2), help="Number of classes ([task] classes).")
out_option = click.option("--out", type=PATH, required=True, help="The folder to fill.")
source_option = click.option(
    "--source", type=PATH, required=True, help="The folder that the downloaded set was unpacked into."
)
seed_option = click.option(
    "--seed", default=0, show_default=True, type=int, help="Another seed, another choice; the same one, the same bytes."
)


@click.group(short_help="Inspect, validate and prepare datalists.")
@shared_options
def data() -> None:
    """Inspect, validate and prepare datalists (MONAI's form: training and test lists of image and label)."""


@data.command()
@datalist_argument
@root_option
@task_option
@classes_option
@output.json_option
@shared_options
def inspect(datalist: Path, root: Path | None, task: str, classes: int | None, as_json: bool) -> None:
    """Show counts, classes, subjects and shapes; only the images' headers are read.

    \b
    mhfl-peer data inspect datalist.json
    mhfl-peer data inspect labels.json --task segmentation --json
    """
    from peer.data.survey import survey

    document = survey(datalist, root=root, task=task, classes=classes)
    output.emit(document, as_json=as_json, render=_survey)
    if not any(split["samples"] for split in document["splits"].values()):
        raise DataError(f"{datalist} holds no usable sample", "correct what is listed above")


@data.command()
@datalist_argument
@root_option
@task_option
@classes_option
@output.json_option
@shared_options
def validate(datalist: Path, root: Path | None, task: str, classes: int | None, as_json: bool) -> None:
    """Read every image to the end; exit 0 only if a site could train on all of it.

    \b
    mhfl-peer data validate datalist.json
    mhfl-peer data validate datalist.json --classes 3
    """
    from peer.data.survey import survey

    document = survey(datalist, root=root, task=task, classes=classes, whole=True)
    output.emit(document, as_json=as_json, render=_survey)
    problems = document["problems"]
    if not as_json and not problems:
        click.echo("Every image could be read: a site could train on all of it.")
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise DataError(f"{datalist} has {count}", "correct what is listed above")


class DatasetGroup(click.Group):
    """A command a data set; those of installed packages are looked up when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """The data sets in the order of their names."""
        return sorted({*super().list_commands(context), *installed_datasets()})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of a data set."""
        command = super().get_command(context, name)
        return command or (_installed_command(name) if name in installed_datasets() else None)


@data.group(cls=DatasetGroup)
@shared_options
def prepare() -> None:
    """Turn a public data set into one folder a site."""


@dataclass(frozen=True)
class _Set:
    """A data set's command: what the set is, what to be aware of, the options that only it has, the example's end."""

    title: str
    note: str = (
        "Nothing is downloaded: get the set from its publishers, under their terms. Its files stay where they are."
    )
    option: click.Option | None = None
    example: str = ""


def _option(name: str, *declared: str, choices: Sequence[str | int], default: str | int, text: str) -> click.Option:
    return click.Option([name, *declared], type=click.Choice(choices), default=default, show_default=True, help=text)


COMMANDS: Mapping[str, _Set] = {
    "lidc": _Set(
        "Lung nodules of LIDC-IDRI, benign or malignant by shape: four sites with skewed labels.",
        "The sites' names and the share of malignant nodules in training are constructed; tests keep the natural "
        "share.",
        click.Option(
            ["--training-max"],
            default=100,
            show_default=True,
            type=click.IntRange(min=1),
            help="Training nodules a site.",
        ),
        "nodules",
    ),
    "atlas-fmri": _Set(
        "Real resting-state signals painted on the AAL atlas, with SYNTHETIC labels: four sites.",
        "For trying a pipeline out: no figure from it says anything about patients.",
        example="atlas",
    ),
    "eeg": _Set(
        "EEG time series of two classes: four sites with skewed labels.",
        "The sites are constructed: how many cases of each class they train on is drawn from the seed; tests are even.",
        _option(
            "--set",
            "recordings",
            choices=("scp1", "blink"),
            default="scp1",
            text="Slow cortical potentials of one subject, or long and short blinks of six.",
        ),
        "eeg --set scp1",
    ),
    "mni-tissue": _Set(
        "Grey and white matter in slices of ONE brain, the MNI152 template: four sites.",
        "Axial, coronal and sagittal slices, and axial ones with inverted contrast: the sites differ in what they see, "
        "not in whom. No figure from it says anything about patients.",
        _option("--size", choices=(32, 48, 64, 96, 192), default=64, text="Pixels along each side."),
        "tissue",
    ),
    "dermoscopy-sr": _Set(
        "Super-resolution of dermoscopy patches: three sites, by 2, 4 and 8. Do not redistribute them.",
        "The sites and the low resolution are constructed: a pixel of an image is the mean of several of the patch.",
        example="patches",
    ),
    "digits": _Set(
        "Handwritten digits of 8 x 8 pixels: small, quick, and not medical. One pool for `simulate` to divide.", ""
    ),
    "abide": _Set(
        "ABIDE I (PCP): autism or control from four maps of 871 brains, 17 institutions in four regions.",
        option=_option(
            "--degree",
            choices=("degree_weighted", "degree_binarize"),
            default="degree_weighted",
            text="Which map of degree centrality.",
        ),
    ),
    "breakhis": _Set(
        "BreaKHis: microscopy of breast tumours in eight sub-types, 7,909 images of 82 slides.",
        option=_option(
            "--task",
            choices=("classification", "super_resolution"),
            default="classification",
            text="In super-resolution an image has no label.",
        ),
    ),
    "derm7pt": _Set("Derm7pt: dermoscopy of 1,011 lesions in five classes."),
    "fed-isic2019": _Set(
        "Fed-ISIC2019 (FLamby): dermoscopy in eight classes, six centres, the published split.",
        option=click.Option(
            ["--lesions-apart"],
            is_flag=True,
            help="Leave images out of training whose lesion is in a test set: FLamby split images, not lesions.",
        ),
    ),
    "fed-ixi": _Set("Fed-IXI (FLamby): brain masks of 566 T1 images, three hospitals, the published split."),
    "lung-masks": _Set("Lung masks of 704 chest X-rays of Montgomery County and Shenzhen."),
    "oct2017": _Set("OCT2017: tomography of the retina in four classes, 84,484 images."),
    "odir": _Set("ODIR-5K: the fundus of both eyes in eight classes, 6,392 images."),
    "pneumonia": _Set("Chest X-rays of children with and without pneumonia, 5,856 images."),
    "polyp": _Set("Polyps in colonoscopy: the masks of four collections, one site each."),
    "sleep-edf": _Set(
        "Sleep-EDF: five stages of sleep from 30 s of EEG (Fpz-Cz), nights of 20 or 78 subjects.",
        option=_option(
            "--subjects",
            choices=(20, 78),
            default=20,
            text="Sleep-EDF-20 (0.5 GB is written) or Sleep-EDF-78 (2.3 GB).",
        ),
    ),
}


def _add_command(name: str) -> None:
    """Add the command that prepares a set."""
    described, published = COMMANDS[name], name in PUBLISHED

    @out_option
    @(source_option if published else seed_option)
    @output.json_option
    @shared_options
    def command(out: Path, as_json: bool, **options: Any) -> None:
        _prepare(name, out, as_json=as_json, **options)

    source = f" --source downloads/{name}" if published else ""
    example = f"\b\nmhfl-peer data prepare {name}{source} --out {described.example or name}"
    added = click.command(name, help="\n\n".join(filter(None, (described.title, described.note, example))))(command)
    if described.option is not None:
        added.params.insert(2, described.option)
    prepare.add_command(added)


for _name in COMMANDS:
    _add_command(_name)


def _installed_command(name: str) -> click.Command:
    """The command of an installed package's data set: an option for every argument of its ``prepare``."""
    module = dataset_module(name)

    @out_option
    @output.json_option
    @shared_options
    def command(out: Path, as_json: bool, **options: Any) -> None:
        _prepare(name, out, as_json=as_json, **options)

    added = click.command(name, help=inspection.getdoc(module))(command)
    _, *arguments = inspection.signature(module.prepare).parameters.values()
    for argument in arguments:
        required = argument.default is argument.empty
        given: dict[str, Any] = {"required": True} if required else {"default": argument.default, "show_default": True}
        kind = PATH if argument.name == "source" else None
        added.params.append(click.Option([f"--{argument.name.replace('_', '-')}"], type=kind, **given))
    return added


def _prepare(name: str, out: Path, *, as_json: bool, **options: Any) -> None:
    try:
        module = dataset_module(name)
    except ImportError as error:
        raise missing_package(error, f"`data prepare {name}`") from error
    document = {"folder": str(out), **module.prepare(out, **options)}
    output.emit(document, as_json=as_json, render=_published if name in PUBLISHED else _prepared)


def _survey(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group

    splits = document["splits"]
    labels = sorted({label for split in splits.values() for label in split["classes"]}, key=int)
    shapes = [", ".join(f"{shape} ({count})" for shape, count in split["shapes"].items()) for split in splits.values()]
    rows = [
        *((what, *(split[what] for split in splits.values())) for what in ("samples", "subjects", "unnamed")),
        *((f"class {label}", *(split["classes"].get(label, 0) for split in splits.values())) for label in labels),
        ("shapes", *shapes),
    ]
    notes = [("problem", problem) for problem in document["problems"]]
    if document["unlabelled"]:
        notes.append(("note", f"{document['unlabelled']} test entries without a label are not evaluated"))
    if any(split["unnamed"] for split in splits.values()):
        notes.append(("note", "samples without a subject: whether a patient is in both splits cannot be seen"))
    return Group(output.table(("", *splits), rows, title=document["datalist"]), output.fields(notes))


def _prepared(document: Mapping[str, Any]) -> RenderableType:
    """A row a site and split, where there are sites; below it what else the summary has."""
    from rich.console import Group

    rows = []
    sites = document.get("sites", {})
    present = [name for name in COUNTED if all(name in site["training"] for site in sites.values())]
    for site, splits in sites.items():
        for split in ("training", "test"):
            rows.append((site, split, *(_cell(splits[split][name]) for name in present)))
    nested = ("task", "sites", "floors", "floors_are", "dropped")
    facts = [(name, _cell(value)) for name, value in document.items() if name not in nested]
    facts += [(f"dropped: {reason}", count) for reason, count in document.get("dropped", {}).items()]
    floors = document.get("floors", {})
    parts: list[Any] = [output.fields(facts)]
    if sites:
        parts.insert(0, output.table(("site", "split", *present), rows, title=document["task"]))
    if floors:
        columns = (f"{document.get('floors_are', 'AUC')} on test of", *next(iter(floors.values())))
        parts.append(output.table(columns, [(name, *aucs.values()) for name, aucs in floors.items()], title="floors"))
    return Group(*parts)


def _published(document: Mapping[str, Any]) -> RenderableType:
    """Sites by classes; what the publishers and the papers count beside what is there; what to be aware of."""
    from rich.console import Group

    classes = document["classes"] if document["kind"] in CLASSIFYING else []
    rows = [
        (site, side, part["subjects"], part["samples"], *(part.get("classes", {}).get(name, 0) for name in classes))
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
    shown_above = tuple(f"{what}: {expected} expected, {found} found" for what, expected, found, _ in counts)
    facts += [("warning", warning) for warning in document["warnings"] if warning not in shown_above]
    return Group(
        output.table(("site", "split", "subjects", "samples", *classes), rows, title=document["task"]),
        output.table(("count", "expected", "found", ""), counts, title="published and found"),
        output.fields(facts),
    )


def _cell(value: Any) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(value) if isinstance(value, list) else value
