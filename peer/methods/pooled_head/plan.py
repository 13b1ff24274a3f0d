"""The pooled head: sites add up sums over their samples, from which each computes the ridge regression of all."""

from __future__ import annotations

import math

from peer.core.plan import Parameter, Plan, Work

SENSITIVITY = math.sqrt(2)
"""The mean of a person's products z z^T and z y^T has norm 1 at most each, as the lengths of z and y are."""
POOLED_HEAD = Plan(
    implementation="peer.methods.pooled_head.stages:POOLED_HEAD",
    pattern="all_to_all",
    artifact="sums",
    state="sums over the training samples, in whole numbers: of the products of a frozen body's features with each "
    "other and with the targets; and the number of samples",
    published="sums",
    phases=("train:sums", "exchange", "aggregate", "train:solve"),
    stages={"sums": Work("step", 1, 1e-3), "solve": Work("step", 1, 1e-3)},
    never_leaves=("model", "head"),
    parameters={
        "ridge": Parameter(1.0, "lambda: the penalty on the head's squared weights", 1e-6, 1e9),
        "bound": Parameter(
            0.0,
            "B: features with a constant 1 are divided by it, and shortened to norm 1; 0: the root of their number, "
            "or 1 with noise",
            0.0,
            1e6,
        ),
        "sharpness": Parameter(1.0, "factor of the logits; 1: right to first order for equal probabilities", 1e-3, 1e3),
        "personal": Parameter(False, "whether a site counts its own sums kappa times more in its own head"),
        "kappa": Parameter(
            (0, 1, 3, 10, 30),
            "values of which a personal site takes the best on its validation samples; without these 0",
            choices=(0, 1, 2, 3, 5, 10, 20, 30, 50, 100),
        ),
    },
    takes_older=True,
    shared="itself",
    not_for=("segmentation", "super_resolution", "survival"),
    why_not={"survival": "sums of squares know no persons who were seen for a time alone"},
    source="ours; ridge regression (Hoerl and Kennard, 1970) on sums of sites",
    sensitivity=SENSITIVITY,
)
