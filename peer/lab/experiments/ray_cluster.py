"""The runs of an experiment on a Ray cluster: the resources of a run, and retries after a node's death.

A run reads and writes only its own folder, so that every node must see the folder of the results.
This module imports neither torch nor, before a run, Ray.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import WorkerFailed
from peer.extras import require_extra

Execute = Callable[[Path, bool], tuple[str, str]]
"""Carry out the run of a folder; return the run's id, and why it failed, or an empty text."""

RETRIES = 2
"""Ray's retries of a run whose process or node died."""
REACHED_S = 10.0


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster, and the resources that one run requests.

    Attributes:
        address: of the cluster, as ``ray.init`` takes it; None: one of this machine, for this sweep.
        cpus: processors of a run.
        gpus: GPUs of a run; with 0.25, four runs share one.
        memory_bytes: memory of a run; None: by the peak of the largest finished run.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        require_extra("ray", "--engine ray")

    def run(
        self, execute: Execute, folders: Sequence[Path], keep: bool, *, jobs: int | None, peak_bytes: int | None
    ) -> Iterator[tuple[str, str]]:
        """Carry out the runs, and yield each one's id and reason of failure, empty if none, as it ends.

        Raises:
            WorkerFailed: the cluster cannot be reached.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray's telemetry is on by default
        ray: Any = importlib.import_module("ray")
        try:
            self._reach()
            ray.init(address=self.address, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise WorkerFailed(
                f"no Ray cluster at {self.address or 'this machine'}: {error}", "begin one with `ray start --head`"
            ) from error
        memory = self.memory_bytes or peak_bytes
        on_node = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, **({"memory": memory} if memory else {})
        )(_execute_on_node)
        waiting = list(reversed(folders))
        underway: dict[Any, Path] = {}
        try:
            while waiting or underway:
                while waiting and (jobs is None or len(underway) < jobs):
                    folder = waiting.pop()
                    underway[on_node.remote(execute, folder.resolve(), keep)] = folder
                ((ended,), _) = ray.wait(list(underway), num_returns=1)
                folder = underway.pop(ended)
                try:
                    yield ray.get(ended)
                except ray.exceptions.RayError as error:
                    yield folder.name, f"Ray ended it: {str(error).strip().splitlines()[0]}"
        finally:
            ray.shutdown()

    def _reach(self) -> None:
        """Raise ``OSError`` if nothing listens: Ray itself would wait for minutes."""
        host, _, port = (self.address or "").rpartition(":")
        if host and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), REACHED_S).close()


def _execute_on_node(execute: Execute, folder: Path, keep: bool) -> tuple[str, str]:
    if not folder.is_dir():
        return (
            folder.name,
            f"node {os.uname().nodename} does not see {folder}; give --out a folder that all nodes share",
        )
    return execute(folder, keep)
