"""A site's training by commands: the same bits after interruptions, no unusable artifact."""

import dataclasses
import gc
import itertools
import json
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fakes.training import (
    artifact_path,
    checkpoint_files,
    copy_artifact,
    initialise,
    interrupt,
    perform,
    spoil,
    tensor_names,
    train,
)
from peer.cohorts import Cohorts
from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.limits import STEPS_MAX
from peer.core.metrics import METRICS_OF
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import FROM_WORKER, WorkerSetting, decode, encode
from peer.train.device_queue import DeviceQueue
from peer.train.errors import DivergenceError, UnusableConfigurationError, UnusableDataError, WorkInterrupted
from peer.train.trainer import Trainer
from peer.train.valve import Valve

STEPS = 4
WIDTHS = {"alpha": 4, "beta": 6}


class Clock:
    """A clock that advances with every call."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@pytest.fixture
def alpha(make_setting) -> WorkerSetting:
    return make_setting(site="alpha", steps=STEPS)


@pytest.fixture
def beta(make_setting) -> tuple[WorkerSetting, Source]:
    """Another site, with a wider network, and its first artifact."""
    setting = make_setting(site="beta", steps=STEPS, model={"parameters": {"width": WIDTHS["beta"]}})
    artifact = initialise(Trainer(setting)).artifact
    assert artifact is not None
    return setting, Source(SiteName("beta"), 1, artifact)


@pytest.fixture
def received(alpha: WorkerSetting, beta: tuple[WorkerSetting, Source]) -> Source:
    return copy_artifact(beta[0], alpha, beta[1])


def start(setting: WorkerSetting) -> tuple[Trainer, str]:
    """A trainer and its first state."""
    trainer = Trainer(setting)
    return trainer, initialise(trainer).state


# --- initialise -----------------------------------------------------------------------------------------------------
def test_a_site_starts_from_its_seed(make_setting, alpha: WorkerSetting, tmp_path: Path) -> None:
    first = initialise(Trainer(alpha))
    assert first.state == "round-000000/initial"
    assert first.samples == {"training": 10, "test": 6, "unreadable": 0}
    assert (first.threads, first.device) == (1, "cpu")
    assert (first.artifact.kind, first.artifact.owner, first.artifact.steps) == ("model", "alpha", 0)
    assert first.artifact.training_samples is None
    torch.manual_seed(12345)
    elsewhere = initialise(Trainer(make_setting(site="alpha", home=tmp_path / "again")))
    assert elsewhere == first
    other = initialise(Trainer(make_setting(site="gamma")))
    assert other.artifact.sha256 != first.artifact.sha256


def test_the_artifact_is_the_whole_state_of_the_model(alpha: WorkerSetting) -> None:
    event = initialise(Trainer(alpha))
    tensors = safetensors.torch.load_file(artifact_path(alpha, event.artifact))
    assert tensor_names(alpha, event.artifact) == set(tensors)
    assert "bn1.running_mean" in tensors
    assert "bn1.num_batches_tracked" in tensors
    assert checkpoint_files(alpha, event.state)["dam.safetensors"] == safetensors.torch.save(tensors)


def test_initialise_again_answers_from_disk(alpha: WorkerSetting, signals: Path) -> None:
    first = initialise(Trainer(alpha))
    shutil.rmtree(signals)
    again = Trainer(alpha).perform(commands.Initialise(1, 9))
    assert again == dataclasses.replace(first, attempt=9)


def test_an_initial_artifact_that_serves_no_round_leaves_no_file(make_setting) -> None:
    """At the next start, it would be a model that no row of the journal names."""
    shared = {"name": "resnet10", "width": 4}
    setting = make_setting(site="average", method={"name": "fedavg"}, shared_model=shared)
    assert initialise(Trainer(setting)).artifact is None
    assert list((Path(setting.home) / "artifacts").iterdir()) == []


def test_a_method_that_shares_nothing_has_no_artifact(make_setting) -> None:
    setting = make_setting(method={"name": "local"})
    trainer = Trainer(setting)
    first = initialise(trainer)
    assert first.artifact is None
    assert train(trainer, first.state).artifact is None
    assert list((Path(setting.home) / "artifacts").iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"model": {"name": "resnet12"}}, r"\[model\] resnet12: .*did you mean"),
        ({"model": {"parameters": {"width": 0}}}, r"\[model\] resnet10: .*width"),
        ({"method": {"name": "fedskd", "terms": ["region"]}}, r"set \[data\] regions"),
        ({"training": {"device": "cuda:9"}}, "usable GPUs"),
    ],
)
def test_a_configuration_that_cannot_work_is_named(make_setting, parts: dict, reason: str) -> None:
    with pytest.raises(UnusableConfigurationError, match=reason):
        initialise(Trainer(make_setting(**parts)))


def test_data_that_cannot_work_is_named(make_setting, signals: Path) -> None:
    (signals / "training4.npz").unlink()
    with pytest.raises(UnusableDataError, match=r"training4\.npz"):
        initialise(Trainer(make_setting()))


# --- train ----------------------------------------------------------------------------------------------------------
def test_a_round_with_a_received_model(alpha: WorkerSetting, received: Source) -> None:
    reports: list[events.Event] = []
    trainer = Trainer(alpha, report=reports.append)
    first = initialise(trainer)
    event = train(trainer, first.state, received)
    assert (event.state, event.stage, event.round, event.attempt) == ("round-000001/train", "train", 1, 2)
    assert (event.artifact.owner, event.artifact.steps) == ("alpha", STEPS)
    assert event.artifact.sha256 != first.artifact.sha256
    trained = checkpoint_files(alpha, event.state)["dam.safetensors"]
    assert artifact_path(alpha, event.artifact).read_bytes() == trained
    terms = {"total", "ce_dam", "ce_ktm", "batch", "position"}
    expected = {f"train_{name}{last}" for name in terms for last in ("", "_last")}
    assert set(event.metrics) == expected | {"train_steps", "train_distillation_ratio"}
    assert event.metrics["train_steps"] == STEPS
    assert set(checkpoint_files(alpha, event.state)) == {"dam.safetensors", "dam.adam.safetensors"}
    newest = reports[-1]
    assert isinstance(newest, events.Progressed)
    assert (newest.step, newest.steps, set(newest.losses)) == (STEPS, STEPS, terms)
    assert newest.losses["total"] == event.metrics["train_total_last"]
    assert all(decode(encode(report), FROM_WORKER) == report for report in [first, *reports, event])


def test_gamma_zero_is_local_training_bit_by_bit(make_setting, beta: tuple[WorkerSetting, Source]) -> None:
    distilled = make_setting(site="alpha", home=None, method={"name": "fedskd", "gamma": 0.0})
    source = copy_artifact(beta[0], distilled, beta[1])
    alone = make_setting(site="alpha", home=Path(distilled.home).with_name("alone"), method={"name": "local"})
    results = []
    for setting, sources in ((distilled, [source]), (alone, [])):
        trainer, state = start(setting)
        event = train(trainer, state, *sources)
        event = train(trainer, event.state, *sources, round=2)
        results.append(checkpoint_files(setting, event.state))
        assert event.metrics["train_ce_dam"] > 0
    assert results[0].keys() == {"dam.safetensors", "dam.adam.safetensors"}
    assert results[0] == results[1]


def test_weights_smoothing_and_clipping_are_the_same_bits_after_an_interruption(
    make_setting: Callable[..., WorkerSetting], signals: Path, tmp_path: Path
) -> None:
    datalist = json.loads((signals / "datalist.json").read_text())
    datalist["training"] = [entry for index, entry in enumerate(datalist["training"]) if index % 4 != 3]  # 5 and 3
    (signals / "datalist.json").write_text(json.dumps(datalist))

    def trained(home: str, halt: bool = False, **training: Any) -> dict[str, bytes]:
        setting = make_setting(home=tmp_path / home, method={"name": "local"}, steps=STEPS, training=training)
        trainer, state = start(setting)
        if halt:
            interrupt(setting, commands.Train(1, 1, 2, "train", state, ()), after=2)
        return checkpoint_files(setting, train(trainer, state).state)

    keys = {"class_weights": "balanced", "label_smoothing": 0.1, "clip_norm": 0.5}
    whole = trained("whole", **keys)
    assert trained("halted", halt=True, **keys) == whole
    assert trained("listed", **keys | {"class_weights": [0.75, 1.25]}) == whole, "those of five and three samples"
    for key in keys:
        assert trained(f"without-{key}", **{name: value for name, value in keys.items() if name != key}) != whole
    sampled = keys | {"class_weights": None, "class_sampling": "balanced"}
    assert trained("halted-sampled", halt=True, **sampled) == trained("sampled", **sampled)
    assert trained("unsampled", **sampled | {"class_sampling": None}) != trained("sampled-again", **sampled)


def test_the_received_model_is_gone_after_the_round(alpha: WorkerSetting, received: Source) -> None:
    networks: list[weakref.ref[Any]] = []
    trainer = Trainer(alpha)
    build = trainer.method.stages["train"]

    def watched(context: Any) -> Any:
        networks.extend(weakref.ref(network) for network in context.received.values())
        return build(context)

    trainer._valve = Valve(trainer.settings, dataclasses.replace(trainer.method, stages={"train": watched}))
    train(trainer, initialise(trainer).state, received)
    gc.collect()
    assert len(networks) == 1
    assert networks[0]() is None


def test_a_partial_checkpoint_of_other_work_is_not_gone_on_with(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    straight = train(trainer, state)
    shutil.rmtree(Path(alpha.home) / "checkpoints" / "round-000001")
    interrupt(alpha, commands.Train(1, 1, 1, "train", state, (received,)), after=2)
    assert train(Trainer(alpha), state).artifact == straight.artifact


def test_a_finished_stage_is_answered_at_once(alpha: WorkerSetting, received: Source, signals: Path) -> None:
    trainer, state = start(alpha)
    first = train(trainer, state, received)
    shutil.rmtree(signals)
    reports: list[events.Event] = []
    again = Trainer(alpha, report=reports.append).perform(commands.Train(1, 1, 7, "train", state, (received,)))
    assert again == dataclasses.replace(first, attempt=7)
    assert reports == []


def test_a_finished_stage_whose_artifact_is_lost_is_done_again(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    first = train(trainer, state, received)
    lost = artifact_path(alpha, first.artifact)
    lost.unlink()
    assert train(Trainer(alpha), state, received).artifact == first.artifact
    assert lost.exists()


def test_other_sources_are_other_work(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    first = train(trainer, state, received)
    second = train(trainer, state)
    assert first.artifact != second.artifact
    assert checkpoint_files(alpha, second.state)


def test_old_checkpoints_go_and_one_that_an_order_names_stays(alpha: WorkerSetting) -> None:
    trainer, initial = start(alpha)
    state = initial
    for round in range(1, 5):
        state = train(trainer, state, round=round, kept=(initial,)).state
    rounds = sorted(path.name for path in (Path(alpha.home) / "checkpoints").glob("round-*"))
    assert rounds == ["round-000000", "round-000002", "round-000003", "round-000004"]
    assert checkpoint_files(alpha, initial)


# --- progress, partial checkpoints ----------------------------------------------------------------------------------
def test_progress_is_reported_five_times_a_second_and_at_the_end(make_setting) -> None:
    reports: list[Any] = []
    trainer = Trainer(make_setting(steps=30), report=reports.append, clock=Clock(tick_s=1 / 16))
    train(trainer, initialise(trainer).state)
    steps = [report.step for report in reports]
    assert steps[0] == 1
    assert steps[-1] == 30
    assert {later - earlier for earlier, later in itertools.pairwise(steps[:-1])} == {4}


@pytest.mark.parametrize(("tick_s", "least_s", "says"), [(1e-6, 0.0, True), (1e-6, 1.0, False), (1e3, 0.0, False)])
def test_the_log_says_when_training_waits_for_its_samples(
    make_setting, caplog, monkeypatch: pytest.MonkeyPatch, tick_s: float, least_s: float, says: bool
) -> None:
    monkeypatch.setattr("peer.train.samples.WAIT_MAX_S", least_s)
    trainer = Trainer(make_setting(data={"cache": "none"}), clock=Clock(tick_s=tick_s))
    train(trainer, initialise(trainer).state)
    assert ("training waits for its samples: stage=train" in caplog.text) == says


def test_partial_checkpoints_come_by_the_clock_and_survive_a_crash(make_setting) -> None:
    class CrashError(Exception):
        pass

    setting = make_setting(steps=8, training={"checkpoint_s": 2.0})
    state = initialise(Trainer(setting)).state

    def crash_at_seven(event: Any) -> None:
        if event.step == 7:
            raise CrashError

    with pytest.raises(CrashError):
        train(Trainer(setting, report=crash_at_seven, clock=Clock(tick_s=1.0)), state)
    partial_checkpoints = sorted(path.name for path in (Path(setting.home) / "checkpoints" / "partial").iterdir())
    assert len(partial_checkpoints) == 1
    reports: list[Any] = []
    resumed = train(Trainer(setting, report=reports.append), state)
    assert f"step-{reports[0].step - 1:08d}" == partial_checkpoints[0]
    assert reports[0].step > 1
    straight = make_setting(site="alpha", home=Path(setting.home).with_name("straight"), steps=8)
    assert train(Trainer(straight), initialise(Trainer(straight)).state).artifact == resumed.artifact


def test_a_stage_that_began_with_other_people_begins_anew(make_setting, signals: Path) -> None:
    setting, straight = make_setting(), make_setting(home=signals.parent / "straight")
    cohorts = Cohorts(Path(setting.home))
    cohorts.create()
    everybody = (signals / "datalist.json").read_text()
    fewer = json.loads(everybody)
    del fewer["training"][0]
    state = initialise(Trainer(setting)).state
    interrupt(setting, commands.Train(1, 1, 1, "train", state, ()), after=2)
    (signals / "datalist.json").write_text(json.dumps(fewer))
    resumed, never_with = train(Trainer(setting), state), train(Trainer(straight), initialise(Trainer(straight)).state)
    assert resumed.artifact == never_with.artifact
    assert never_with.cohort is None
    people = cohorts.read(resumed.cohort)
    assert people is not None
    assert people["training"] == {cohorts.pseudonym(entry["subject"]) for entry in fewer["training"]}
    (signals / "datalist.json").write_text(everybody)
    assert train(Trainer(setting), state).cohort == resumed.cohort


# --- received artifacts are checked -----------------------------------------------------------------------------------
def rejected(trainer: Trainer, state: str, source: Source) -> events.ArtifactRejected:
    event = trainer.perform(commands.Train(1, 1, 3, "train", state, (source,)))
    assert isinstance(event, events.ArtifactRejected), event
    assert (event.generation, event.round, event.attempt, event.origin) == (1, 1, 3, "beta")
    assert event.sha256 == source.artifact.sha256
    return event


def test_an_unusable_artifact_is_rejected_and_the_site_goes_on(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    event = rejected(trainer, state, spoil(alpha, received, float("nan")))
    assert event.reason == "tensor 'layer1.0.conv1.weight' holds a NaN or an infinity"
    lost = dataclasses.replace(received, artifact=dataclasses.replace(received.artifact, sha256=Sha256("0" * 64)))
    assert rejected(trainer, state, lost).lost
    assert not event.lost
    straight = train(Trainer(alpha), state, received)
    shutil.rmtree(Path(alpha.home) / "checkpoints" / "round-000001")
    assert train(trainer, state, received).artifact == straight.artifact


def test_an_artifact_that_makes_training_diverge_is_blamed(alpha: WorkerSetting, received: Source) -> None:
    unprobed = {**alpha.site, "training": {**alpha.site["training"], "probe_ratio_max": 0.0}}
    alpha = dataclasses.replace(alpha, site=unprobed)
    trainer, state = start(alpha)
    before = checkpoint_files(alpha, state)
    event = rejected(trainer, state, spoil(alpha, received, 3e38))
    assert "NaN" in event.reason or "diverged" in event.reason
    assert checkpoint_files(alpha, state) == before
    assert train(trainer, state).artifact == train(Trainer(alpha), state).artifact


def test_a_site_that_diverges_alone_is_itself_to_blame(make_setting) -> None:
    setting = make_setting(method={"name": "local"})
    _, state = start(setting)
    for name in checkpoint_files(setting, state):
        path = Path(setting.home) / "checkpoints" / state / name
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file(
            {key: value * 1e38 if value.is_floating_point() else value for key, value in tensors.items()}, path
        )
    reason = r"diverged in round 1: .*lower \[stages.train\] learning_rate"
    with pytest.raises(DivergenceError, match=reason):
        train(Trainer(setting), state)


# --- circulate and adopt --------------------------------------------------------------------------------------------
def test_a_visitor_is_trained_and_the_local_model_is_not(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    first = train(trainer, state)
    passed = train(trainer, first.state, received, round=2, circulate=SiteName("beta"))
    assert (passed.artifact.owner, passed.artifact.steps) == ("beta", STEPS)
    assert passed.artifact.spec == received.artifact.spec
    paths = (artifact_path(alpha, artifact) for artifact in (received.artifact, passed.artifact))
    before, after = (safetensors.torch.load_file(path) for path in paths)
    for name in ("conv1.weight", "fc.weight"):
        assert not torch.equal(before[name], after[name])
    names = ("total", "total_last", "ce_visitor", "ce_visitor_last", "steps")
    assert set(passed.metrics) == {f"train_{name}" for name in names}
    assert checkpoint_files(alpha, passed.state) == checkpoint_files(alpha, first.state)
    later = train(trainer, passed.state, round=3)
    assert later.artifact.steps == 2 * STEPS
    assert train(Trainer(alpha), passed.state, round=3) == later


def test_a_claim_of_too_many_steps_leaves_an_artifact_that_may_travel(alpha: WorkerSetting, received: Source) -> None:
    artifact = dataclasses.replace(received.artifact, steps=STEPS_MAX)
    claimed = dataclasses.replace(received, artifact=artifact)
    passed = train(*start(alpha), claimed, circulate=SiteName("beta")).artifact
    assert passed.steps == STEPS_MAX


def test_a_slot_without_any_copy_is_the_site_s_own_or_nothing(alpha: WorkerSetting) -> None:
    trainer, state = start(alpha)
    own = train(trainer, state, circulate=SiteName("alpha"))
    assert (own.artifact.owner, own.artifact.steps) == ("alpha", STEPS)
    assert checkpoint_files(alpha, own.state) == checkpoint_files(alpha, state)
    with pytest.raises(UnusableConfigurationError, match="moves beta's model, of which there is no copy here"):
        train(trainer, state, round=2, circulate=SiteName("beta"))


def test_a_model_that_comes_home_replaces_the_local_one(make_setting, alpha: WorkerSetting) -> None:
    """Alpha's model was trained at beta and comes back."""
    host = make_setting(site="beta", steps=STEPS)
    home, abroad = Trainer(alpha), Trainer(host)
    state = train(home, initialise(home).state).state
    own = initialise(Trainer(alpha)).artifact
    assert own is not None
    fetched_source = copy_artifact(alpha, host, Source(SiteName("alpha"), 1, own))
    trained_there = train(abroad, initialise(abroad).state, fetched_source, circulate=SiteName("alpha")).artifact
    assert trained_there is not None
    returned = copy_artifact(host, alpha, Source(SiteName("beta"), 2, trained_there))
    event = perform(home, commands.Adopt(1, 1, 5, state, returned))
    assert event.state == "round-000001/adopt"
    assert event.artifact == trained_there
    assert set(checkpoint_files(alpha, event.state)) == {"dam.safetensors"}  # a fresh Adam
    assert Trainer(alpha).perform(commands.Adopt(1, 1, 5, state, returned)) == event
    after = train(home, event.state, round=2)
    assert after.artifact.steps == 2 * STEPS


