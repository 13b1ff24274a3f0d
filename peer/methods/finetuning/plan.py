"""FedAvg, FedProx and FedCross with fine-tuning: after the last exchange, every site trains its model at home."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Plan, Work
from peer.methods.averaging.plan import FEDAVG, FEDPROX
from peer.methods.fedcross.plan import FEDCROSS


def fine_tuned(plan: Plan, implementation: str) -> Plan:
    """Add a last round of fine-tuning to the plan; all rounds before it stay unchanged."""
    return replace(
        plan,
        implementation=implementation,
        stages={**plan.stages, "finetune": Work("step", 60, 1e-4)},
        last_round=("train:finetune",),
        learning={**plan.learning, "finetune": (Learning(("dam",)),)},
        source=f"{plan.source}; then fine-tuned at home",
    )


FEDAVG_FT = fine_tuned(FEDAVG, "peer.methods.finetuning.stages:FEDAVG_FT")
FEDPROX_FT = fine_tuned(FEDPROX, "peer.methods.finetuning.stages:FEDPROX_FT")
FEDCROSS_FT = fine_tuned(FEDCROSS, "peer.methods.finetuning.stages:FEDCROSS_FT")
