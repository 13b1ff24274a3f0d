"""Every method on the rows of a table: each of its stages takes a step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.core import commands, events
from peer.core.columns import TableColumn
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.train.data.datalist import inspect_datalist
from peer.train.errors import UnusableConfigurationError
from peer.train.public_set import digest_images
from peer.train.trainer import Trainer

pytestmark = pytest.mark.e2e
COLUMNS = [
    {"name": "age", "kind": "number", "range": [20.0, 90.0]},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
]


QUICK = frozenset({"dflmoe", "fedmd", "fedproto", "fedskd", "fedvisit", "mh_pflid"})
"""One method of each kind of artifact; the others are tried at night."""
QUICK_TARGETS = frozenset({("fedmd", "number"), ("feddal", "labels"), ("fedvisit", "survival"), ("mh_pflid", "number")})
TARGETS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "class": ({"classes": 2}, lambda age: age % 2),
    "labels": ({"class_names": ["pain", "fever", "cough"]}, lambda age: [age % 2, None if age % 3 else 1, 0]),
    "number": ({"range": [0, 60], "unit": "days"}, lambda age: age - 20.5),
    "survival": ({"times": [6, 12, 24]}, lambda age: {"time": age - 28, "event": age % 2 == 0}),
}
"""By target, the keys of ``[task]`` and the label of a person of an age."""


def test_fedskd_refuses_a_network_without_stages_before_the_first_round(
    make_setting: Callable[..., WorkerSetting], signals: Path
) -> None:
    keys, label = TARGETS["class"]
    rows = [{"image": f"row {age}", "label": label(age), "row": {"age": age}} for age in range(30, 42)]
    (signals / "datalist.json").write_text(json.dumps({"training": rows[:10], "test": rows[10:]}))
    trainer = Trainer(
        make_setting(
            method={"name": "fedskd"},
            task={"kind": "tabular", "target": "class", "column": COLUMNS, **keys},
            data={"input_size": []},
            model={"name": "linear", "parameters": {}},
        )
    )
    with pytest.raises(UnusableConfigurationError, match="take a network that has stages, which linear has not"):
        trainer.perform(commands.Initialise(1, 1))


def test_balanced_labels_weigh_by_the_known_ones_of_this_sites_training(
    make_setting: Callable[..., WorkerSetting], signals: Path
) -> None:
    keys, label = TARGETS["labels"]
    rows = [{"image": f"row {age}", "label": label(age), "row": {"age": age}} for age in range(30, 42)]
    (signals / "datalist.json").write_text(json.dumps({"training": rows[:10], "test": rows[10:]}))

    def trained(**training: Any) -> tuple[Any, float]:
        trainer = Trainer(
            make_setting(
                method={"name": "local"},
                task={"kind": "tabular", "target": "labels", "column": COLUMNS, **keys},
                data={"input_size": []},
                model={"name": "linear", "parameters": {}},
                training=training,
            )
        )
        state = trainer.perform(commands.Initialise(1, 1)).state
        event = trainer.perform(commands.Train(1, 1, 2, "train", state, ()))
        supervision = trainer.data.training.context_fields(trainer.settings)["supervision"]
        return supervision, event.metrics["train_bce_dam"]

    weighted, balanced = trained(class_weights="balanced")
    assert weighted.class_weights == (1.0, 1.0, 1.0), "five of ten have pain; fever is all yes, cough all no"
    (signals / "datalist.json").write_text(json.dumps({"training": rows[:9] + rows[10:11], "test": rows[11:]}))
    weighted, balanced = trained(class_weights="balanced", label_smoothing=0.1)
    assert weighted.class_weights == (1.5, 1.0, 1.0), "six without pain, four with"
    assert weighted.label_smoothing == 0.1
    assert trained(class_weights=[1.5, 1.0, 1.0], label_smoothing=0.1)[1] == balanced
    assert len({balanced, trained(label_smoothing=0.1)[1], trained()[1]}) == 3


@pytest.mark.parametrize(
    ("method", "target"),
    [
        pytest.param(
            name,
            target,
            marks=()
            if (name in QUICK if target == "class" else (name, target) in QUICK_TARGETS)
            else pytest.mark.nightly,
        )
        for name, plan in sorted(PLANS.items())
        for target in TARGETS
        if not {"tabular", target} & set(plan.not_for)
    ],
)
def test_every_stage_of_every_method_takes_rows(
    make_setting: Callable[..., WorkerSetting], signals: Path, method: str, target: str
) -> None:
    keys, label = TARGETS[target]
    rows = [
        {"image": f"row {age}", "label": label(age), "row": {"age": age, "sex": "male" if age % 3 else None}}
        for age in range(30, 46)
    ]
    path = signals / "datalist.json"
    path.write_text(json.dumps({"training": rows[:10], "test": rows[10:]}))
    columns = [TableColumn("age", "number", (20.0, 90.0)), TableColumn("sex", "category", levels=("female", "male"))]
    plan, chosen = PLANS[method], {"name": method}
    if plan.public:
        chosen["public_sha256"] = digest_images(inspect_datalist(path, columns=columns, with_labels=False).training)
    network = {"name": "mlp", "width": 4, "projection": 6}
    shared = None if plan.shared == "maybe" else network
    if plan.artifact == "messenger":
        shared = {"name": "messenger_tabular", "width": 4}
    trainer = Trainer(
        make_setting(
            method=chosen,
            task={"kind": "tabular", "target": target, "column": COLUMNS, **keys},
            data={"input_size": [], **({"public": "datalist.json"} if plan.public else {})},
            model={"name": "mlp", "parameters": {"width": 4, "projection": 6}},
            shared_model=shared,
            roster=("alpha", "beta", "gamma"),
        )
    )
    trainer.perform(commands.Initialise(1, 1))
    event = trainer.perform(commands.Rehearse(1, 2, (SiteName("beta"), SiteName("gamma"))))
    assert isinstance(event, events.Rehearsed)
    expected = {"visitor"} | plan.stages_of(plan.last_round) if plan.pattern == "circulate" else set(plan.stages)
    assert set(event.step_s) == expected