def test_a_foreign_model_does_not_come_home(alpha: WorkerSetting, received: Source) -> None:
    trainer, state = start(alpha)
    event = trainer.perform(commands.Adopt(1, 1, 5, state, received))
    assert isinstance(event, events.ArtifactRejected)
    assert event.reason == "it is not of this site's [model]"


# --- evaluate, aggregate --------------------------------------------------------------------------------------------
def test_the_local_model_is_measured_on_the_test_split(make_setting) -> None:
    trainer = Trainer(make_setting(steps=60, data={"augmentation": {"flip": 0.0}, "validation_share": 0.4}))
    first = initialise(trainer).state
    last = train(trainer, first).state
    event = perform(trainer, commands.Evaluate(1, 1, 4, last))
    names = {*METRICS_OF["classification"], "auc_undefined", "loss", "samples"}
    assert set(event.metrics) == names | {f"validation_{name}" for name in names}
    assert event.metrics["samples"] == 6
    assert event.metrics["validation_samples"] == 4
    before = perform(trainer, commands.Evaluate(1, 1, 5, first))
    assert event.metrics["loss"] < before.metrics["loss"]
    assert event.metrics["auc"] == 1.0  # two frequencies are easily told apart


def test_measuring_changes_nothing(alpha: WorkerSetting) -> None:
    trainer, state = start(alpha)
    straight = train(trainer, state).artifact
    shutil.rmtree(Path(alpha.home) / "checkpoints" / "round-000001")
    other = Trainer(alpha)
    other.perform(commands.Evaluate(1, 0, 1, state))
    assert train(other, state).artifact == straight


