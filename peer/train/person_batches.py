"""The samples of a site, person by person: every step of a private stage has all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from peer.core.plan import Work
from peer.methods.method import Batch
from peer.train.noise import StageNoise
from peer.train.samples import STEPS_AHEAD, Batches, SiteData
from peer.train.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class PersonSamples:
    """The samples of one person, in batches with their shares of the person's samples."""

    person: str
    batches: tuple[tuple[Batch, float], ...]


class PersonBatches(Batches):
    """The samples of a stage, by step and person.

    What a person's samples look like depends on nobody else: they are augmented with seeds of their own names, since
    positions in the datalist would tell who stands before them.
    """

    def __init__(self, data: SiteData, *, check_halt: Callable[[], None], **options: Any) -> None:
        """Prepare the stage's samples.

        Args:
            check_halt: called before each person; its exception ends the step.
            options: as of ``Batches``, with ``batch_size`` the largest number of a person's samples at once.
        """
        super().__init__(data, **options)
        self._check_halt = check_halt
        self.people = data.training.people

    def steps(self, work: Work) -> int:
        """Return the number of steps of the work, which is the same at every site."""
        return work.count

    def at(self, step: int) -> Iterator[PersonSamples]:
        """Yield the samples of each person in the order of the datalist, as this step has them."""
        ahead: deque[tuple[str, list[list[int]], list[Any]]] = deque()
        queue = iter(self.people.items())
        while True:
            while len(ahead) <= STEPS_AHEAD and (following := next(queue, None)) is not None:
                person, indices = following
                parts = [indices[first : first + self._size] for first in range(0, len(indices), self._size)]
                ahead.append((person, parts, [self._begin(part) for part in parts]))
            if not ahead:
                return
            self._check_halt()
            person, parts, begun = ahead.popleft()
            samples = len(self.people[person])
            batches = []
            for part, reading in zip(parts, begun, strict=True):
                names = [("augment", step, self._split.samples[index].name) for index in part]
                batches.append((self._augment(*self._finish(part, reading), names), len(part) / samples))
            yield PersonSamples(person, tuple(batches))

    def _begin(self, indices: list[int]) -> list[Future[Any]]:
        """Begin to read samples from disk; those in memory need no thread."""
        if self._readers is None:
            return []
        return [self._readers.submit(self._split.read_one, index) for index in indices]

    def _finish(self, indices: list[int], reading: list[Future[Any]]) -> tuple[Tensor, Tensor]:
        began_s = self._clock()
        read = self._split.stack([each.result() for each in reading]) if reading else self._split.read(indices)
        self.waited_s += self._clock() - began_s
        return read


def open_batches(
    data: SiteData,
    settings: TrainingSettings,
    noise: StageNoise | None,
    *,
    check_halt: Callable[[], None],
    **options: Any,
) -> Batches:
    """Open the batches of a stage: with noise, its people; the options are those of ``Batches``."""
    options |= {
        "batch_size": settings.training.batch_size,
        "augmentation": settings.data.augmentation,
        "readers": settings.training.readers,
        "balanced": settings.training.class_sampling == "balanced",
    }
    return Batches(data, **options) if noise is None else PersonBatches(data, check_halt=check_halt, **options)
