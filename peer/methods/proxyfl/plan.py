"""ProxyFL: every site receives one other site's proxy a round and averages it with its own."""

from __future__ import annotations

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import CE, WEIGHT_DECAY

PROXYFL = Plan(
    implementation="peer.methods.proxyfl.stages:PROXYFL",
    pattern="permutation",
    artifact="proxy",
    state="the proxy: parameters and buffers",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("epoch", 1, 1e-3, WEIGHT_DECAY)},
    never_leaves=("model", "head"),
    parameters={"alpha": Parameter(0.5, "weight of learning from the other network", 0.0, 1.0), **CE},
    shared="beside",
    not_for=("super_resolution", "number"),
    source="ProxyFL, Nature Communications 2023",
    travels=("proxy",),
    learning={"train": (Learning(("dam", "proxy")),)},
)
