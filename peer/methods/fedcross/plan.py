"""FedCross: in every round, every model goes to another site, which trains it."""

from __future__ import annotations

from peer.core.plan import Learning, Plan, Work
from peer.methods.parameters import DICE_CE

FEDCROSS = Plan(
    implementation="peer.methods.fedcross.stages:FEDCROSS",
    pattern="circulate",
    artifact="model",
    state="the model that is passed on: parameters and buffers",
    published="commit",
    phases=("exchange", "train"),
    stages={"train": Work("step", 20, 1e-4)},
    never_leaves=(),
    parameters=DICE_CE,
    source="FedCross, and FedCross-het of the FedSKD paper",
    travels=("dam",),
    learning={"train": (Learning(("dam",)),)},
)
