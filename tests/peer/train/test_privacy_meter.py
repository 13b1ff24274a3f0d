"""A trainer in a private federation: what it charges, what it refuses, and which networks have noise."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.hospital import LENGTH, MakeSetting
from peer.core import commands, events
from peer.core.worker_protocol import WorkerSetting
from peer.errors import ConfigError
from peer.privacy_budget import PrivacyBudget
from peer.train.data.datalist import Sample
from peer.train.errors import UnusableConfigurationError
from peer.train.samples import held_out_names, site_seed
from peer.train.settings import TrainingSettings
from peer.train.trainer import Trainer

GROUP = {"width": 4, "norm": "group"}
NOISE = {"mechanism": "noise", "epsilon": 8.0, "delta": 0.005, "clip": 1.0, "people": 10}


def private(make: MakeSetting, method: str = "fedavg", *, key: bytes = b"k" * 32, **parts: Any) -> WorkerSetting:
    """Return the setting of a site of a private federation, whose account is beside its home."""
    shared = {"name": "resnet10", **parts.pop("hyper", GROUP)}
    model = {"name": "resnet10", "parameters": {name: value for name, value in shared.items() if name != "name"}}
    noise = parts.pop("noise", NOISE)
    setting = make(method={"name": method, **parts.pop("parameters", {})}, shared_model=shared, model=model, **parts)
    budget = str(Path(setting.home).parent / ".privacy")
    return dataclasses.replace(
        setting, federation={**setting.federation, "privacy": noise}, noise_key=key.hex(), budget_folder=budget
    )


def train(setting: WorkerSetting, *, stage: str = "train", rounds: int = 1) -> events.Trained:
    trainer = Trainer(setting)
    event: Any = trainer.perform(commands.Initialise(generation=1, attempt=1))
    for round in range(1, rounds + 1):
        event = trainer.perform(commands.Train(1, round, 1, stage=stage, base=event.state, sources=()))
    assert isinstance(event, events.Trained)
    return event


def forget(setting: WorkerSetting) -> None:
    """Empty the generation's folder, as a backup from before the first round would leave it."""
    shutil.rmtree(setting.home)
    Path(setting.home, "artifacts").mkdir(parents=True)


def entries(setting: WorkerSetting) -> list[dict[str, Any]]:
    account = json.loads((Path(setting.budget_folder) / "budget.json").read_bytes())
    return list(account["entries"].values())


@pytest.mark.parametrize("least", [None, 3])
def test_sums_are_charged_once_and_say_against_whom_they_hold(make_setting: MakeSetting, least: int | None) -> None:
    setting = private(make_setting, "pooled_head", noise={"mechanism": "noise", "epsilon": 8.0, "delta": 0.005})
    aggregate = {} if least is None else {"secure": True, "members_min": least}
    keys = {"rounds": 1, "site": [{"name": name} for name in ("asia", "europe", "africa")], "aggregate": aggregate}
    setting = dataclasses.replace(setting, federation={**setting.federation, **keys})
    trained = train(setting, stage="sums")
    assert trained.artifact is not None
    assert trained.artifact.spent is not None
    assert trained.artifact.spent.epsilon == pytest.approx(8.0, abs=1e-6)
    assert trained.artifact.spent.colluders == (None if least is None else 1)
    again = train(setting, stage="sums")
    assert again.artifact == trained.artifact
    train(setting, stage="solve")
    assert len(entries(setting)) == 1
    forget(setting)
    repeated = train(setting, stage="sums").artifact
    assert repeated is not None
    assert repeated.sha256 == trained.artifact.sha256
    assert len(entries(setting)) == 1


def test_statistics_charge_the_people_of_all_splits(make_setting: MakeSetting, signals: Path) -> None:
    setting = private(make_setting, "statistics", noise={"mechanism": "noise", "epsilon": 8.0, "delta": 0.005})
    setting = dataclasses.replace(setting, federation={**setting.federation, "rounds": 1})
    trained = train(setting, stage="count")
    assert trained.artifact is not None
    assert trained.artifact.spent is not None
    assert trained.artifact.spent.epsilon == pytest.approx(8.0, abs=1e-6)
    listed = json.loads((signals / "datalist.json").read_text())
    account = json.loads((Path(setting.budget_folder) / "budget.json").read_bytes())
    (people,) = account["people"].values()
    assert len(people) == len(listed["training"]) + len(listed["test"])
    path = signals / "datalist.json"
    path.write_text(json.dumps({**listed, "test": listed["test"][1:]}))
    forget(setting)
    train(setting, stage="count")
    assert len(entries(setting)) == 2, "with another test person it is another release"


