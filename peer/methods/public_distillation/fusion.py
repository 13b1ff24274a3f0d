r"""FedDF: all send models; each site averages those of its own architecture, and distils the average on a
public set of images from the mean of all models' logits.

.. math:: \theta \leftarrow \frac{1}{|G|} \sum_{j \in G} \theta_j, \qquad
          L = \mathrm{KL}\Bigl(\mathrm{softmax}\bigl(\tfrac1N \textstyle\sum_j M_j(x)\bigr)
          \,\Big\Vert\, \mathrm{softmax}\,M(x)\Bigr)

with :math:`M_j` the models as they were sent, all of them constants, the site's own among them; G the
sites whose model has this site's spec; M the average, which the site then predicts with and trains in the next round.

Source: Lin et al. 2020 (FedDF), algorithms 1 and 3.
Differs: there is no server: every site fuses the models of its own architecture, with equal weights. A round
has a fixed number of steps with a constant learning rate; there, early stopping and a cosine end it. Public
images come in their order and are not augmented. A site that received no model keeps its own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from peer.methods.dflmoe.stages import check_received_model
from peer.methods.local.stages import train
from peer.methods.method import Forward, Method, Stage, StageContext
from peer.methods.public_distillation.stages import PUBLIC, build_public, distil_public, divergence


def fuse(context: StageContext) -> Stage:
    """Average the models of this architecture, and distil the average from the mean logits of all models."""
    dam, sent = context.dam, copy.deepcopy(context.dam)
    models: dict[str, Any] = dict(sorted({context.site: sent, **context.received}.items()))
    dam.load_state_dict(mean_state([model for model in models.values() if model.spec == dam.spec]))
    teachers = {f"teacher-{site}": model for site, model in models.items()}

    def targets(indices: Tensor, images: Tensor, forward: Forward) -> Tensor:
        return torch.stack([forward(name, images).prediction.float() for name in teachers]).mean(0)

    return distil_public(context, teachers, targets, divergence(context), learns=bool(context.received))


def mean_state(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Compute the mean of states in float64 and in the given order, so that sites agree; of counts, the largest."""
    states = [model.state_dict() for model in models]
    means = {}
    for name, first in states[0].items():
        values = torch.stack([state[name].to("cpu", torch.float64) for state in states])
        means[name] = (values.mean(0) if first.is_floating_point() else values.amax(0)).to(first.dtype)
    return means


FEDDF = Method(
    stages={"train": train, "fuse": fuse},
    local_networks={PUBLIC: build_public},
    check_received=check_received_model,
)
