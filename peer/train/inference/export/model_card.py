"""The model card of an export as facts and as text: the model, its origin, its checks and its limits.

Every exported file contains the facts; ``read`` returns them with the settings that a prediction needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.metrics import metric_title
from peer.core.privacy import Noise
from peer.core.targets import TimeToEvent
from peer.core.tasks import objective_of
from peer.core.worker_protocol import from_json
from peer.errors import one_line
from peer.site.config.site_tables import DataConfig
from peer.train.data.datalist import Datalist
from peer.train.settings import DataSettings, IntensitySettings, TaskSettings, TrainingSettings

SCHEMA = 3
SCHEMAS_READ = (1, 2, SCHEMA)
"""Schemas of the facts that a reader accepts. The first had no order of axes, the second no orientation, spacing or
intensity.
"""

LIBRARIES = (
    "mhfl-peer",
    "torch",
    "monai",
    "numpy",
    "nibabel",
    "pillow",
    "pydicom",
    "onnx",
    "onnxruntime",
    "onnxscript",
)
INTENDED_USE = (
    "Research on the task above, with data like this site's. It is not a medical device: no authority has approved "
    "it, and no patient's care may depend on what it says."
)
LIMITS = (
    "It was trained and measured on the data of the sites named here, and measured on this site's test split alone. "
    "On other scanners, protocols or patients it may be wrong without any sign of it; measure it there first. "
    "Probabilities are those that the network gives and are not calibrated."
)
PRIVACY = (
    "Weights can reveal something of the samples that they were trained on: whether somebody was among them, and of "
    "small data sets more than that. {noise} The number of samples a class is told above."
)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The settings of an exported model that :func:`peer.train.inference.predict.predict` needs."""

    task: TaskSettings
    data: DataSettings


def collect_facts(facts: Mapping[str, Any], settings: TrainingSettings, datalist: Datalist) -> dict[str, Any]:
    """Collect the facts that are known before the export writes a file.

    Args:
        facts: from the site's journal and configuration: ``form``, ``site``, ``contact``,
            ``federation``, ``ledger``, ``method``, ``generation``, ``round``, ``choice``, ``rounds``,
            ``metrics``, ``contributors``, ``samples``, ``left_out``, ``precision``, ``licence`` and ``exported``.
    """
    task, data = settings.task, settings.data
    free = task.kind == "super_resolution"
    kind = task.kind.replace("_", " ") + ("" if task.target.kind == "class" else f", {task.target.kind}")
    return {
        "schema": SCHEMA,
        **facts,
        "summary": (
            f"The model with which site {facts['site']} of federation {facts['federation']['name']} predicts "
            f"({kind}), after round {facts['round']} of {facts['rounds']}"
            + (f", {facts['choice']}" if facts.get("choice") else "")
            + f", trained with {settings.method}."
        ),
        "task": {
            **{key: getattr(task, key) for key in ("kind", "spatial_dims", "in_channels", "classes")},
            **({"class_names": list(task.class_names)} if task.class_names else {}),
            **({"columns": [dataclasses.asdict(column) for column in task.columns]} if task.columns else {}),
            **({"target": dataclasses.asdict(task.target)} if task.target.kind != "class" else {}),
        },
        "input": {
            "name": "columns" if task.kind == "tabular" else "image",
            "size": list(data.input_size),
            "axes": AXES,
            "free_size": free,
            "normalise": data.normalise,
            "scale": data.scale,
            "orientation": data.orientation or "stored",
            "spacing": None if data.spacing is None else list(data.spacing),
            "intensity": None if data.intensity is None else dataclasses.asdict(data.intensity),
            "nan": data.nan,
            "steps": list(_steps(task, data)),
        },
        "data": {
            split: {
                "samples": len(getattr(datalist, split)),
                "classes": {str(index): count for index, count in datalist.counts(split).items()},
                "subjects": len(datalist.subjects(split)),
                **_events(datalist, split),
            }
            for split in ("training", "test")
        },
        "datalist_sha256": hashlib.sha256(data.datalist.read_bytes()).hexdigest(),
        "versions": versions(),
        "intended_use": INTENDED_USE,
        "limits": LIMITS,
        "privacy": PRIVACY.format(noise=_describe_noise(settings.noise)),
        "checks": [],
    }


def _describe_noise(noise: Noise | None) -> str:
    """Say whether the weights have noise, and what it covers."""
    if noise is None:
        return "No noise was added to them."
    return (
        f"What sites sent was trained with noise, for which epsilon = {noise.epsilon:g} and delta = {noise.delta:g} "
        "hold. That does not cover networks that stay at a site, nor fine-tuning in the last round: this file may have "
        "such parts."
    )


