"""Local training: every site trains alone, and sends nothing."""

from __future__ import annotations

from peer.core.plan import KINDS, Plan, Work
from peer.methods.parameters import DICE_CE

LOCAL = Plan(
    implementation="peer.methods.local.stages:LOCAL",
    pattern="none",
    artifact=None,
    state="",
    published=None,
    phases=("train",),
    stages={"train": Work("step", 20, 1e-4)},
    never_leaves=KINDS,
    parameters=DICE_CE,
    source="every paper's lower bound",
)
