"""Compare the outputs of an export and of the site's own network for the site's own images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.train.data.datalist import Sample
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.predict import image_reader
from peer.train.samples import inspect_samples
from peer.train.settings import TrainingSettings
from peer.train.targets import encode_row

TOLERANCE = 1e-4
"""Maximum absolute difference of a probability, or of an intensity relative to the largest one. Runtimes sum float32 in
different orders, which causes about 1e-6; a wrong preprocessing or weight causes more than the tolerance.
"""

SAMPLES = 4
"""Number of images compared; the first already exercises every shape of the network."""

DRAWN = "images drawn from seed 0, as no test sample could be read"
READ = "test samples of the site"


@dataclass(frozen=True, slots=True)
class Samples:
    """Prepared images ``(c, *space)``, their files (none if drawn), and their source in words."""

    images: tuple[Tensor, ...]
    files: tuple[tuple[Path, ...], ...]
    source: str


def preparer(settings: TrainingSettings) -> Callable[[Sample], Tensor]:
    """Return the function that prepares a sample as for a prediction."""
    if settings.task.kind == "tabular":
        return lambda sample: encode_row(settings.task.columns, sample.row)
    load, finish = image_reader(settings.task, settings.data)
    return lambda sample: finish(load(sample.images))


def choose_samples(settings: TrainingSettings) -> Samples:
    """Return the first readable test images, prepared as for a prediction, or else images drawn from a seed.

    Super-resolution accepts images of any size; they are cropped to ``input_size``.
    """
    data, task = settings.data, settings.task
    datalist = inspect_samples(task, data)
    images: list[Tensor] = []
    files: list[tuple[Path, ...]] = []
    prepare = preparer(settings)
    for sample in datalist.test:
        if len(images) == SAMPLES:
            break
        try:
            image = prepare(sample)
        except Exception:  # any error of a reader: the site's own metrics also leave the image out
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


def compare(
    subject: str, run: Run, reference: Run, samples: Samples, *, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Compare two networks on the samples; return the record for the model card.

    Each image is run alone; the first also in a batch of two.

    Args:
        run: returns the output ``(b, ...)`` for images ``(b, c, *space)``.
        reference: returns the expected output.
        tolerance: for the largest absolute difference, relative if values are larger than 1.

    Raises:
        UnusableConfigurationError: the difference is larger, or an output is not finite.
    """
    first = samples.images[0]
    batches = [image[None] for image in samples.images] + [torch.stack([first, first.flip(-1)])]
    return compare_pairs(
        subject,
        [(run(batch), reference(batch)) for batch in batches],
        tolerance=tolerance,
        samples=len(samples.images),
        source=samples.source,
    )


def compare_pairs(
    subject: str, pairs: Sequence[tuple[Tensor, Tensor]], *, tolerance: float = TOLERANCE, samples: int, source: str
) -> dict[str, Any]:
    """Compare pairs of computed and expected outputs, like :func:`compare`."""
    difference = 0.0
    for computed, expected in pairs:
        if computed.shape != expected.shape:
            raise UnusableConfigurationError(f"{subject}: gives {tuple(computed.shape)}, not {tuple(expected.shape)}")
        computed, expected = computed.detach().double(), expected.detach().double()
        largest = max(1.0, float(expected.abs().max()))
        gap = float((computed - expected).abs().max()) / largest
        difference = gap if not gap <= difference else difference  # so that a NaN stays
    if not difference <= tolerance:
        raise UnusableConfigurationError(
            f"{subject}: the largest absolute difference is {difference:.3g}, over the tolerance of {tolerance:g}; "
            "nothing was exported"
        )
    return {"what": subject, "difference": difference, "tolerance": tolerance, "samples": samples, "source": source}