def test_without_test_samples_there_are_no_metrics(make_setting, signals: Path) -> None:
    path = signals / "datalist.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "test": []}))
    trainer, state = start(make_setting())
    assert trainer.perform(commands.Evaluate(1, 1, 1, state)) == events.Evaluated(1, 1, 1, {})


def test_a_halt_ends_a_measurement(alpha: WorkerSetting) -> None:
    state = initialise(Trainer(alpha)).state
    with pytest.raises(WorkInterrupted):
        Trainer(alpha, halted=lambda: True).perform(commands.Evaluate(1, 1, 1, state))


def test_turns_change_no_bit_and_wait_for_the_others(
    make_setting: Callable[..., WorkerSetting], tmp_path: Path
) -> None:
    setting = make_setting(steps=STEPS)
    alone = Trainer(setting)
    expected = train(alone, initialise(alone).state)
    folder = tmp_path / "gpu"
    taking_turns = make_setting(
        home=tmp_path / "again", steps=STEPS, training={"gpu": "turns", "gpu_folder": str(folder)}
    )
    asked: list[bool] = []
    told: list[events.Event] = []
    trainer = Trainer(taking_turns, report=told.append, halted=lambda: bool(asked))
    state = initialise(trainer).state
    with DeviceQueue(folder / "cpu").turn(lambda ahead: None):
        asked.append(True)
        with pytest.raises(WorkInterrupted):
            train(trainer, state)
        asked.clear()
        assert not told
        waits = threading.Event()
        trained: list[events.Trained] = []
        trainer = Trainer(taking_turns, report=lambda event: (told.append(event), waits.set()))
        thread = threading.Thread(target=lambda: trained.append(train(trainer, state)))
        thread.start()
        assert waits.wait(60)
        assert told == [events.Queued(1, 2, 1)]
    thread.join()
    assert told[1] == events.Queued(1, 2, 0)
    assert isinstance(told[2], events.Progressed)
    assert trained[0].artifact is not None
    assert expected.artifact is not None
    assert trained[0].artifact.sha256 == expected.artifact.sha256
    assert not list((folder / "cpu").iterdir()), "its ticket is given back"
