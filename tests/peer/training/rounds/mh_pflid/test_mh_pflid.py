"""MH-pFLID between real trainers: what each stage trains, switches, a messenger that learns."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

SITES = ("alpha", "beta", "gamma")


def test_each_stage_of_mh_pflid_moves_what_it_trains_and_nothing_else(sites: Any, equal: Any) -> None:
    together = sites("mh_pflid")
    names = ("dam", "messenger", "receiver", "transmitter")
    snapshots = [{name: together.state_of("alpha", name) for name in names}]
    for stage in ("inject", "distill"):
        together.train("alpha", stage)
        snapshots.append({name: together.state_of("alpha", name) for name in names})
    moved = [
        {name for name in names if not equal(before[name], after[name])}
        for before, after in itertools.pairwise(snapshots)
    ]
    assert moved == [{"dam", "receiver"}, {"messenger", "transmitter"}]


def test_the_switches_of_mh_pflid(sites: Any, equal: Any) -> None:
    tied = sites("mh_pflid", parameters={"tie": True})
    tied.round(1)
    assert equal(tied.state_of("alpha", "receiver"), tied.state_of("alpha", "transmitter"))
    added = sites("mh_pflid", parameters={"receiver": "addition", "transmitter": "addition"})
    assert set(added.state_of("alpha", "receiver")) == {"project.weight", "project.bias"}
    part = sites("mh_pflid", parameters={"average": "head"})
    part.round(1)
    heads, bodies = set(), set()
    for site in SITES:
        state = part.state_of(site, "messenger")
        heads.add(state["classifier.2.weight"].numpy().tobytes())
        bodies.add(state["body.0.weight"].numpy().tobytes())
    assert (len(heads), len(bodies)) == (1, 3)
    artifact = part.artifact["alpha"]
    assert all(tensor.name.startswith("classifier.") for tensor in artifact.tensors)


@pytest.mark.nightly
def test_the_messenger_with_what_is_transmitted_has_learnt_the_task(readers: Any, accuracy: Any) -> None:
    together = readers("mh_pflid", {"name": "messenger_classification", "width": 32}, learning_rate=3e-3, rounds=5)
    for site, trainer in together.trainers.items():
        trainer.site_networks.load(together.state[site])
        networks = {name: network.eval() for name, network in trainer.site_networks.networks.items()}

        def speak(images: Tensor, networks: Mapping[str, Any] = networks) -> Tensor:
            messenger = networks["messenger"]
            adapted = networks["transmitter"](messenger(images).penultimate, networks["dam"](images).bottleneck)
            prediction: Tensor = messenger.head(adapted)
            return prediction

        assert accuracy(trainer, speak) > 0.2  # chance is 0.1
        assert together.evaluated(site)["accuracy"] > 0.5
