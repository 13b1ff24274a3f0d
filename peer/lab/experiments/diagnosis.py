"""Diagnoses of a run: similarity matrices, expert weights, the basis of a messenger's head."""

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
from peer.lab.experiments.simulation import FinishedSite
from peer.methods.method import MESSENGER, MIXTURE
from peer.train.images import INTERPOLATION
from peer.train.samples import DataSplit

SAMPLES_MAX = 16
"""Number of test samples for similarities and weights."""
ROWS_MAX = 64
"""Upper bound of a similarity matrix's rows: more cannot be distinguished in a figure."""

Arrays = dict[str, NDArray[Any]]


def diagnose(arrays: Arrays, name: SiteName, sites: Mapping[SiteName, FinishedSite], split: DataSplit) -> None:
    """Add the diagnoses of the site's method: its ``similarity/``, ``experts/`` and ``basis/``."""
    site = sites[name]
    if not len(split):
        return
    images, _ = split.read(range(min(SAMPLES_MAX, len(split))))
    if site.trainer.settings.method == "fedskd":
        _add_similarities(arrays, name, site, sites, images)
    networks = site.trainer.site_networks.networks
    if isinstance(networks.get(MIXTURE), Mixture):
        _add_expert_weights(arrays, name, site, images)
    if MESSENGER in networks:
        basis_error = _basis_error(networks[MESSENGER])
        if basis_error is not None:
            arrays[f"basis/{name}"] = np.float32(basis_error) * np.ones((), np.float32)


def _add_similarities(
    arrays: Arrays, name: SiteName, site: FinishedSite, sites: Mapping[SiteName, FinishedSite], images: Tensor
) -> None:
    """Add similarities in the deepest tap, of the site's model (DAM) and its last visitor (KTM)."""
    sources = [body["sources"] for kind, _, body in site.rows if kind == "committed" and body["sources"]]
    others = [source["site"] for sources in reversed(sources) for source in sources if source["site"] != name]
    if not others:
        return
    visitor = sites[SiteName(others[0])]
    visitor.load_final_state()
    masks = site.trainer.data.masks
    taps = {"dam": _deepest_tap(site, images), "ktm": _deepest_tap(visitor, images)}
    grid = tuple(min(sides) for sides in zip(*(tap.shape[2:] for tap in taps.values()), strict=True))
    for role, tap in taps.items():
        for kind, rows in _compared_rows(_resize(tap, grid), masks).items():
            arrays[f"similarity/{name}/{kind}/{role}"] = _row_similarities(rows).numpy().astype(np.float32)


def _deepest_tap(site: FinishedSite, images: Tensor) -> Tensor:
    with torch.inference_mode():
        deepest: Tensor = site.trainer.site_networks.dam(images.to(site.trainer.device)).taps[-1]
    return deepest.float().cpu()


def _resize(tap: Tensor, grid: Sequence[int]) -> Tensor:
    """Interpolate the tap on the smaller grid of the two, as FedSKD compares positions."""
    if tuple(tap.shape[2:]) == tuple(grid):
        return tap
    return F.interpolate(tap, size=tuple(grid), mode=INTERPOLATION[len(grid)], align_corners=False)


def _compared_rows(tap: Tensor, masks: Tensor | None) -> dict[str, Tensor]:
    """Return the matrices whose rows FedSKD compares (eqs. 4 to 12); regions only with masks."""
    batch, channels = tap.shape[:2]
    positions = tap.flatten(2).permute(2, 0, 1).reshape(-1, batch * channels)
    matrices = {"batch": tap.reshape(batch, -1), "position": positions[:ROWS_MAX]}
    if masks is not None:
        shares = F.interpolate(masks[None].float(), size=tap.shape[2:], mode="area")[0].flatten(1)
        present_shares = shares[shares.sum(1) > 0][:ROWS_MAX]
        matrices["region"] = (present_shares / present_shares.sum(1, keepdim=True)) @ positions
    return matrices


def _row_similarities(rows: Tensor) -> Tensor:
    """Compute the Gram matrix of the rows, each of its rows scaled to length 1."""
    return F.normalize(rows @ rows.T, dim=1)


def _add_expert_weights(arrays: Arrays, name: SiteName, site: FinishedSite, images: Tensor) -> None:
    """Add the mean weight of every expert over the images, recorded while the mixture predicts."""
    mixing: Any = site.trainer.site_networks.networks[MIXTURE].mixing
    recorded: dict[str, Any] = {}

    def record_weights(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        feature, predictions = arguments
        recorded["names"], recorded["weights"] = list(predictions), mixing.weights(feature, predictions)

    hook = mixing.register_forward_pre_hook(record_weights)
    try:
        site.trainer.predict(images)
    finally:
        hook.remove()
    arrays[f"experts/{name}"] = (
        recorded["weights"].flatten(1).unflatten(1, (len(recorded["names"]), -1)).mean((0, 2)).float().cpu().numpy()
    )
    arrays[f"experts/{name}/names"] = np.array(recorded["names"])


def _basis_error(messenger: nn.Module) -> float | None:
    """Compute ||B B^T - I||_F of the messenger head's first weights B, rows scaled to length 1; None without any."""
    weights = [p for p in messenger.head.parameters() if p.ndim == 2]  # type: ignore[union-attr]
    if not weights:
        return None
    basis = F.normalize(weights[0].detach().float().cpu(), dim=1)
    return float(torch.linalg.norm(basis @ basis.T - torch.eye(len(basis))))
