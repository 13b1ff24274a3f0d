"""FedAvg and its relatives without a server: models or heads go to all sites, and each site averages them."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import DICE_CE

FEDAVG = Plan(
    implementation="peer.methods.averaging.stages:FEDAVG",
    pattern="all_to_all",
    artifact="model",
    state="the one model of all: parameters and buffers",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("step", 5, 1e-4)},
    never_leaves=(),
    parameters=DICE_CE,
    shared="itself",
    source="FedAvg, AISTATS 2017, without its server",
    travels=("dam",),
    learning={"train": (Learning(("dam",)),)},
)
FEDPROX = replace(
    FEDAVG,
    implementation="peer.methods.averaging.stages:FEDPROX",
    parameters={"mu": Parameter(0.01, "pull towards the mean that the round began with", 0.0), **DICE_CE},
    source="FedProx, MLSys 2020, without its server",
)
FEDBN = replace(
    FEDAVG,
    implementation="peer.methods.averaging.stages:FEDBN",
    state="the one model of all without its normalisation layers",
    stays="each site's normalisation layers stay there",
    keeps="normalisation layers",
    source="FedBN, ICLR 2021, without its server",
)
LG_FEDAVG = replace(
    FEDAVG,
    implementation="peer.methods.averaging.stages:LG_FEDAVG",
    artifact="head",
    state="the local model's head: parameters and buffers",
    never_leaves=("model",),
    shared="maybe",
    keeps="body",
    source="LG-FedAvg, arXiv 2001.01523, without its server; dFLMoE, table 9: aggregated head",
)
