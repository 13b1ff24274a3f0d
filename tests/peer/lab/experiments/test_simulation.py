"""One run with real training: interrupted it goes on to the same bits, and what it leaves can be scored again."""

import contextlib
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from peer.core import commands
from peer.core.limits import CHECKPOINTS_KEPT
from peer.core.metrics import validation_loss
from peer.core.roster import SiteName
from peer.core.site_memory import recover, used_sources
from peer.errors import DataError, LockedError, ModelError
from peer.lab.experiments import simulation
from peer.lab.experiments.collect import evaluate, execute
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.experiment_tables import Act
from peer.lab.experiments.pool import gather
from peer.lab.experiments.runs import Run, build_runs
from peer.lab.experiments.simulation import Simulation
from peer.site.records.journal import Journal
from peer.train.data.datalist import inspect_datalist
from peer.train.metrics import classification
from peer.train.public_set import digest_images
from peer.train.tensors import State, pack, state_of
from peer.train.trainer import Trainer

pytestmark = pytest.mark.e2e

Write = Callable[..., Path]
Prepare = Callable[..., list[Run]]
SITES = ("africa", "asia", "europe")


@pytest.fixture
def prepared(experiment: Write, tmp_path: Path) -> Prepare:
    """Write the runs of an experiment: ``prepared(out, methods, **changes)``."""

    def prepare(out: str, methods: str, **changes: Any) -> list[Run]:
        loaded = Experiment.load(experiment(methods, **changes))
        new_runs = build_runs(loaded, gather(loaded, tmp_path / out / "data"), tmp_path / out / "runs")
        for run in new_runs:
            run.write()
        return new_runs

    return prepare


def state_digests(run: Run) -> Any:
    return json.loads((run.folder / "manifest.json").read_text())["states"]


def test_a_run_leaves_its_tables_and_its_predictions(prepared: Prepare) -> None:
    (run,) = prepared("out", "[methods.fedskd]\n")
    result = execute(run.folder)
    assert result == json.loads((run.folder / "result.json").read_text())
    arrays = np.load(run.folder / "predictions.npz")
    samples = json.loads((run.folder / "samples.json").read_text())
    for name in SITES:
        entry = result["sites"][name]
        assert entry["steps"] == 4
        assert entry["samples"] == {"training": 12, "validation": 0, "test": 4}
        assert [record["round"] for record in entry["rounds"]] == [1, 2]
        assert [sample["label"] for sample in samples[name]] == arrays[f"y/{name}"].tolist()
        assert all(sample["sex"] in "fm" for sample in samples[name])
        for other in SITES:
            assert arrays[f"p/{name}/{other}"].dtype == np.float64, "as scored: float32 makes close values equal"
            expected = classification(arrays[f"p/{name}/{other}"], arrays[f"y/{other}"])
            metrics = result["matrix"][name][other]
            assert {key: metrics[key] for key in expected} == expected
    sent = sum(entry["sent_bytes"] for entry in result["sites"].values())
    assert sent == sum(sum(entry["sent_bytes_by_round"].values()) for entry in result["sites"].values())
    assert sent == sum(entry["received_bytes"] for entry in result["sites"].values()) > 0
    assert not list(run.folder.glob("sites/*/gen-0001"))


def test_what_is_kept_is_what_a_daemon_would_have(prepared: Prepare) -> None:
    (run,) = prepared("out", "[methods.fedskd]\n")
    execute(run.folder, keep=True)
    for name in SITES:
        assert (run.folder / f"sites/{name}/gen-0001/journal.db").exists()
        assert list((run.folder / f"sites/{name}/gen-0001/checkpoints").glob("round-000002/*/dam.safetensors"))


