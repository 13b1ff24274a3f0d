"""What a peer sends is tried on own samples in every method that does not average it with all others."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pytest
from torch import Tensor

from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.roster import Sha256, SiteName

pytestmark = pytest.mark.e2e


def from_peer(together: Any, site: str) -> Source:
    """The peer's artifact, on alpha's disk."""
    artifact = together.artifact[site]
    shutil.copy(together.path_of(artifact, site), together.path_of(artifact, "alpha"))
    return Source(SiteName(site), 1, artifact)


def scaled(together: Any, source: Source) -> Source:
    """The artifact with weights a thousand times as large, on alpha's disk."""

    def scale(state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            if value.is_floating_point() and "running" not in name:
                state[name] = value * 1000

    return together.forge(source, scale)


@pytest.mark.parametrize(
    ("method", "stage"),
    [("fedskd", "train"), ("dflmoe", "decide"), ("dflmoe_models", "decide"), ("dflmoe_averaged", "decide")],
)
def test_a_scaled_artifact_is_refused_with_its_origin_and_the_others_are_used(
    sites: Any, method: str, stage: str
) -> None:
    together = sites(method)
    together.round(1)
    first, second = (from_peer(together, site) for site in ("beta", "gamma"))
    one_to_one = together.plan.pattern == "permutation"
    others = () if one_to_one else (second,)
    event = together.train("alpha", stage, (scaled(together, first), *others), number=2)
    assert isinstance(event, events.ArtifactRejected)
    assert event.origin == first.origin
    assert "on this site's samples" in event.reason or "predictions spread" in event.reason
    assert isinstance(together.train("alpha", stage, others, number=2), events.Trained)


def test_a_scaled_proxy_is_refused_before_the_mean_of_a_pair(sites: Any) -> None:
    together = sites("proxyfl")
    together.round(1)
    source = from_peer(together, "beta")
    event = together.do(commands.Aggregate(1, 2, 1, together.state["alpha"], (scaled(together, source),)), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert event.origin == source.origin


def test_a_scaled_copy_of_the_own_model_is_not_adopted(sites: Any) -> None:
    together = sites("fedskd")
    together.round(1)
    own = together.artifact["alpha"]
    source = scaled(together, Source(SiteName("beta"), 1, own))
    event = together.do(commands.Adopt(1, 1, 1, together.state["alpha"], source), "alpha")
    assert isinstance(event, events.ArtifactRejected)


def test_a_visiting_model_is_tried_before_it_is_trained(sites: Any) -> None:
    together = sites("fedskd")
    together.round(1)
    source = from_peer(together, "beta")
    order = commands.Train(1, 2, 1, "train", together.state["alpha"], (scaled(together, source),), source.origin)
    assert isinstance(together.do(order, "alpha"), events.ArtifactRejected)
    assert isinstance(together.do(dataclasses.replace(order, sources=(source,)), "alpha"), events.Trained)


def test_a_proxy_whose_file_is_gone_is_lost_and_not_refused(sites: Any) -> None:
    together = sites("proxyfl")
    together.round(1)
    source = from_peer(together, "beta")
    gone = dataclasses.replace(source, artifact=dataclasses.replace(source.artifact, sha256=Sha256("ab" * 32)))
    event = together.do(commands.Aggregate(1, 2, 1, together.state["alpha"], (gone,)), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert (event.lost, event.reason) == (True, "its file is gone or damaged")
