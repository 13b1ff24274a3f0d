"""FedSKD: every site receives one other site's model a round, and both learn from each other's similarities."""

from __future__ import annotations

from peer.core.plan import Parameter, Plan, Work
from peer.methods.parameters import DICE_CE

FEDSKD = Plan(
    implementation="peer.methods.fedskd.stages:FEDSKD",
    pattern="permutation",
    circulating_share="activation",
    artifact="model",
    state="the whole local model: parameters and buffers",
    published="commit",
    phases=("exchange", "train"),
    stages={"train": Work("step", 20, 1e-4)},
    steps_per_site={"train": 5},  # 20 are the paper's four sites of FedASD
    never_leaves=(),
    parameters={
        "gamma": Parameter(
            1.0, "weight of the similarity distillation; the paper uses 1 (FedASD) and 100 (FedSkin)", 0.0
        ),
        "terms": Parameter(
            ("batch", "position", "region"),
            "similarity terms that are summed; region needs masks at the site and is left out without them",
            choices=("batch", "position", "region"),
        ),
        "taps": Parameter((1, 2, 3, 4), "stages that are compared, 1 = shallowest", choices=tuple(range(1, 17))),
        "activation": Parameter(
            0.0, "share of the rounds that only circulate models before distillation starts (rho)", 0.0, 1.0
        ),
        "position_form": Parameter("auto", "form of the position similarity", choices=("auto", "direct", "linear")),
        "accumulate": Parameter("float32", "precision of the similarity sums", choices=("float32", "float64")),
        **DICE_CE,
    },
    takes_older=True,
    source="FedSKD, arXiv 2503.18981",
    unnoised="its similarity loss compares the samples of several people",
)
