"""A site's newest state by its journal, and the answers of another process."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.sites import INITIALISED, begin_generation, committed
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.errors import StateError, WorkerFailed
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.train.inference import model_state
from peer.train.inference.model_state import ModelState, open_trained, read_newest, run_module

LIMIT_S = 20.0


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    return enrolled.folder("asia")


def newest_state(folder: SiteFolder) -> ModelState:
    return read_newest(folder, FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml))


def test_the_newest_generation_counts_and_its_last_commit(folder: SiteFolder) -> None:
    source = {"origin": "europe", "round": 1, "fallback": ""}
    source["artifact"] = {
        "kind": "model", "owner": "europe", "sha256": "ab" * 32, "bytes": 9, "steps": 0, "spec": {},
    }  # fmt: skip
    begin_generation(folder, INITIALISED, committed(7, "round-000007/train"))
    begin_generation(
        folder,
        INITIALISED,
        ("opened", 1, {"sources": [source]}),
        committed(1, "round-000001/train"),
        ("opened", 2, {"sources": []}),
    )
    newest = newest_state(folder)
    assert (newest.generation, newest.committed, newest.checkpoint) == (2, 1, "round-000001/train")
    assert [(used.origin, used.artifact.sha256) for used in newest.sources] == [("europe", "ab" * 32)]
    assert newest.setting.home == str(folder.generation(2))
    assert newest.setting.base_folder == str(folder.path)
    assert newest.setting.federation["task"]["kind"] == "classification"
    document = newest.document()
    assert from_json(WorkerSetting, document["setting"]) == newest.setting
    assert document["state"] == newest.checkpoint
    assert document["sources"][0]["artifact"]["sha256"] == "ab" * 32


def test_before_the_first_commit_the_model_is_the_initial_one(folder: SiteFolder) -> None:
    begin_generation(folder, INITIALISED)
    newest = newest_state(folder)
    assert (newest.committed, newest.checkpoint, newest.sources) == (0, "round-000000/initial", ())


def test_a_site_that_never_ran_has_no_model(folder: SiteFolder) -> None:
    with pytest.raises(StateError, match="holds no model yet; run `mhfl-peer start --site asia`"):
        newest_state(folder)
    begin_generation(folder)
    with pytest.raises(StateError, match="holds no model yet"):
        newest_state(folder)
    assert folder.generations() == (1,)


def test_a_module_answers_in_a_process_of_its_own() -> None:
    request = {"sites": [1, "zürich"]}
    assert run_module("json.tool", request, name="the echo") == request


def test_a_package_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("raise SystemExit('another json')")
    monkeypatch.chdir(tmp_path)
    assert run_module("json.tool", {"a": 1}, name="the echo") == {"a": 1}


def test_a_failure_is_the_last_line_that_was_said() -> None:
    with pytest.raises(WorkerFailed, match="No module named no_such_module; correct what it names"):
        run_module("no_such_module", {}, name="the echo")


def test_an_answer_must_come_in_time() -> None:
    with pytest.raises(WorkerFailed, match="the echo took over 0 s; look at the machine's load"):
        run_module("json.tool", {}, name="the echo", limit_s=0.001)


SLOW = """
import os, select, sys
with open("asked", "w") as channel:  # a FIFO: opens when the test does
    channel.write(str(os.getpid()))
select.select([], [], [])
"""
ASKS = """
from peer.train.inference.model_state import run_module
try:
    run_module("slow", {}, name="it")
finally:
    open("tidied", "x").close()
