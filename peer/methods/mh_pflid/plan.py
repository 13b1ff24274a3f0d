"""MH-pFLID: messengers go to all sites and are averaged; the local model never leaves."""

from __future__ import annotations

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import DICE, WEIGHT_DECAY

MH_PFLID = Plan(
    implementation="peer.methods.mh_pflid.stages:MH_PFLID",
    pattern="all_to_all",
    artifact="messenger",
    state="the messenger: parameters and buffers",
    published="distill",
    phases=("train:inject", "train:distill", "exchange", "aggregate"),
    stages={
        "inject": Work("epoch", 4, 1e-4, WEIGHT_DECAY),
        "distill": Work("epoch", 1, 1e-5, WEIGHT_DECAY),
    },
    never_leaves=("model", "head"),
    parameters={
        "injection": Parameter(
            0.9, "injection's weight of the local model's loss; the messenger's has the rest", 0.0, 1.0
        ),
        "distillation": Parameter(
            0.9, "weight of the messenger's supervised loss in distillation; the divergence has the rest", 0.0, 1.0
        ),
        "receiver": Parameter("attention", "addition is the ablation", choices=("attention", "addition")),
        "transmitter": Parameter("attention", "addition is the ablation", choices=("attention", "addition")),
        "tokens": Parameter(
            "channel",
            "tokens of the attention: channels, as the authors' code has it, or spatial: positions",
            choices=("channel", "spatial"),
        ),
        "tie": Parameter(False, "one set of weights for receiver and transmitter, as the authors' code has it"),
        "average": Parameter(
            "both", "part of the messenger that is sent and averaged", choices=("both", "body", "head")
        ),
        "temperature": Parameter(
            1.0, "outputs are divided by it in the supervised losses; the authors run 4 and 2", 0.1
        ),
        **DICE,
    },
    shared="beside",
    shared_default={task: f"messenger_{task}" for task in ("classification", "segmentation", "time_series", "tabular")},
    source="MH-pFLID, ICML 2024",
    travels=("messenger",),
    learning={
        "inject": (Learning(("dam", "receiver"), reads=("messenger",)),),
        "distill": (Learning(("messenger", "transmitter"), reads=("dam",)),),
    },
)
