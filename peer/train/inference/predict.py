"""Apply a model to new data: class probabilities, label maps on the images' own grids, larger images.

The model is a site's own, or one in an exported file. Run as ``python -m peer.train.inference.predict``, the module
reads one JSON document from standard input and writes one to standard output, so that the caller needs neither torch
nor the memory for it. It writes nothing in the site's folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.core.artifacts import Source
from peer.core.tasks import VECTORS, names_or_numbers
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.errors import DataError
from peer.train.column_channels import encode_row
from peer.train.data.datalist import read_json
from peer.train.data.image_files import ARRAYS, DICOM, FORMATS
from peer.train.data.importers.table_source import own_names, read_cells, read_table
from peer.train.data.table_rows import TableRows
from peer.train.errors import UnusableConfigurationError, reason_of
from peer.train.images import PlacedImage, Preparation, in_unit_range, load_images, undo_turn
from peer.train.inference import output_files
from peer.train.inference.export.load import Exported, open_model
from peer.train.outputs import describe_output, final_outputs
from peer.train.settings import DataSettings, TaskSettings
from peer.train.trainer import Trainer

SINGLE = (*ARRAYS, *(ending for ending in FORMATS if ending not in DICOM))
"""Suffixes of files that are one image each."""
Read: TypeAlias = Callable[[Sequence[Path]], PlacedImage]
Finish: TypeAlias = Callable[[PlacedImage], Tensor]


@dataclass(frozen=True, slots=True)
class PredictionInput:
    """One image: its name, files and its result's path under the output folder; or a problem."""

    name: str
    images: tuple[Path, ...] = ()
    relative_path: Path = Path()
    problem: str = ""


def predict(model: Trainer | Exported, inputs: Iterable[Path], out: Path) -> dict[str, Any]:
    """Predict every image of the inputs in order; write each result at once.

    Args:
        out: the folder for label maps and larger images; class probabilities are only
            returned.

    Returns:
        ``predictions``, for each image ``file`` with ``class`` and ``probabilities``, or with
        ``output``, the written file; and ``skipped``, for each unusable input ``file`` and
        ``reason``.

    Raises:
        OSError: a result cannot be written.
    """
    task = model.settings.task
    if task.kind == "tabular":
        return predict_rows(model, inputs)
    read, _ = image_reader(task, model.settings.data)

    def load(item: PredictionInput) -> PlacedImage:
        return read(existing_files(item))

    channels = task.classes if task.kind == "super_resolution" else 1
    predictions: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    used_paths: dict[Path, str] = {}
    for item in list(find_images(inputs, model.settings.data)):  # list them first, so that no result becomes an input
        target = (
            out
            if item.problem
            else output_files.output_path(out / item.relative_path, channels=channels, spatial_dims=task.spatial_dims)
        )
        if target in used_paths:
            reason = f"its result would replace that of {used_paths[target]}; predict it by itself"
            skipped.append({"file": item.name, "reason": reason})
            continue
        result = predict_image(model, partial(load, item))
        if isinstance(result, str):
            skipped.append({"file": item.name, "reason": result})
            continue
        image, prediction = result
        if task.objective in VECTORS:
            answer = describe_output(prediction, task)
        else:
            used_paths[target] = item.name
            values = on_own_grid(prediction, image, task, model.settings.data)
            output_files.write(target, values, reference=item.images[0], grid=image.space)
            answer = {"output": str(target)}
        predictions.append({"file": item.name, **answer})
    return {"predictions": predictions, "skipped": skipped}


