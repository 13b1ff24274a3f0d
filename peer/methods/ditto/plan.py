"""Ditto: a global model is averaged as in FedAvg; a personal one stays near it and never leaves."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter
from peer.methods.averaging.plan import FEDAVG
from peer.methods.parameters import DICE_CE

DITTO = replace(
    FEDAVG,
    implementation="peer.methods.ditto.stages:DITTO",
    artifact="proxy",
    state="the global model: parameters and buffers",
    never_leaves=("model", "head"),
    parameters={"lambda": Parameter(1.0, "pull of the personal model towards the global one", 0.0), **DICE_CE},
    source="Ditto, ICML 2021, without its server",
    travels=("global",),
    learning={"train": (Learning(("global",)), Learning(("dam",), reads=("global",)))},
    personal=("dam",),
)
