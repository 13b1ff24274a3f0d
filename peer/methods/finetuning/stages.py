"""Fine-tuning at home (+FT): in the last round, every site trains on its own labels and exchanges nothing.

FedCross' models return to their owners before it. The papers name these baselines FedAvg+FT,
FedProx+FT and FedCross+FT.

Source: the papers' tables have these rows, and say that a few local epochs follow the last round.
Differs: the fine-tuning is the last of the federation's rounds, so that equal rounds and steps are
equal work; it counts steps, and begins with a fresh Adam.
"""

from __future__ import annotations

from dataclasses import replace

from peer.methods.averaging import stages as averaging
from peer.methods.fedcross.stages import FEDCROSS
from peer.methods.local.stages import train
from peer.methods.method import Method


def fine_tuned(method: Method) -> Method:
    """Add to the method the stage that trains the local model on its labels."""
    return replace(method, stages={**method.stages, "finetune": train})


FEDAVG_FT = fine_tuned(averaging.FEDAVG)
FEDPROX_FT = fine_tuned(averaging.FEDPROX)
FEDCROSS_FT = fine_tuned(FEDCROSS)
