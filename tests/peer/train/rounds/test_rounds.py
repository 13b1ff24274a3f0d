"""Whole rounds of every method: artifacts, frozen parts, equal bits at all sites."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from peer.core import events
from peer.core.metrics import METRICS_OF
from peer.methods.registry import PLANS

SITES = ("alpha", "beta", "gamma")


FINE_TUNED_LIKE_FEDAVG = ("fedprox_ft", "scaffold_ft")
"""Each is another method here, followed by the stage of fedavg_ft."""


def marks_of(method: str) -> tuple[pytest.MarkDecorator, ...]:
    if method == "feddal":
        return ()
    return (pytest.mark.e2e, pytest.mark.nightly) if method in FINE_TUNED_LIKE_FEDAVG else (pytest.mark.e2e,)


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=marks_of(name)) for name in sorted(PLANS.keys() - {"fedcross", "fedcross_ft", "lc_fed"})],
)
def test_three_families_train_predict_and_go_on_from_disk_with_the_same_bits(sites, equal, method: str) -> None:
    together = sites(method)
    together.round(1)
    together.round(2)
    names = {*METRICS_OF["classification"], "auc_undefined", "loss", "samples"} if PLANS[method].predicts else set()
    assert all(set(together.evaluated(site)) == names for site in SITES)
    finished = {site: together.state_of(site, "dam") for site in SITES}
    together.restart()
    metrics = {site: together.evaluated(site) for site in SITES}
    for setting in together.settings.values():
        shutil.rmtree(Path(setting.home) / "checkpoints")
        (Path(setting.home) / "checkpoints").mkdir()
    again = sites(method)
    for number in (1, 2):
        again.restart()
        again.round(number)
    assert all(equal(again.state_of(site, "dam"), finished[site]) for site in SITES)
    assert {site: again.evaluated(site) for site in SITES} == metrics


def test_what_is_averaged_starts_alike_and_the_rest_does_not(sites: Any, equal: Any) -> None:
    for method, network in (
        ("mh_pflid", "messenger"),
        ("feddal", "proxy"),
        ("proxyfl", "proxy"),
        ("fedavg", "dam"),
        ("dflmoe_averaged", "mixture"),
    ):
        first, *others = (sites(method).state_of(site, network) for site in SITES)
        assert all(equal(first, other) for other in others)
    assert not equal(sites("dflmoe").state_of("alpha", "dam"), sites("fedavg").state_of("alpha", "dam"))


PLAIN_MEANS = ("fedavg", "fedprox", "fedbn", "ditto", "fedrep")


@pytest.mark.parametrize(
    "method",
    [
        "mh_pflid",
        "feddal",
        "scaffold",
        "lg_fedavg",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in PLAIN_MEANS),
    ],
)
def test_equal_contributors_give_equal_bits_and_a_missing_one_the_mean_of_the_rest(sites: Any, method: str) -> None:
    together = sites(method)
    together.round(1)
    averaged = [event for event in together.events if isinstance(event, events.Aggregated)]
    assert {event.contributors for event in averaged} == {SITES}
    assert len({event.sha256 for event in averaged}) == 1
    together.events.clear()
    together.round(2, lost=frozenset({("beta", "alpha")}))
    alpha, beta, gamma = (event for event in together.events if isinstance(event, events.Aggregated))
    assert (alpha.contributors, beta.contributors) == (("alpha", "gamma"), SITES)
    assert alpha.sha256 != beta.sha256 == gamma.sha256
    network = together.trainers["alpha"].method.artifact_network
    states = [together.artifact_state(site) for site in ("alpha", "gamma")]
    mine = together.state_of("alpha", network)
    for beside in together.trainers["alpha"].method.sent_beside:
        mine |= {f"{beside}/{name}": tensor for name, tensor in together.state_of("alpha", beside).items()}
    for name, tensor in states[0].items():
        if tensor.is_floating_point():
            expected = ((tensor.double() + states[1][name].double()) / 2).to(tensor.dtype)
        else:
            expected = torch.maximum(tensor, states[1][name])
        assert torch.equal(mine[name], expected), name


@pytest.mark.parametrize(
    ("method", "kind", "foreign"),
    [
        ("fedskd", "model", "mixture"),
        ("dflmoe", "head", "mixture"),
        ("dflmoe_averaged", "head", None),
        ("lg_fedavg", "head", None),
        ("feddal", "proxy", "dam"),
        ("proxyfl", "proxy", "dam"),
        ("fedvisit_twin", "proxy", "dam"),
        pytest.param("ditto", "proxy", "dam", marks=pytest.mark.nightly),
        ("fedproto", "prototype", "dam"),
        pytest.param("fedmd", "prediction", "dam", marks=pytest.mark.nightly),
        ("mh_pflid", "messenger", "dam"),
    ],
)
def test_only_what_the_plan_says_ever_leaves(sites: Any, method: str, kind: str, foreign: str | None) -> None:
    together = sites(method)
    together.round(1)
    together.round(2)
    for site in SITES:
        artifact = together.artifact[site]
        assert (artifact.kind, artifact.owner) == (kind, site)
        private = together.folder(site) / f"{foreign}.safetensors"
        values = safetensors.torch.load_file(private).values() if private.exists() else ()
        secret = [tensor.numpy().tobytes() for tensor in values if tensor.numel() > 16]
        if kind == "head":
            dam, head = together.state_of(site, "dam"), together.trainers[site].site_networks.dam.head_name
            body = [tensor for name, tensor in dam.items() if not name.startswith(f"{head}.")]
            secret += [tensor.numpy().tobytes() for tensor in body if tensor.numel() > 16]
        assert secret or method == "fedskd"
        for path in (Path(together.settings[site].home) / "artifacts").iterdir():
            content = path.read_bytes()
            assert not any(values in content for values in secret)
