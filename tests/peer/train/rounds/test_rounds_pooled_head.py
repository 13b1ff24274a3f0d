"""Rounds of the pooled head on rows: every site has the ridge regression of all, and refuses impossible sums."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.core import commands, events
from peer.core.worker_protocol import WorkerSetting
from peer.methods.pooled_head.ridge import UNIT, SumTable, encode_targets, scale_features, solve_ridge
from peer.methods.pooled_head.stages import SUMS
from peer.train.artifact import write_artifact

SITES = ("alpha", "beta", "gamma")
PEOPLE = {"alpha": 12, "beta": 20, "gamma": 31}
COLUMNS = [
    {"name": "age", "kind": "number", "range": [20.0, 90.0]},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
]
LINEAR = {"name": "linear"}
MLP = {"name": "mlp", "width": 4}


@pytest.fixture
def tables(sites: Any, make_setting: Callable[..., WorkerSetting], signals: Path) -> Callable[..., Any]:
    """Makes three sites with people of their own, each site with the network of ``[shared_model]``."""
    draw = np.random.default_rng(0)
    for site, count in PEOPLE.items():
        entries = [
            {
                "image": f"{site} {index}",
                "label": int(age + draw.normal(0, 15) > 55),
                "row": {"age": age, "sex": "male" if index % 3 else "female"},
            }
            for index, age in enumerate(draw.integers(21, 89, count + 8).tolist())
        ]
        (signals / f"{site}.json").write_text(json.dumps({"training": entries[:count], "test": entries[count:]}))

    def make(network: dict[str, Any] = LINEAR, **method: Any) -> Any:
        together = sites("fedavg")
        together.forget()
        hyper = {key: value for key, value in network.items() if key != "name"}
        settings = {
            site: make_setting(
                site=site,
                method={"name": "pooled_head", **method},
                task={"kind": "tabular", "classes": 2, "column": COLUMNS},
                data={"input_size": [], "datalist": f"{site}.json"},
                model={"name": network["name"], "parameters": hyper},
                shared_model=network,
                steps=1,
            )
            for site in SITES
        }
        together.begin(together.trainers["alpha"].settings.plan, settings)
        together.plan = together.trainers["alpha"].settings.plan
        return together

    return make


@pytest.mark.parametrize("network", [LINEAR, MLP], ids=["columns", "features"])
def test_every_site_has_the_regression_of_all_samples_together(tables: Any, equal: Any, network: Any) -> None:
    together = tables(network)
    together.round(1)
    heads = {site: together.state_of(site, "dam") for site in SITES}
    assert equal(heads["alpha"], heads["beta"])
    assert equal(heads["alpha"], heads["gamma"])
    features = (5 if network is LINEAR else 4) + 1
    whole = SumTable(classes=2, features=features, encoder="")
    for trainer in together.trainers.values():
        for x, y in trainer.data.training.batches(1):
            with torch.no_grad():
                feature = trainer.site_networks.dam.cpu().eval()(x).penultimate
            whole.add(scale_features(feature, features**0.5), encode_targets("tabular", y, 2))
    total = together.state_of("beta", SUMS)
    assert {name.removeprefix("network."): value.tolist() for name, value in total.items()} == {
        name: value.tolist() for name, value in whole.state_dict().items()
    }
    assert int(total["network.count"]) == sum(PEOPLE.values())
    expected = 2 * solve_ridge(*whole.sums(), 1.0).T / features**0.5
    assert torch.equal(heads["beta"]["fc.weight"], expected[:, :-1].float())
    together.round(2)
    assert all(equal(together.state_of(site, "dam"), heads["alpha"]) for site in SITES)
    averaged = [event for event in together.events if isinstance(event, events.Aggregated)]
    assert {(event.sha256, event.contributors) for event in averaged} == {(averaged[0].sha256, SITES)}


def test_own_sums_count_more_at_a_personal_site(tables: Any, equal: Any) -> None:
    shared = tables()
    shared.round(1)
    pooled = shared.state_of("alpha", "dam")
    shared.forget()
    personal = tables(personal=True, kappa=[10])
    for trainer in personal.trainers.values():
        trainer.data = dataclasses.replace(trainer.data, validation=trainer.data.test)
    personal.round(1)
    assert not equal(personal.state_of("alpha", "dam"), pooled)
    assert equal(personal.state_of("alpha", SUMS), shared_sums := personal.state_of("beta", SUMS))
    assert int(shared_sums["network.count"]) == sum(PEOPLE.values())


def refused(together: Any, source: Any) -> str:
    """Why alpha refuses a source when it adds up the sums of round 1."""
    event = together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], (source,)), "alpha")
    assert isinstance(event, events.ArtifactRejected), event
    assert event.origin == "beta"
    return str(event.reason)


def test_a_table_that_no_site_can_have_is_refused_with_its_reason(tables: Any) -> None:
    together = tables()
    together.train_all("sums")
    together.receive("alpha", 1)
    source = together.sources_of["alpha"]["beta"]
    name = "network.{}".format
    for change, reason in (
        (lambda state: state[name("gram")][0].fill_(-5), "sum of squares of feature 0 is negative"),
        (lambda state: state[name("count")].fill_(1 << 40), "it claims 1099511627776 samples"),
        (lambda state: state[name("moments")][0, 0].fill_(30 * UNIT), "a product in its moments is larger"),
        (lambda state: state.update({name("gram"): state[name("gram")].double() * torch.nan}), "is F64 [21] in the"),
        (lambda state: state.update({name("gram"): state[name("gram")][1:]}), "'network.gram' is I64 [20] in the"),
    ):
        assert reason in refused(together, together.forge(source, change)), reason
    artifact, path = source.artifact, together.path_of(source.artifact, "alpha")
    state = together.artifact_state("beta")
    spec = {**artifact.spec, "hyper": {**artifact.spec["hyper"], "encoder": "0" * 64}}
    other = write_artifact(
        path.parent, state, spec=spec, kind="sums", owner=artifact.owner, steps=1, training_samples=None
    )
    reason = refused(together, dataclasses.replace(source, artifact=other))
    assert "its sums are over the features of another body; give [shared_model] and the [model] of all sites" in reason
    assert "differ" not in reason
