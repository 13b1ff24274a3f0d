"""FedPer's plan: every site sends its model without the head to all others, and averages what it receives.

The daemon reads this module, so it must not import torch.
"""

from __future__ import annotations

from peer.core.plan import Learning, Plan, Work
from peer.methods.parameters import DICE_CE

FEDPER = Plan(
    implementation="mhfl_example.stages:FEDPER",
    pattern="all_to_all",
    artifact="model",
    state="the model without its head: parameters and buffers",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("step", 5, 1e-3)},
    never_leaves=("head",),
    parameters=DICE_CE,
    shared="itself",
    stays="each site's head stays there",
    source="FedPer, arXiv 1912.00818, without its server",
    travels=("dam",),
    keeps="head",
    learning={"train": (Learning(("dam",)),)},
)
