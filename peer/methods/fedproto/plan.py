"""FedProto: sites with any networks exchange only the mean feature of each class."""

from __future__ import annotations

from peer.core.plan import Parameter, Plan, Work
from peer.methods.parameters import CE

FEDPROTO = Plan(
    implementation="peer.methods.fedproto.stages:FEDPROTO",
    pattern="all_to_all",
    artifact="prototype",
    state="the mean feature of each class, and which classes there are; with weighting by samples, how many of each",
    published="prototypes",
    phases=("train", "train:prototypes", "exchange", "aggregate"),
    stages={"train": Work("epoch", 1, 1e-3), "prototypes": Work("epoch", 1, 1e-3)},
    never_leaves=("model", "head"),
    parameters={
        "lambda": Parameter(1.0, "weight of the distance to the prototypes", 0.0),
        "width": Parameter(64, "numbers of a prototype; wider and narrower features are averaged to so many", 1, 4096),
        "predict": Parameter(
            "model", "who predicts: the model, or the nearest prototype", choices=("model", "nearest")
        ),
        **CE,
    },
    not_for=("segmentation", "super_resolution", "labels", "number", "survival"),
    takes_older=True,
    source="FedProto, AAAI 2022, without its server",
    unnoised="its prototypes are means of features, to which no step adds noise",
)