def _events(datalist: Datalist, split: str) -> dict[str, int]:
    """Count the events of a split's persons, if they are followed until one."""
    labels = [sample.label for sample in getattr(datalist, split)]
    people = [label for label in labels if isinstance(label, TimeToEvent)]
    return {"events": sum(person.event for person in people)} if people else {}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that made the file."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def read(text: str, file: Path) -> tuple[dict[str, Any], CardFacts]:
    """Read the facts in an exported file and its settings; raise ``ValueError`` if they are invalid."""
    if not text:
        raise ValueError("it holds no model card of `mhfl-peer export`, which says how images are prepared")
    card = json.loads(text)
    if not isinstance(card, dict) or card.get("schema") not in SCHEMAS_READ:
        raise ValueError(f"its model card is not of schema {SCHEMA}, the newest that this version reads")
    try:
        task: TaskSettings = from_json(TaskSettings, card["task"], path="task")
        input_facts = card["input"]
        if task.objective not in OUTPUTS or input_facts["normalise"] not in NORMALISED or input_facts["axes"] != AXES:
            raise ValueError("its task, its normalisation or its order of axes is unknown to this version")
        size = from_json(tuple[int, ...], input_facts["size"], path="input.size")
        if len(size) != task.spatial_dims or min(size) < 1:
            raise ValueError(f"its input size {list(size)} is not one of {task.spatial_dims} dimensions")
        spacing = input_facts.get("spacing")
        spacing = None if spacing is None else from_json(tuple[float, ...], spacing, path="input.spacing")
        intensity = input_facts.get("intensity")
        intensity = None if intensity is None else from_json(IntensitySettings, intensity, path="input.intensity")
        for key, kind in (("site", str), ("generation", int), ("round", int)):
            from_json(kind, card[key], path=key)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its model card is incomplete: {error}") from error
    # The model has no datalist of its own: paths in a predicted datalist are relative to its folder.
    keys = {key: input_facts.get(key) for key in ("normalise", "scale", "orientation", "nan")}
    table = DataConfig(datalist=file.name, input_size=size, spacing=spacing, **keys)
    return card, CardFacts(task, replace(DataSettings.of(table, file.parent), intensity=intensity))


def render_markdown(card: Mapping[str, Any]) -> str:
    """Render the model card as text for people."""
    task, federation, method = card["task"], card["federation"], card["method"]
    sections = [
        (f"Model of {card['site']}, {federation['name']}, round {card['round']}", [card["summary"]]),
        (
            "What it is",
            _list(
                {
                    "Exported by": f"site {card['site']}"
                    + (f"; contact: {one_line(card['contact'])}" if card["contact"] else ""),
                    "Federation": f"{federation['name']}, digest `{federation['digest']}`",
                    "Sites of the federation": ", ".join(federation["sites"]),
                    "Method": f"{method['name']}, {_pairs(method['parameters'])}",
                    "Rounds": f"{card['round']} of {card['rounds']} finished, generation {card['generation']}",
                    "Network": f"`{json.dumps(card['network'], sort_keys=True)}`, {card['parameters']} parameters",
                    "Task": _pairs({key: value for key, value in task.items() if key not in ("columns", "target")}),
                    **({"Target": _target(task["target"])} if "target" in task else {}),
                    "Exported": f"{card['exported']}, as {card['form']}",
                    "Egress ledger of the site before this export": (
                        f"{card['ledger']['rows']} rows, head `{card['ledger']['hash']}`"
                    ),
                    "Licence": card["licence"],
                    "Made with": _pairs(card["versions"]),
                }
            ),
        ),
        ("Input", [f"{index}. {step}" for index, step in enumerate(card["input"]["steps"], start=1)]),
        ("Output", [OUTPUTS[objective_of(task["kind"], task.get("target", {}).get("kind", "class"))], *_form(card)]),
        ("Other sites", _others(card)),
        ("Data of this site", _data(card)),
        ("Metrics", _metrics(card)),
        ("Checks", [f"- {_check(check)}" for check in card["checks"]]),
        ("Intended use", [card["intended_use"]]),
        ("Limits", [card["limits"]]),
        ("What it may reveal", [card["privacy"]]),
    ]
    (title, lead), *rest = sections
    text = [f"# {title}", "", *lead, ""]
    for heading, lines in rest:
        text += [f"## {heading}", "", *lines, ""]
    return "\n".join(text)


NORMALISED = {
    "none": "Leave the values.",
    "zscore": "Of each channel of each image, subtract the mean and divide by the standard deviation.",
    "unit": "Bring each channel of each image to [0, 1] by its own least and largest value.",
}
AXES = "rows_columns"
"""Order of a picture's axes: height before width."""
_SHARES = "A probability for each class, on dimension 1; they sum to 1."
OUTPUTS = {
    "classification": _SHARES,
    "time_series": _SHARES,
    "tabular": _SHARES,
    "segmentation": (
        f"{_SHARES} On the grid of the input size: interpolate them linearly to the image's own grid, then take the "
        "largest."
    ),
    "super_resolution": "The enlarged image, on dimension 1 its channels, with values about [0, 1].",
    "labels": "A probability for each label, on dimension 1; each is between 0 and 1 by itself.",
    "number": "The number, in the unit of the task, on dimension 1.",
    "survival": "The probability of no event until each of the task's times, on dimension 1.",
}
OUTPUT_NAMES = {"super_resolution": "enlarged", "number": "value", "survival": "survival"}
"""By objective, the name of a graph's output, where it is not that of probabilities."""


