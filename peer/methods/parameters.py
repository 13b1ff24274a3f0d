"""Parameters that several methods share: their supervised loss of segmentation."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Parameter

DICE_CE = {
    "segmentation_loss": Parameter(
        "dice_ce", "supervised loss of segmentation; other tasks have one", choices=("dice_ce", "dice", "ce")
    ),
}
"""Methods that call ``peer.methods.supervised.stage_loss`` have this parameter."""

DICE = {"segmentation_loss": replace(DICE_CE["segmentation_loss"], default="dice")}
CE = {"segmentation_loss": replace(DICE_CE["segmentation_loss"], default="ce")}

WEIGHT_DECAY = 1e-4  # of Adam, in the code of the MH-pFLID and FedDAL authors
