"""FedRep: all sites share one body, and every site has a head of its own."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Work
from peer.methods.averaging.plan import FEDAVG

FEDREP = replace(
    FEDAVG,
    implementation="peer.methods.fedrep.stages:FEDREP",
    state="the one model of all without its head",
    published="body",
    phases=("train:head", "train:body", "exchange", "aggregate"),
    stages={"head": Work("step", 10, 1e-4), "body": Work("step", 5, 1e-4)},
    never_leaves=("head",),
    stays="each site's head stays there",
    source="FedRep, ICML 2021, without its server",
    learning={"head": (Learning(("head",), reads=("dam",)),), "body": (Learning(("dam",), reads=("head",)),)},
)
