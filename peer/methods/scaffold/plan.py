"""SCAFFOLD: FedAvg whose gradients are corrected by the difference between all sites' and the own mean gradient."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning
from peer.methods.averaging.plan import FEDAVG
from peer.methods.finetuning.plan import fine_tuned

SCAFFOLD = replace(
    FEDAVG,
    implementation="peer.methods.scaffold.stages:SCAFFOLD",
    state="the one model of all: parameters and buffers; and this site's control variate, the round's mean gradient",
    source="SCAFFOLD, ICML 2020, without its server",
    travels=("dam", "control"),
    learning={"train": (Learning(("dam",), computes=("control", "own_control")),)},
)
SCAFFOLD_FT = fine_tuned(SCAFFOLD, "peer.methods.scaffold.stages:SCAFFOLD_FT")
