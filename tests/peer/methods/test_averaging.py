"""FedAvg, FedProx, FedBN, LG-FedAvg: the labels' loss, the pull to where the round began, what counts as a norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import models
from fakes.small_sites import BATCH, EXACT, MAPS, u_net
from models import Network, Output
from peer.methods.averaging.stages import FEDAVG, FEDBN, FEDPROX, LG_FEDAVG, all_but_norms
from peer.methods.method import DAM, Method
from peer.methods.registry import PLANS

EVERY = ("fedavg", "fedprox", "fedbn", "lg_fedavg")


def network(name: str = "resnet10", **hyper: Any) -> Network:
    torch.manual_seed(0)
    return models.create_model(name, spatial_dims=1, in_channels=2, classes=3, **{"width": 4, **hyper})


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site with a ResNet."""
    return lambda method, **parameters: make_site(method, network(), BATCH.images, **parameters)


@pytest.mark.parametrize("method", [*EVERY, "fedcross"])
def test_the_labels_train_all_of_the_local_model(site: Any, method: str) -> None:
    at = site(method)
    expected = F.cross_entropy(at.networks[DAM].train()(BATCH.images).prediction, BATCH.targets)
    loop = at.step("train", BATCH)
    assert loop.losses()["ce_dam"] == pytest.approx(expected.item())
    assert at.learns(DAM) == dict(at.networks[DAM].named_parameters()).keys()
    assert at.modes == {DAM: [True]}
    assert Method.of(PLANS[method]).local_networks == {}


# --- FedProx ----------------------------------------------------------------------------------------------------------
def test_the_pull_is_half_mu_times_the_squared_distance_to_the_beginning(site: Any) -> None:
    at = site("fedprox", mu=3.0)
    at.exact()
    before = {name: parameter.detach().clone() for name, parameter in at.networks[DAM].named_parameters()}
    stage = at.method.stages["train"](at.context)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in at.networks[DAM].parameters():
            parameter += torch.randn_like(parameter)
    ((step,),) = stage.passes
    terms = step.losses(EXACT, lambda name, images: stage.networks[name](images))
    assert {name: term.weight for name, term in terms.items()} == {"ce_dam": 1.0, "proximal": 1.5}
    gaps = {name: parameter.detach() - before[name] for name, parameter in at.networks[DAM].named_parameters()}
    distance = sum(float((gap.numpy() ** 2).sum()) for gap in gaps.values())
    assert terms["proximal"].value.item() == pytest.approx(distance, rel=1e-12)
    torch.autograd.backward(terms["proximal"].value * terms["proximal"].weight)
    for name, parameter in at.networks[DAM].named_parameters():
        torch.testing.assert_close(parameter.grad, 3.0 * gaps[name])


def test_the_pull_is_from_a_copy_that_does_not_move(site: Any) -> None:
    at = site("fedprox", mu=1.0)
    stage = at.method.stages["train"](at.context)
    assert at.step(stage, BATCH).losses()["proximal"] == 0.0
    before = {name: parameter.detach().clone() for name, parameter in network().named_parameters()}
    moved = sum((p.detach() - before[n]).square().sum() for n, p in at.networks[DAM].named_parameters())
    assert at.step(stage, BATCH).losses()["proximal"] == pytest.approx(moved.item(), rel=1e-5)
    anew = at.method.stages["train"](at.context)
    assert at.step(anew, BATCH).losses()["proximal"] == 0.0


def test_the_pull_stays_in_bf16(site: Any) -> None:
    exact, rough = (site("fedprox", mu=1.0).step("train", BATCH, steps=3, precision=p) for p in ("fp32", "bf16"))
    assert rough.losses()["ce_dam"] != exact.losses()["ce_dam"]
    assert rough.losses() == pytest.approx(exact.losses(), rel=0.2)
    assert rough.losses()["proximal"] > 0


# --- FedBN ------------------------------------------------------------------------------------------------------------
class Mixed(Network):
    """Every kind of normalisation layer under names that do not tell, and a convolution that is called ``bn``."""

    head_name = "last"

    def __init__(self) -> None:
        super().__init__(name="tests:Mixed", spatial_dims=1, in_channels=2, classes=3, hyper={}, head="last")
        self.bn = nn.Conv1d(2, 4, 3)
        self.a, self.b = nn.BatchNorm1d(4), nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True))
        self.a2 = nn.Conv1d(4, 4, 1)
        self.c, self.last = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Output:
        feature = self.c(self.a2(self.b(self.a(self.bn(x)))).mean(2))
        return Output(self.last(feature), (), feature, feature)


def test_norms_stay_by_their_type_and_not_by_their_name() -> None:
    names = {f"{layer}.{part}" for layer in ("bn", "a2", "last") for part in ("weight", "bias")}
    assert set(all_but_norms(Mixed(), {})) == names


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnet10", "transformer", "densenet50", "tcn"])
def test_all_but_the_norms_of_a_network_are_sent(name: str, norm: str) -> None:
    model = network(name, norm=norm)
    kinds = (nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm)
    norms = {path for path, module in model.named_modules() if isinstance(module, kinds)}
    assert norms
    names = all_but_norms(model, {})
    assert {key for key in model.state_dict() if key.rpartition(".")[0] not in norms} == set(names)
    assert not any(key.endswith(("running_mean", "running_var", "num_batches_tracked")) for key in names)


def test_what_each_sends() -> None:
    model = network()
    assert [list(method.artifact_tensors(model, {})) for method in (FEDAVG, FEDPROX)] == [list(model.state_dict())] * 2
    assert FEDBN.artifact_tensors is all_but_norms
    assert set(LG_FEDAVG.artifact_tensors(model, {})) == {"fc.weight", "fc.bias"}
    assert {method.artifact_network for method in (FEDAVG, FEDPROX, FEDBN, LG_FEDAVG)} == {DAM}


@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize("loss", ["dice_ce", "dice", "ce"])
def test_segmentation_has_the_loss_that_is_chosen(make_site: Any, method: str, loss: str) -> None:
    at = make_site(method, u_net(0), MAPS.images, task="segmentation", segmentation_loss=loss)
    names = {"total", f"{loss}_dam"} | ({"proximal"} if method == "fedprox" else set())
    assert at.step("train", MAPS).losses().keys() == names
