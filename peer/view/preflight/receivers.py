"""Predict from local configuration whether peers will accept this site's artifact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.spec import HYPER, MODULE_CLASS, MONAI_PREFIX, installed_model, remote_spec_problem
from peer.core.roster import SiteName
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.view.preflight.finding import Finding


def check_receivers(federation: FederationConfig, site: SiteConfig, own: SiteName) -> Iterator[Finding]:
    """Find the sites that refuse this site's network unless their operators add something to site.toml.

    Nothing where the method sends another network than the local one, or none. A method that lets
    the local network leave for evaluation sends it for training, too.
    """
    plan, others = federation.plan, ", ".join(federation.roster.others(own))
    sends_whole = plan.artifact == "model" or plan.pattern == "visit"  # a visiting twin is of [model], too
    if not others or not (sends_whole or plan.artifact == "head"):
        return
    # A site takes a network that is its own without permission.
    one_network = federation.shared_model is not None and plan.shared != "beside"
    if not one_network:
        yield from _check_network(federation, site, others, whole=sends_whole)
    if sends_whole and (site.model.adapters or site.model.freeze):
        yield _check_weights(site, others, one_network=one_network)


def _check_network(federation: FederationConfig, site: SiteConfig, others: str, *, whole: bool) -> Iterator[Finding]:
    """Check whether other sites build a network of this name."""
    name, remedy = site.model.name, "take one of `mhfl-peer models`"
    if MODULE_CLASS.fullmatch(name) is not None:
        if not whole:
            text = f"of {name}, {others} get the head, and need no class if it is one linear or 1x1 layer"
            yield Finding("network", "ok", text)
            return
        yield Finding(
            "network", "warning", f"{others} refuse {name} unless their site.toml lists it in allow_models",
            f'have them install its package and add allow_models = ["{name}"], or {remedy}',
        )  # fmt: skip
    elif name.startswith(MONAI_PREFIX):
        if whole and (problem := _monai_problem(federation, site)) is not None:
            remedy = f"{remedy}, or wrap it in a class of a package that all sites allow"
            yield Finding("network", "failure", f"every other site refuses [model] {name}: {problem}", remedy)
    elif name not in HYPER:
        package = " or ".join(sorted(installed_model(name)))
        yield Finding(
            "network", "warning", f"{others} refuse {name} unless they have {package} too",
            f"have them get {package} from its authors and install that file, or {remedy}",
        )  # fmt: skip


def _check_weights(site: SiteConfig, others: str, *, one_network: bool) -> Finding:
    """Return what receivers need of a network of which a part does not travel."""
    model = site.model
    if one_network:
        return Finding(
            "weights", "warning",
            f"{others} refuse this site's network unless their [model] has the same weights, and the same freeze or "
            "adapters",
            f"give them {model.weights} and these lines of [model]",
        )  # fmt: skip
    return Finding(
        "weights", "warning", f"{others} refuse this site's network unless they have {model.weights} too",
        f'give them the file; their site.toml needs [base_weights] {model.weights_sha256} = "FILE", unless their '
        "own [model] weights is that file",
    )  # fmt: skip


def _monai_problem(federation: FederationConfig, site: SiteConfig) -> str | None:
    """Return why no site takes this network of MONAI from another one, or none."""
    model, task = site.model, federation.task
    spec: dict[str, Any] = {"name": model.name, "hyper": dict(model.parameters), "head": model.head or "head"}
    sizes = {"spatial_dims": task.spatial_dims, "in_channels": task.in_channels, "classes": task.classes}
    return remote_spec_problem({**spec, **sizes, "features": list(model.features)})
