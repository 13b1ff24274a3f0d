"""Ranks that are threads of one process, and exchange tensors in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from peer.train.ranks import Ranks

Result = TypeVar("Result")


class Memory:
    """The collectives of one rank; all ranks share the barrier and the places."""

    def __init__(self, rank: int, barrier: threading.Barrier, places: list[Tensor | None]) -> None:
        self._rank, self._barrier, self._places = rank, barrier, places

    def gather(self, tensor: Tensor) -> list[Tensor]:
        self._places[self._rank] = tensor.detach().clone()
        self._barrier.wait()
        tensors = [place.clone() for place in self._places if place is not None]
        self._barrier.wait()
        shapes = {(tensor.shape, tensor.dtype) for tensor in tensors}
        assert len(shapes) == 1, "a backend exchanges tensors of one shape and type"
        return tensors

    def add_up(self, tensor: Tensor) -> None:
        first, *others = self.gather(tensor)
        for other in others:
            first += other
        tensor.copy_(first)


def run_ranks(count: int, work: Callable[[Ranks], Result], *, timeout_s: float = 60.0) -> list[Result]:
    """The results of ``work`` at each rank; a rank that fails ends the others."""
    barrier = threading.Barrier(count, timeout=timeout_s)
    places: list[Tensor | None] = [None] * count

    def run(rank: int) -> Result:
        try:
            return work(Ranks(rank, count, Memory(rank, barrier, places)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, rank) for rank in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
