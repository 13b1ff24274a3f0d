"""What noise and masks of the federation guarantee to a person and to a site, from local configuration alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

from peer.core.privacy import Noise, auc_max, mu_of, percent_up, power_of_ten
from peer.core.ring import WEIGHT_MAX, Ring
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.view.preflight.finding import Finding

SLACK = 1e-9
"""The share of a round by which rounding may make a budget too small."""


def check_guarantees(federation: FederationConfig, site: SiteConfig) -> Iterator[Finding]:
    """Report what the noise guarantees to each person, and that no secure sum can leave its ring."""
    if federation.noise is not None:
        yield _check_noise(federation, federation.noise, site.privacy.epsilon_max)
    if federation.aggregate.secure:
        yield _check_ring(federation)


def _check_noise(federation: FederationConfig, noise: Noise, epsilon_max: float | None) -> Finding:
    """Report sigma, steps and the bound on attacks; a warning if this site stops before the last round."""
    steps = f"{noise.steps} steps" if noise.steps > 1 else "one step"
    text = (
        f"sigma {noise.sigma:.3g} times the clip of {noise.clip:.3g}, in {steps}: ε {noise.epsilon:g} "
        f"(δ {power_of_ten(noise.delta)}) for each person; no attack on a person beyond AUC "
        f"{percent_up(auc_max(noise.mu)):.2f}"
    )
    if noise.sharers > 1:
        text += (
            f". Sites share it: this holds against {noise.colluders} of the others together, and ε "
            f"{noise.epsilon_alone:.3g} if all others conspire"
        )
    if epsilon_max is None or epsilon_max >= noise.epsilon:
        return Finding("noise", "ok", text)
    exchanging = federation.rounds - 1 if federation.plan.last_round else federation.rounds
    share = (mu_of(epsilon_max, noise.delta) / noise.mu) ** 2  # the square of mu grows with the rounds
    stops = math.floor(share * exchanging + SLACK) + 1
    return Finding(
        "noise", "warning",
        f"{text}. This site stops sending in round {stops} at the latest, by its epsilon_max = {epsilon_max:g}",
        "raise [privacy] epsilon_max in site.toml if this site's policy allows it; it goes on listening",
    )  # fmt: skip


def _check_ring(federation: FederationConfig) -> Finding:
    """Report the ring of the federation's sums, and how many sites a sum needs."""
    sites, table = len(federation.site), federation.aggregate
    whole = federation.plan.artifact == "sums"
    weighted = federation.weighting == "samples" and not whole
    ring = Ring.of(members=sites, clip=table.clip, weighted=weighted, whole=whole)
    weight = f" × weight {WEIGHT_MAX}" if weighted else ""
    value, largest = f"2^{ring.fraction_bits}", f"2^{ring.bits - 1}"
    holds = (
        f"whole numbers up to {ring.whole_max:.3g}: {sites} of them stay below {largest}"
        if whole
        else f"{ring.fraction_bits} of them for the fraction: {sites} sites{weight} × {value} < {largest}"
    )
    least = table.contributors_min(sites)
    return Finding("secure sums", "ok", f"words of {ring.bits} bits, {holds}; a sum needs {least} of {sites} sites")
