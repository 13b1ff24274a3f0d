"""With ``training_set_size = false``, nothing that leaves a site varies with the size of its training set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fakes.hospital import LENGTH
from peer.core import commands, events
from peer.core.artifacts import Artifact
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.train.trainer import Trainer

EPOCHS = 2
BATCH = 8
SIZES = (60, 104)


def write_signals(folder: Path, count: int) -> None:
    """Write a datalist with so many training samples and a fixed test split."""
    folder.mkdir()
    draw = np.random.default_rng(3)
    datalist: dict[str, list[dict[str, Any]]] = {}
    for split, size in (("training", count), ("test", 6)):
        datalist[split] = []
        for index in range(size):
            signal = draw.standard_normal((2, LENGTH)).astype(np.float32)
            np.savez(folder / f"{split}{index}.npz", image=signal)
            datalist[split].append({"image": f"{split}{index}.npz", "label": index % 2, "subject": f"{split}-{index}"})
    (folder / "datalist.json").write_text(json.dumps(datalist))


def train(setting: WorkerSetting) -> tuple[list[events.Progressed], list[Artifact]]:
    """Two rounds of a method that sends its model; the reports of all steps, and what it sends."""
    reports: list[Any] = []
    seconds = iter(range(1_000_000))
    trainer = Trainer(setting, report=reports.append, clock=lambda: float(next(seconds)))
    initial = trainer.perform(commands.Initialise(generation=1, attempt=1))
    assert isinstance(initial, events.Initialised)
    base, artifacts = initial.state, [initial.artifact]
    for round in (1, 2):
        trained = trainer.perform(commands.Train(1, round, attempt=2 * round, stage="train", base=base, sources=()))
        assert isinstance(trained, events.Trained), trained
        base = trained.state
        artifacts.append(trained.artifact)
    return reports, [artifact for artifact in artifacts if artifact is not None]


def visible(folder: Path, artifact: Artifact) -> dict[str, Any]:
    """What a manifest and its artifact tell, without trained values: those depend on every image."""
    tensors = load_file(folder / f"{artifact.sha256}.safetensors")
    counters = {
        name: tensor.tolist() for name, tensor in tensors.items() if not np.issubdtype(tensor.dtype, np.floating)
    }
    assert counters
    told = replace(artifact, leak=None)  # no manifest has it
    return {**to_json(told), "sha256": None, "counters": counters}


def everything_that_leaves(
    make_setting: Callable[..., WorkerSetting], folder: Path, count: int, method: str = "", **egress: bool
) -> dict[str, Any]:
    write_signals(folder, count)
    network = {"name": "resnet10", "width": 4}
    model = {"name": "resnet10", "parameters": {"width": 4}}
    options = {"method": {"name": method}, "shared_model": network, "model": model} if method else {}
    training = {"device": "cpu", "threads": 1, "batch_size": BATCH}
    site = make_setting(home=folder / "alpha", training=training, **options)
    federation = {**site.federation}
    federation["stages"] = {
        stage: {**work, "unit": "epoch", "count": EPOCHS} for stage, work in federation["stages"].items()
    }
    document = {**site.site, "egress": {"training_set_size": False, **egress}}
    setting = WorkerSetting(site.site_name, site.federation_digest, federation, document, site.home, str(folder))
    reports, artifacts = train(setting)
    assert len(reports) == 2 * EPOCHS * (count // BATCH)
    return {
        "progress": list(dict.fromkeys(report.told_share for report in reports)),
        "artifacts": [visible(Path(setting.home) / "artifacts", artifact) for artifact in artifacts],
    }


def test_nothing_that_leaves_varies_with_the_number_of_training_samples(
    make_setting: Callable[..., WorkerSetting], tmp_path: Path
) -> None:
    small, large = (everything_that_leaves(make_setting, tmp_path / f"of-{count}", count) for count in SIZES)
    assert small == large
    assert small["progress"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [artifact["steps"] for artifact in small["artifacts"]] == [0, EPOCHS, 2 * EPOCHS]


@pytest.mark.parametrize("method", ["", "fedsm"])
@pytest.mark.parametrize("tells", [False, True])
def test_counters_of_batches_leave_only_where_the_policy_tells_the_size(
    make_setting: Callable[..., WorkerSetting], tmp_path: Path, tells: bool, method: str
) -> None:
    leaving = everything_that_leaves(make_setting, tmp_path / "one", SIZES[0], method, training_set_size=tells)
    counters = {count for artifact in leaving["artifacts"] for count in artifact["counters"].values()}
    batches = EPOCHS * (SIZES[0] // BATCH)
    assert counters - {0} == ({batches, 2 * batches} if tells else set())
    assert counters, "there are layers that count"


@pytest.mark.parametrize("told", [False, True])
def test_how_many_samples_a_class_has_leaves_only_with_the_size(
    make_setting: Callable[..., WorkerSetting], told: bool
) -> None:
    options = {"egress": {"training_set_size": True}, "weighting": "samples"} if told else {}
    setting = make_setting(method={"name": "fedproto"}, steps=2, **options)
    trainer = Trainer(setting)
    initial = trainer.perform(commands.Initialise(generation=1, attempt=1))
    assert isinstance(initial, events.Initialised)
    trained = trainer.perform(commands.Train(1, 1, 2, "prototypes", initial.state, ()))
    assert isinstance(trained, events.Trained), trained
    assert trained.artifact is not None
    (counts,) = (
        tensor
        for name, tensor in load_file(
            Path(setting.home) / "artifacts" / f"{trained.artifact.sha256}.safetensors"
        ).items()
        if name.endswith("counts")
    )
    assert counts.tolist() == ([5, 3] if told else [1, 1])
