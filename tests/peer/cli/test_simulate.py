"""``mhfl-peer simulate``: its output and its refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from fakes.cli import run as call
from fakes.drafts import EXPERIMENT
from peer.errors import ConfigError, ModelError, UsageError, WorkerFailed


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    """Write the experiment on synthetic images and run the command on it."""
    random, entries = np.random.default_rng(0), []
    for index in range(16):
        np.save(tmp_path / f"{index}.npy", random.random((8, 8), dtype=np.float32))
        entries.append({"image": f"{index}.npy", "label": index % 2})
    (tmp_path / "pool.json").write_text(json.dumps({"training": entries}))

    def run(*options: str, text: str = EXPERIMENT) -> Result:
        path = tmp_path / "trial.toml"
        path.write_text(text)
        return call("simulate", path, "--out", tmp_path / "out", *options)

    return run


def test_a_dry_run_trains_nothing(simulate: Callable[..., Result], tmp_path: Path) -> None:
    result = simulate("--dry-run")
    assert result.exit_code == 0, result.output
    assert "All is well: 1 runs can be carried out." in result.output
    assert "0 of 1 runs are finished" in result.output
    assert not list(tmp_path.glob("out/runs/*/result.json"))


def test_a_dry_run_says_what_is_left_out_why_and_that_the_time_is_unknown(simulate: Callable[..., Result]) -> None:
    mixed = '\n[models.mixed]\nasia = {name = "resnet5", width = 4}\neurope = {name = "resnet8", width = 4}\n'
    result = simulate("--dry-run", text=EXPERIMENT + "\n[methods.fedavg]\n" + mixed)
    assert result.exit_code == 0, result.stderr
    assert "Left out: fedavg in models mixed: needs one network for all sites.\n" in result.stdout
    assert "The time is not known before a run has finished" in result.stdout


def test_a_dry_run_estimates_the_time_by_the_finished_runs(simulate: Callable[..., Result], tmp_path: Path) -> None:
    seeds = EXPERIMENT.replace("rounds = 1", "rounds = 1\nseeds = [0, 1, 2]")
    simulate("--dry-run", text=seeds)
    folder = next(tmp_path.glob("out/runs/*seed-0"))
    (folder / "manifest.json").write_text('{"seconds": 100.0, "peak_bytes": 1}')
    (folder / "result.json").touch()
    assert "The unfinished ones take about 3 min 20 s" in simulate("--dry-run", "--jobs", "1", text=seeds).stdout


def test_a_dry_run_names_the_network_with_batch_norm_of_a_row_with_noise(simulate: Callable[..., Result]) -> None:
    noise = 'privacy = {mechanism = "noise", epsilon = 8.0, delta = 0.005, people = 8}'
    row = f'\n[methods.quiet]\nmethod = "fedavg"\n{noise}\n'
    result = simulate("--dry-run", text=EXPERIMENT + row)
    assert result.exit_code == ConfigError.exit_code
    assert ".quiet." in result.stderr
    assert "resnet5 has batch norm" in result.stderr
    assert 'write norm = "group"' in result.stderr
    grouped = EXPERIMENT.replace("max_pool = false", 'max_pool = false\nnorm = "group"')
    assert simulate("--dry-run", text=grouped + row).exit_code == 0


def test_a_dry_run_names_the_site_whose_network_cannot_be_used(simulate: Callable[..., Result]) -> None:
    table = '{name = "mlp", width = 4}'
    text = EXPERIMENT.replace("[methods.local]", f"[models.of_rows]\n'*' = {table}\n\n[methods.local]")
    result = simulate("--dry-run", text=text)
    assert result.exit_code == ModelError.exit_code
    assert "even.of_rows.all.local.fold-0.seed-0: site asia: [model] mlp" in result.stderr
    assert "mlp takes rows" in result.stderr
    assert "say in the row's `models` which ones it is for" in result.stderr


def test_a_dry_run_misses_the_package_of_a_network(simulate: Callable[..., Result]) -> None:
    result = simulate("--dry-run", text=EXPERIMENT.replace('"resnet5"', '"no_such_package.nets:Net"'))
    assert result.exit_code == ConfigError.exit_code
    assert "trial.toml: models.small.* needs the Python package no_such_package, not installed here" in result.stderr
    assert "PYTHONPATH" in result.stderr


def test_json_names_every_run(simulate: Callable[..., Result], tmp_path: Path) -> None:
    result = simulate("--json", "--jobs", "1")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["runs"] == [{"id": "even.small.all.local.fold-0.seed-0", "finished": True, "failed": None}]
    assert len(list(tmp_path.glob("out/runs/*/result.json"))) == 1


def test_an_unknown_method_is_refused_before_anything_is_made(simulate: Callable[..., Result], tmp_path: Path) -> None:
    result = simulate(text=EXPERIMENT.replace("[methods.local]", "[methods.locl]"))
    assert result.exit_code == ConfigError.exit_code
    assert "did you mean 'local'?" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_named(simulate: Callable[..., Result]) -> None:
    result = simulate("--jobs", "1", text=EXPERIMENT.replace("in_channels = 1", "in_channels = 3"))
    assert result.exit_code == WorkerFailed.exit_code
    assert "even.small.all.local.fold-0.seed-0" in result.stderr


@pytest.mark.parametrize("shard", ["0/2", "3/2", "two", "1/"])
def test_a_part_that_is_none_is_named(simulate: Callable[..., Result], shard: str) -> None:
    result = simulate("--dry-run", "--shard", shard)
    assert result.exit_code == 2
    assert f"{shard!r} is no part such as 3/10" in result.output


def test_a_part_has_its_runs_alone(simulate: Callable[..., Result]) -> None:
    result = simulate("--dry-run", "--shard", "2/2")
    assert "All is well: 0 runs can be carried out." in result.output


def test_the_address_of_a_cluster_needs_its_engine(simulate: Callable[..., Result]) -> None:
    assert "add --engine ray" in simulate("--address", "auto").output


def test_one_row_is_run_first_and_the_others_later_in_the_same_folder(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    two = EXPERIMENT + "\n[methods.fedavg]\n"
    result = simulate("--only", "fedavg", "--json", "--jobs", "1", text=two)
    assert result.exit_code == 0, result.output
    fedavg, local = (f"even.small.all.{method}.fold-0.seed-0" for method in ("fedavg", "local"))
    assert json.loads(result.stdout)["runs"] == [{"id": fedavg, "finished": True, "failed": None}]
    assert {path.parent.name for path in tmp_path.glob("out/runs/*/result.json")} == {fedavg}
    runs = json.loads(simulate("--dry-run", "--json", text=two).stdout)["runs"]
    assert {run["id"]: run["finished"] for run in runs} == {local: False, fedavg: True}


def test_a_row_that_is_none_is_refused_with_those_that_are(simulate: Callable[..., Result], tmp_path: Path) -> None:
    result = simulate("--only", "fedavg")
    assert result.exit_code == UsageError.exit_code
    assert "--only fedavg: no such row" in result.stderr
    assert "it has local" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_row_stands_for_all_its_candidates(simulate: Callable[..., Result]) -> None:
    swept = EXPERIMENT.replace("[data]\n", "[data]\nvalidation_share = 0.5\n")
    swept += "\n[methods.fedavg]\n[sweep.methods.local]\nbudget.learning_rate = [1e-3, 1e-2]\n"
    result = simulate("--dry-run", "--json", "--only", "local", text=swept)
    assert result.exit_code == 0, result.stderr
    names = [run["id"].split(".", 3)[3].partition(".fold")[0] for run in json.loads(result.stdout)["runs"]]
    assert sorted(names) == ["local+learning_rate-0.001", "local+learning_rate-0.01"]
