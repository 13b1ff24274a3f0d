"""TensorBoard and MLflow have each scalar once, in files of this machine only."""

import contextlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.errors import ConfigError, DiskError, StateError, UsageError
from peer.view.tracking.scalars import GenerationScalars, Scalar
from peer.view.tracking.trackers import MLflow, TensorBoard, database_file

DIGEST = "12345678" * 8
FACTS = {"method": "fedskd", "model.name": "resnet10"}
BEGAN_S = 1_800_000_000.0


def run_of(rounds: int, *, generation: int = 1, over: bool = False) -> GenerationScalars:
    """A generation in which every round halved its loss and took a minute."""
    scalars = [
        Scalar(tag, round, value, BEGAN_S + 60 * round)
        for round in range(1, rounds + 1)
        for tag, value in (("train/total", 0.5**round), ("round/duration_s", 60.0))
    ]
    ended_s = BEGAN_S + 60 * rounds + 1 if over else None
    return GenerationScalars("asia", "trial", DIGEST, generation, BEGAN_S, ended_s, tuple(scalars), FACTS)


def points(run: GenerationScalars) -> dict[tuple[str, int], tuple[float, float]]:
    """Value and time by tag and step."""
    return {(scalar.tag, scalar.step): (scalar.value, scalar.time_s) for scalar in run.scalars}


def read_back(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Value and time by tag and step, as TensorBoard reads a run; a step that comes twice fails."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars: dict[tuple[str, int], tuple[float, float]] = {}
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in scalars
            scalars[(tag, event.step)] = (event.value, event.wall_time)
    return scalars


@pytest.fixture
def board(tmp_path: Path) -> Callable[[], contextlib.closing[TensorBoard]]:
    return lambda: contextlib.closing(TensorBoard(tmp_path / "runs"))


def test_tensorboard_reads_back_what_was_written_and_gets_nothing_twice(board, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "trial-12345678" / "asia"
    with board() as tracker:
        assert [tracker.add(run_of(1)), tracker.add(run_of(1, generation=2))] == [2, 2]
        assert read_back(folder / "gen-0001") == points(run_of(1))  # while the file is open
        assert [tracker.add(run_of(3)), tracker.add(run_of(3))] == [4, 0]
    assert read_back(folder / "gen-0001") == points(run_of(3))
    assert read_back(folder / "gen-0002") == points(run_of(1))
    files = sorted(folder.rglob("*"))
    with board() as tracker:
        assert [tracker.add(run_of(3)), tracker.add(run_of(1, generation=2))] == [0, 0]
    assert sorted(folder.rglob("*")) == files
    with board() as tracker:
        assert tracker.add(run_of(4)) == 2
    assert read_back(folder / "gen-0001") == points(run_of(4))


def test_what_a_crash_cut_off_is_written_again(board, tmp_path: Path) -> None:
    with board() as tracker:
        tracker.add(run_of(2))
    (path,) = (tmp_path / "runs").rglob("*tfevents*")
    path.write_bytes(path.read_bytes()[:-5])
    with board() as tracker:
        assert tracker.add(run_of(2)) == 1
    assert read_back(path.parent) == points(run_of(2))


@pytest.mark.e2e
def test_mlflow_has_a_run_for_each_generation_and_resumes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = MLflow(database_file(f"sqlite:///{tmp_path}/ml.db"))
    assert [tracker.add(run_of(1)), tracker.add(run_of(1))] == [2, 0]
    again = MLflow(database_file("sqlite:///ml.db"))
    runs = [run_of(2, over=True), run_of(1, generation=2)]
    assert [again.add(run) for run in runs] == [2, 2]
    assert [again.add(run) for run in runs] == [0, 0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, of MLflow's code
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/ml.db")
    experiment = client.get_experiment_by_name("trial")
    by_name = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert by_name.keys() == {"asia gen-0001", "asia gen-0002"}
    first, second = by_name["asia gen-0001"], by_name["asia gen-0002"]
    assert (first.info.status, second.info.status, second.info.start_time) == ("FINISHED", "RUNNING", BEGAN_S * 1000)
    assert first.data.params == FACTS
    history = client.get_metric_history(first.info.run_id, "train/total")
    assert sorted((point.step, point.value, point.timestamp) for point in history) == [
        (1, 0.5, (BEGAN_S + 60) * 1000),
        (2, 0.25, (BEGAN_S + 120) * 1000),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"ml.db"}


@pytest.mark.parametrize(
    "uri", ["http://user:pass@tracker:5000", "https://tracker", "databricks", "postgresql://a:pass@b/c", "file:runs"]
)
def test_metrics_go_to_no_store_elsewhere(uri: str) -> None:
    reason = "is no file of this machine, and metrics stay at the site; name sqlite:///FILE"
    with pytest.raises(UsageError, match=reason) as raised:
        database_file(uri)
    assert "pass" not in str(raised.value)


@pytest.mark.parametrize("uri", ["sqlite:///", "sqlite:///x?mode=memory", "sqlite://", "sqlite"])
def test_a_store_without_a_file_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="name sqlite:///FILE"):
        database_file(uri)


def test_a_file_that_is_no_database_or_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StateError, match=r"text\.db is damaged: file is not a database"):
        database_file(f"sqlite:///{tmp_path}/text.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(DiskError, match=r"folder\.db: unable to open database file"):
        database_file(f"sqlite:///{tmp_path}/folder.db")


@pytest.mark.parametrize(("package", "make"), [("tensorboard", TensorBoard), ("mlflow", MLflow)])
def test_a_package_that_is_missing_is_one_line(
    package: str, make: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"--{package} needs the Python package {package}.* run `pip install '.*\[scalars\]'`"
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "x")
