"""A site in a notebook: the documentation's examples, the records' keys, predictions."""

import contextlib
import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.drafts import draft, site_text
from fakes.sites import append_rows, round_body
from peer import api
from peer.core import commands, events
from peer.core.worker_protocol import to_json
from peer.errors import ConfigError, DataError, ModelError, StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.train.inference import model_state
from peer.train.inference.notebook import preserve_torch_settings
from peer.train.inference.predict import predict
from peer.train.trainer import INITIAL, Trainer

DRAFT = draft("trial", stages={"train": {"unit": "step", "count": 2}})
DOCUMENTED = re.compile(r"``(\w+)``")


def signals(folder: Path) -> Path:
    """A datalist of two signals for training and two for tests."""
    folder.mkdir()
    draw = np.random.default_rng(3)
    items = []
    for index in range(4):
        np.save(folder / f"{index}.npy", draw.random((1, 8), dtype=np.float32) + index % 2)
        items.append({"image": f"{index}.npy", "label": index % 2, "subject": f"s{index}"})
    path = folder / "datalist.json"
    path.write_text(json.dumps({"training": items[:2], "test": items[2:]}))
    return path


def train(folder: SiteFolder, *, rounds: int) -> None:
    """Write the files of a daemon and its worker after so many rounds without another site."""
    number = folder.create_generation()
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    with contextlib.closing(Journal(folder.generation(number) / "journal.db")) as journal:
        journal.append("began", 0, {"generation": number})
        journal.append("initialised", 0, {"state": INITIAL, "artifact": None, "samples": {}, "publish": None})
        setting = model_state.read_newest(folder, federation, site).setting
        trainer = Trainer(setting)
        trainer.perform(commands.Initialise(number, 1))
        state = INITIAL
        for round in range(1, rounds + 1):
            order = commands.Train(number, round, round + 1, "train", state, ())
            done = trainer.perform(order)
            assert isinstance(done, events.Trained)
            state = done.state
            measured = trainer.perform(commands.Evaluate(number, round, round + 100, state, (), False))
            assert isinstance(measured, events.Evaluated)
            record = {
                "generation": number, "sources": [], "contributors": ["asia"], "missing": {"europe": "silent"},
                "below_quorum": False, "skipped": [], "artifact_sha256": "ab" * 32, "aggregate_sha256": None,
                "metrics": dict(done.metrics), "threads": done.threads, "duration_s": done.duration_s, "state": state,
                "artifact": to_json(None), "visiting": False, "publish": None,
            }  # fmt: skip
            journal.append("opened", round, {"sources": []})
            journal.append("committed", round, record)
            journal.append("evaluated", round, {"metrics": dict(measured.metrics)})
        journal.append("compared", rounds, {"site": "europe", "sha256": "cd" * 32, "agrees": False})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SiteFolder:
    """A site with two finished rounds and their weights, whose daemon is down.

    Tests must not change it.
    """
    root = tmp_path_factory.mktemp("notebook")
    text = site_text(datalist=signals(root / "data"), model={"name": "resnet10", "parameters": {"width": 2}})
    loopback = LocalFederation.create(root, DRAFT, dict.fromkeys(("asia", "europe"), text))
    folder = loopback.folder("asia")
    with preserve_torch_settings():
        train(folder, rounds=2)
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        facts = {"peer": "europe", "purpose": "train", "kind": "model", "round": 1, "generation": 1}
        ledger.settle(ledger.intend(**facts, sha256="cd" * 32, bytes=2048), bytes=2048, outcome="complete")
    return folder


@pytest.fixture
def site(trained: SiteFolder) -> api.SiteHandle:
    return api.open_site("asia", home=trained.home)


@pytest.fixture
def empty(enrolled: LocalFederation) -> api.SiteHandle:
    """A site that never ran."""
    return api.open_site("asia", home=enrolled.home)


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the index that SQLite's readers share."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".db-shm"}


def test_the_documentation_runs_and_leaves_the_folder_as_it_was(site: api.SiteHandle) -> None:
    datalist = Path(site.config.data.datalist)
    names = {"site": site, "home": str(site.folder.home), "datalist": str(datalist), "open_site": api.open_site}
    before = {name: data for name, data in content(site.folder.path).items() if not name.endswith("-wal")}
    runner = doctest.DocTestRunner()
    ran = 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(api, globs={}):
        test.globs.update(names)
        result = runner.run(test)
        assert not result.failed, test.name
        ran += result.attempted
    assert ran > 15
    after = {name: data for name, data in content(site.folder.path).items() if not name.endswith("-wal")}
    assert after == before


