"""FedSM: descent, pull and selection equal the formulas in float64; all three networks are sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, gradient, logits, softmax
from peer.core.columns import TableColumn
from peer.methods.fedsm.stages import FEDSM, PERSONAL, PERSONALS, SELECTOR, build_selector, keep, soft_pull
from peer.methods.method import DAM, Batch, BuildContext
from peer.methods.registry import PLANS

RATE = 0.3
SITES = ("alpha", "beta", "gamma")
OWN = Batch(BATCH.images, torch.full_like(BATCH.targets, SITES.index("beta")))


@pytest.fixture
def site(make_site: Any) -> Any:
    """A site of three whose selector is a network of two layers, too."""
    built = make_site("fedsm", TwoLayers(1), BATCH.images, shared=lambda: TwoLayers(2), **{"lambda": 0.7, "gamma": 0.4})
    networks = {**built.context.networks, SELECTOR: TwoLayers(3)}
    built.context = dataclasses.replace(built.context, networks=networks)
    return built


def states(*seeds: int) -> dict[str, dict[str, torch.Tensor]]:
    return {SITES[seed % 3]: TwoLayers(seed).state_dict() for seed in seeds}


def test_both_models_descend_on_the_labels_and_the_selector_on_the_site(site: Any) -> None:
    learns = {DAM: BATCH, PERSONAL: BATCH, SELECTOR: OWN}
    weights = {name: arrays(site.networks[name]) for name in learns}
    terms = {DAM: "ce_dam", PERSONAL: "ce_personal", SELECTOR: "origin"}
    values = descend(site.method.stages["train"](site.context), steps=3, rate=RATE)
    for step in range(3):
        expected = {terms[name]: cross_entropy(weights[name], batch) for name, batch in learns.items()}
        assert values[step] == pytest.approx(expected, rel=SINGLE)
        for name, batch in learns.items():
            slope = gradient(weights[name], batch)
            weights[name] = {key: value - RATE * slope[key] for key, value in weights[name].items()}
    for name in learns:
        for key, value in arrays(site.networks[name]).items():
            np.testing.assert_allclose(value, weights[name][key], rtol=1e-5, atol=1e-6)


def test_a_pull_keeps_a_share_and_takes_the_mean_of_the_others() -> None:
    before = states(3, 4, 5)
    pulled = soft_pull(before, 0.7)
    for name in before["alpha"]:
        own = {site: state[name].numpy() for site, state in before.items()}
        for site, state in pulled.items():
            others = np.mean([own[other] for other in SITES if other != site], axis=0)
            np.testing.assert_allclose(state[name].numpy(), 0.7 * own[site] + 0.3 * others, rtol=1e-12)


def test_a_pull_leaves_counts_and_a_single_site_alone() -> None:
    norms = {site: nn.BatchNorm1d(2).state_dict() for site in SITES}
    norms["beta"]["num_batches_tracked"] = torch.tensor(5)
    assert [int(state["num_batches_tracked"]) for state in soft_pull(norms, 0.5).values()] == [0, 5, 0]
    lacking = {site: {"norm": torch.ones(1)} for site in SITES}
    lacking["alpha"]["frozen"] = torch.ones(1)
    assert [set(state) for state in soft_pull(lacking, 0.5).values()] == [{"norm"}] * len(SITES), "frozen: not sent"
    alone = {"beta": TwoLayers(1).state_dict()}
    assert torch.equal(soft_pull(alone, 0.5)["beta"]["fc.weight"], alone["beta"]["fc.weight"])


def test_each_received_model_is_pulled_and_a_missing_one_stays(site: Any) -> None:
    own, parameters = site.networks[PERSONAL].state_dict(), site.context.parameters
    before = {**states(3, 5), "beta": {name: tensor.clone() for name, tensor in own.items()}}
    keep(site.context.networks, before["beta"], {site: before[site] for site in ("alpha", "gamma")}, parameters)
    expected = soft_pull(before, 0.7)
    received = site.networks[PERSONALS].states()
    assert list(received) == ["alpha", "gamma"]
    for name in own:
        assert torch.equal(site.networks[PERSONAL].state_dict()[name], expected["beta"][name])
        assert all(torch.equal(received[other][name], expected[other][name]) for other in received)
    keep(site.context.networks, {}, {"gamma": before["gamma"]}, parameters)
    later = site.networks[PERSONALS].states()
    assert torch.equal(later["alpha"]["fc.weight"], expected["alpha"]["fc.weight"])
    assert not torch.equal(later["gamma"]["fc.weight"], expected["gamma"]["fc.weight"])


@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0])
def test_the_selected_personal_model_predicts_or_the_global_one(site: Any, gamma: float) -> None:
    site.networks[PERSONALS].keep("gamma", TwoLayers(5).state_dict())
    site.context.parameters["gamma"] = gamma
    shares = softmax(4 * logits(arrays(site.networks[SELECTOR])))
    with torch.no_grad():
        site.networks[SELECTOR].fc.weight.mul_(4)
    assert {0, 1, 2} == set(shares.argmax(1)), "each site is selected once, of which alpha sent nothing"
    by_site = {1: arrays(site.networks[PERSONAL]), 2: arrays(TwoLayers(5))}
    own = arrays(site.networks[DAM])
    expected = [
        logits(by_site.get(int(row.argmax()), own) if row.max() > gamma else own)[index]
        for index, row in enumerate(shares)
    ]
    predicted = FEDSM.predict(site.context, BATCH.images)
    np.testing.assert_allclose(predicted.detach().numpy(), expected, rtol=1e-12)
    assert (gamma == 1.0) == np.allclose(expected, logits(own))


def test_a_selector_has_a_class_for_each_site_and_compares_no_samples(make_site: Any) -> None:
    selector = make_site("fedsm", TwoLayers(1), BATCH.images, shared=TwoLayers).networks[SELECTOR]
    assert selector.spec["classes"] == 3
    assert not [each for each in selector.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    output, parameters = TwoLayers(1)(BATCH.images), PLANS["fedsm"].defaults()
    columns = (TableColumn("age", "number", (0, 100)),)
    table = BuildContext("a", "tabular", 3, parameters, output, None, TwoLayers, sites=("a", "b"), columns=columns)
    assert build_selector(table, {}).spec["name"] == "mlp"


def test_all_three_networks_are_sent_and_personal_models_are_kept() -> None:
    assert FEDSM.sends == {DAM, PERSONAL, SELECTOR}
    assert FEDSM.kept is not None
    assert FEDSM.kept.prefix(TwoLayers()) == "personal/"
