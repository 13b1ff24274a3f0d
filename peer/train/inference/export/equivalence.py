"""Compare the outputs of an export and of the site's own network for the site's own images."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.core.columns import TableColumn
from peer.train.column_channels import encode_row
from peer.train.data.datalist import Sample
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.predict import image_reader
from peer.train.samples import inspect_samples
from peer.train.settings import TrainingSettings

TOLERANCE = 1e-4
"""Maximum absolute difference of a probability, or of an intensity relative to the largest one. Runtimes sum float32 in
different orders, which causes about 1e-6; a wrong preprocessing or weight causes more than the tolerance.
"""

SAMPLES = 4
"""Number of images compared; the first already exercises every shape of the network."""

DRAWN = "images drawn from seed 0, as no test sample could be read"
DRAWN_ROWS = "rows drawn from seed 0, as there is no test row"
READ = "test samples of the site"


@dataclass(frozen=True, slots=True)
class Samples:
    """Prepared images ``(c, *space)``, their files (none if drawn), and their source in words.

    Of a table, ``rows`` are the values ``(columns,)`` of which the images are the channels.
    """

    images: tuple[Tensor, ...]
    files: tuple[tuple[Path, ...], ...]
    source: str
    rows: tuple[Tensor, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of an exported graph: images, or the rows of a table, which it prepares itself."""
        return self.rows or self.images


def preparer(settings: TrainingSettings) -> Callable[[Sample], Tensor]:
    """Return the function that prepares a sample as for a prediction."""
    load, finish = image_reader(settings.task, settings.data)
    return lambda sample: finish(load(sample.images))


def choose_samples(settings: TrainingSettings) -> Samples:
    """Return the first readable test images, prepared as for a prediction, or else images drawn from a seed.

    Super-resolution accepts images of any size; they are cropped to ``input_size``.
    """
    data, task = settings.data, settings.task
    datalist = inspect_samples(task, data)
    if task.kind == "tabular":
        return _choose_rows(task.columns, [sample.row for sample in datalist.test])
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


def _choose_rows(columns: Sequence[TableColumn], rows: Sequence[Sequence[float]]) -> Samples:
    """Return the first test rows that have a value, or else rows drawn from a seed."""
    chosen = [row for row in rows if not all(math.isnan(value) for value in row)][:SAMPLES]
    source = READ
    if not chosen:
        draw = random.Random(0)
        chosen, source = [[_draw_value(column, draw) for column in columns] for _ in range(SAMPLES)], DRAWN_ROWS
    channels = tuple(encode_row(columns, row) for row in chosen)
    return Samples(channels, (), source, tuple(torch.tensor(row, dtype=torch.float32) for row in chosen))


def _draw_value(column: TableColumn, draw: random.Random) -> float:
    """Draw a value that fits the column."""
    if column.range is not None:
        return draw.uniform(*column.range)
    return float(draw.randrange(len(column.levels) or 2))


Run = Callable[[Tensor], Tensor]


def compare(
    subject: str, run: Run, reference: Run, samples: Samples, *, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Compare two networks on the samples; return the record for the model card.

    Each input is run alone; the first also in a batch of two.

    Args:
        run: returns the output ``(b, ...)`` for images ``(b, c, *space)``, or rows ``(b, columns)``.
        reference: returns the expected output.
        tolerance: for the largest absolute difference, relative if values are larger than 1.

    Raises:
        UnusableConfigurationError: the difference is larger, or an output is not finite.
    """
    first = samples.inputs[0]
    other = samples.rows[-1] if samples.rows else first.flip(-1)
    batches = [each[None] for each in samples.inputs] + [torch.stack([first, other])]
    return compare_pairs(
        subject,
        [(run(batch), reference(batch)) for batch in batches],
        tolerance=tolerance,
        samples=len(samples.inputs),
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
