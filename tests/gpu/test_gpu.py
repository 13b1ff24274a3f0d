"""What only a GPU can show. Each test is skipped without one; ``make gpu`` demands one.

Runs are small: the card is shared by four sites of a test.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.datasets import write_cubes
from fakes.hospital import make_setting, signals
from fakes.training import initialise, train
from peer.core.worker_protocol import WorkerSetting
from peer.daemon import startup
from peer.lab.demo.local_federation import LocalFederation
from peer.lab.experiments.simulation import Simulation
from peer.methods.registry import PLANS
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import committed_rounds
from peer.site.records.journal import Journal
from peer.train.trainer import Trainer

__all__ = ["make_setting", "signals"]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this PyTorch can use"),
    pytest.mark.timeout(600),
    # Pooling in three dimensions has no deterministic backward pass on CUDA; make_reproducible lets PyTorch warn.
    pytest.mark.filterwarnings("ignore:.* does not have a deterministic implementation:UserWarning"),
]
SITES = ("africa", "asia", "europe", "oceania")
CUBES = {"count": 64, "side": 16}
DRAFT = """
name = "one-card"
rounds = 3
[task]
kind = "classification"
spatial_dims = 3
in_channels = 1
classes = 2
[method]
name = "{method}"
{stages}
[pace]
linger_s = 60
"""
STAGE = '[stages.{stage}]\nunit = "step"\ncount = 12\nlearning_rate = 1e-3\n'
SITE = """
[data]
datalist = "{datalist}"
input_size = [16, 16, 16]
[model]
name = "resnet10"
parameters = {{width = {width}, stem_stride = 2}}
[training]
device = "cuda"
precision = "fp32"
batch_size = 8
"""


Create = Callable[..., LocalFederation]


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Create]:
    """Found and enrol a federation of four sites with four widths; its daemons are stopped at the end."""
    federations: list[LocalFederation] = []

    def create(*, method: str = "fedskd") -> LocalFederation:
        root = tmp_path / str(len(federations))
        texts = {
            name: SITE.format(datalist=write_cubes(root / "data" / name, seed=index, **CUBES), width=8 + 4 * index)
            for index, name in enumerate(SITES)
        }
        stages = "".join(STAGE.format(stage=name) for name in PLANS[method].stages)
        federations.append(LocalFederation.create(root, DRAFT.format(method=method, stages=stages), texts))
        return federations[-1]

    yield create
    for federation in federations:
        federation.__exit__()


def simulate(
    federation: LocalFederation, *, device: str = "cuda", precision: str = "fp32"
) -> dict[str, list[dict[str, Any]]]:
    """The committed rounds of each site of the same federation, run in this process: the same seeds
    and the same work.
    """
    folder = Path(tempfile.mkdtemp(dir=federation.home.parent))
    for name in SITES:
        (folder / "sites" / name).mkdir(parents=True)
        text = federation.folder(name).site_toml.read_text()
        text = text.replace('device = "cuda"', f'device = "{device}"').replace('"fp32"', f'"{precision}"')
        (folder / "sites" / name / "site.toml").write_text(text)
        shutil.copy(federation.folder(name).federation_toml, folder)
    simulation = Simulation(folder, round_key=startup.load(federation.folder(SITES[0]))[2].round_key)
    simulation.run()
    return {name: committed(simulation.home(name)) for name in simulation.sites}


def committed(generation: Path) -> list[dict[str, Any]]:
    """The committed rounds of a site's journal."""
    journal = Journal(generation / "journal.db", read_only=True)
    try:
        return [dict(record.document()) for record in committed_rounds(list(journal.rows()))]
    finally:
        journal.close()


def device_of(folder: SiteFolder) -> str:
    """The device that the site's worker reported at its start."""
    journal = Journal(folder.generation(1) / "journal.db", read_only=True)
    try:
        return str(next(body["device"] for kind, _, body in journal.rows() if kind == "initialised"))
    finally:
        journal.close()