def test_a_repeated_stage_has_the_same_bits_and_is_charged_once(make_setting: MakeSetting) -> None:
    """A crash, or a backup from before the round, repeats the stage; its noise is no second draw."""
    setting = private(make_setting)
    first = train(setting)
    forget(setting)
    again = train(setting)
    assert first.artifact is not None
    assert again.artifact is not None
    assert again.artifact.sha256 == first.artifact.sha256
    assert len(entries(setting)) == 1
    assert first.artifact.spent == again.artifact.spent
    assert first.artifact.spent is not None
    assert first.artifact.spent.mu == pytest.approx(2.3196883681 / 3**0.5)


def test_other_people_and_another_secret_are_charged_anew(make_setting: MakeSetting, signals: Path) -> None:
    setting = private(make_setting)
    first = train(setting)
    (signals / "datalist.json").write_text((signals / "datalist.json").read_text().replace("training-3", "training-x"))
    images = sorted(signals.glob("training*.npz"))
    shutil.copy(images[0], images[1])
    forget(setting)
    changed = train(setting)
    lost = dataclasses.replace(setting, noise_key=(b"j" * 32).hex())
    forget(setting)
    drawn = train(lost)
    artifacts = [event.artifact for event in (first, changed, drawn)]
    assert len({each.sha256 for each in artifacts if each is not None}) == 3
    assert len(entries(setting)) == 3


def test_what_exceeds_the_account_is_marked(make_setting: MakeSetting) -> None:
    setting = private(make_setting, privacy={"epsilon_max": 4.0})
    first, second = train(setting), train(setting, rounds=2)
    spent = [event.artifact.spent for event in (first, second) if event.artifact is not None]
    assert [(each.exceeded, each.epsilon < 4) for each in spent if each is not None] == [(False, True), (True, True)]


@pytest.mark.parametrize(
    ("method", "sent", "parameters"), [("ditto", "global", {}), ("fedvisit_twin", "twin", {"personal_kd": 0.0})]
)
def test_what_never_leaves_trains_without_noise(
    make_setting: MakeSetting, method: str, sent: str, parameters: dict[str, Any]
) -> None:
    """In the first round, another secret changes the network alone that is sent."""
    states = []
    for key in (b"k" * 32, b"j" * 32):
        setting = private(make_setting, method, key=key, parameters=parameters)
        forget(setting)
        trainer = Trainer(setting)
        event: Any = trainer.perform(commands.Initialise(generation=1, attempt=1))
        trainer.perform(commands.Train(1, 1, 1, stage="train", base=event.state, sources=()))
        states.append({name: dict(each.state_dict()) for name, each in trainer.site_networks.networks.items()})
    first, second = states
    assert all((first["dam"][name] == second["dam"][name]).all() for name in first["dam"])
    assert any((first[sent][name] != second[sent][name]).any() for name in first[sent])


def test_batch_norm_is_refused(make_setting: MakeSetting) -> None:
    with pytest.raises(ConfigError, match=r'shared_model.norm: resnet10 has batch norm, .* write norm = "group"'):
        train(private(make_setting, hyper={"width": 4}))


def test_delta_is_small_for_the_number_of_people(make_setting: MakeSetting) -> None:
    with pytest.raises(UnusableConfigurationError, match=r"delta = 0.02 .* is too large for so many people"):
        train(private(make_setting, noise=NOISE | {"delta": 0.02, "people": 5}))


def test_a_worker_without_the_key_trains_nothing(make_setting: MakeSetting) -> None:
    with pytest.raises(UnusableConfigurationError, match="has got no key for its noise"):
        train(private(make_setting, key=b""))


def test_a_damaged_account_stops_the_site(make_setting: MakeSetting) -> None:
    setting = private(make_setting)
    PrivacyBudget(Path(setting.budget_folder)).charge("1", "x", 1.0, ["ann"], mu_max=2.0)
    (Path(setting.budget_folder) / "budget.json").write_text("{")
    with pytest.raises(UnusableConfigurationError, match=r"cannot be used: .*put it back from a backup"):
        train(setting)


