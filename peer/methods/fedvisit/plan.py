"""FedVisit: every model visits other sites in each round, trains there beside theirs, and returns home."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import DICE_CE

EARLIER = {
    "method.visits": 2,
    "method.merge_weight": 0.5,
    "stages.train.learning_rate": 1e-3,
    "stages.train.decay": 1.0,
}

FEDVISIT = Plan(
    implementation="peer.methods.fedvisit.stages:FEDVISIT",
    pattern="visit",
    visits="visits",
    artifact="model",
    state="the whole local model, and each visiting model as this site trained it: parameters and buffers",
    published="commit",
    phases=("exchange", "train", "returns", "aggregate"),
    stages={"train": Work("step", 20, 6e-3)},
    never_leaves=(),
    parameters={
        "visits": Parameter(
            1, "sites that train a copy of each model in a round, which share a site's steps; at most all others", 1
        ),
        "distillation": Parameter(
            "logits",
            "what local and visiting model learn from each other",
            choices=("logits", "similarity", "both", "none"),
        ),
        "kd": Parameter(1.0, "weight of learning the other model's predictions", 0.0),
        "temperature": Parameter(1.0, "divides the logits of both models in that", 0.01, 100.0),
        "gamma": Parameter(1.0, "weight of the similarity distillation", 0.0),
        "header": Parameter(
            "open",
            "what of the visiting model's header trains: all; all but its bias, whose change tells the host's classes; "
            "nothing",
            choices=("open", "fixed_bias", "frozen"),
        ),
        "merge_weight": Parameter(
            1.0, "weight of a returned copy in the average; the model that stayed has 1", 0.01, 100.0
        ),
        **DICE_CE,
    },
    final_rates={"train": 0.1},
    earlier_defaults=EARLIER,
    source="ours; nearest is DFML, arXiv 2402.01863",
    travels=("dam", "visitor"),
    learning={"train": (Learning(("dam", "visitor")),)},
    couples={"distillation": ("similarity", "both")},
)

FEDVISIT_TWIN = replace(
    FEDVISIT,
    implementation="peer.methods.fedvisit.stages:FEDVISIT_TWIN",
    artifact="proxy",
    state="the whole twin, and each visiting twin as this site trained it: parameters and buffers",
    never_leaves=("model", "head"),
    stages={"train": Work("step", 20, 1e-3)},
    parameters={
        "visits": replace(FEDVISIT.parameters["visits"], default=2),
        "kd": Parameter(1.0, "weight of twin and visiting twin learning each other's predictions", 0.0),
        "personal_kd": Parameter(1.0, "weight of the local model learning the predictions of each of both", 0.0),
        "merge_weight": replace(FEDVISIT.parameters["merge_weight"], default=0.5),
        **{name: FEDVISIT.parameters[name] for name in ("temperature", "header", "segmentation_loss")},
    },
    final_rates={},
    earlier_defaults={},
    source="ours; FedVisit beside a personal model",
    travels=("twin", "visitor"),
    learning={"train": (Learning(("twin", "visitor")), Learning(("dam",), reads=("twin", "visitor")))},
    personal=("dam",),
    couples={},
)