"""


def test_a_service_manager_that_ends_it_ends_what_it_asked(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    os.mkfifo(tmp_path / "asked")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    with subprocess.Popen([sys.executable, "-c", ASKS], cwd=tmp_path, env=environment) as process:
        child = (tmp_path / "asked").read_text()
        process.terminate()
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert (tmp_path / "tidied").exists()
    assert not Path("/proc", child).exists(), "it goes on for nobody"


# --- a state that stays while it is used -----------------------------------------------------------------------------
def state_at(home: Path, state: str) -> model_state.ModelState:
    setting = WorkerSetting("asia", "ab" * 32, {}, {}, str(home), str(home.parent))
    return model_state.ModelState(home / "journal.db", setting, state, (), 1, 1)


def checkpoint(home: Path, state: str) -> Path:
    folder = home / "checkpoints" / state
    folder.mkdir(parents=True)
    (folder / "dam.safetensors").write_text(state)
    return folder


def test_a_state_stays_although_the_daemon_deletes_it_and_takes_no_space(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path / "gen-0001", "round-000001/train")
    with model_state.pinned(lambda: state_at(tmp_path / "gen-0001", "round-000001/train")) as pinned:
        own = Path(pinned.setting.home)
        held = own / "checkpoints" / pinned.checkpoint / "dam.safetensors"
        assert own.parent == tmp_path / "held", "in the site's folder"
        assert held.samefile(stored / "dam.safetensors")
        shutil.rmtree(stored)
        assert held.read_text() == "round-000001/train"
    assert not own.exists()


def test_what_a_killed_process_left_is_deleted_and_what_another_one_uses_is_not(tmp_path: Path) -> None:
    checkpoint(tmp_path / "gen-0001", "round-000001/train")
    (tmp_path / "held" / "left" / "checkpoints").mkdir(parents=True)

    def look() -> ModelState:
        return state_at(tmp_path / "gen-0001", "round-000001/train")

    with model_state.pinned(look) as first, model_state.pinned(look) as second:
        used = {Path(pinned.setting.home) for pinned in (first, second)}
        assert set((tmp_path / "held").iterdir()) == used
    assert not any((tmp_path / "held").iterdir())


def test_a_site_that_this_user_may_only_read_is_held_elsewhere(tmp_path: Path) -> None:
    checkpoint(tmp_path / "gen-0001", "round-000001/train")
    (tmp_path / "held").touch()  # makes the folder impossible to create, also for root
    with model_state.pinned(lambda: state_at(tmp_path / "gen-0001", "round-000001/train")) as pinned:
        own = Path(pinned.setting.home)
        assert not own.is_relative_to(tmp_path / "held")
        assert (own / "checkpoints" / pinned.checkpoint / "dam.safetensors").exists()
    assert not own.exists()


def test_a_state_that_went_meanwhile_is_not_taken(tmp_path: Path) -> None:
    checkpoint(tmp_path / "gen-0001", "round-000002/train")
    checkpoint(tmp_path / "gen-0001", "round-000003/train")
    checkpoints = iter(["round-000001/train", "round-000002/train", "round-000003/train", *["round-000003/train"] * 2])
    with model_state.pinned(lambda: state_at(tmp_path / "gen-0001", next(checkpoints))) as pinned:
        assert pinned.checkpoint == "round-000003/train", "of 1 the files were gone, and 2 was over before it was taken"


def test_a_state_that_is_never_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "gen-0001").mkdir()
    with (
        pytest.raises(StateError, match=r"round-000001/train is not there; restore the whole folder"),
        model_state.pinned(lambda: state_at(tmp_path / "gen-0001", "round-000001/train")),
    ):
        pytest.fail("there is nothing to hold")


def test_after_a_restored_backup_the_generation_is_the_one_that_peers_know(folder: SiteFolder) -> None:
    regenerated = {"generation": 7, "reported_by": "europe", "their_round": 3}
    begin_generation(folder, INITIALISED, ("regenerated", 0, regenerated))
    newest = newest_state(folder)
    assert newest.generation == 7
    assert newest.journal == folder.generation(1) / "journal.db"


# --- the best round on validation data -------------------------------------------------------------------------------
def with_checkpoints(folder: SiteFolder, *names: str) -> None:
    for name in names:
        path = folder.generation(1) / "checkpoints" / name
        path.mkdir(parents=True)
        (path / "record.json").write_text("{}")


STATES = [f"round-{number:06d}/train" for number in range(4)]


def test_the_best_round_is_opened_and_says_why(folder: SiteFolder) -> None:
    rows = [INITIALISED]
    for number, value in ((1, 0.6), (2, 0.75), (3, 0.7)):
        best = {"best_by": "validation_auc"} if number < 3 else {}
        trained = {"position": 0, "stage": "train", "state": STATES[number], "metrics": {}, "threads": 1}
        rows += [
            ("opened", number, {"sources": []}),
            ("trained", number, {**trained, "duration_s": 1.0}),
            ("evaluated", number, {"metrics": {"validation_auc": value}, **best}),
            committed(number, STATES[number]),
        ]
    begin_generation(folder, *rows)
    with_checkpoints(folder, *STATES)
    with open_trained(folder, "best") as (_, state):
        assert (state.committed, state.checkpoint) == (2, STATES[2])
        assert state.choice == "the best of its evaluated rounds by validation AUC, 0.7500"
        assert (Path(state.setting.home) / "checkpoints" / STATES[2] / "record.json").exists()
    with open_trained(folder) as (_, state):
        assert (state.committed, state.choice) == (3, "")
    shutil.rmtree(folder.generation(1) / "checkpoints" / STATES[2])
    gone = pytest.raises(StateError, match="after round 2, the best, are gone; take the last")
    with gone, open_trained(folder, "best"):
        pass


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"training": 9, "validation": 0}, "asia has no validation data, .* validation_share in site.toml"),
        ({"training": 9, "validation": 3}, "no evaluated round of asia .* `evaluation_every` in federation.toml"),
    ],
)
def test_without_a_value_on_validation_data_no_round_is_the_best(
    folder: SiteFolder, samples: dict[str, int], message: str
) -> None:
    initialised = (INITIALISED[0], 0, {**INITIALISED[2], "samples": samples})
    begin_generation(folder, initialised, committed(1, STATES[1]))
    with_checkpoints(folder, STATES[1])
    with pytest.raises(StateError, match=message), open_trained(folder, "best"):
        pass
