"""A lent model is checked as every artifact, evaluated like the own one, and leaves no trace."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fakes.training import artifact_path, copy_artifact, initialise, perform, spoil, train
from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.worker_protocol import WorkerSetting
from peer.train.errors import UnusableArtifact, UnusableConfigurationError
from peer.train.guest import GuestEvaluator
from peer.train.trainer import Trainer


def lend(setting: WorkerSetting, *, steps: bool = True) -> tuple[dict[str, float], Source]:
    """A site's own figures after a round of training, and its model as it is lent then."""
    trainer = Trainer(setting)
    state = initialise(trainer).state
    if steps:
        state = train(trainer, state).state
    event = perform(trainer, commands.Evaluate(1, 1, 3, state, (), lent=True))
    assert event.artifact is not None
    return dict(event.metrics), Source(trainer.settings.site, 1, event.artifact)


def measure(setting: WorkerSetting, source: Source) -> events.Measured:
    event = GuestEvaluator(dataclasses.replace(setting, duty="measure")).perform(commands.Measure(1, 1, 7, source))
    assert isinstance(event, events.Measured)
    assert (event.generation, event.round, event.attempt) == (1, 1, 7)
    return event


@pytest.fixture
def beta(make_setting: Any) -> WorkerSetting:
    """Another site, whose model is wider, with the same test split as alpha."""
    return make_setting(site="beta", model={"parameters": {"width": 6}})


@pytest.fixture
def alpha(make_setting: Any) -> WorkerSetting:
    return make_setting()


def test_a_guest_does_abroad_as_it_does_at_home_on_the_same_samples(alpha: WorkerSetting, beta: WorkerSetting) -> None:
    at_home, source = lend(beta)
    assert measure(alpha, copy_artifact(beta, alpha, source)).metrics == pytest.approx(at_home)
    assert at_home["samples"] == 6


def test_what_is_lent_is_the_model_that_was_measured(beta: WorkerSetting) -> None:
    _, source = lend(beta)
    whole = safetensors.torch.load_file(Path(beta.home, "checkpoints", "round-000001", "train", "dam.safetensors"))
    lent = safetensors.torch.load_file(artifact_path(beta, source.artifact))
    assert lent.keys() == whole.keys()
    assert all(torch.equal(lent[name], whole[name]) for name in whole)
    assert (source.artifact.kind, source.artifact.owner) == ("model", "beta")


def test_the_mean_is_lent_where_models_are_averaged(make_setting: Any) -> None:
    """The artifact of the round is the state before the average; the one that is lent comes after it."""
    shared = {"name": "resnet10", "width": 4}
    setting = make_setting(method={"name": "fedavg"}, shared_model=shared)
    trainer = Trainer(setting)
    trained = train(trainer, initialise(trainer).state)
    assert trained.artifact is not None
    _, other = lend(make_setting(site="beta", method={"name": "fedavg"}, shared_model=shared, learning_rate=0.1))
    copy_artifact(make_setting(site="beta", method={"name": "fedavg"}, shared_model=shared), setting, other)
    mean = perform(trainer, commands.Aggregate(1, 1, 3, trained.state, (other,)))
    event = perform(trainer, commands.Evaluate(1, 1, 4, mean.state, (), lent=True))
    assert event.artifact.sha256 == mean.sha256 != trained.artifact.sha256


def test_nothing_is_written_without_being_lent(beta: WorkerSetting) -> None:
    trainer = Trainer(beta)
    state = initialise(trainer).state
    before = sorted(Path(beta.home).rglob("*"))
    event = perform(trainer, commands.Evaluate(1, 1, 3, state))
    assert event.artifact is None
    assert sorted(Path(beta.home).rglob("*")) == before


def test_the_examiner_writes_nothing_and_clears_nothing(alpha: WorkerSetting, beta: WorkerSetting) -> None:
    """It runs beside a trainer, whose half-written checkpoint is no stray."""
    _, source = lend(beta, steps=False)
    copy_artifact(beta, alpha, source)
    half = Path(alpha.home) / "checkpoints" / "round-000001"
    half.mkdir(parents=True)
    (half / "train.tmp").write_bytes(b"half")
    before = sorted(Path(alpha.home).rglob("*"))
    measure(alpha, source)
    assert sorted(Path(alpha.home).rglob("*")) == before


def test_values_that_are_not_finite_are_refused_before_anything_runs(alpha: WorkerSetting, beta: WorkerSetting) -> None:
    _, source = lend(beta, steps=False)
    bad = spoil(beta, source, float("nan"))
    event = measure(alpha, copy_artifact(beta, alpha, bad))
    assert event.metrics == {}
    assert "holds a NaN or an infinity" in event.refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "somewhere.else:Network"}, "somewhere.else:Network"),
        ({"classes": 3}, "classes = 3 is not this federation's 2"),
        ({"hyper": {"width": 8}}, "is F32"),
    ],
)
def test_a_spec_that_is_not_the_file_s_or_not_allowed_is_refused(
    alpha: WorkerSetting, beta: WorkerSetting, changes: dict[str, Any], reason: str
) -> None:
    _, source = lend(beta, steps=False)
    copy_artifact(beta, alpha, source)
    artifact = dataclasses.replace(source.artifact, spec={**source.artifact.spec, **changes})
    assert reason in measure(alpha, dataclasses.replace(source, artifact=artifact)).refused


def test_a_file_that_is_gone_or_damaged_is_no_fault_of_the_guest(alpha: WorkerSetting, beta: WorkerSetting) -> None:
    _, source = lend(beta, steps=False)
    with pytest.raises(UnusableConfigurationError, match="is not there any more"):
        measure(alpha, source)
    copy_artifact(beta, alpha, source)
    path = artifact_path(alpha, source.artifact)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UnusableArtifact, match="does not have its digest"):
        measure(alpha, source)


def test_without_test_samples_there_is_nothing_to_say(alpha: WorkerSetting, beta: WorkerSetting, signals: Path) -> None:
    _, source = lend(beta, steps=False)
    copy_artifact(beta, alpha, source)
    datalist = json.loads((signals / "datalist.json").read_text())
    (signals / "datalist.json").write_text(json.dumps({**datalist, "test": []}))
    assert measure(alpha, source).metrics == {}


@pytest.mark.parametrize("cache", ["memory", "none", "disk"])
def test_a_sample_that_cannot_be_read_is_left_out(
    make_setting: Any, beta: WorkerSetting, signals: Path, cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, source = lend(beta, steps=False)
    setting = make_setting(data={"cache": cache})
    copy_artifact(beta, setting, source)
    (signals / "test0.npz").write_bytes(b"no array")
    assert measure(setting, source).metrics["samples"] == 5
    assert "test0.npz" in caplog.text


def test_an_order_of_the_training_is_not_for_the_examiner(alpha: WorkerSetting) -> None:
    with pytest.raises(UnusableConfigurationError, match="no answer to Initialise"):
        GuestEvaluator(alpha).perform(commands.Initialise(1, 1))
