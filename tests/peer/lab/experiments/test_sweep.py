"""Many runs: none twice, none lost, and a failing one keeps no other from its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.errors import StateError, WorkerFailed
from peer.lab.experiments import sweep as simulation_sweep
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.runs import Run
from peer.lab.experiments.sweep import SweepProgress, count_fitting_runs, prepare, sweep

pytestmark = pytest.mark.e2e

Write = Callable[..., Path]


@pytest.fixture
def runs(experiment: Write, tmp_path: Path) -> list[Run]:
    return prepare(Experiment.load(experiment()), tmp_path / "out")


def ignore(progress: SweepProgress) -> None:
    """Watch nothing."""


def test_runs_are_finished_once(experiment: Write, runs: list[Run], tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []
    assert not sweep(
        runs, jobs=1, keep=False, watch=lambda progress: counts.append((progress.finished, progress.total))
    )
    assert counts[-1] == (2, 2)
    times = [(run.folder / "result.json").stat().st_mtime_ns for run in runs]
    runs_again = prepare(Experiment.load(experiment()), tmp_path / "out")
    assert not sweep(runs_again, jobs=1, keep=False, watch=ignore)
    assert times == [(run.folder / "result.json").stat().st_mtime_ns for run in runs_again]


def test_two_jobs_give_the_bits_of_one(experiment: Write, tmp_path: Path) -> None:
    def states(out: str, jobs: int) -> list[object]:
        runs = prepare(Experiment.load(experiment()), tmp_path / out)
        assert not sweep(runs, jobs=jobs, keep=False, watch=ignore)
        return [json.loads((run.folder / "manifest.json").read_text())["states"] for run in runs]

    assert states("one", 1) == states("two", 2)


def test_a_failing_run_is_named_and_the_others_end(runs: list[Run]) -> None:
    (runs[0].folder / "sites/asia/datalist.json").write_text('{"training": []}')
    failed = sweep(runs, jobs=1, keep=False, watch=ignore)
    assert list(failed) == [runs[0].id]
    assert "asia" in failed[runs[0].id]
    assert [run.is_finished() for run in runs] == [False, True]


def test_a_killed_process_is_named_with_what_to_do(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    own_pid = os.getpid()

    def killed(folder: Path, keep: bool, starter: int) -> tuple[str, str]:
        if os.getpid() != own_pid:  # the first run is carried out in the sweep's own process
            os.kill(os.getpid(), signal.SIGKILL)
        return folder.name, ""

    monkeypatch.setattr(simulation_sweep, "execute_run", killed)
    for run in runs:
        (run.folder / "manifest.json").write_text('{"peak_bytes": 1}')
    with pytest.raises(WorkerFailed, match=r"a process was killed.*smaller --jobs"):
        sweep(runs, jobs=2, keep=False, watch=ignore)


def test_a_run_ends_with_the_killed_process_that_waits_for_it() -> None:
    child = (
        "import os, threading; from peer.lab.experiments.sweep import end_with; "
        "end_with(os.getppid()); print('ready', flush=True); threading.Event().wait()"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == ""  # which ends when nobody holds the pipe


def test_a_bug_while_runs_are_handed_out_is_none_of_a_killed_process(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminated(Exception):  # noqa: N818 - named like the library's class, and not one of it
        pass

    def fails(folder: Path, keep: bool, starter: int) -> tuple[str, str]:
        raise Terminated

    monkeypatch.setattr(simulation_sweep, "execute_run", fails)
    with pytest.raises(Terminated):
        sweep(runs, jobs=1, keep=False, watch=ignore)


@pytest.mark.usefixtures("runs")
def test_results_of_another_experiment_are_refused(experiment: Write, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="trial"):
        prepare(Experiment.load(experiment(replace={'name = "trial"': 'name = "other"'})), tmp_path / "out")


@pytest.mark.usefixtures("runs")
def test_what_the_report_reads_is_written(tmp_path: Path) -> None:
    document = json.loads((tmp_path / "out/experiment.json").read_text())
    assert list(document["methods"]) == ["local", "fedskd"]
    assert document["methods"]["fedskd"]["stages"]["train"]["count"] == 2
    assert document["methods"]["fedskd"]["kept_home"] == ""
    assert document["metric"] == "auc"
    assert (tmp_path / "out/experiment.toml").exists()


@pytest.mark.parametrize(("peak", "fit"), [(300, 2), (600, 1), (1500, 1)])
def test_no_more_runs_at_once_than_fit_into_memory(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch, peak: int, fit: int
) -> None:
    monkeypatch.setattr(simulation_sweep, "available_memory_bytes", lambda: 1000)
    for run, bytes_ in zip(runs, (100, peak), strict=True):
        (run.folder / "manifest.json").write_text(json.dumps({"peak_bytes": bytes_}))
    assert count_fitting_runs(runs) == fit


def test_the_folders_own_copy_goes_on(experiment: Write, tmp_path: Path) -> None:
    pool = {'pool = "pool/pool.json"': f'pool = "{tmp_path}/pool/pool.json"'}
    first = prepare(Experiment.load(experiment(replace=pool)), tmp_path / "out")
    runs_again = prepare(Experiment.load(tmp_path / "out/experiment.toml"), tmp_path / "out")
    assert [run.document["digest"] for run in runs_again] == [run.document["digest"] for run in first]


@pytest.mark.usefixtures("runs")
def test_a_damaged_experiment_is_named(experiment: Write, tmp_path: Path) -> None:
    (tmp_path / "out/experiment.json").write_text('{"format": 1, "ver')
    with pytest.raises(StateError, match=r"experiment\.json is damaged"):
        prepare(Experiment.load(experiment()), tmp_path / "out")


def test_the_folder_holds_an_experiment_that_extends_another_as_one_file(experiment: Write, tmp_path: Path) -> None:
    path = experiment()
    whole = path.read_text()
    runs = prepare(Experiment.load(path), tmp_path / "whole")
    assert (tmp_path / "whole/experiment.toml").read_text() == whole
    (tmp_path / "_base.toml").write_text(whole.replace("rounds = ", "rounds = 1", 1))
    rounds = next(line for line in whole.splitlines() if line.startswith("rounds = "))
    path.write_text(f'extends = "_base.toml"\n{rounds}\n')
    runs_again = prepare(Experiment.load(path), tmp_path / "extended")
    assert [run.document["digest"] for run in runs_again] == [run.document["digest"] for run in runs]
    path_of_copy = tmp_path / "extended/experiment.toml"
    assert "extends" not in path_of_copy.read_text()
    assert Experiment.load(path_of_copy).model_dump() == Experiment.load(path).model_dump()
