"""FedCross without a server: models travel and train on the labels of each host; nothing is averaged.

Slot j is site j's own model. In every round each site trains the slot that the order names. After
the last round every slot returns to its owner. Homogeneous federations name a ``[shared_model]``,
with which all slots start alike; without one every slot keeps the architecture of its owner.

Source: FedCross (Xu et al. 2022), as in FedSKD's tables: FedCross and FedCross-het.
Differs: the optimiser does not travel with the model: its moments are twice as large as the model.
The round's order draws the slots; the paper rotates them.
"""

from __future__ import annotations

from peer.methods.local.stages import train
from peer.methods.method import Method

FEDCROSS = Method(stages={"train": train})