@pytest.mark.nightly
def test_the_best_round_on_validation_data_can_be_taken_home(prepared: Prepare) -> None:
    changes = {
        "rounds = 2\n": "rounds = 7\nevaluation_every = 1\n",
        "[training]": "validation_share = 0.4\n\n[training]",
    }
    (run,) = prepared("out", "[methods.dflmoe]\n", replace=changes)
    result = execute(run.folder, keep=True)
    best_rounds = []
    for name in SITES:
        measured = [record["metrics"] for record in result["sites"][name]["rounds"]]
        values = [metrics.get("validation_auc", -1.0) for metrics in measured]
        best = max(range(1, 8), key=lambda round: (values[round - 1], -validation_loss(measured[round - 1]), round))
        best_rounds.append(best)
        kept = {path.name for path in (run.folder / f"sites/{name}/gen-0001/checkpoints").glob("round-*")}
        assert f"round-{best:06d}" in kept
        assert len(kept) <= CHECKPOINTS_KEPT + 1, "the last ones, and the best"
        trainer = Simulation(run.folder, round_key=bytes(32)).trainer(SiteName(name))
        with contextlib.closing(Journal(trainer.settings.home / "journal.db", read_only=True)) as journal:
            rows = list(journal.rows())
        end = next(index for index, (kind, number, _) in enumerate(rows) if (kind, number) == ("committed", best))
        trainer.load(recover(rows).best.state, used_sources(rows[: end + 1]))
        assert trainer.evaluate(trainer.data.validation)["auc"] == max(values), "with the heads that it had then"
    assert min(best_rounds) <= 7 - CHECKPOINTS_KEPT, "one that would be deleted otherwise"


