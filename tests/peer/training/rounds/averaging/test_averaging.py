"""Averaging between real trainers: weights, private parts, averages of heads alone."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from peer.core import commands, events
from peer.core.commands import Source
from peer.core.roster import SiteName

pytestmark = pytest.mark.e2e

SITES = ("alpha", "beta", "gamma")


def test_samples_weigh_where_all_tell_them(sites: Any) -> None:
    together = sites("fedavg", weighting="samples", egress={"training_set_size": True})
    alpha, beta = (together.trainers[site] for site in ("alpha", "beta"))
    artifact = beta.artifact_exchange.send(
        beta.site_networks.artifact_network, owner=SiteName("beta"), steps=1, samples=10
    )
    with torch.no_grad():
        for parameter in alpha.site_networks.dam.parameters():
            parameter.add_(1.0)
    shutil.copy(together.path_of(artifact, "beta"), together.path_of(artifact, "alpha"))
    counted, uncounted = (
        Source(SiteName("beta"), 1, dataclasses.replace(artifact, training_samples=count)) for count in (30, None)
    )
    weighted = alpha.artifact_exchange.average([counted], samples=10)
    uniform = alpha.artifact_exchange.average([uncounted], samples=10)
    before = beta.site_networks.dam.state_dict()["fc.bias"]
    assert weighted.contributors == ["alpha", "beta"]
    assert torch.allclose(weighted.state["fc.bias"], before + 0.25)
    assert torch.allclose(uniform.state["fc.bias"], before + 0.5)


def test_fedbn_neither_sends_nor_averages_normalisation(sites: Any) -> None:
    together = sites("fedbn")
    together.round(1)
    artifact = together.artifact["alpha"]
    norms = {
        name for name, module in models.build(artifact.spec).named_modules() if isinstance(module, torch.nn.BatchNorm1d)
    }
    assert norms
    assert not any(tensor.name.rpartition(".")[0] in norms for tensor in artifact.tensors)
    states = [together.state_of(site, "dam") for site in SITES]
    assert torch.equal(states[0]["conv1.weight"], states[1]["conv1.weight"])
    assert not torch.equal(states[0]["bn1.running_mean"], states[1]["bn1.running_mean"])


def test_fedprox_stays_nearer_to_the_mean(sites: Any) -> None:
    gaps = []
    for mu in (0.0, 100.0):
        together = sites("fedprox", parameters={"mu": mu})
        before = together.state_of("alpha", "dam")["fc.weight"]
        together.train("alpha", "train")
        gaps.append((together.state_of("alpha", "dam")["fc.weight"] - before).norm())
        together.forget()
    assert gaps[1] < gaps[0]


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
def test_heads_of_three_families_are_averaged_and_their_bodies_are_not(sites: Any, equal: Any) -> None:
    together = sites("lg_fedavg")
    starts = [together.state_of(site, "dam") for site in SITES]
    assert all(
        torch.equal(start[f"fc.{part}"], starts[0][f"fc.{part}"]) for start in starts for part in ("weight", "bias")
    )
    assert len({tuple(start) for start in starts}) == 3
    for site in SITES:
        together.artifact[site] = together.train(site, "train").artifact
    trained = {site: together.state_of(site, "dam") for site in SITES}
    for site in SITES:
        together.receive(site, 1)
    for site in SITES:
        trainer, sources = together.trainers[site], together.sources(site)
        aggregate = trainer.artifact_exchange.average(sources, samples=1)
        assert aggregate.contributors == list(SITES)
        heads = [trained[each] for each in SITES]
        for name in ("fc.weight", "fc.bias"):
            of = [head[name].double() for head in heads]
            assert torch.equal(aggregate.state[name], ((of[0] + of[1] + of[2]) / 3).float())
        assert aggregate.state.keys() == {"fc.weight", "fc.bias"}


def test_a_body_is_the_site_s_own_after_the_mean(sites: Any) -> None:
    together = sites("lg_fedavg")
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
    for site in SITES:
        together.artifact[site] = together.train(site, "train").artifact
    together.events.clear()
    together.receive("alpha", 1)
    event = together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], together.sources("alpha")), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert (event.origin, event.reason) == ("beta", reason)
    assert all(isinstance(each, events.ArtifactRejected) for each in together.events)
