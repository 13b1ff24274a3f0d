"""Evaluates another site's model on this site's test split, after the checks that every artifact passes.

Only metrics leave this module. It runs in a separate process beside the training, whose files it only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from models import Network
from peer.core import commands, events
from peer.core.worker_protocol import WorkerSetting
from peer.files import artifact_path
from peer.methods.supervised import supervised_loss
from peer.train.artifact import is_whole, read_network
from peer.train.data.datalist import Sample
from peer.train.device import choose_device, make_reproducible
from peer.train.errors import UnusableArtifact, UnusableConfigurationError, refuse
from peer.train.metrics import measure
from peer.train.network import BaseWeights, local_spec, probe
from peer.train.samples import DataSplit, inspect_samples
from peer.train.settings import TrainingSettings
from peer.train.targets import Example, sample_reader

logger = logging.getLogger(__name__)


class GuestEvaluator:
    """Carries out the commands of a worker whose duty is to evaluate lent models."""

    def __init__(self, setting: WorkerSetting) -> None:
        self._settings = settings = TrainingSettings.of(setting)
        self._device = choose_device(settings.training.device)
        make_reproducible(self._device, threads=settings.training.threads)

    def perform(self, command: commands.Command) -> events.Event:
        """Evaluate a lent model; return the event that answers the command.

        Raise an ``Exception`` if the command cannot be carried out; ``peer.train.errors`` tells whose fault that is.
        """
        if not isinstance(command, commands.Measure):
            raise UnusableConfigurationError(
                f"a worker that evaluates lent models has no answer to {type(command).__name__}"
            )
        order = (command.generation, command.round, command.attempt)
        try:
            network = self._read_lent_model(command)
        except UnusableArtifact as error:
            if error.short or not is_whole(self._settings.artifacts, command.source.artifact):
                raise
            return events.Measured(*order, {}, str(error))

        def predict(images: Tensor) -> Tensor:
            with torch.inference_mode():
                prediction: Tensor = network(images.to(self._device)).prediction
            return prediction.float().cpu()

        return events.Measured(*order, evaluate_split(predict, self.test, self._settings))

    @cached_property
    def test(self) -> DataSplit:
        """The readable samples of the test split, as in the evaluation of the site's own model."""
        settings = self._settings
        task, data = settings.task, settings.data
        datalist = inspect_samples(task, data)
        read = sample_reader(task, data)
        samples: list[Sample] = []
        examples: list[Example] = []
        for sample in datalist.test:
            try:
                example = read(sample)
            except Exception as error:
                reason = " ".join(str(error).split())
                logger.warning("sample unreadable: image=%s reason=%s", sample.name, reason)
                continue
            samples.append(sample)
            if data.cache == "memory":
                examples.append(example)
        in_memory = data.cache == "memory"
        load = examples.__getitem__ if in_memory else lambda k: read(samples[k])
        return DataSplit(samples, load, in_memory, {})

    def _read_lent_model(self, command: commands.Measure) -> Network:
        """Load the lent model on the device; raise ``UnusableArtifact`` if a check refuses it."""
        settings, source = self._settings, command.source
        if not artifact_path(settings.artifacts, source.artifact.sha256).exists():
            raise UnusableConfigurationError(f"artifact {source.artifact.sha256} is not there any more")
        own = local_spec(settings)
        allow = {*settings.allow_models, *([own["name"]] if source.artifact.spec == own else [])}
        bases = BaseWeights(settings).of
        network = read_network(settings.artifacts, source, settings.task, allow=allow, bases=bases, wire=settings.wire)
        try:
            probe(network, settings.task, settings.data.input_size, scale=settings.data.scale or 1)
        except Exception as error:
            raise refuse(source, error) from error
        return network.to(self._device).eval()


def evaluate_split(
    predict: Callable[[Tensor], Tensor], split: DataSplit, settings: TrainingSettings
) -> dict[str, float]:
    """Compute the metrics of predictions on a split, with the federation's loss.

    Return nothing for a split without samples, or where the method trains no model.

    Args:
        predict: returns logits or images for images ``(b, c, *space)``; see
            ``peer.train.metrics.measure``.
        split: any site's split.
    """
    if not settings.plan.predicts:
        return {}
    chosen = settings.parameters.get("segmentation_loss", "dice_ce")
    loss = supervised_loss(settings.task.objective, str(chosen)).loss
    return measure(
        predict,
        loss,
        split.batches(settings.training.batch_size),
        task=settings.task.objective,
        target=settings.task.target,
    )