def predict_rows(model: Trainer | Exported, inputs: Iterable[Path]) -> dict[str, Any]:
    """Predict every row of tables and datalists in order; a row with a value that does not fit is skipped."""
    task = model.settings.task
    predictions: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for path in inputs:
        try:
            rows = list(_rows(path, task, model.settings.data))
        except (OSError, ValueError, DataError) as error:
            skipped.append({"file": str(path), "reason": str(error)})
            continue
        for name, cells in rows:
            table = TableRows(task.columns)
            try:
                row = table.parse(name, cells)
                channels = encode_row(task.columns, row)
                if problems := table.misfits():
                    raise ValueError("; ".join(problems))
            except ValueError as error:
                skipped.append({"file": name, "reason": str(error)})
                continue
            # The graph of an exported file computes the channels itself.
            sample = torch.tensor(row, dtype=torch.float32) if isinstance(model, Exported) else channels
            predictions.append({"file": name, **describe_output(compute_outputs(model, sample), task)})
    return {"predictions": predictions, "skipped": skipped}


def _rows(path: Path, task: TaskSettings, data: DataSettings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and cells of each row of a table, or of the ``test`` (else ``training``) list of a datalist."""
    if path.suffix.lower() != ".json":
        table = read_table(path)
        own = own_names(table, task.columns, data.columns)
        for line, row in table.rows:
            yield table.where(line), read_cells(row, own, task.columns)
        return
    for number, entry in enumerate(_listed(path)):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("row"), Mapping):
            raise ValueError(f"entry {number} has no 'row'")
        yield str(entry.get("image", f"{path.name} entry {number}")), entry["row"]


def find_images(inputs: Iterable[Path], data: DataSettings) -> Iterator[PredictionInput]:
    """Yield the images in files, in folders and sub-folders, and in the ``test`` (else ``training``) list of datalists.

    In three dimensions a folder of DICOM files is one image. Paths in a datalist are relative to its folder, and in the
    site's own datalist to ``[data] root``.
    """
    for path in inputs:
        try:
            if path.is_dir():
                yield from _in_folder(path, dims=len(data.input_size))
            elif path.suffix.lower() == ".json":
                own = path.resolve() == data.datalist.resolve()
                yield from _in_datalist(path, data.root if own else path.parent)
            else:
                yield PredictionInput(str(path), (path,), Path(path.name))
        except (OSError, ValueError) as error:
            yield PredictionInput(str(path), problem=str(error))


def _in_folder(folder: Path, *, dims: int) -> Iterator[PredictionInput]:
    images = sorted(_images(folder, dims=dims))
    if not images:
        raise ValueError("holds no image")
    for path in images:
        yield PredictionInput(
            str(path), (path,), path.relative_to(folder) if path != folder else Path(folder.resolve().name)
        )


def _images(folder: Path, *, dims: int) -> Iterator[Path]:
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    files = [path for path in visible if path.is_file()]
    single = [path for path in files if path.name.lower().endswith(SINGLE)]
    slices = [] if single else [path for path in files if path.suffix.lower() in DICOM]
    yield from [*single, *([folder] if slices and dims == 3 else slices)]
    for path in visible:
        if path.is_dir():
            yield from _images(path, dims=dims)


def _listed(path: Path) -> list[Any]:
    """Return the entries of a datalist's ``test`` (else ``training``) list."""
    document = read_json(path)
    entries = (document.get("test") or document.get("training")) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError("has no list 'test' or 'training' of images")
    return entries


def _in_datalist(path: Path, root: Path) -> Iterator[PredictionInput]:
    for number, entry in enumerate(_listed(path)):
        images = entry.get("image") if isinstance(entry, dict) else entry
        names = [images] if isinstance(images, str) else images
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            yield PredictionInput(
                f"{path}: entry {number}", problem=f"'image' must be a path or a list of paths, not {images!r}"
            )
            continue
        first = Path(names[0])
        inside = not first.is_absolute() and ".." not in first.parts
        yield PredictionInput(names[0], tuple(root / name for name in names), first if inside else Path(first.name))


def predict_image(model: Trainer | Exported, load: Callable[[], PlacedImage]) -> tuple[PlacedImage, Tensor] | str:
    """Return the image on its own grid and its final output, or the reason why there is none.

    Raise ``UnusableConfigurationError`` if this installation cannot predict any image.
    """
    _, finish = image_reader(model.settings.task, model.settings.data)
    try:
        image = load()
        return image, compute_outputs(model, finish(image))
    except UnusableConfigurationError:
        raise
    except Exception as error:  # any error of a reader, or a lack of memory for this image
        return " ".join((str(error) or repr(error)).split())


def compute_outputs(model: Trainer | Exported, image: Tensor) -> Tensor:
    """Return the final outputs of one sample; probabilities of vectors in float64.

    Args:
        image: a prepared image or a row's channels; for an exported file a row's values.
    """
    if isinstance(model, Exported):
        return model.outputs(image[None])[0]
    prediction, task = model.predict(image[None]), model.settings.task
    return final_outputs(prediction.double() if task.objective in VECTORS else prediction, task)[0]


def existing_files(item: PredictionInput) -> tuple[Path, ...]:
    """Return the input's files; raise ``ValueError`` if it has a problem or a file is missing."""
    if item.problem:
        raise ValueError(item.problem)
    for path in item.images:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
    return item.images


def image_reader(task: TaskSettings, data: DataSettings) -> tuple[Read, Finish]:
    """Return two functions: one reads an image on its own grid, the other converts it to the network's input."""
    if task.kind == "super_resolution":
        return partial(_unit_image, task=task, data=data), lambda image: image.values.contiguous()
    preparation = Preparation.of(task, data)
    return preparation.load, preparation.finish


def on_own_grid(output: Tensor, image: PlacedImage, task: TaskSettings, data: DataSettings) -> NDArray[Any]:
    """Return a label map ``(1, *space)`` or a larger image ``(c, *space)`` with the axes of the image's file."""
    if task.kind == "super_resolution":
        values: NDArray[Any] = undo_turn(output, image).numpy()
        return values
    shares = Preparation.of(task, data).restore(output, image)
    return output_files.label_map(shares, image.space)[None]


def _unit_image(paths: Sequence[Path], *, task: TaskSettings, data: DataSettings) -> PlacedImage:
    """Load an image for super-resolution as in training: 8-bit pictures are scaled to [0, 1]."""
    image = load_images(
        paths,
        spatial_dims=task.spatial_dims,
        channels=task.in_channels,
        key="in_channels",
        unit=True,
        orientation=data.orientation,
    )
    in_unit_range(image.values)
    return image


def main() -> None:
    """Answer a request for predictions of ``inputs`` into ``out``.

    The request contains ``model`` and ``sha256`` of an exported file, whose task and origin the answer then states, or
    ``setting``, ``state`` and ``sources`` of a site.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    inputs, out = map(Path, request["inputs"]), Path(request["out"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = _from_file(request, inputs, out) if "model" in request else _from_site(request, inputs, out)
    except Exception as error:
        sys.exit(reason_of(error))
    json.dump(answer, sys.stdout)


def _from_file(request: Any, inputs: Iterable[Path], out: Path) -> dict[str, Any]:
    model = open_model(Path(request["model"]), sha256=request["sha256"])
    facts = {key: model.card[key] for key in ("site", "generation", "round")}
    task = model.settings.task
    if task.objective not in VECTORS and out.suffix == ".csv":
        raise UnusableConfigurationError(f"--out {out}: {task.kind} gives a file an input; name a folder")
    columns = list(task.target.columns) or names_or_numbers(task.class_names, task.classes)
    columns = columns if task.objective in VECTORS else []
    return {**facts, "task": task.kind, "columns": columns, **predict(model, inputs, out)}


def _from_site(request: Any, inputs: Iterable[Path], out: Path) -> dict[str, Any]:
    trainer = Trainer(from_json(WorkerSetting, request["setting"]))
    trainer.load(str(request["state"]), from_json(tuple[Source, ...], request["sources"]))
    return predict(trainer, inputs, out)


if __name__ == "__main__":
    main()
