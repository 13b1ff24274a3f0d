"""A site's model in somebody else's process, a notebook's for one: loaded and asked, and the process left as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.core.commands import Source
from peer.core.tasks import CLASSIFYING
from peer.core.worker_protocol import WorkerSetting
from peer.inference import output_files
from peer.inference.export.predictor import Predictor, taken_from
from peer.inference.predict import PredictionInput, classes, files, in_unit_range, items, predict_image, reading
from peer.training.settings import TrainingSettings
from peer.training.trainer import Trainer

Input: TypeAlias = str | Path | Tensor | NDArray[Any]


def model_of(setting: WorkerSetting, state: str, sources: tuple[Source, ...]) -> Predictor:
    """What the site predicts with in a finished state: on the CPU, in evaluation mode, its weights its own.

    Args:
        setting: of the site; its home is the copy that :func:`peer.inference.model_state.held` made.
        state: the checkpoint.
        sources: what its round had received.

    Raises:
        WorkError: the state is not there or does not fit, or the method predicts with what no one module can hold.
    """
    with undisturbed():
        return taken_from(Trainer(setting), state, sources)[0]


def trainer_of(setting: WorkerSetting, state: str, sources: tuple[Source, ...]) -> Trainer:
    """A trainer that holds a finished state, ready to predict and for nothing else; see ``model_of``."""
    with undisturbed():
        trainer = Trainer(setting)
        trainer.load(state, sources)
        return trainer


def answers(trainer: Trainer, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """The predictions for files, folders, datalists and arrays, a record an image, in their order.

    Args:
        trainer: holds a state.
        inputs: paths, and arrays or tensors ``(c, *space)``, or ``(*space)`` where the task has one channel.

    Returns:
        ``file`` (of an array its place among the inputs) and ``problem`` (why there is no prediction, else empty); with
        one, of classes ``predicted`` and a probability each as ``class_0``, ``class_1`` …, of label maps ``labels``, an
        array ``(*space)`` on the image's own grid, of super-resolution ``image``, an array ``(c, *space)``.
    """
    settings = trainer.settings
    read, _ = reading(settings.task, settings.data)

    def load(source: PredictionInput | Tensor) -> Tensor:
        return read(files(source)) if isinstance(source, PredictionInput) else _array(source, settings)

    found = []
    with undisturbed():
        for name, source in _images(inputs, settings):
            prediction = predict_image(trainer, partial(load, source))
            if isinstance(prediction, str):
                found.append({"file": name, "problem": prediction})
            else:
                found.append({"file": name, "problem": "", **_answer(*prediction, settings)})
    return found


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Give back what a trainer sets for its own process: threads, algorithms, random numbers."""
    threads = torch.get_num_threads()
    strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict, warn_only=only_warns)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = cudnn


def _images(inputs: Sequence[Input], settings: TrainingSettings) -> Iterator[tuple[str, PredictionInput | Tensor]]:
    """Each image of the inputs, with its name."""
    for place, source in enumerate(inputs):
        if isinstance(source, str | Path):
            for item in items([Path(source)], settings.data):
                yield item.name, item
        else:
            yield str(place), torch.as_tensor(source)


def _array(values: Tensor, settings: TrainingSettings) -> Tensor:
    """An array as a file would have been read, float32 ``(c, *space)``; ``ValueError`` says what does not fit."""
    task = settings.task
    image = values.detach().cpu().float()
    if image.ndim == task.spatial_dims and task.in_channels == 1:
        image = image[None]
    if image.ndim != task.spatial_dims + 1 or not image.numel() or image.shape[0] != task.in_channels:
        wanted = f"({task.in_channels} channels, {task.spatial_dims} spatial dimensions)"
        raise ValueError(f"has the shape {tuple(values.shape)}, not {wanted}")
    if not torch.isfinite(image).all():
        raise ValueError("holds a NaN or an infinity")
    return in_unit_range(image) if task.kind == "super_resolution" else image


def _answer(image: Tensor, prediction: Tensor, settings: TrainingSettings) -> dict[str, Any]:
    kind = settings.task.kind
    if kind in CLASSIFYING:
        found = classes(prediction)
        shares = {f"class_{index}": share for index, share in enumerate(found["probabilities"])}
        return {"predicted": found["class"], **shares}
    if kind == "segmentation":
        return {"labels": output_files.label_map(prediction.softmax(dim=0), tuple(image.shape[1:]))}
    return {"image": np.asarray(prediction.numpy())}
