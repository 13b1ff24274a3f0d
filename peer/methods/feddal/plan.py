"""FedDAL: proxies go to all sites and are averaged; the private model never leaves."""

from __future__ import annotations

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import CE, WEIGHT_DECAY

FEDDAL = Plan(
    implementation="peer.methods.feddal.stages:FEDDAL",
    pattern="all_to_all",
    artifact="proxy",
    state="the proxy: parameters and buffers",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("epoch", 5, 1e-4, WEIGHT_DECAY)},
    never_leaves=("model", "head"),
    parameters={
        "top": Parameter(1, "classes that the proxy feeds back (v); the paper uses 2 on Fed-ISIC", 1),
        "backward": Parameter(
            "feeding", "transfer is the ablation that passes the distribution", choices=("feeding", "transfer")
        ),
        "consensus": Parameter("jaccard", "weight of the feeding; one is the ablation", choices=("jaccard", "one")),
        "alternating": Parameter(
            True, "both steps on each batch; false: all batches for the proxy, then for the private"
        ),
        "proxy_supervision": Parameter(0.0, "weight of the labels in the proxy's loss", 0.0),
        "forward_kl_updates_private": Parameter(False, "the composite loss as printed"),
        **CE,
    },
    shared="beside",
    not_for=("super_resolution", "number"),
    source="FedDAL",
    travels=("proxy",),
    learning={"train": (Learning(("proxy",), reads=("dam",)), Learning(("dam",), reads=("proxy",)))},
)
