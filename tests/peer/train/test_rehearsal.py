"""A rehearsal runs a step of each stage of every method, measures it, and finds what would fail in the night."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.core import commands, events
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.train.errors import UnusableConfigurationError
from peer.train.rehearsal import group_free_bytes, stage_commands, stand_ins, write_own_artifact
from peer.train.trainer import Trainer

OTHERS = (SiteName("beta"), SiteName("gamma"))
ALIKE = {"name": "resnet10", "width": 4}
SHARED: Mapping[str, Mapping[str, Any]] = {
    "mh_pflid": {"name": "messenger_classification", "width": 4},
    **{name: ALIKE for name, plan in PLANS.items() if plan.shared == "itself" or plan.artifact == "proxy"},
}


def start_trainer(make_setting: Callable[..., WorkerSetting], method: str, **options: Any) -> Trainer:
    parameters = options.pop("parameters", {})
    setting = make_setting(method={"name": method, **parameters}, shared_model=SHARED.get(method), steps=50, **options)
    trainer = Trainer(setting)
    trainer.perform(commands.Initialise(1, 1))
    return trainer


def rehearse(trainer: Trainer, others: tuple[SiteName, ...] = OTHERS) -> events.Rehearsed:
    event = trainer.perform(commands.Rehearse(1, 2, others))
    assert isinstance(event, events.Rehearsed)
    return event


LIKE_OTHERS = frozenset(
    {
        *("apfl", "dfml", "ditto", "ds_pfl", "fedavg_ft", "fedmd"),
        *("fedprox_ft", "fedproto", "fedrep", "pfeddf", "scaffold"),
    }
)
"""Methods whose stages a rehearsal tries as those of others, which are quick tests."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LIKE_OTHERS else ())
        for name, plan in sorted(PLANS.items())
        if "time_series" not in plan.not_for
    ],
)
def test_every_stage_of_every_method_is_tried(make_setting: Callable[..., WorkerSetting], method: str) -> None:
    trainer = start_trainer(make_setting, method)
    before = sorted((trainer.settings.home / "checkpoints").iterdir())
    event = rehearse(trainer)
    plan = PLANS[method]
    expected = {"visitor"} | plan.stages_of(plan.last_round) if plan.pattern == "circulate" else set(plan.stages)
    assert set(event.step_s) == expected
    assert all(seconds > 0 for seconds in event.step_s.values())
    assert event.device == "cpu"
    assert 0 < event.memory_bytes < event.available_bytes
    assert (event.artifact_bytes > 0) == (method != "local")
    assert event.round_s > 40 * min(event.step_s.values()), "50 steps, and each as long as the second one"
    assert 0 < event.padding_share < 1
    assert sorted((trainer.settings.home / "checkpoints").iterdir()) == before


def test_a_round_that_only_moves_models_on_is_tried_as_well(make_setting: Callable[..., WorkerSetting]) -> None:
    event = rehearse(start_trainer(make_setting, "fedskd", parameters={"activation": 0.5}))
    assert set(event.step_s) == {"visitor", "train"}


def test_a_site_alone_trains_alone(make_setting: Callable[..., WorkerSetting]) -> None:
    assert set(rehearse(start_trainer(make_setting, "fedskd"), ()).step_s) == {"train"}


def test_as_much_comes_as_in_a_round(make_setting: Callable[..., WorkerSetting]) -> None:
    def coming(method: str) -> dict[str, int]:
        trainer = start_trainer(make_setting, method)
        sources = stand_ins(trainer, write_own_artifact(trainer), OTHERS)
        return {stage: len(order.sources) for stage, order in stage_commands(trainer, sources)}

    assert coming("dflmoe") == {"local": 2, "decide": 2}
    assert coming("fedskd") == {"train": 1}
    assert coming("feddal") == {"train": 0}


def test_a_trainer_goes_on_as_if_nothing_had_been(make_setting: Callable[..., WorkerSetting], tmp_path: Path) -> None:
    order = commands.Train(1, 1, 3, "train", "round-000000/initial", ())
    plain, rehearsed = (start_trainer(make_setting, "fedskd", home=tmp_path / name) for name in ("plain", "tried"))
    rehearse(rehearsed)
    (first, second) = (trainer.perform(order) for trainer in (plain, rehearsed))
    assert isinstance(first, events.Trained)
    assert isinstance(second, events.Trained)
    assert first.artifact == second.artifact


def test_a_loss_that_is_not_finite_is_named(make_setting: Callable[..., WorkerSetting], signals: Path) -> None:
    for path in signals.glob("training*.npz"):
        np.savez(path, image=np.linspace(2e38, 3e38, 48, dtype=np.float32).reshape(2, 24))
    with pytest.raises(UnusableConfigurationError, match=r"in step 1 of stage train total is nan"):
        rehearse(start_trainer(make_setting, "fedskd"))


def test_a_container_has_less_memory_than_the_machine(tmp_path: Path) -> None:
    group, groups = tmp_path / "cgroup", tmp_path / "groups"
    group.write_text("4:memory:/elsewhere\n0::/pods/one\n")
    for name, limit, used, idle in (("pods/one", "1000", 700, 100), ("pods", "max", 5000, 0), (".", "9000", 8950, 0)):
        folder = groups / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\n")
    assert list(group_free_bytes(group, groups)) == [400, 50]
    group.write_text("0::/pods/two\n")
    assert list(group_free_bytes(group, groups)) == [50], "a group that says nothing is passed over"
    group.write_text("4:memory:/elsewhere\n")
    assert list(group_free_bytes(group, groups)) == []