def _target(target: Mapping[str, Any]) -> str:
    """Say what is predicted, where it is no class."""
    unit = f" {target['unit']}" if target["unit"] else ""
    if target["kind"] == "survival":
        times = ", ".join(f"{time:g}" for time in target["times"])
        return f"time to an event; survival at {times}{unit}, compared with what happened at {target['horizon']:g}"
    if target["kind"] == "number":
        return "a number from {:g} to {:g}".format(*target["range"]) + unit
    return f"several labels, each yes or no: {', '.join(target['names'])}"


def _steps(task: TaskSettings, data: DataSettings) -> Iterator[str]:
    if task.kind == "tabular":
        yield (
            f"Make a row of {len(task.columns)} float32 numbers, in the order of the columns below; NaN where a value "
            "is missing. The graph scales them and makes channels of them itself."
        )
        for column in task.columns:
            yield _cell(column)
        yield (
            "Check the values before: the graph takes each that does not fit as missing, as training did. The output "
            "of a row without any value is NaN."
        )
        return
    yield (
        f"Read {task.in_channels} channel(s) with {task.spatial_dims} spatial dimension(s), float32, channels first, "
        "with slope and intercept of the file applied; axes of pictures are rows, columns (height, width), those "
        "of volumes columns, rows, slices; axes of arrays as stored."
    )
    if data.orientation in (None, "stored"):
        if task.spatial_dims > 2:
            yield "Leave volumes in the orientation of their files."
    else:
        yield (
            f"Turn a volume so that its axes run to {data.orientation} (nibabel's axis codes), by permuting and "
            "flipping them; leave an array, which says no orientation."
        )
    if task.kind == "super_resolution":
        yield "Values are in [0, 1]; those of 8-bit pictures are divided by 255."
        yield f"Give it the image at its own size, for which it makes one {data.scale} times as large."
        return
    if data.nan is not None:
        yield "Replace each NaN by the lowest other value of its channel."
    if data.intensity is not None:
        of_each = " of each channel of each image" if data.intensity.percentiles else ""
        yield f"Bring {data.intensity.describe()}{of_each} to [0, 1], and clip what lies beyond."
    size = " x ".join(map(str, data.input_size))
    by = (
        "first average (adaptive, torch's `area`) along each axis that is longer, then interpolate linearly "
        "(`align_corners=False`) along each that is shorter"
    )
    if data.spacing is None:
        yield f"Resize to {size}: {by}."
    else:
        distances = " x ".join(f"{distance:g}" for distance in data.spacing)
        yield (
            f"Resample to voxels {distances} mm apart, the number of voxels rounded: {by}. Then cut or pad about the "
            f"centre to {size}, with the least value of each channel."
        )
    yield NORMALISED[data.normalise]


def _cell(column: TableColumn) -> str:
    """Say what the graph takes of a column."""
    if column.kind == "category":
        return f"{column.name}: {', '.join(f'{index} for {level}' for index, level in enumerate(column.levels))}."
    if column.range is None:
        return f"{column.name}: 1 for yes, 0 for no."
    low, high = column.range
    return f"{column.name}: a number from {low:g} to {high:g}{column.unit and f' {column.unit}'}."


def _form(card: Mapping[str, Any]) -> list[str]:
    lines = [""]
    if card["precision"] != "fp32":
        lines += [f"It computes in float32; the site itself trains and predicts in {card['precision']}.", ""]
    if card["form"] != "bundle":
        is_table = card["input"]["name"] == "columns"
        shape = f"`columns` (batch, {len(card['task']['columns'])})" if is_table else "`image` (batch, channels, space)"
        lines.append(f"One input, {shape}, float32; one output, `{card['output']}`; any batch.")
        return [*lines, *(_example(card) if is_table else ())]
    named = card["definition"]
    enlarges = card["task"]["kind"] == "super_resolution"
    gives = "the image" if enlarges else "logits, of which its postprocessing makes probabilities"
    needed = "Nothing but MONAI is needed to load it." if named.startswith("monai.") else NEEDED
    return [*lines, f"The bundle's network, `{named}`, gives {gives}. {needed}", "", *RUN]


