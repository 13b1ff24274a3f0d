"""Every method on the rows of a table: each of its stages takes a step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.core import commands, events
from peer.core.columns import TableColumn
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.train.data.datalist import inspect_datalist
from peer.train.public_set import digest_images
from peer.train.trainer import Trainer

pytestmark = pytest.mark.e2e
COLUMNS = [
    {"name": "age", "kind": "number", "range": [20.0, 90.0]},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
]


QUICK = frozenset({"dflmoe", "fedmd", "fedproto", "fedskd", "fedvisit", "mh_pflid"})
"""One method of each kind of artifact; the others are tried at night."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly)
        for name, plan in sorted(PLANS.items())
        if "tabular" not in plan.not_for
    ],
)
def test_every_stage_of_every_method_takes_rows(
    make_setting: Callable[..., WorkerSetting], signals: Path, method: str
) -> None:
    rows = [
        {"image": f"row {age}", "label": age % 2, "row": {"age": age, "sex": "male" if age % 3 else None}}
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
            task={"kind": "tabular", "spatial_dims": 1, "in_channels": 5, "classes": 2, "column": COLUMNS},
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
