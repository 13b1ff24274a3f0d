"""MH-pFLID between real trainers: a part of the messenger is averaged, and the messenger learns."""

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from fakes.training import tensor_names

SITES = ("alpha", "beta", "gamma")


def test_the_head_of_the_messenger_is_averaged_alone_where_the_federation_says_so(sites: Any) -> None:
    part = sites("mh_pflid", parameters={"average": "head"})
    part.round(1)
    heads, bodies = set(), set()
    for site in SITES:
        state = part.state_of(site, "messenger")
        heads.add(state["classifier.2.weight"].numpy().tobytes())
        bodies.add(state["body.0.weight"].numpy().tobytes())
    assert (len(heads), len(bodies)) == (1, 3)
    artifact = part.artifact["alpha"]
    assert all(name.startswith("classifier.") for name in tensor_names(part.settings["alpha"], artifact))


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