@pytest.mark.parametrize("name", ["rounds", "metrics", "evaluation", "transfers"])
def test_records_are_flat_and_have_the_keys_that_are_promised(site: api.SiteHandle, name: str) -> None:
    records = getattr(site, name)()
    assert records
    assert all(records[0].keys() == record.keys() for record in records)
    assert all(value is None or isinstance(value, str | int | float) for record in records for value in record.values())
    text = (getattr(api.SiteHandle, name).__doc__ or "").partition("Returns:")[2]
    promised = set(DOCUMENTED.findall(text))
    assert records[0].keys() <= promised


def test_rounds_tell_who_was_missing_and_whose_mean_differs(site: api.SiteHandle) -> None:
    first, second = site.rounds()
    assert (first["missing"], first["agrees"], first["differs"]) == ("europe:silent", "", "")
    assert (second["sources"], second["differs"], second["skipped"]) == ("", "europe", "")
    assert 0 < second["time"] - first["time"] < 600


def test_two_generations_follow_each_other(empty: api.SiteHandle) -> None:
    body = round_body(sources=[], missing={}, skipped=[4, 5])
    for generation in (1, 2):
        metrics = {"generation": generation, "metrics": {"auc": generation / 4}}
        append_rows(empty.folder, ("committed", 6, {**body, **metrics}), generation=generation)
    assert [(record["generation"], record["round"], record["skipped"]) for record in empty.rounds()] == [
        (1, 6, "4 5"),
        (2, 6, "4 5"),
    ]
    assert [record["value"] for record in empty.metrics()] == [0.25, 0.5]
    assert [event["kind"] for event in empty.events()] == ["committed", "committed"]


def test_a_site_that_never_ran_has_no_record_and_no_model(empty: api.SiteHandle) -> None:
    assert (empty.rounds(), empty.metrics(), empty.evaluation(), empty.transfers(), empty.events()) == ([],) * 5
    assert (empty.status()["daemon"], empty.status()["phase"]) == ("down", "new")
    with pytest.raises(StateError, match="holds no model yet; run `mhfl-peer start --site asia`"):
        empty.model()


def test_a_broken_file_is_named(empty: api.SiteHandle) -> None:
    empty.folder.site_toml.write_text("listen = [")
    assert empty.federation.name == "trial"
    with pytest.raises(ConfigError, match=r"site\.toml"):
        _ = empty.config
    with pytest.raises(ConfigError, match=r"site\.toml"):
        empty.model()


def test_a_running_daemon_tells_its_status_and_is_read_beside(enrolled: LocalFederation, program: Any) -> None:
    process = program.start_and_wait("asia")
    site = api.open_site("asia", home=enrolled.home)
    status = site.status()
    assert (status["daemon"], status["pid"], status["phase"]) == ("running", process.pid, "gathering")
    assert "initialised" in {event["kind"] for event in site.events()}
    assert site.rounds() == []
    process.kill()
    process.wait()
    assert api.open_site("asia", home=enrolled.home).status()["daemon"] == "down"


def test_predictions_are_those_that_the_command_line_gets(site: api.SiteHandle, tmp_path: Path) -> None:
    config = site.config
    with preserve_torch_settings(), model_state.open_trained(site.folder) as (_, standing):
        trainer = Trainer(standing.setting)
        trainer.load(standing.checkpoint, standing.sources)
        theirs = predict(trainer, [Path(config.data.datalist)], tmp_path)["predictions"]
    folder = Path(config.data.datalist).parent
    by_path = site.predict([folder / row["file"] for row in theirs])
    by_array = site.predict([np.load(folder / row["file"]) for row in theirs])
    for row, path, array in zip(theirs, by_path, by_array, strict=True):
        assert [path["class_0"], path["class_1"], path["predicted"]] == [*row["probabilities"], row["class"]]
        assert {**path, "file": ""} == {**array, "file": ""}


def test_the_model_predicts_what_predict_says_and_the_process_is_left_as_it_was(site: api.SiteHandle) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    settings = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    image = torch.linspace(0, 1, 8)[None]
    model = site.model()
    (record,) = site.predict([image])
    assert torch.equal(torch.rand(1), expected)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == settings
    assert not model.training
    shares = model(image[None]).double().softmax(dim=1)[0]
    assert shares.tolist() == pytest.approx([record["class_0"], record["class_1"]], abs=1e-5)
    image.requires_grad_()
    model(image[None]).sum().backward()
    assert image.grad is not None


