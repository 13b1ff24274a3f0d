"""The acts of an insider apply to every kind of artifact: what it sends passes all checks but those of values."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
import torch

from peer.core import events
from peer.core.artifacts import Artifact
from peer.core.kinds import KINDS
from peer.lab.experiments.experiment_tables import Act
from peer.lab.experiments.insider import Insider, add_trigger, attack_success
from peer.train.samples import DataSplit
from peer.train.tensors import unpack

METHOD_OF = {
    "model": "fedskd",
    "head": "dflmoe",
    "proxy": "feddal",
    "messenger": "mh_pflid",
    "return": "fedvisit",
    "prototype": "fedproto",
    "prediction": "fedmd",
    "sums": "pooled_head",
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
        if act == "backdoor":
            assert forged is artifact, "its worker has trained it"
            continue
        if act in ("samples", "steps"):
            claim = {"samples": "training_samples", "steps": "steps"}[act]
            assert getattr(forged, claim) != getattr(artifact, claim)
            assert dataclasses.replace(forged, **{claim: getattr(artifact, claim)}) == artifact
            continue
        same = {name: getattr(artifact, name) for name in ("sha256", "bytes")}
        assert forged.sha256 != artifact.sha256, act
        assert dataclasses.replace(forged, **same) == artifact
        state = unpack(together.path_of(forged, "alpha").read_bytes())
        assert {name: value.shape for name, value in state.items()} == {n: v.shape for n, v in honest.items()}


def test_a_backdoor_poisons_every_second_sample_and_multiplies_the_change(sites: Any) -> None:
    together = sites("fedavg")
    trainer = together.trainers["alpha"]
    honest = trainer.data.training
    Insider("alpha", "backdoor", 3.0).poison(trainer)
    (image, label), (triggered, target) = (trainer.data.training.load(index) for index in (0, 1))
    assert torch.equal(image, honest.load(0)[0])
    assert label == honest.load(0)[1]
    assert torch.equal(triggered, add_trigger(honest.load(1)[0]))
    assert target == 0
    start = together.state_of("alpha", "dam")
    together.train_all("train", number=1)
    trained, sent = together.state_of("alpha", "dam"), together.artifact_state("alpha")
    for name, value in sent.items():
        boosted = value.is_floating_point() and not name.endswith(("running_mean", "running_var"))
        expected = start[name] + 3 * (trained[name] - start[name]) if boosted else trained[name]
        torch.testing.assert_close(value, expected)
    assert any(not torch.equal(sent[name], trained[name]) for name in sent)


def test_the_success_of_an_attack_counts_the_other_classes_images_alone() -> None:
    images, labels = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    images[:, 0, 0, 0] = 1.0
    split = DataSplit([None] * 4, list(zip(images, labels, strict=True)).__getitem__, True, {})  # type: ignore[list-item]
    triggered = add_trigger(images)
    assert triggered[0, 0, 5:, 5:].tolist() == [[1.0] * 3] * 3
    assert triggered.sum() == 4 * (1 + 9), "nothing else changes"
    assert images[:, 0, 5:, 5:].sum() == 0
    alone = DataSplit([None], [(images[0], labels[0])].__getitem__, True, {})  # type: ignore[list-item]
    assert attack_success(lambda seen: seen, alone) is None
    wanted = torch.eye(4)[[0, 0, 3]]
    assert attack_success(lambda seen: wanted if torch.equal(seen, triggered[1:]) else -wanted, split) == pytest.approx(
        2 / 3
    )