@pytest.mark.parametrize(
    "method",
    [
        "fedskd",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("fedcross", "mh_pflid", "dflmoe", "fedvisit")),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(prepared, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    (whole,) = prepared("whole", f"[methods.{method}]\n")
    execute(whole.folder)
    (run,) = prepared("interrupted", f"[methods.{method}]\n")
    orders = 0

    class Interrupted(Trainer):
        def perform(self, command: commands.Command) -> Any:
            nonlocal orders
            orders += 1
            if orders == 9:
                raise KeyboardInterrupt
            return super().perform(command)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "Trainer", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(run.folder)
    assert not run.is_finished()
    execute(run.folder)
    assert state_digests(run) == state_digests(whole)


SMALL_INPUT = "input_sizes = {africa = [8, 8], asia = [8, 8], europe = [16, 16]}"


@pytest.mark.parametrize(
    "changes",
    [
        {"width = 5": "width = 4"},
        {"width = 5": "width = 4", "width = 6": "width = 4", "input_size = [8, 8]": SMALL_INPUT},
    ],
    ids=["another network", "another input"],
)
def test_sites_with_one_network_and_input_share_a_pooled_model(prepared: Prepare, changes: dict[str, str]) -> None:
    (run,) = prepared("out", "[methods.centralised]\n", replace=changes)
    result = execute(run.folder)
    digests = state_digests(run)
    assert digests["africa"] == digests["asia"] != digests["europe"]
    assert result["matrix"]["africa"] == result["matrix"]["asia"]
    assert not result["single_model"]
    assert all(entry["steps"] == 4 for entry in result["sites"].values())


def test_averaging_ends_with_one_model(prepared: Prepare) -> None:
    alike = {f"width = {width}": "width = 4" for width in (5, 6)}
    (run,) = prepared("out", "[methods.fedavg]\n", replace=alike)
    assert execute(run.folder)["single_model"]


@pytest.mark.parametrize(
    "act",
    [pytest.param(act, marks=() if act in ("scale", "steps") else pytest.mark.nightly) for act in get_args(Act)],
)
def test_an_insider_sends_something_else_and_the_others_go_on(prepared: Prepare, act: str) -> None:
    links = f'[links.bad]\ninsider = "asia"\nact = "{act}"\n'
    (run,) = [each for each in prepared("out", f"[methods.feddal]\n{links}") if each.document["links"] == "bad"]
    sites = execute(run.folder)["sites"]
    expected = [] if act in ("samples", "steps", "backdoor") else ["asia"]
    for name in ("africa", "europe"):
        assert [sorted(row["cut"]) for row in sites[name]["rounds"]] == [expected] * 2


def test_a_backdoor_is_measured_in_every_run_of_its_experiment(prepared: Prepare) -> None:
    links = '[links.bad]\ninsider = "asia"\nact = "backdoor"\nboost = 3\n'
    runs = prepared("out", f"[methods.feddal]\n{links}")
    assert [run.document.get("insider") for run in runs] == [None, ["asia", "backdoor", 3.0]]
    for run in runs:
        matrix = execute(run.folder)["matrix"]
        assert all(0 <= matrix[name][name]["attack_success"] <= 1 for name in SITES)
        assert "attack_success" not in matrix["africa"]["europe"]


@pytest.mark.nightly
def test_the_last_host_of_a_forged_copy_is_named_and_the_copy_before_gets_its_rounds(prepared: Prepare) -> None:
    links = '[links.bad]\ninsider = "asia"\nact = "zero"\n'
    honest, bad = prepared("out", f"[methods.fedcross]\n{links}", replace={"rounds = 2": "rounds = 6"})
    missing = {}
    for run in (honest, bad):
        sites = execute(run.folder)["sites"]
        missing[run.id] = [row["missing"] for name in ("africa", "europe") for row in sites[name]["rounds"]]
        assert all(sites[name]["steps"] >= 8 for name in ("africa", "europe")), "of twelve"
    assert not any(missing[honest.id])
    reasons = {pair for each in missing[bad.id] for pair in each.items()}
    # A site that leaves out the forged copy, and has no earlier one, has nothing to hand on.
    assert {("asia", "refused")} <= reasons <= {("asia", "refused"), ("africa", "skipped"), ("europe", "skipped")}


@pytest.mark.nightly
def test_links_fail_by_the_seed(prepared: Prepare) -> None:
    methods, longer = "[methods.feddal]\n[links.half]\nloss = 0.5\n", {"rounds = 2": "rounds = 6"}

    def missing(out: str) -> dict[str, list[list[str]]]:
        (run,) = [first for first in prepared(out, methods, replace=longer) if first.document["links"] == "half"]
        sites = execute(run.folder)["sites"]
        return {name: [sorted(row["missing"]) for row in sites[name]["rounds"]] for name in SITES}

    first = missing("out")
    assert 0 < sum(len(names) for rows in first.values() for names in rows) < 3 * 2 * 6
    assert missing("again") == first


def test_a_site_that_cannot_train_is_named(prepared: Prepare, tmp_path: Path) -> None:
    (run,) = prepared("out", "[methods.local]\n")
    for path in (tmp_path / "pool/images").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="site africa"):
        execute(run.folder)


def test_a_simulation_needs_two_files_a_site_and_keeps_no_outputs_unasked(prepared: Prepare) -> None:
    (run,) = prepared("out", "[methods.local]\n")
    members = Simulation(run.folder, round_key=bytes(32)).run()
    assert {name: member.memory.committed for name, member in members.items()} == dict.fromkeys(SITES, 2)
    asia = members[SiteName("asia")]
    asia.load_final_state()
    metrics, outputs = evaluate(asia.trainer, asia.trainer.data.test, keep_outputs=False)
    assert metrics["samples"] == 4
    assert outputs == []


def test_a_secure_sum_has_the_mean_without_masks_to_its_rounding(prepared: Prepare) -> None:
    (bare,) = prepared("bare", "[methods.feddal]\n")
    (masked,) = prepared("masked", "[methods.feddal]\nsecure = true\n")
    means: list[dict[str, State]] = []
    for run in (bare, masked):
        members = Simulation(run.folder, round_key=bytes(32)).run()
        means.append({})
        for name, member in members.items():
            member.load_final_state()
            means[-1][name] = state_of(member.trainer.site_networks.artifact_network)
    for name in SITES:
        for key, value in means[0][name].items():
            assert torch.allclose(means[1][name][key].double(), value.double(), atol=1e-3), (name, key)
    assert len({pack(state) for state in means[1].values()}) == 1, "all sites have one mean"


def test_what_comes_again_after_a_kill_is_counted_once(prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = prepared("whole", "[methods.feddal]\n")
    expected = execute(whole.folder)["sites"]
    (run,) = prepared("killed", "[methods.feddal]\n")
    arrived = 0

    class Interrupted(Journal):
        def append(self, kind: str, round: int, body: Any, cause: Any = None) -> None:
            nonlocal arrived
            arrived += kind == "arrived"
            if arrived == 4:
                raise KeyboardInterrupt
            super().append(kind, round, body)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "Journal", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(run.folder)
    sites = execute(run.folder)["sites"]
    for name in SITES:
        for key in ("sent_bytes", "received_bytes", "steps"):
            assert sites[name][key] == expected[name][key]


def test_two_processes_do_not_carry_out_one_run(prepared: Prepare) -> None:
    (run,) = prepared("out", "[methods.local]\n")
    with (run.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process carries out this run"):
            execute(run.folder)
    (run.folder / "result.json").write_text('{"of": "another process"}')
    assert execute(run.folder) == {"of": "another process"}


def test_similarities_of_networks_with_other_grids_can_be_compared(prepared: Prepare) -> None:
    coarser = {"width = 5, max_pool = false": "width = 5, max_pool = true"}
    (run,) = prepared(
        "out", "[methods.fedskd]\n", replace={**coarser, "rounds = 2": "rounds = 4", "[8, 8]": "[32, 32]"}
    )
    execute(run.folder)
    arrays = np.load(run.folder / "diagnosis.npz")
    names = [name for name in arrays.files if name.endswith("/dam")]
    assert names
    for name in names:
        assert arrays[name].shape == arrays[name.removesuffix("dam") + "ktm"].shape


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedmd", "feddf", "kt_pfl"])
def test_sites_of_an_experiment_predict_the_public_set_that_its_rows_pin(
    prepared: Prepare, experiment: Write, tmp_path: Path, method: str
) -> None:
    experiment("[methods.local]\n")  # writes the pool, which also serves as public set
    digest = digest_images(inspect_datalist(tmp_path / "pool" / "pool.json").training)
    public = {'pool = "pool/pool.json"': 'pool = "pool/pool.json"\npublic = "pool/pool.json"'}
    (run,) = prepared("out", f'[methods.{method}]\npublic_sha256 = "{digest}"\n', replace=public)
    sites = execute(run.folder)["sites"]
    assert all(len(entry["rounds"]) == 2 and not entry["rounds"][-1]["missing"] for entry in sites.values())
    (other,) = prepared("other", f'[methods.{method}]\npublic_sha256 = "{"ab" * 32}"\n', replace=public)
    with pytest.raises(ModelError, match=r"site africa: \[data\] public: .* has the digest " + digest):
        execute(other.folder)


def test_a_site_can_be_left_out_and_tested_on(prepared: Prepare) -> None:
    changes = {"rounds = 2\n": "rounds = 1\nleave_one_site_out = true\n"}
    runs = prepared("out", "[methods.local]\n[methods.fedskd]\n", replace=changes)
    labels = [".".join(run.id.split(".")[2:4]) for run in runs]
    assert labels == [
        "all.local", "all.fedskd", "leave-out-africa.fedskd", "leave-out-asia.fedskd", "leave-out-europe.fedskd",
    ]  # fmt: skip
    run = runs[-1]
    result = execute(run.folder)
    assert set(result["sites"]) == set(result["matrix"]) == {"africa", "asia"}
    arrays = np.load(run.folder / "predictions.npz")
    for row in result["matrix"].values():
        assert set(row) == set(SITES)
        assert row["europe"]["samples"] == len(arrays["y/europe"]) == 4.0
    assert not list(run.folder.glob("sites/*/gen-0001"))
