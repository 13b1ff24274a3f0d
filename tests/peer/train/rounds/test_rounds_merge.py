"""The merge of a model with its copies that other sites trained: the average, its bounds, and what is refused."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.roster import SiteName
from peer.train.aggregation import cap_change

pytestmark = pytest.mark.e2e

SITES = ("alpha", "beta", "gamma")


def returns(together: Any) -> dict[str, Source]:
    """A round up to the returns; those of alpha's model, by host."""
    for site in SITES:
        together.receive(site, 1)
    together.train_all("train")
    together.come_home(1)
    return dict(together.sources_of["alpha"])


def merge(together: Any, *sources: Source) -> Any:
    sent = together.sent["alpha"]
    return together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], sources, sent=sent), "alpha")


def state(together: Any, artifact: Artifact) -> dict[str, Tensor]:
    return safetensors.torch.load_file(together.path_of(artifact, "alpha"))


def forge(together: Any, source: Source, change: Callable[[str, Tensor], Tensor]) -> Source:
    """The source with other values in its file."""
    return together.forge(source, lambda state: state.update({name: change(name, state[name]) for name in state}))


@pytest.fixture
def home(sites: Any) -> Any:
    """Three sites whose models have come home once, and the two copies of alpha's."""

    def make(**options: Any) -> tuple[Any, Source, Source]:
        together = sites("fedvisit", **options)
        beta, gamma = returns(together).values()
        return together, beta, gamma

    return make


def test_the_merge_is_the_weighted_average_of_the_own_model_and_the_returns(home: Any) -> None:
    together, beta, gamma = home(parameters={"merge_weight": 0.25})
    for host in SITES:
        given = together.returned[host]
        assert [(artifact.kind, artifact.owner) for artifact in given] == [
            ("return", site) for site in SITES if site != host
        ]
        for artifact in given:
            assert (artifact.spec, artifact.steps) == (together.artifact[artifact.owner].spec, 2)
            assert artifact.training_samples is None
            assert artifact.sha256 != together.artifact[artifact.owner].sha256
    own, moments = together.state_of("alpha", "dam"), together.folder("alpha") / "dam.adam.safetensors"
    before = safetensors.torch.load_file(moments)
    event = merge(together, beta, gamma)
    assert event.contributors == SITES
    assert (event.artifact.kind, event.artifact.owner) == ("model", "alpha")
    merged, after = together.state_of("alpha", "dam"), safetensors.torch.load_file(moments)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items()), "Adam goes on"
    copies = [state(together, source.artifact) for source in (beta, gamma)]
    for name, value in own.items():
        if value.is_floating_point():
            total = value.double() + 0.25 * (copies[0][name].double() + copies[1][name].double())
            assert torch.equal(merged[name], (total / 1.5).to(value.dtype)), name
    assert all(torch.equal(value, merged[name]) for name, value in state(together, event.artifact).items())
    (together.folder("alpha") / "record.json").unlink()
    together.restart()
    together.state["alpha"] = "round-000001/train"
    assert merge(together, beta, gamma) == event, "a restarted worker merges to the same bits"
    together.state["alpha"] = "round-000001/train"
    assert merge(together).contributors == ("alpha",)
    assert all(torch.equal(value, together.state_of("alpha", "dam")[name]) for name, value in own.items())


def test_capped_a_return_that_moved_farther_than_the_model_that_stayed_counts_with_its_direction(home: Any) -> None:
    together, beta, _ = home(aggregate={"rule": "capped"}, parameters={"merge_weight": 0.5})
    left, own = state(together, together.sent["alpha"].artifact), together.state_of("alpha", "dam")
    trained = [name for name, value in own.items() if value.is_floating_point() and "running" not in name]
    boosted = forge(together, beta, lambda name, value: left[name].lerp(value, 4.0) if name in trained else value)
    merge(together, boosted)
    far = state(together, boosted.artifact)
    copy = cap_change(left, own, far)
    merged = together.state_of("alpha", "dam")
    assert copy is not far
    for name in trained:
        expected = ((own[name].double() + 0.5 * copy[name].double()) / 1.5).to(own[name].dtype)
        assert torch.equal(merged[name], expected), name


def test_a_return_that_is_none_is_refused_and_the_others_are_merged(home: Any) -> None:
    together, beta, gamma = home()
    dam = together.trainers["alpha"].site_networks.dam

    def rejected(source: Source) -> str:
        event = merge(together, source, gamma)
        assert isinstance(event, events.ArtifactRejected), event
        assert (event.origin, event.sha256) == ("beta", source.artifact.sha256)
        return event.reason

    scaled = forge(together, beta, lambda name, value: value * 10 if value.is_floating_point() else value)
    rejected(scaled)
    leapt = forge(together, beta, lambda name, value: value + 3 * name.startswith(f"{dam.head_name}."))
    assert "away from the model that left" in rejected(leapt)
    rejected(forge(together, beta, lambda name, value: value * float("nan") if value.ndim > 1 else value))
    other = together.returned["alpha"][0]  # beta's model, which alpha has hosted
    foreign = dataclasses.replace(beta, artifact=dataclasses.replace(other, owner=SiteName("alpha")))
    assert rejected(foreign) == "it is not of this site's [model]"
    assert merge(together, gamma).contributors == ("alpha", "gamma")


def test_the_twin_is_averaged_and_the_personal_model_is_not(sites: Any) -> None:
    together = sites("fedvisit_twin")
    sources = returns(together)
    before = {name: together.state_of("alpha", name) for name in ("dam", "twin")}
    event = merge(together, *sources.values())
    assert (event.artifact.kind, event.artifact.owner, event.contributors) == ("proxy", "alpha", SITES)
    copies = [state(together, source.artifact) for source in sources.values()]
    merged, personal = (together.state_of("alpha", name) for name in ("twin", "dam"))
    for name, value in before["twin"].items():
        assert torch.equal(personal[name], before["dam"][name]), name
        assert torch.equal(state(together, event.artifact)[name], merged[name]), name
        if value.is_floating_point():
            total = value.double() + 0.5 * (copies[0][name].double() + copies[1][name].double())
            assert torch.equal(merged[name], (total / 2).to(value.dtype)), name
    assert not any(torch.equal(value, merged[name]) for name, value in personal.items() if value.ndim > 1)


def test_in_dfml_the_returns_replace_the_model_that_stayed(sites: Any) -> None:
    together = sites("dfml")
    beta, gamma = returns(together).values()
    own = together.state_of("alpha", "dam")
    merge(together, beta, gamma)
    merged, copies = together.state_of("alpha", "dam"), [state(together, each.artifact) for each in (beta, gamma)]
    for name, value in own.items():
        if value.is_floating_point():
            expected = ((copies[0][name].double() + copies[1][name].double()) / 2).to(value.dtype)
            assert torch.equal(merged[name], expected), name
    together.state["alpha"] = "round-000001/train"
    assert merge(together).contributors == ("alpha",), "without a return, the model that stayed goes on"
    assert all(torch.equal(value, together.state_of("alpha", "dam")[name]) for name, value in own.items())
