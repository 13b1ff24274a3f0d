r"""The pooled head: the last layer of all sites' samples together, from one exchange of sums.

.. math:: z = (e(x), 1) / B, \quad G_k = \sum z z^\top, \quad V_k = \sum z y^\top, \quad
          W = \Big(\sum_k G_k + \lambda I\Big)^{-1} \sum_k V_k

with :math:`e` the body of ``[shared_model]``, which never trains: of ``linear`` it is a table's row itself, of another
network the features of its pretrained or initial weights, which all sites have alike. Each site sends
:math:`G_k, V_k` in whole numbers, so that :math:`W` is that of all samples together, however sites divide them. It
becomes the local model's head. A personal site takes :math:`(G + \kappa G_k + \lambda I)^{-1} (V + \kappa V_k)`.

Source: ours; the sums of ridge regression are sufficient statistics.
Differs: targets are centred by the agreed 1 / classes, not by their mean. The constant is penalised like a feature.
:math:`\kappa` has the least squared error on the site's validation samples. Class weights and label smoothing have no
effect. Samples are not augmented, and each runs through the body alone, so that a batch does not change its bits. A
later round computes the same sums again.

In a private federation, the sums are of people, each with the mean of the own samples. z has length 1, and y, in units
of its largest length, 1 at most, so that one person changes :math:`(G_k, V_k)` by :math:`\sqrt2` at most. Each site
adds Gaussian noise once, and :math:`\lambda` becomes as large as the noise asks for. A personal site's own sums have
none, and stay.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import models
from models import Network, Output
from peer.methods.method import (
    DAM,
    Batch,
    BuildContext,
    Forward,
    Method,
    Samples,
    Stage,
    StageContext,
    Term,
    one_step_stage,
)
from peer.methods.pooled_head.ridge import (
    SumTable,
    default_bound,
    encode_targets,
    find_impossible,
    scale_features,
    solve_ridge,
    target_norm,
)

SUMS, OWN = "sums", "own_sums"
"""The table that is sent, and after the aggregate that of all sites; and this site's own."""
PENALTY = 3.0
"""With noise, the penalty over the norm of the noise's matrix: below 1, the sum may not even be invertible."""
LABEL_LOGITS = 4.0
"""A label's logit near one half is so many times its probability's distance from it; of C classes, it is C times."""


def sums(context: StageContext) -> Stage:
    """Compute the sums over all training samples, or with noise over all people; nothing is trained."""
    own, table = context.networks[OWN].network, context.networks[SUMS].network
    terms: dict[str, Term] = {}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        if not terms:  # a second step would find the same
            own.clear()
            if context.noise is None:
                for z, y in _regression(context, context.samples()):
                    own.add(z, y)
            else:
                for person in context.people():
                    z, y = (torch.cat(parts) for parts in zip(*_regression(context, person), strict=True))
                    own.add_person(z, y / _target_norm(context))
            table.load_state_dict(own.state_dict())
            if context.noise is not None:
                table.add_noise(context.noise)
            terms["samples" if context.noise is None else "people"] = Term(own.count.cpu().double(), 0.0)
        return terms

    return one_step_stage({DAM: context.dam, OWN: context.networks[OWN], SUMS: context.networks[SUMS]}, (), losses)


def solve(context: StageContext) -> Stage:
    """Compute the head from the sums of all sites, and put it into the local model."""
    own, total = context.networks[OWN].network, context.networks[SUMS].network
    terms: dict[str, Term] = {}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        if not terms:
            kappa, weights = _choose_head(context, own, total)
            _load_head(context, weights)
            if context.noise is None:
                terms["samples_of_all"] = Term(total.count.cpu().double(), 0.0)
            terms["kappa"] = Term(torch.tensor(float(kappa), dtype=torch.float64), 0.0)
        return terms

    return one_step_stage({DAM: context.dam, OWN: context.networks[OWN], SUMS: context.networks[SUMS]}, (), losses)


