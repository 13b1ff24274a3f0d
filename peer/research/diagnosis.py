"""Looks inside a finished run: similarity matrices, weights of experts, the basis of a messenger's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from models.moe import Mixture
from peer.core.roster import SiteName
from peer.methods.method import MESSENGER, MIXTURE
from peer.research.simulation import Member
from peer.training.data import DataSplit
from peer.training.images import INTERPOLATION

SAMPLES = 16
"""Test samples that are compared."""
SIDES = 64
"""A matrix has at most so many rows: more could not be seen."""

Arrays = dict[str, NDArray[Any]]


def diagnose(into: Arrays, name: SiteName, members: Mapping[SiteName, Member], split: DataSplit) -> None:
    """Add what the site's method lets one see: ``similarity/``, ``experts/`` and ``basis/`` of that site.

    Args:
        into: takes the arrays.
        name: of the site, whose trainer holds its last state.
        members: all sites of the run.
        split: the site's test data.
    """
    member = members[name]
    if not len(split):
        return
    images, _ = split.read(range(min(SAMPLES, len(split))))
    if member.trainer.settings.method == "fedskd":
        _compare(into, name, member, members, images)
    networks = member.trainer.site_networks.networks
    if isinstance(networks.get(MIXTURE), Mixture):
        _weigh(into, name, member, images)
    if MESSENGER in networks:
        basis = _basis(networks[MESSENGER])
        if basis is not None:
            into[f"basis/{name}"] = np.float32(basis) * np.ones((), np.float32)


def _compare(into: Arrays, name: SiteName, member: Member, members: Mapping[SiteName, Member], images: Tensor) -> None:
    """Similarities of samples, positions and regions in the deepest tap, of the model and of its last visitor."""
    sources = [body["sources"] for kind, _, body in member.rows if kind == "committed" and body["sources"]]
    others = [source["site"] for sources in reversed(sources) for source in sources if source["site"] != name]
    if not others:
        return
    visitor = members[SiteName(others[0])]
    visitor.hold()
    masks = member.trainer.data.masks
    taps = {"dam": _deepest(member, images), "ktm": _deepest(visitor, images)}
    grid = tuple(min(sides) for sides in zip(*(tap.shape[2:] for tap in taps.values()), strict=True))
    for role, tap in taps.items():
        for kind, rows in _rows(_resized(tap, grid), masks).items():
            into[f"similarity/{name}/{kind}/{role}"] = _similarity(rows).numpy().astype(np.float32)


def _deepest(member: Member, images: Tensor) -> Tensor:
    with torch.inference_mode():
        deepest: Tensor = member.trainer.site_networks.dam(images.to(member.trainer.device)).taps[-1]
    return deepest.float().cpu()


def _resized(tap: Tensor, grid: Sequence[int]) -> Tensor:
    """The tap on the smaller grid of the two, as FedSKD compares positions."""
    if tuple(tap.shape[2:]) == tuple(grid):
        return tap
    return F.interpolate(tap, size=tuple(grid), mode=INTERPOLATION[len(grid)], align_corners=False)


def _rows(tap: Tensor, masks: Tensor | None) -> dict[str, Tensor]:
    """The matrices whose rows are compared (FedSKD, eqs. 4 to 12)."""
    batch, channels = tap.shape[:2]
    positions = tap.flatten(2).permute(2, 0, 1).reshape(-1, batch * channels)
    found = {"batch": tap.reshape(batch, -1), "position": positions[:SIDES]}
    if masks is not None:
        shares = F.interpolate(masks[None].float(), size=tap.shape[2:], mode="area")[0].flatten(1)
        kept = shares[shares.sum(1) > 0][:SIDES]
        found["region"] = (kept / kept.sum(1, keepdim=True)) @ positions
    return found


def _similarity(rows: Tensor) -> Tensor:
    """Each row of the Gram matrix at length 1: how alike every other row looks to it."""
    return F.normalize(rows @ rows.T, dim=1)


def _weigh(into: Arrays, name: SiteName, member: Member, images: Tensor) -> None:
    """The mean weight of every expert over the images, as the mixture has them while it predicts."""
    mixing: Any = member.trainer.site_networks.networks[MIXTURE].mixing
    seen: dict[str, Any] = {}

    def look(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        feature, predictions = arguments
        seen["names"], seen["weights"] = list(predictions), mixing.weights(feature, predictions)

    hook = mixing.register_forward_pre_hook(look)
    try:
        member.trainer.predict(images)
    finally:
        hook.remove()
    into[f"experts/{name}"] = (
        seen["weights"].flatten(1).unflatten(1, (len(seen["names"]), -1)).mean((0, 2)).float().cpu().numpy()
    )
    into[f"experts/{name}/names"] = np.array(seen["names"])


def _basis(messenger: nn.Module) -> float | None:
    """How far the rows of the messenger head's first weights are from orthogonal: the Frobenius norm of B B^T - I."""
    weights = [p for p in messenger.head.parameters() if p.ndim == 2]  # type: ignore[union-attr]
    if not weights:
        return None
    basis = F.normalize(weights[0].detach().float().cpu(), dim=1)
    return float(torch.linalg.norm(basis @ basis.T - torch.eye(len(basis))))
