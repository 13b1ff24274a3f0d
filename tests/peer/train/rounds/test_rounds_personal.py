"""FedSM's rounds: global model and selector are averaged, and all sites pull all personal models alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peer.core import commands, events
from peer.core.roster import SiteName
from peer.methods.fedsm.stages import soft_pull

SITES = ("alpha", "beta", "gamma")


@pytest.mark.e2e
def test_rounds_average_two_networks_and_pull_the_personal_models_that_arrived(sites: Any) -> None:
    together = sites("fedsm")
    together.round(1)
    together.events.clear()
    together.round(2, lost=frozenset({("beta", "alpha")}))
    sent = {site: together.artifact_state(site) for site in SITES}
    personal = {
        site: {name.removeprefix("personal/"): tensor for name, tensor in state.items() if name.startswith("personal/")}
        for site, state in sent.items()
    }
    for site in SITES:
        arrived = {other: state for other, state in personal.items() if (other, site) != ("beta", "alpha")}
        pulled, kept = soft_pull(arrived, 0.8), together.state_of(site, "personals")
        for name, tensor in together.state_of(site, "personal").items():
            assert torch.equal(tensor, pulled[site][name]), name
            rows = kept[f"model/{name.replace('.', '/')}"]
            assert all(torch.equal(rows[SITES.index(other)], pulled[other][name]) for other in arrived if other != site)
        contributors = sorted(arrived)
        for network in ("dam", "selector"):
            prefix = "" if network == "dam" else "selector/"
            for name, tensor in together.state_of(site, network).items():
                if tensor.is_floating_point():
                    mean = torch.stack([sent[other][prefix + name].double() for other in contributors]).mean(0)
                    assert torch.equal(tensor, mean.to(tensor.dtype)), name
    averaged = [event for event in together.events if isinstance(event, events.Aggregated)]
    assert averaged[0].sha256 != averaged[1].sha256 == averaged[2].sha256
    alike = together.state_of("beta", "personals")["present"].tolist()
    assert (alike, together.state_of("alpha", "personals")["present"].tolist()) == ([1, 0, 1], [0, 1, 1])


def test_a_personal_model_beyond_the_bounds_is_not_pulled(sites: Any) -> None:
    together = sites("fedsm")
    together.train_all("train")
    together.receive("alpha", 1)
    beta, gamma = together.sources("alpha")
    own = {name.removeprefix("personal/"): each for name, each in together.artifact_state("alpha").items()}
    theirs = {name.removeprefix("personal/"): each for name, each in together.artifact_state("gamma").items()}

    def enlarge(state: dict[str, torch.Tensor]) -> None:
        for name in state:
            if name.startswith("personal/") and state[name].is_floating_point():
                state[name] *= 1e6

    forged = together.forge(beta, enlarge)
    event = together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], (forged, gamma)), "alpha")
    assert isinstance(event, events.Aggregated)
    assert event.contributors == SITES, "its other networks are averaged"
    assert "times its size away from the median" in event.cut[SiteName("beta")]
    assert together.state_of("alpha", "personals")["present"].tolist() == [0, 0, 1]
    pulled = soft_pull({"alpha": own, "gamma": theirs}, 0.8)["alpha"]
    assert all(torch.equal(each, pulled[name]) for name, each in together.state_of("alpha", "personal").items())
