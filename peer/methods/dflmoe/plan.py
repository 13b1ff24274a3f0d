"""dFLMoE: heads (or whole models) go to all sites, which keep them as experts and mix their predictions."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import DICE_CE, WEIGHT_DECAY

MIXTURE = {
    "mixing": Parameter("attention", "gate is the ablation without the paper's mixture", choices=("attention", "gate")),
    "attention": Parameter("per_pixel", "queries of dense tasks", choices=("per_pixel", "per_sample")),
    "detach": Parameter(False, "no gradient from the mixture into the body"),
    **DICE_CE,
}

DFLMOE = Plan(
    implementation="peer.methods.dflmoe.stages:DFLMOE",
    pattern="all_to_all",
    artifact="head",
    state="the local model's head: parameters and buffers",
    published="local",
    phases=("train:local", "exchange", "train:decide"),
    stages={
        "local": Work("epoch", 4, 1e-3, WEIGHT_DECAY),
        "decide": Work("epoch", 1, 1e-4, WEIGHT_DECAY),
    },
    never_leaves=("model",),
    parameters={
        **MIXTURE,
        "transform": Parameter(True, "false is the ablation without the transform; features must be equally wide then"),
        "alignment": Parameter(
            0.0,
            "weight in stage a of the received heads' mean loss on the own feature; above 0, heads start alike, and "
            "transform must be false",
            0.0,
        ),
    },
    keeps_last_received=True,
    uses_each=True,
    takes_older=True,
    source="dFLMoE, CVPR 2025",
    travels=("dam",),
    keeps="body",
    learning={"local": (Learning(("dam",), reads=("mixture",)),), "decide": (Learning(("mixture",), reads=("dam",)),)},
)
DFLMOE_MODELS = replace(
    DFLMOE,
    implementation="peer.methods.dflmoe.stages:DFLMOE_MODELS",
    artifact="model",
    state="the whole local model: parameters and buffers",
    never_leaves=(),
    parameters=MIXTURE,
    stays="a site predicts with a mixture of all sites' models, of which none is the whole",
    source="dFLMoE, table 8: whole models as experts",
    keeps="",
)
DFLMOE_AVERAGED = replace(
    DFLMOE,
    implementation="peer.methods.dflmoe.stages:DFLMOE_AVERAGED",
    state="the local model's head, and the transform and attention that mix: parameters and buffers",
    takes_older=False,  # sites also average the networks that mix
    source="dFLMoE, table 9: centralized MoE and FST, without a server",
    travels=("dam", "mixture"),
)
