"""FedPer: the sites train one body together, and each site its own head.

Source: Arivazhagan et al. 2019.
Differs: there is no server: every site averages the bodies that it received with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import Network
from peer.methods.method import DAM, Method, Stage, StageContext
from peer.methods.supervised import supervised_stage


def train(scene: StageContext) -> Stage:
    """Train body and head on the site's own labels."""
    return supervised_stage(scene, DAM, scene.dam)


def body(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """The names in the model's state that are sent and averaged: all but the head's."""
    return [name for name in network.state_dict() if not name.startswith(f"{network.head_name}.")]


FEDPER = Method(stages={"train": train}, artifact_tensors=body)
