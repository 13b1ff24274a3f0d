"""FedMD and KT-pFL: sites with any networks exchange predictions of a public data set, and learn from them."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.parameters import CE

PUBLIC = {
    "public_sha256": Parameter("", "digest of the public set of images, which [data] public of each site.toml holds"),
    "public_batch": Parameter(0, "public images of a step; 0: as many as it has samples", 0, 65536),
}
FEDMD = Plan(
    implementation="peer.methods.public_distillation.stages:FEDMD",
    pattern="all_to_all",
    artifact="prediction",
    state="the local model's logits for each image of the public set",
    published="predict",
    phases=("train:digest", "train", "train:predict", "exchange", "aggregate"),
    stages={"digest": Work("step", 5, 1e-3), "train": Work("step", 20, 1e-3), "predict": Work("step", 1, 1e-3)},
    never_leaves=("model", "head"),
    parameters={**PUBLIC, **CE},
    not_for=("segmentation", "super_resolution"),
    public=True,
    takes_older=True,
    source="FedMD, arXiv 1910.03581, without its server",
    travels=("predictions",),
    learning={
        "digest": (Learning(("dam",), reads=("predictions",)),),
        "train": (Learning(("dam",)),),
        "predict": (Learning((), reads=("dam",), computes=("predictions",)),),
    },
    couples={"public_batch": (0,)},
)
KT_PFL = replace(
    FEDMD,
    implementation="peer.methods.public_distillation.stages:KT_PFL",
    phases=("train", "train:predict", "exchange", "train:digest"),
    parameters={
        **PUBLIC,
        "rho": Parameter(0.7, "pull of the coefficients towards equal ones", 0.0),
        "coefficient_rate": Parameter(0.05, "learning rate of the one step that the coefficients take a round", 0.0),
        "sharpness": Parameter(5.0, "factor of the coefficients in the softmax that renormalises them", 0.0),
        **CE,
    },
    not_for=(*FEDMD.not_for, "number"),
    learning={
        **FEDMD.learning,
        "digest": (
            Learning(("dam",), reads=("predictions", "coefficients"), computes=("predictions", "coefficients")),
        ),
    },
    fixed_sites=True,
    source="KT-pFL, NeurIPS 2021, without its server",
)
