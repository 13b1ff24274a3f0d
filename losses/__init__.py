"""Losses: pure functions of tensors, each with source, shapes, gradient flow and example."""

from losses.distill import distillation_kl, distillation_l1, distillation_mse
from losses.labels import label_loss
from losses.mutual import consensus, feeding_loss, forward_kl, transfer_loss
from losses.segmentation import dice_ce_loss, dice_loss
from losses.similarity import (
    batch_similarity_loss,
    position_similarity_loss,
    region_similarity_loss,
    similarity_distillation_loss,
    similarity_terms,
)
from losses.survival import survival_curves, survival_loss

__all__ = [
    "batch_similarity_loss",
    "consensus",
    "dice_ce_loss",
    "dice_loss",
    "distillation_kl",
    "distillation_l1",
    "distillation_mse",
    "feeding_loss",
    "forward_kl",
    "label_loss",
    "position_similarity_loss",
    "region_similarity_loss",
    "similarity_distillation_loss",
    "similarity_terms",
    "survival_curves",
    "survival_loss",
    "transfer_loss",
]