def metric(rounds: list[dict[str, Any]]) -> float:
    """The accuracy after the last round."""
    return float(rounds[-1]["metrics"]["accuracy"])


def run_daemons(federation: LocalFederation) -> dict[str, list[dict[str, Any]]]:
    """Start all sites, wait for their ends, and return their committed rounds."""
    for name in SITES:
        federation.start(name)
    for name, daemon in federation.daemons.items():
        assert daemon.wait(300) == 0, federation.console(name)[-3000:]
    return {name: committed(federation.folder(name).generation(1)) for name in SITES}


@pytest.mark.parametrize("method", ["fedskd", "dflmoe"])
def test_four_daemons_share_one_card(create: Create, method: str) -> None:
    federation = create(method=method)
    rounds = run_daemons(federation)
    assert {name: len(records) for name, records in rounds.items()} == dict.fromkeys(SITES, 3)
    assert all("cuda" in device for device in map(device_of, map(federation.folder, SITES)))
    simulated = simulate(federation)
    for name in SITES:
        assert metric(rounds[name]) == pytest.approx(metric(simulated[name]), abs=0.1)


def test_bfloat16_and_the_cpu_end_where_float32_on_the_card_does(create: Create) -> None:
    federation = create()
    choices = (("cuda", "fp32"), ("cuda", "bf16"), ("cpu", "fp32"))
    reference, *others = (
        np.mean([metric(rounds) for rounds in simulate(federation, device=device, precision=precision).values()])
        for device, precision in choices
    )
    assert others == pytest.approx([reference, reference], abs=0.1)


def test_the_same_work_twice_on_one_card_has_the_same_losses(create: Create) -> None:
    federation = create()
    first, second = (simulate(federation) for _ in range(2))
    for name in SITES:
        for one, other in zip(first[name], second[name], strict=True):
            for key in one["metrics"].keys() & {"train_total", "accuracy", "loss"}:
                assert one["metrics"][key] == pytest.approx(other["metrics"][key], rel=1e-3), key


def test_a_full_card_is_named_as_the_cause(create: Create) -> None:
    federation = create()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - 300 * 2**20, dtype=torch.uint8, device="cuda")
    try:
        command = [*federation.program, "--home", str(federation.home), "check", "--site", "europe", "--json"]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        del held
        torch.cuda.empty_cache()
    assert checked.returncode != 0
    assert "memory" in checked.stdout, checked.stdout + checked.stderr
    assert "cuda" in checked.stdout


def test_a_stage_that_was_halted_on_the_card_goes_on(create: Create) -> None:
    federation = create()
    for name in SITES:
        federation.start(name)
    journal = federation.folder("europe").generation(1) / "journal.db"
    deadline_s = time.monotonic() + 240
    while not journal.exists() or not committed(journal.parent):
        assert time.monotonic() < deadline_s, federation.console("europe")[-3000:]
        time.sleep(0.05)
    federation.kill("europe")
    federation.start("europe")
    for name, daemon in federation.daemons.items():
        assert daemon.wait(300) == 0, federation.console(name)[-3000:]
    assert [record["round"] for record in committed(journal.parent)] == [1, 2, 3]


def test_a_worker_whose_turn_is_over_leaves_no_tensor_on_the_card(
    make_setting: Callable[..., WorkerSetting], tmp_path: Path
) -> None:
    trainer = Trainer(make_setting(training={"device": "cuda", "gpu": "turns", "gpu_folder": str(tmp_path / "gpu")}))
    state = initialise(trainer).state
    gc.collect()
    before = torch.cuda.memory_allocated()
    train(trainer, state)
    assert torch.cuda.max_memory_allocated() > before
    assert torch.cuda.memory_allocated() <= before
    (queue,) = (tmp_path / "gpu").iterdir()
    assert queue.name.startswith("GPU-")
