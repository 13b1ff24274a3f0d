"""Statistics: sites add up counts and sums of their samples in one round, before anybody trains."""

from __future__ import annotations

from peer.core.plan import Parameter, Plan, Work

STATISTICS = Plan(
    implementation="peer.methods.statistics.stages:STATISTICS",
    pattern="all_to_all",
    artifact="sums",
    state="counts of its samples by column and label, and sums of numbers and of their squares, in whole numbers; "
    "counts of few people are withheld, or have noise as all others",
    published="count",
    phases=("train:count", "exchange", "aggregate"),
    stages={"count": Work("step", 1, 1e-3)},
    never_leaves=("model", "head"),
    parameters={"bins": Parameter(10, "bins of a number's histogram, of equal width over its agreed range", 2, 100)},
    not_for=("segmentation", "super_resolution"),
    predicts=False,
    source="ours; counts and sums of sites",
    sensitivity=1.0,
    everybody=True,
)