OPENED = {
    "onnx": (
        ("import onnxruntime",),
        ('model = onnxruntime.InferenceSession("model.onnx")',),
        'json.loads(model.get_modelmeta().custom_metadata_map["columns"])',
        'print(model.run(None, {"columns": row})[0])',
    ),
    "pt2": (
        ("import torch",),
        ('facts = {"card.json": ""}', 'model = torch.export.load("model.pt2", extra_files=facts).module()'),
        'json.loads(facts["card.json"])["task"]["columns"]',
        "print(model(torch.from_numpy(row)).tolist())",
    ),
}
"""By form, how a program opens a file, reads its columns, and runs it: imports, lines, and two expressions."""
SHOWN_COLUMNS = 3
"""Columns of the example that have a value."""


def _example(card: Mapping[str, Any]) -> list[str]:
    """Return a program that predicts one patient's row, as a block of Markdown."""
    imports, opened, columns, run = OPENED[card["form"]]
    shown = card["task"]["columns"][:SHOWN_COLUMNS]
    patient = {column["name"]: _plausible_value(column) for column in shown}
    return [
        "",
        "```python",
        "import json",
        "import numpy as np",
        *imports,
        "",
        *opened,
        f"columns = {columns}",
        f"patient = {patient!r}  # any other column is missing",
        'row = np.full((1, len(columns)), np.nan, dtype="float32")',
        "for place, column in enumerate(columns):",
        '    if (value := patient.get(column["name"])) is not None:',
        '        row[0, place] = column["levels"].index(value) if column["levels"] else value',
        run,
        "```",
    ]


def _plausible_value(column: Mapping[str, Any]) -> object:
    """Return a value that fits a column: the middle of its range, its first level, or yes."""
    if column["levels"]:
        return column["levels"][0]
    return True if column["range"] is None else sum(column["range"]) / 2


NEEDED = "Loading the network takes the package mhfl-peer beside MONAI; the same model as ONNX or `.pt2` needs neither."
RUN = (
    "To run it over a folder of images, in the bundle's folder, with MONAI and the package `fire`:",
    "",
    "```sh",
    "python -m monai.bundle run --config_file configs/inference.json --dataset_dir IMAGES --output_dir RESULTS",
    "```",
    "",
    "MONAI runs what a configuration says as code: run only a bundle that comes from where you think.",
)


def _others(card: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- Round {row['round']}: contributors {', '.join(row['contributors']) or 'none'}"
        + (f"; missing {', '.join(row['missing'])}" if row["missing"] else "")
        for row in card["contributors"]
    ]
    included, left_out = sorted(card["network"].get("experts", {})), card["left_out"]
    if included:
        lines.append(f"- Networks of other sites inside, whose manifests allow it: {', '.join(included)}")
    for site, reason in left_out.items():
        lines.append(f"- Left out: the network of {site}, which the site itself predicts with: {reason}")
    if left_out and not included:
        lines.append("- So this is the local expert alone, not the mixture that the site predicts with.")
    return lines or ["No other site had a part in it."]


def _data(card: Mapping[str, Any]) -> list[str]:
    names, lines = card["task"].get("class_names", ()), []
    if used := {split: count for split, count in card.get("samples", {}).items() if count}:
        lines.append(f"- In use, those held out for validation apart: {_pairs(used)}")
    if digest := card.get("datalist_sha256"):
        lines.append(f"- Datalist, when it was exported: SHA-256 `{digest}`")
    for split, counts in card["data"].items():
        classes = "".join(
            f"; class {index}{f' ({names[int(index)]})' if names else ''}: {count}"
            for index, count in counts["classes"].items()
        )
        subjects = f" of {counts['subjects']} subjects" if counts["subjects"] else ""
        subjects += f", {counts['events']} with an event" if "events" in counts else ""
        lines.append(f"- {split}: {counts['samples']} samples{subjects}{classes}")
    return lines


def _metrics(card: Mapping[str, Any]) -> list[str]:
    metrics = card["metrics"]
    lines = []
    if metrics["site"]:
        lines.append(
            f"- What the site predicts with, on its test split, after round {metrics['round']}: "
            f"{_figures(metrics['site'])}"
        )
    if metrics.get("exported"):
        lines.append(f"- This export, on the same split: {_figures(metrics['exported'])}")
    return lines or ["Not measured."]


def _figures(metrics: Mapping[str, float]) -> str:
    return _pairs({metric_title(name): value for name, value in metrics.items()})


def _check(check: Mapping[str, Any]) -> str:
    return (
        f"{check['what']}: largest absolute difference {check['difference']:.3g}, tolerance {check['tolerance']:g}, "
        f"on {check['samples']} {check['source']}"
    )


def _list(pairs: Mapping[str, str]) -> list[str]:
    return [f"- {name}: {value}" for name, value in pairs.items()]


def _pairs(values: Mapping[str, Any]) -> str:
    return (
        ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {_plain(value)}"
            for name, value in values.items()
        )
        or "no parameters"
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
