"""Workers attack their own artifacts: planted leaks, honest networks, few people, crashes, and what adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.training import copy_artifact, initialise, train
from peer.core import commands
from peer.core.artifacts import Source
from peer.core.leak import Leak, area_under_curve, count_detected
from peer.core.roster import SiteName
from peer.core.worker_protocol import FROM_WORKER, WorkerSetting, decode, encode
from peer.site.config.site_tables import EgressConfig
from peer.train.leak_meter import FILE, AttackedPeople, best_attack
from peer.train.membership_attack import sample_losses
from peer.train.trainer import Trainer

EVERY = {"privacy": {"leak": "every"}}


def leak_file(setting: WorkerSetting) -> Path:
    return Path(setting.home) / "checkpoints" / FILE


def test_by_default_the_last_artifacts_are_measured_and_the_answer_carries_the_figures(make_setting: Any) -> None:
    setting = make_setting()
    trainer = Trainer(setting)
    first = train(trainer, initialise(trainer).state)
    assert first.artifact is not None
    assert first.artifact.leak is None
    second = train(trainer, first.state, round=2)  # fedskd sends it in round 3, the last one
    leak = second.artifact.leak
    assert (leak.members, leak.others, leak.artifacts) == (10, 6, 1)
    assert decode(encode(second), FROM_WORKER).artifact.leak == leak
    assert "leak" not in json.loads(encode(first))["artifact"]


def test_a_bound_has_all_rounds_measured_and_what_stays_here_adds_up_to_nothing(make_setting: Any) -> None:
    setting = make_setting(egress={"leak_auc_max": 0.65, "leak_unknown": "refuse"})
    trainer = Trainer(setting)
    first = train(trainer, initialise(trainer).state)
    assert first.artifact.leak.verdict == "unknown"
    assert json.loads(leak_file(setting).read_bytes())["channels"] == {}
    assert train(trainer, first.state, round=2).artifact.leak.artifacts == 1


def test_nothing_is_measured_where_that_is_off_or_nothing_predicts(make_setting: Any) -> None:
    for parts in ({"privacy": {"leak": "off"}}, {**EVERY, "method": {"name": "fedproto"}}):
        setting = make_setting(site=parts.get("method", {}).get("name", "alpha"), **parts)
        trainer = Trainer(setting)
        stages = ["train"] if "method" not in parts else ["train", "prototypes"]
        state, event = initialise(trainer).state, None
        for stage in stages:
            event = train(trainer, state, round=3, stage=stage)
            state = event.state
        assert event.artifact is not None
        assert event.artifact.leak is None


def test_a_worker_that_is_started_again_repeats_the_figures_without_the_data(make_setting: Any, signals: Path) -> None:
    setting = make_setting(**EVERY)
    trainer = Trainer(setting)
    state = initialise(trainer).state
    first = train(trainer, state)
    content = leak_file(setting).read_bytes()
    (signals / "datalist.json").unlink()
    again = train(Trainer(setting), state)
    assert again.artifact.leak == first.artifact.leak is not None
    assert leak_file(setting).read_bytes() == content


def test_a_measurement_that_a_crash_cut_short_is_made_alike(make_setting: Any) -> None:
    setting = make_setting(**EVERY)
    trainer = Trainer(setting)
    state = initialise(trainer).state
    first = train(trainer, state)
    content = leak_file(setting).read_bytes()
    leak_file(setting).unlink()  # the stage is on disk, the figures are not
    assert train(Trainer(setting), state).artifact.leak == first.artifact.leak
    assert leak_file(setting).read_bytes() == content


def test_rounds_add_up_and_a_repeated_round_replaces_itself(make_setting: Any) -> None:
    setting = make_setting(**EVERY)
    trainer = Trainer(setting)
    first = train(trainer, initialise(trainer).state)
    second = train(trainer, first.state, round=2)
    assert second.artifact.leak.artifacts == 2
    channel = json.loads(leak_file(setting).read_bytes())["channels"]["model/alpha"]
    assert (channel["artifacts"], channel["round"]) == (1, 2)
    repeated = trainer.perform(commands.Train(1, 2, 3, "train", first.state, (), rounds=2))  # other work, same round
    assert repeated.artifact.sha256 != second.artifact.sha256
    assert repeated.artifact.leak.artifacts == 2


def test_the_names_of_the_highest_stay_in_a_file_that_only_the_site_reads(make_setting: Any) -> None:
    setting = make_setting(**EVERY)
    trainer = Trainer(setting)
    event = train(trainer, initialise(trainer).state, round=2)
    assert leak_file(setting).stat().st_mode & 0o777 == 0o600
    channel = json.loads(leak_file(setting).read_bytes())["channels"]["model/alpha"]
    assert sorted(channel["highest"]) == sorted(f"training-{index}" for index in range(10))
    assert not set(channel["newest"]) & set(channel["highest"])  # scores are by pseudonym
    assert b"training-" not in encode(event)


def test_a_visitor_is_compared_with_the_copy_that_came(make_setting: Any) -> None:
    """A return is measured, in a channel of its own; its class mix needs three classes."""
    own = make_setting(method={"name": "fedvisit"}, roster=("alpha", "beta"), **EVERY)
    other = make_setting(site="beta", method={"name": "fedvisit"}, roster=("alpha", "beta"))
    trainer = Trainer(own)
    visitor = initialise(Trainer(other)).artifact
    assert visitor is not None
    source = copy_artifact(other, own, Source(SiteName("beta"), 1, visitor))
    event = train(trainer, initialise(trainer).state, source)
    (returned,) = event.returned
    assert isinstance(returned.leak, Leak)
    assert "return/beta" in json.loads(leak_file(own).read_bytes())["channels"]


def test_where_sites_average_the_mean_before_is_the_reference(make_setting: Any) -> None:
    """Of three classes, the class mix shows which round has a reference."""
    shared = {"name": "resnet10", "width": 4}
    trainer = Trainer(make_setting(method={"name": "fedavg"}, shared_model=shared, task={"classes": 3}, **EVERY))
    first = train(trainer, initialise(trainer).state)
    assert first.artifact.leak.class_mix is None
    mean = trainer.perform(commands.Aggregate(1, 1, 3, first.state, ()))
    second = train(trainer, mean.state, round=2)
    assert -1.0 <= second.artifact.leak.class_mix <= 1.0


def test_before_the_last_round_a_tenth_of_the_round_s_work_bounds_the_people(make_setting: Any) -> None:
    trainer = Trainer(make_setting(steps=10, **EVERY))
    event = train(trainer, initialise(trainer).state)
    # 0.1 * 3 passes * 10 steps of 4 samples, for 2 networks: 6 samples, in turn of members and others
    assert (event.artifact.leak.members, event.artifact.leak.others) == (3, 3)
    last = train(trainer, event.state, round=2)
    assert (last.artifact.leak.members, last.artifact.leak.others) == (10, 6)


def test_without_other_people_nothing_is_measured(make_setting: Any, signals: Path, caplog: Any) -> None:
    datalist = json.loads((signals / "datalist.json").read_text())
    (signals / "datalist.json").write_text(json.dumps({**datalist, "test": []}))
    trainer = Trainer(make_setting(**EVERY))
    assert train(trainer, initialise(trainer).state).artifact.leak is None
    assert "no validation and test samples of people that were not trained on" in caplog.text


# --- what the policy makes of it -------------------------------------------------------------------------------------
POLICY = EgressConfig(leak_auc_max=0.65, leak_unknown="send")


def leak_of(*, seed: int, people: int, steps: int) -> Leak:
    """Train a small network on labels at random, which only memory gets right, beside a reference on other people."""
    draw = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(3 * people, 64, generator=draw), torch.randint(2, (3 * people,), generator=draw)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = [fit(images[part : part + people], labels[part : part + people], steps) for part in (0, 2 * people)]
    names = [f"{number}" for number in range(2 * people)]
    attacked = AttackedPeople([], names, frozenset(names[:people]))
    losses, references = (
        sample_losses(network, [(images[: 2 * people], labels[: 2 * people])], F.cross_entropy) for network in networks
    )
    attack, scores = best_attack(losses, references, attacked)
    members, others = ([scores[name] for name in part] for part in (names[:people], names[people:]))
    auc = area_under_curve(members, others)
    return Leak(attack, auc, people, people, count_detected(members, others), auc, auc)


def fit(images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimiser.step()
    return network


def test_a_planted_leak_is_refused_in_20_of_20_runs() -> None:
    leaks = [leak_of(seed=seed, people=100, steps=40) for seed in range(20)]
    assert [POLICY.refuses(leak) for leak in leaks] == [True] * 20


def test_an_artifact_that_knows_nobody_is_refused_in_at_most_1_of_20_runs() -> None:
    leaks = [leak_of(seed=seed, people=100, steps=0) for seed in range(20)]
    assert sum(POLICY.refuses(leak) for leak in leaks) <= 1
    strict = EgressConfig(leak_auc_max=0.5)  # chance itself: the interval alone decides
    assert sum(strict.refuses(leak) for leak in leaks) <= 2


def test_of_20_and_20_people_nobody_can_tell() -> None:
    assert {leak_of(seed=seed, people=20, steps=0).answer(0.65) for seed in range(20)} == {"unknown"}


def test_an_unmeasured_artifact_counts_as_unknown() -> None:
    assert not POLICY.refuses(None)
    assert EgressConfig(leak_auc_max=0.65, leak_unknown="refuse").refuses(None)
    assert not EgressConfig(leak_unknown="refuse").refuses(None)  # without a bound
