"""Predict with a site's model in another program's process, such as a notebook's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.core.artifacts import Source
from peer.core.tasks import CLASSIFYING, VECTORS
from peer.core.worker_protocol import WorkerSetting
from peer.train.data.image_files import fill_nan
from peer.train.images import PlacedImage, in_unit_range
from peer.train.inference.export.predictor import Predictor, build_predictor
from peer.train.inference.predict import (
    PredictionInput,
    existing_files,
    find_images,
    image_reader,
    on_own_grid,
    predict_image,
)
from peer.train.outputs import describe_output
from peer.train.settings import TrainingSettings
from peer.train.trainer import Trainer

Input: TypeAlias = str | Path | Tensor | NDArray[Any]


def load_model(setting: WorkerSetting, state: str, sources: tuple[Source, ...]) -> Predictor:
    """Load the site's predictor in a finished state: on the CPU, in evaluation mode, with its own copy of the weights.

    Args:
        setting: the site's; its home is the folder of :func:`peer.train.inference.model_state.pinned`.

    Raises:
        WorkError: the state is missing or does not fit, or the method needs more than one module to
            predict.
    """
    with preserve_torch_settings():
        return build_predictor(Trainer(setting), state, sources)[0]


def load_trainer(setting: WorkerSetting, state: str, sources: tuple[Source, ...]) -> Trainer:
    """Build a trainer with a finished state loaded, for predictions only; see ``load_model``."""
    with preserve_torch_settings():
        trainer = Trainer(setting)
        trainer.load(state, sources)
        return trainer


def predict_inputs(trainer: Trainer, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """Predict files, folders, datalists and arrays in order; return one record per image.

    Args:
        inputs: paths, and arrays or tensors ``(c, *space)``, or ``(*space)`` if the task has one
            channel.

    Returns:
        ``file`` (for an array, its index in the inputs) and ``problem`` (why there is no
        prediction, else empty). Classification adds ``predicted`` and the probabilities
        ``class_0``, ``class_1`` …; segmentation adds ``labels``, an array ``(*space)`` on the
        image's own grid; super-resolution adds ``image``, an array ``(c, *space)``; another target adds
            its numbers by label or time, or as ``value``.
    """
    settings = trainer.settings
    read, _ = image_reader(settings.task, settings.data)

    def load(source: object) -> PlacedImage:
        return read(existing_files(source)) if isinstance(source, PredictionInput) else _array(source, settings)

    records = []
    with preserve_torch_settings():
        for name, source in _images(inputs, settings):
            prediction = predict_image(trainer, partial(load, source))
            if isinstance(prediction, str):
                records.append({"file": name, "problem": prediction})
            else:
                records.append({"file": name, "problem": "", **_answer(*prediction, settings)})
    return records


@contextlib.contextmanager
def preserve_torch_settings() -> Iterator[None]:
    """Restore the settings that a trainer changes: threads, algorithms, random numbers."""
    threads = torch.get_num_threads()
    debug_mode = torch.get_deterministic_debug_mode()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(debug_mode)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = cudnn


def _images(inputs: Iterable[object], settings: TrainingSettings) -> Iterator[tuple[str, object]]:
    """Yield each image of the inputs with its name."""
    for number, source in enumerate(inputs):
        if isinstance(source, str | os.PathLike):
            for item in find_images([Path(source)], settings.data):
                yield item.name, item
        else:
            yield str(number), source


def _array(source: Any, settings: TrainingSettings) -> PlacedImage:
    """Convert an array to float32 ``(c, *space)`` with unknown placement; raise ``ValueError`` if it does not fit."""
    task = settings.task
    try:
        values = torch.as_tensor(source)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"is of the type {type(source).__name__}, and neither a path nor an array of numbers"
        ) from error
    image = values.detach().cpu().float()
    if image.ndim == task.spatial_dims and task.in_channels == 1:
        image = image[None]
    if image.ndim != task.spatial_dims + 1 or not image.numel() or image.shape[0] != task.in_channels:
        expected = f"({task.in_channels} channels, {task.spatial_dims} spatial dimensions)"
        raise ValueError(f"has the shape {tuple(values.shape)}, not {expected}")
    if settings.data.nan is not None:
        image = torch.from_numpy(fill_nan(image.numpy()))
    if not torch.isfinite(image).all():
        raise ValueError("holds a NaN or an infinity")
    image = in_unit_range(image) if task.kind == "super_resolution" else image
    return PlacedImage(image, tuple(image.shape[1:]))


def _answer(image: PlacedImage, output: Tensor, settings: TrainingSettings) -> dict[str, Any]:
    task = settings.task
    if task.objective in CLASSIFYING:
        answer = describe_output(output, task)
        return {"predicted": answer["class"], **_numbered("class", answer["probabilities"])}
    if task.objective in VECTORS:
        answer = describe_output(output, task)
        columns = [*answer.get("survival", ()), answer["median"]] if "median" in answer else answer.get("probabilities")
        return {"value": answer["value"]} if columns is None else dict(zip(task.target.columns, columns, strict=True))
    values = on_own_grid(output, image, task, settings.data)
    return {"labels": values[0]} if task.kind == "segmentation" else {"image": values}


def _numbered(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_{index}": value for index, value in enumerate(values)}
