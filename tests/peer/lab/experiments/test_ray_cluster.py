"""Runs on a Ray cluster of two nodes on this machine: the bits of joblib's, and a node that dies."""

import importlib
import json
import logging
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from peer.errors import WorkerFailed
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.ray_cluster import RayCluster
from peer.lab.experiments.runs import Run
from peer.lab.experiments.sweep import SweepProgress, prepare, shard_of, sweep

Write = Callable[..., Path]
STORE_BYTES = 80 * 2**20


def ignore(progress: SweepProgress) -> None:
    """Watch nothing."""


def states(runs: list[Run]) -> list[object]:
    return [json.loads((run.folder / "manifest.json").read_text())["states"] for run in runs]


@pytest.fixture(autouse=True)
def log_records() -> Iterator[None]:
    """Undo what Ray adds to every log record of a process that imports it."""
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def children() -> set[int]:
    """Return the processes that this one started."""
    return {int(child) for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()}


def add_node(nodes: Any, **options: Any) -> None:
    """Add a node; Ray gives up one that a busy machine has not started after 30 s, and leaves its processes behind."""
    count, others = len(nodes.list_all_nodes()), children()
    while len(nodes.list_all_nodes()) == count:
        try:
            nodes.add_node(**options, include_log_monitor=False, no_monitor=True, object_store_memory=STORE_BYTES)
        except Exception:
            for process in children() - others:
                os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that carries out nothing, and a node of one processor."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = importlib.import_module("ray.cluster_utils").Cluster()
    add_node(nodes, num_cpus=0, include_dashboard=False)
    add_node(nodes, num_cpus=1)
    yield nodes
    nodes.shutdown()


@pytest.mark.nightly
def test_a_run_has_the_bits_of_joblib_s(cluster: Any, experiment: Write, tmp_path: Path) -> None:
    ours = prepare(Experiment.load(experiment()), tmp_path / "joblib")
    assert not sweep(ours, jobs=1, keep=False, watch=ignore)
    theirs = prepare(Experiment.load(experiment()), tmp_path / "ray")
    (theirs[1].folder / "sites/asia/datalist.json").write_text('{"training": []}')
    failed = sweep(theirs, jobs=None, keep=False, watch=ignore, cluster=RayCluster(cluster.address))
    assert list(failed) == [theirs[1].id]
    assert "asia" in failed[theirs[1].id]
    assert states(theirs[:1]) == states(ours[:1])


def wait_in_the_first_try(folder: Path, keep: bool) -> tuple[str, str]:
    """Wait for the end of the node in the first try; finish in the second."""
    first = folder / "first"
    if not first.exists():
        first.touch()
        (folder / "began").write_text("the test reads this pipe")
        signal.pause()
    return folder.name, ""


@pytest.mark.nightly
def test_a_node_that_does_not_see_the_folder_is_named(cluster: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ended = RayCluster(cluster.address).run(wait_in_the_first_try, [missing], False, jobs=1, peak_bytes=2**20)
    ((name, reason),) = ended
    assert name == "missing"
    assert f"does not see {missing}" in reason


@pytest.mark.nightly
def test_a_run_whose_node_died_is_carried_out_on_another(cluster: Any, tmp_path: Path) -> None:
    def run() -> list[tuple[str, str]]:
        return list(
            RayCluster(cluster.address).run(wait_in_the_first_try, [tmp_path], False, jobs=None, peak_bytes=None)
        )

    os.mkfifo(tmp_path / "began")
    (node,) = cluster.worker_nodes
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run)
        (tmp_path / "began").read_text()
        assert not ended.done()
        add_node(cluster, num_cpus=1)
        cluster.remove_node(node, allow_graceful=False)
        assert ended.result(timeout=120) == [(tmp_path.name, "")]


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, which only `make nightly` installs, is asked for nothing."""
    stub = types.ModuleType("ray")
    stub.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", stub)
    with pytest.raises(WorkerFailed, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        list(RayCluster("127.0.0.1:1").run(wait_in_the_first_try, [], False, jobs=1, peak_bytes=None))


def test_every_run_is_in_one_shard(experiment: Write, tmp_path: Path) -> None:
    runs = prepare(Experiment.load(experiment()), tmp_path / "out")
    shards = [shard_of(runs, number, 3) for number in (1, 2, 3)]
    assert sorted(run.id for shard in shards for run in shard) == sorted(run.id for run in runs)
    assert [len(shard) for shard in shards] == [1, 1, 0]
