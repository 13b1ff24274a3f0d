"""Every site for itself: the lower bound that each paper compares with."""

from __future__ import annotations

from peer.methods.method import DAM, Method, Stage, StageContext
from peer.methods.supervised import supervised_stage


def train(context: StageContext) -> Stage:
    """Train the local model on the site's own labels."""
    return supervised_stage(context, DAM, context.dam)


LOCAL = Method(stages={"train": train})
