"""Whether what was exported computes what the site's own network computes, on the site's own images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.data.datalist import inspect_datalist
from peer.inference.predict import reading
from peer.training.errors import UnusableConfigurationError
from peer.training.settings import TrainingSettings

TOLERANCE = 1e-4
"""Largest absolute difference of a probability, or of an intensity beside the largest one. Runtimes order float32 sums
otherwise, which is worth some 1e-6; a preprocessing or a weight that is not the same is worth more than this."""

SAMPLES = 4
"""How many images are compared: each shape of the network is exercised by the first."""

DRAWN = "images drawn from seed 0, as no test sample could be read"
READ = "test samples of the site"


@dataclass(frozen=True, slots=True)
class Samples:
    """Prepared images ``(c, *space)``; their files, none where they were drawn; and which they are, in words."""

    images: tuple[Tensor, ...]
    files: tuple[tuple[Path, ...], ...]
    source: str


def samples_of(settings: TrainingSettings) -> Samples:
    """The first readable test images as a prediction prepares them, else images from a seed.

    Those of super-resolution, which have any size, are cut to ``input_size``.
    """
    data, task = settings.data, settings.task
    listed = inspect_datalist(data.datalist, root=data.root, task=task.kind, classes=task.classes)
    load, finish = reading(task, data)
    images: list[Tensor] = []
    files: list[tuple[Path, ...]] = []
    for sample in listed.test:
        if len(images) == SAMPLES:
            break
        try:
            image = finish(load(sample.images))
        except Exception:  # whatever a reader raises: the site's own metrics leave it out as well
            continue
        window = (slice(None), *(slice(side) for side in data.input_size))
        images.append(image[window].contiguous())
        files.append(sample.images)
    if images:
        return Samples(tuple(images), tuple(files), READ)
    draw = torch.Generator().manual_seed(0)
    drawn = tuple(torch.rand(task.in_channels, *data.input_size, generator=draw) for _ in range(SAMPLES))
    return Samples(drawn, (), DRAWN)


Run = Callable[[Tensor], Tensor]


def compared(what: str, run: Run, reference: Run, samples: Samples, *, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """The record of a comparison, for the model card.

    Each image is run by itself; the first also in a batch of two.

    Args:
        what: is compared with what, in words.
        run: gives output ``(b, ...)`` for images ``(b, c, *space)``.
        reference: the same.
        samples: the images.
        tolerance: of the largest absolute difference, relative where values are larger than 1.

    Raises:
        ConfigurationError: the difference is larger, or something is not finite.
    """
    first = samples.images[0]
    batches = [image[None] for image in samples.images] + [torch.stack([first, first.flip(-1)])]
    return judged(
        what,
        [(run(batch), reference(batch)) for batch in batches],
        tolerance=tolerance,
        samples=len(samples.images),
        source=samples.source,
    )


def judged(
    what: str, pairs: Sequence[tuple[Tensor, Tensor]], *, tolerance: float = TOLERANCE, samples: int, source: str
) -> dict[str, Any]:
    """The record of pairs that were computed; raises as :func:`compared` does."""
    difference = 0.0
    for found, expected in pairs:
        if found.shape != expected.shape:
            raise UnusableConfigurationError(f"{what}: gives {tuple(found.shape)}, not {tuple(expected.shape)}")
        found, expected = found.detach().double(), expected.detach().double()
        largest = max(1.0, float(expected.abs().max()))
        gap = float((found - expected).abs().max()) / largest
        difference = gap if not gap <= difference else difference  # so that a NaN stays
    if not difference <= tolerance:
        raise UnusableConfigurationError(
            f"{what}: the largest absolute difference is {difference:.3g}, over the tolerance of {tolerance:g}; "
            "nothing was exported"
        )
    return {"what": what, "difference": difference, "tolerance": tolerance, "samples": samples, "source": source}
