"""FedBABU: sites train and average the body under the head that all began with; the last round trains both at home.

Source: Oh et al. 2022 (FedBABU), algorithm 1.
Differs: there is no server: every site averages, by default with equal weights. The fine-tuning is the
last of the federation's rounds. Frozen parts are in evaluation mode.
"""

from __future__ import annotations

from peer.methods.fedrep.stages import body, body_tensors
from peer.methods.local.stages import train
from peer.methods.method import Method

FEDBABU = Method(stages={"train": body, "finetune": train}, artifact_tensors=body_tensors)
