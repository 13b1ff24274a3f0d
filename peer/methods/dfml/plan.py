"""DFML: models visit other sites, learn mutually with all models there, and return home."""

from __future__ import annotations

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import CE

DFML = Plan(
    implementation="peer.methods.dfml.stages:DFML",
    pattern="visit",
    visits="visits",
    artifact="model",
    state="the whole local model, and each visiting model as this site trained it: parameters and buffers",
    published="commit",
    phases=("exchange", "train", "returns", "aggregate"),
    stages={"train": Work("step", 20, 1e-3)},
    never_leaves=(),
    parameters={
        "visits": Parameter(2, "sites that train a copy of each model in a round; at most all others", 1),
        "alpha_min": Parameter(0.0, "least weight of learning from the other models", 0.0, 1.0),
        "alpha_max": Parameter(0.9, "largest weight of that, in the middle of a cycle", 0.0, 1.0),
        "cycle": Parameter(10, "rounds after which the weight is the same again", 1),
        "absent_classes": Parameter(
            "left_out",
            "whether the supervised loss has classes without samples",
            choices=("left_out", "in"),
        ),
        "merge": Parameter(
            "replace", "what a returned copy does to the model that stayed", choices=("replace", "average")
        ),
        "predict": Parameter(
            "model",
            "who predicts: the last model, or that of the last peak",
            choices=("model", "peak"),
        ),
        **CE,
    },
    not_for=("super_resolution", "number"),
    source="DFML, arXiv 2402.01863",
    travels=("dam", "visitor"),
    learning={"train": (Learning(("dam", "visitor")),)},
    couples={"absent_classes": ("left_out",)},  # one person may be the only one of a class at the site
)
