"""Another site's model on this site's test split: judged as every artifact is, run, and reported in sums alone.

It runs in a process of its own beside the training, reads what the training wrote, and writes nothing.
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
from peer.data.datalist import Sample, inspect_datalist
from peer.files import artifact_path
from peer.methods.supervised import supervised
from peer.training.artifact import read_network
from peer.training.data import DataSplit
from peer.training.device import choose_device, make_reproducible
from peer.training.errors import UnusableArtifact, UnusableConfigurationError
from peer.training.metrics import measure
from peer.training.network import local_spec, probe
from peer.training.settings import TrainingSettings
from peer.training.targets import Example, reading_of

logger = logging.getLogger(__name__)


class GuestEvaluator:
    """Carries out the orders of a worker whose duty is to measure.

    Args:
        setting: the site, its federation, its folder.
    """

    def __init__(self, setting: WorkerSetting) -> None:
        self._settings = settings = TrainingSettings.of(setting)
        self._device = choose_device(settings.device)
        make_reproducible(self._device, threads=settings.threads)

    def perform(self, command: commands.Command) -> events.Event:
        """Measure a guest; the event answers the order.

        Raises:
            Exception: whatever made it impossible; ``peer.training.errors`` says whose fault that is.
        """
        if not isinstance(command, commands.Measure):
            raise UnusableConfigurationError(f"a worker that measures guests has no answer to {type(command).__name__}")
        order = (command.generation, command.round, command.attempt)
        try:
            network = self._guest(command)
        except UnusableArtifact as error:
            return events.Measured(*order, {}, str(error))

        def predict(images: Tensor) -> Tensor:
            with torch.inference_mode():
                prediction: Tensor = network(images.to(self._device)).prediction
            return prediction.float().cpu()

        return events.Measured(*order, measured(predict, self.test, self._settings))

    @cached_property
    def test(self) -> DataSplit:
        """The readable samples of the test split, the same that the site's own model is measured on."""
        settings = self._settings
        task, data = settings.task, settings.data
        listed = inspect_datalist(data.datalist, root=data.root, task=task.kind, classes=task.classes)
        reading = reading_of(task, data)
        samples: list[Sample] = []
        examples: list[Example] = []
        for sample in listed.test:
            try:
                example = reading(sample)
            except Exception as error:
                reason = " ".join(str(error).split())
                logger.warning("sample unreadable: image=%s reason=%s", sample.name, reason)
                continue
            samples.append(sample)
            if data.cache == "memory":
                examples.append(example)
        in_memory = data.cache == "memory"
        load = examples.__getitem__ if in_memory else lambda k: reading(samples[k])
        return DataSplit(samples, load, in_memory, frozenset())

    def _guest(self, command: commands.Measure) -> Network:
        """The guest on the device, ready to predict; ``UnusableArtifact`` where it may not be run here."""
        settings, source = self._settings, command.source
        if not artifact_path(settings.artifacts, source.artifact.sha256).exists():
            raise UnusableConfigurationError(f"artifact {source.artifact.sha256} is not there any more")
        own = local_spec(settings)
        allow = {*settings.allow_models, *([own["name"]] if source.artifact.spec == own else [])}
        network = read_network(settings.artifacts, source, settings.task, allow=allow)
        try:
            probe(network, settings.task, settings.data.input_size, scale=settings.data.scale or 1)
        except Exception as error:
            raise UnusableArtifact(source, str(error)) from error
        return network.to(self._device).eval()


def measured(predict: Callable[[Tensor], Tensor], split: DataSplit, settings: TrainingSettings) -> dict[str, float]:
    """The metrics of predictions on a split, by the loss that the federation trains with; empty where it has no sample.

    Args:
        predict: logits or images of images ``(b, c, *space)``; see ``peer.training.metrics.measure``.
        split: may be another site's.
        settings: of the site.
    """
    chosen = settings.parameters.get("segmentation_loss", "dice_ce")
    loss = supervised(settings.task.kind, str(chosen)).loss
    return measure(predict, loss, split.batches(settings.batch_size), task=settings.task.kind)
