"""Losses: pure functions of tensors, each with its source, its shapes, its gradient flow and a running example."""

from losses.similarity import (
    batch_similarity_loss,
    position_similarity_loss,
    region_similarity_loss,
    similarity_distillation_loss,
    similarity_terms,
)

__all__ = [
    "batch_similarity_loss",
    "position_similarity_loss",
    "region_similarity_loss",
    "similarity_distillation_loss",
    "similarity_terms",
]
