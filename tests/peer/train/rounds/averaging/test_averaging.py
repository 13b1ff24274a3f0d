"""Averaging between real trainers: means that were finished before, averages of heads alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.core import commands, events

pytestmark = pytest.mark.e2e

SITES = ("alpha", "beta", "gamma")


def test_a_finished_mean_is_answered_at_once(sites: Any) -> None:
    together = sites("fedavg")
    together.round(1)
    first = next(event for event in together.events if isinstance(event, events.Aggregated))
    record = json.loads((together.folder("alpha") / "record.json").read_text())
    assert record["contributors"] == list(SITES)
    assert first.sha256 == record["sha256"]
    for path in (Path(together.settings["alpha"].home) / "artifacts").iterdir():
        path.unlink()
    together.restart()
    assert together.do(together.ordered["alpha"], "alpha") == first


# --- LG-FedAvg --------------------------------------------------------------------------------------------------------
def test_a_body_is_the_site_s_own_after_the_mean(sites: Any) -> None:
    together = sites("lg_fedavg")
    starts = [together.state_of(site, "dam") for site in SITES]
    for name in ("fc.weight", "fc.bias"):
        assert all(torch.equal(start[name], starts[0][name]) for start in starts)
    event = together.train("alpha", "train")
    body = {name: value for name, value in together.state_of("alpha", "dam").items() if not name.startswith("fc.")}
    together.forget()
    together = sites("lg_fedavg")
    together.round(1)
    assert isinstance(event, events.Trained)
    state = together.state_of("alpha", "dam")
    assert all(torch.equal(value, state[name]) for name, value in body.items())
    heads = {site: together.state_of(site, "dam")["fc.weight"] for site in SITES}
    assert all(torch.equal(head, heads["alpha"]) for head in heads.values())


@pytest.mark.parametrize(
    ("beta", "reason"),
    [
        (
            {"name": "tcn", "parameters": {"width": 6, "projection": 7}},
            "tensor 'fc.weight' is F32 [2, 7] in its head, F32 [2, 10] in this site's head",
        ),
        (
            {
                "name": "monai.networks.nets.DenseNet",
                "parameters": {"init_features": 4, "growth_rate": 2, "block_config": [1]},
                "features": ["features.denseblock1"],
                "head": "class_layers.out",
            },
            "tensor 'fc.bias' is only in this site's head",
        ),
    ],
)
def test_a_head_that_has_no_mean_with_this_one_is_refused(sites: Any, beta: dict[str, Any], reason: str) -> None:
    alike = {"name": "resnet10", "parameters": {"width": 4, "projection": 10}}
    together = sites("lg_fedavg", models={"alpha": alike, "beta": beta, "gamma": alike})
    together.train_all("train")
    together.events.clear()
    together.receive("alpha", 1)
    event = together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], together.sources("alpha")), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert (event.origin, event.reason) == ("beta", reason)
    assert all(isinstance(each, events.ArtifactRejected) for each in together.events)