def test_an_earlier_round_is_had_while_its_weights_are_kept(site: api.SiteHandle) -> None:
    first, newest, second = (dict(site.model(round).named_parameters()) for round in (1, None, 2))
    assert all(torch.equal(newest[name], second[name]) for name in newest)
    assert not all(torch.equal(newest[name], first[name]) for name in newest)
    with pytest.raises(StateError, match=r"after round 7 are not kept \(those after 1, 2 are\); name one of these"):
        site.model(7)


@pytest.mark.parametrize("inputs", ["0.npy", Path("0.npy")])
def test_one_path_is_no_list_of_inputs(site: api.SiteHandle, inputs: Any) -> None:
    with pytest.raises(TypeError, match=r"give a list, such as \['0.npy'\]"):
        site.predict(inputs)


@pytest.mark.parametrize("inputs", [np.zeros((1, 8)), torch.zeros(2, 1, 8), b"0.npy", {"0.npy": 1}, 5, None])
def test_what_is_no_list_of_inputs_is_no_fault_of_the_model(site: api.SiteHandle, inputs: Any) -> None:
    with pytest.raises(TypeError, match=r"predict takes (several inputs: give a list|a list of paths and arrays, not)"):
        site.predict(inputs)


def test_an_input_that_is_neither_a_path_nor_an_array_is_named(site: api.SiteHandle) -> None:
    good = np.arange(8.0)[None]
    nested, table, fine = site.predict([["0.npy"], {"a": 1}, good])
    assert nested["problem"] == "is of the type list, and neither a path nor an array of numbers"
    assert table["problem"] == "is of the type dict, and neither a path nor an array of numbers"
    assert fine["problem"] == ""


def test_what_cannot_be_read_is_named_and_the_rest_predicted(site: api.SiteHandle) -> None:
    good = np.arange(8.0)[None]
    bad, missing, fine = site.predict([np.zeros((2, 8)), "nowhere.npy", good])
    assert bad == {"file": "0", "problem": "has the shape (2, 8), not (1 channels, 1 spatial dimensions)"}
    assert missing["problem"] == "nowhere.npy does not exist"
    assert (fine["file"], fine["problem"]) == ("2", "")
    with pytest.raises(DataError, match="nothing could be predicted: 0: holds a NaN or an infinity"):
        site.predict([good * np.nan])
    assert site.predict([]) == []


@pytest.fixture
def copied(trained: SiteFolder, enrolled: LocalFederation) -> SiteFolder:
    """A copy of the trained site, which a test may change."""
    folder = enrolled.folder("asia")
    shutil.rmtree(folder.path)
    shutil.copytree(trained.path, folder.path)
    return folder


def test_a_model_that_is_damaged_is_an_error_of_the_model(copied: SiteFolder) -> None:
    for path in copied.path.rglob("dam.safetensors"):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match="the model of asia failed: "):
        api.open_site("asia", home=copied.home).model()


def test_another_model_in_site_toml_is_refused(copied: SiteFolder) -> None:
    append_rows(copied, ("configured", 0, {"federation": "0" * 64}))
    with pytest.raises(StateError, match="belongs to federation 000000000000"):
        api.open_site("asia", home=copied.home).model()


def notebook_cells(name: str) -> list[dict[str, Any]]:
    """The cells with code of a notebook under deploy/."""
    notebook = json.loads((Path(__file__).parents[2] / "deploy" / "notebooks" / name).read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_notebook(name: str, shows: str, folder: Path, **environment: str) -> str:
    """Run a notebook's cells in a process of their own, and return what the expression then is."""
    script = "\n".join(["".join(cell["source"]) for cell in notebook_cells(name)] + [f"print({shows})"])
    variables = {**os.environ, "MPLBACKEND": "agg", **environment}
    ran = subprocess.run([sys.executable, "-c", script], cwd=folder, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["site.ipynb", "experiment.ipynb"])
def test_a_notebook_has_ten_cells_and_no_results(name: str) -> None:
    cells = notebook_cells(name)
    assert len(cells) == 10
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.e2e
def test_the_notebook_of_a_site_shows_its_rounds_and_predicts(trained: SiteFolder, tmp_path: Path) -> None:
    shows = (
        "len(rounds), metrics.loc[(1, 2), 'train_steps'], traffic.sum(), len(predictions), predictions['problem'].any()"
    )
    shown = run_notebook("site.ipynb", shows, tmp_path, SITE="asia", MHFL_HOME=str(trained.home))
    assert shown == "2 2.0 2048 2 False"
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_notebook_of_an_experiment_compares_three_methods(tmp_path: Path) -> None:
    shown = run_notebook("experiment.ipynb", "*means.index, *matrix.index, *matrix.columns, *sorted(room)", tmp_path)
    assert shown == "centralised local fedvisit asia europe asia europe global local"
    assert (tmp_path / "runs/report/index.html").is_file()
