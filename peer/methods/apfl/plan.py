"""APFL: a site predicts with a mixture of a personal model and the averaged one, whose share it learns."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter
from peer.methods.averaging.plan import FEDAVG
from peer.methods.parameters import DICE_CE

APFL = replace(
    FEDAVG,
    implementation="peer.methods.apfl.stages:APFL",
    artifact="proxy",
    state="the global model: parameters and buffers",
    never_leaves=("model", "head"),
    parameters={
        "alpha": Parameter(0.5, "share of the personal model in the mixture at first", 0.0, 1.0),
        "adaptive": Parameter(True, "whether the share is learned"),
        **DICE_CE,
    },
    source="APFL, arXiv 2003.13461, without its server",
    travels=("global",),
    learning={"train": (Learning(("global",)), Learning(("dam", "share"), reads=("global",)))},
    personal=("dam", "share"),
)