@pytest.mark.parametrize("method", ["fedavg_ft", "fedcross_ft"])
def test_after_a_last_round_without_noise_nothing_trains_for_others(make_setting: MakeSetting, method: str) -> None:
    setting = private(make_setting, method)
    trainer = Trainer(setting)
    event: Any = trainer.perform(commands.Initialise(generation=1, attempt=1))
    tuned = trainer.perform(commands.Train(1, 3, 1, stage="finetune", base=event.state, sources=()))
    assert isinstance(tuned, events.Trained)
    assert tuned.artifact is None
    assert not Path(setting.budget_folder, "budget.json").exists()
    with pytest.raises(UnusableConfigurationError, match="trained this site's networks without noise"):
        trainer.perform(commands.Train(1, 4, 1, stage="train", base=tuned.state, sources=()))


def test_people_of_one_machine_are_known_under_another_sites_name(make_setting: MakeSetting) -> None:
    setting = private(make_setting)
    train(setting)
    renamed = dataclasses.replace(setting, federation_digest="cd" * 32, site_name="beta")
    renamed.federation["site"][0]["name"] = "beta"
    forget(setting)
    again = train(renamed)
    assert again.artifact is not None
    assert again.artifact.spent is not None
    assert again.artifact.spent.mu == pytest.approx(2.3196883681 * (2 / 3) ** 0.5)
    other = private(make_setting, privacy={"population": "other"}, key=b"j" * 32)
    alone = train(dataclasses.replace(other, federation_digest="ef" * 32))
    assert alone.artifact is not None
    assert alone.artifact.spent is not None
    assert alone.artifact.spent.mu == pytest.approx(2.3196883681 / 3**0.5)


def test_an_account_that_was_lost_begins_at_what_the_ledger_knows(make_setting: MakeSetting) -> None:
    trained = train(dataclasses.replace(private(make_setting), spent_mu=1.5))
    assert trained.artifact is not None
    assert trained.artifact.spent is not None
    assert trained.artifact.spent.mu == pytest.approx((1.5**2 + 2.3196883681**2 / 3) ** 0.5)


def test_an_artifact_says_of_which_steps_its_figure_is_the_sum(make_setting: MakeSetting) -> None:
    """Two of three rounds: sigma is the square root of all steps over the federation's mu."""
    trained = train(private(make_setting), rounds=2)
    assert trained.artifact is not None
    spent = trained.artifact.spent
    assert spent is not None
    (noisy,) = spent.steps
    assert noisy.sigma == pytest.approx((3 / 2 * noisy.steps) ** 0.5 / 2.3196883681)
    assert noisy.steps / noisy.sigma**2 == pytest.approx(spent.mu**2)
    assert spent.federation_mu == pytest.approx(spent.mu)


def test_what_a_peer_shows_during_a_stage_counts_for_the_artifact_of_the_stage(make_setting: MakeSetting) -> None:
    """The claim is of an earlier generation: the stage comes on top, and both are more than the site may spend."""
    setting = private(make_setting)
    before = train(setting)
    PrivacyBudget(Path(setting.budget_folder)).claim(f"{setting.federation_digest}/{setting.site_name}", 0, 2.3)
    after = train(setting)
    spent = [event.artifact.spent for event in (before, after) if event.artifact is not None]
    assert [(each.exceeded, each.mu) for each in spent if each is not None] == [
        (False, pytest.approx(2.3196883681 / 3**0.5)),
        (True, pytest.approx((2.3**2 + 2.3196883681**2 / 3) ** 0.5)),
    ]
    assert len(entries(setting)) == 2, "the stage is the same one"


def test_one_extreme_person_neither_stops_a_site_nor_shows(make_setting: MakeSetting, signals: Path) -> None:
    """An error, or a peer's artifact that is refused for it, would tell that somebody is there."""
    np.savez(signals / "training0.npz", image=np.full((2, LENGTH), 1e30, np.float32))
    trained = train(private(make_setting))
    assert trained.artifact is not None


def test_one_person_more_moves_nobody_else_into_the_training_samples(signals: Path, make_setting: MakeSetting) -> None:
    settings = TrainingSettings.of(private(make_setting, data={"validation_share": 0.3}))
    samples = [Sample(f"{number}.npz", (), number % 2, subject=str(number)) for number in range(200)]
    seed = site_seed(settings)
    all_held_out = held_out_names(samples, settings, seed)
    assert 40 <= len(all_held_out) <= 80
    for number in range(0, 200, 9):
        fewer = [sample for sample in samples if sample.subject != str(number)]
        assert held_out_names(fewer, settings, seed) == all_held_out - {f"{number}.npz"}
