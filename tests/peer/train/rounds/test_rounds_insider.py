"""The acts of an insider apply to every kind of artifact: what it sends passes all checks but those of values."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from peer.core import events
from peer.core.messages import Artifact
from peer.core.plan import KINDS
from peer.lab.experiments.experiment import Act
from peer.lab.experiments.insider import Insider
from peer.train.tensors import unpack

METHOD_OF = {
    "model": "fedskd",
    "head": "dflmoe",
    "proxy": "feddal",
    "messenger": "mh_pflid",
    "return": "fedvisit",
    "prototype": "fedproto",
    "prediction": "fedmd",
}


def sent(together: Any, kind: str) -> Artifact:
    """An artifact of that kind that alpha sends."""
    artifacts = [event.returned[0] for event in together.events if isinstance(event, events.Trained) and event.returned]
    artifact = artifacts[0] if kind == "return" else together.artifact["alpha"]
    assert artifact is not None
    assert artifact.kind == kind
    return artifact


def test_every_kind_of_artifact_has_a_method_here() -> None:
    assert METHOD_OF.keys() == set(KINDS)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("model", "proxy") else pytest.mark.nightly) for kind in KINDS]
)
def test_an_insider_forges_any_kind_of_artifact(sites: Any, kind: str) -> None:
    together = sites(METHOD_OF[kind])
    together.round(1)
    artifact, settings = sent(together, kind), together.trainers["alpha"].settings
    honest = unpack(together.path_of(artifact, "alpha").read_bytes())
    for act in get_args(Act):
        forged = Insider("alpha", act).forge(artifact, settings, sites=3)
        if act in ("samples", "steps"):
            claim = {"samples": "training_samples", "steps": "steps"}[act]
            assert getattr(forged, claim) != getattr(artifact, claim)
            assert dataclasses.replace(forged, **{claim: getattr(artifact, claim)}) == artifact
            continue
        same = {name: getattr(artifact, name) for name in ("sha256", "bytes", "tensors")}
        assert forged.sha256 != artifact.sha256, act
        assert dataclasses.replace(forged, **same) == artifact
        state = unpack(together.path_of(forged, "alpha").read_bytes())
        assert {name: value.shape for name, value in state.items()} == {n: v.shape for n, v in honest.items()}
