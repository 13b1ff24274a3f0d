"""Whether the other sites will take what this site's network sends, as far as its own configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.spec import MODULE_CLASS, MONAI_PREFIX, remote_spec_problem
from peer.config.schema import FederationConfig, SiteConfig
from peer.core.roster import SiteName
from peer.preflight.finding import Finding


def check_receivers(federation: FederationConfig, site: SiteConfig, own: SiteName) -> Iterator[Finding]:
    """The sites that refuse this site's network unless their operators add something to site.toml.

    Nothing where the method sends another network than the local one, or none.
    """
    plan, others = federation.plan, federation.roster.others(own)
    if plan.artifact not in ("model", "head") or not others:
        return
    model, names = site.model, ", ".join(others)
    if MODULE_CLASS.fullmatch(model.name) is not None:
        if plan.artifact == "head":
            text = f"of {model.name}, {names} get the head, and need no class if it is one linear or 1x1 layer"
            yield Finding("network", "ok", text)
            return
        yield Finding(
            "network", "warning", f"{names} refuse {model.name} unless their site.toml lists it in allow_models",
            f'have them install its package and add allow_models = ["{model.name}"], or take a network of `mhfl-peer '
            "models`",
        )  # fmt: skip
    elif (problem := _monai_problem(federation, site)) is not None and plan.artifact == "model":
        remedy = "take one of `mhfl-peer models`, or wrap it in a class of a package that all sites allow"
        yield Finding("network", "failure", f"every other site refuses [model] {model.name}: {problem}", remedy)
    if plan.artifact == "model" and model.weights_sha256 is not None and (model.adapters or model.freeze):
        yield Finding(
            "weights", "warning", f"{names} refuse this site's network unless they have {model.weights} too",
            f'give them the file; their site.toml needs [base_weights] {model.weights_sha256} = "FILE", unless their '
            "own [model] weights is that file",
        )  # fmt: skip


def _monai_problem(federation: FederationConfig, site: SiteConfig) -> str | None:
    """Why no site takes this network of MONAI from another one, or none."""
    model, task = site.model, federation.task
    if not model.name.startswith(MONAI_PREFIX):
        return None
    spec: dict[str, Any] = {"name": model.name, "hyper": dict(model.parameters), "head": model.head or "head"}
    sizes = {"spatial_dims": task.spatial_dims, "in_channels": task.in_channels, "classes": task.classes}
    return remote_spec_problem({**spec, **sizes, "features": list(model.features)})