def _choose_head(context: StageContext, own: SumTable, total: SumTable) -> tuple[int, Tensor]:
    """Return the kappa with the least squared error on validation samples, 0 without any, and its weights."""
    ridge, (gram, moments), (own_gram, own_moments) = _ridge(context, total), total.sums(), own.sums()
    if context.noise is not None:
        moments, own_moments = (each * _target_norm(context) for each in (moments, own_moments))
    held_out = list(_regression(context, context.validation_samples())) if context.parameters["personal"] else []
    if not held_out:
        return 0, solve_ridge(gram, moments, ridge)
    z, y = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    heads = {
        kappa: solve_ridge(gram + kappa * own_gram, moments + kappa * own_moments, ridge)
        for kappa in sorted(map(int, context.parameters["kappa"]))
    }
    best = min(heads, key=lambda kappa: float((z @ heads[kappa] - y).square().mean()))
    return best, heads[best]


def _ridge(context: StageContext, total: SumTable) -> float:
    """Return the penalty: with noise, a multiple of the norm that the noise of all sites is likely to have."""
    ridge = float(context.parameters["ridge"])
    if context.noise is None:
        return ridge
    deviation = context.noise.multiplier * context.noise.bound / math.sqrt(2) * math.sqrt(int(total.count))
    return max(ridge, PENALTY * 2 * deviation * math.sqrt(len(total.moments)))


def _target_norm(context: StageContext) -> float:
    return target_norm(context.task, context.dam.spec["classes"])


def _regression(context: StageContext, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scaled features ``(b, features)`` and the targets ``(b, classes)`` of samples, float64, on the CPU."""
    dam, bound = context.dam.eval(), _bound(context)
    device, classes = next(dam.parameters()).device, dam.spec["classes"]
    for images, targets in samples:
        with torch.no_grad():
            features = dam(images.to(device)).penultimate.cpu()
        yield scale_features(features, bound), encode_targets(context.task, targets, classes)


def _load_head(context: StageContext, weights: Tensor) -> None:
    """Make the local model's head predict what these weights ``(features, classes)`` do, as logits or numbers."""
    factor = {"number": 1.0, "labels": LABEL_LOGITS}.get(context.task, float(weights.shape[1]))
    if context.task != "number":
        factor *= float(context.parameters["sharpness"])
    head, scaled = context.dam.head, (weights * factor / _bound(context)).T
    with torch.no_grad():
        head.get_parameter("weight").copy_(scaled[:, :-1])
        head.get_parameter("bias").copy_(scaled[:, -1])


def _bound(context: StageContext) -> float:
    """Return B; with noise, a vector shorter than 1 would have more of it than it needs."""
    default = default_bound(len(context.networks[SUMS].network.moments)) if context.noise is None else 1.0
    return float(context.parameters["bound"]) or default


def build_table(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty table of sums, as a network that has a spec with the digest of the local model's body."""
    dam: Network = networks[DAM]
    if not isinstance(dam.head, nn.Linear) or dam.head.bias is None:
        raise ValueError(f"pooled_head computes a linear head with a bias, which {dam.spec['name']} does not have")
    spec = {
        "name": "peer.methods.pooled_head.ridge:SumTable",
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": context.classes,
        "hyper": {
            "features": dam.head.in_features + 1,
            "encoder": digest_body(dam),
            **({"noised": True} if context.noised else {}),
        },
        "head": "zeros",
    }
    return models.build(spec)


def digest_body(network: Network) -> str:
    """Compute the hex SHA-256 of a network without its head: of its spec, and of the names and bytes of its tensors."""
    digest = hashlib.sha256(json.dumps(network.spec, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        if not name.startswith(f"{network.head_name}."):
            values = tensor.detach().cpu().contiguous().flatten()
            digest.update(name.encode() + values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand a feature vector before the head."""
    if own.penultimate.ndim == 2:
        return None
    return f"the model's head takes features of shape {tuple(own.penultimate.shape[1:])}; pooled_head takes one vector"


POOLED_HEAD = Method(
    stages={SUMS: sums, "solve": solve},
    local_networks={OWN: build_table, SUMS: build_table},
    artifact_network=SUMS,
    check_local=check_local,
    check_state=find_impossible,
)
