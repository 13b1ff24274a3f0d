"""FedBABU: all sites share one body; the head keeps its first weights until the last round fine-tunes at home."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Work
from peer.methods.fedrep.plan import FEDREP

FEDBABU = replace(
    FEDREP,
    implementation="peer.methods.fedbabu.stages:FEDBABU",
    published="train",
    phases=("train", "exchange", "aggregate"),
    stages={"train": Work("step", 5, 1e-4), "finetune": Work("step", 60, 1e-4)},
    last_round=("train:finetune",),
    source="FedBABU, ICLR 2022, without its server",
    learning={"train": (Learning(("dam",), reads=("head",)),), "finetune": (Learning(("dam",)),)},
)
