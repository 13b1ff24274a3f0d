"""Sites with any networks exchange predictions of a public data set (FedMD, pFedDF, DS-pFL, KT-pFL), or models
(FedDF), and learn from them on that set.
"""

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
PFEDDF = replace(
    FEDMD,
    implementation="peer.methods.public_distillation.stages:PFEDDF",
    not_for=(*FEDMD.not_for, "number"),
    source="pFedDF, as KT-pFL compares with it; FedDF, NeurIPS 2020, without its server",
)
DS_PFL = replace(
    PFEDDF,
    implementation="peer.methods.public_distillation.stages:DS_PFL",
    state="the local model's probabilities for each image of the public set",
    parameters={
        **PUBLIC,
        "temperature": Parameter(0.1, "sharpens the mean of probabilities: softmax(mean / temperature)", 0.01),
        **CE,
    },
    source="DS-pFL, as KT-pFL compares with it; DS-FL, arXiv 2008.06180, without its server",
)
FEDDF = replace(
    PFEDDF,
    implementation="peer.methods.public_distillation.fusion:FEDDF",
    artifact="model",
    state="the local model: parameters and buffers",
    published="train",
    phases=("train", "exchange", "train:fuse"),
    stages={"train": Work("step", 20, 1e-3), "fuse": Work("step", 5, 1e-3)},
    never_leaves=(),
    takes_older=False,
    uses_each=True,
    source="FedDF, NeurIPS 2020, without its server",
    travels=("dam",),
    learning={"train": (Learning(("dam",)),), "fuse": (Learning(("dam",)),)},
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
