"""Every site for itself: the lower bound that each paper compares with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from peer.methods.method import DAM, Method, Scene, Stage
from peer.methods.supervised import supervised_stage


def train(scene: Scene) -> Stage:
    """The local model on the site's own labels."""
    return supervised_stage(DAM, scene.dam, task=scene.task)


def predict(networks: Mapping[str, nn.Module], images: Tensor) -> Tensor:
    """The local model's prediction."""
    prediction: Tensor = networks[DAM](images).prediction
    return prediction


LOCAL = Method(stages={"train": train}, predict=predict)
