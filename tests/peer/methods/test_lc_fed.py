"""LC-Fed: stages and prediction equal a computation in plain torch; heads are kept, and the calibration stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import models
from losses import dice_loss
from models import Output
from models.calibration import disagreement_peaks
from peer.methods.lc_fed.stages import CALIBRATION, HEADS, LC_FED, SELECTION, check_local
from peer.methods.method import DAM, HEAD, Batch, Term
from peer.methods.registry import PLANS

IMAGES = torch.randn(3, 1, 16, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
BATCH = Batch(IMAGES, (IMAGES[:, 0] > 0).long() + (IMAGES[:, 0] > 1).long())
SINGLE = 1e-6
WINDOW = 5
PRESENT = ("alpha", "gamma")


@pytest.fixture
def site(make_site: Any) -> Any:
    torch.manual_seed(1)
    dam = models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=4, depth=1)
    site = make_site("lc_fed", dam, IMAGES.float(), task="segmentation", window=WINDOW, contrast=0.7)
    for seed, origin in enumerate(PRESENT):
        draw = torch.Generator().manual_seed(seed)
        state = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in dam.head.state_dict().items()}
        site.networks[HEADS].keep(origin, state)
    with torch.no_grad():
        for parameter in site.networks[SELECTION].parameters():
            parameter *= 3  # at first the selections of the sites hardly differ
    return site.exact()


def run(site: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The bottleneck before the selection, the head's feature and the prediction of site beta."""
    dam = site.networks[DAM]
    shallow = dam.encoder[0](IMAGES)
    deepest = dam.encoder[1](shallow)
    weights = site.networks[SELECTION](deepest, 1)
    feature = dam.decoder[0](deepest + weights[:, :, None, None] * deepest, shallow)
    return deepest, feature, dam.final_conv(feature)


def calibrated(site: Any) -> Tensor:
    """The calibrated prediction of site beta, which takes feature and prediction as constants."""
    dam, heads = site.networks[DAM], site.networks[HEADS]
    _, feature, prediction = (tensor.detach() for tensor in run(site))
    own = prediction.softmax(1)[:, 1:]
    others = []
    for index in (0, 2):
        weight, bias = (heads.get_buffer(f"head/{name}")[index] for name in ("weight", "bias"))
        others.append(F.conv2d(feature, weight, bias).softmax(1)[:, 1:])
    assert list(dam.head.state_dict()) == ["weight", "bias"]
    result: Tensor = site.networks[CALIBRATION](feature, disagreement_peaks(own, others, window=WINDOW), own)
    return result


def test_terms_are_those_of_the_formulas(site: Any) -> None:
    deepest, _, prediction = run(site)
    dice = float(dice_loss(prediction, BATCH.targets).detach())
    alpha, beta, gamma = (site.networks[SELECTION](deepest, index) for index in range(3))
    gap = float(((beta - alpha).square().mean() + (beta - gamma).square().mean()).detach()) / 2
    assert gap > 1e-4
    (term,) = site.terms("head", BATCH).values()
    assert (value(term), term.weight) == (pytest.approx(dice, rel=SINGLE), 1.0)
    supervised, contrast = (site.terms("body", BATCH)[name] for name in ("dice_dam", "contrast"))
    assert (value(supervised), supervised.weight) == (pytest.approx(dice, rel=SINGLE), 1.0)
    assert (value(contrast), contrast.weight) == (pytest.approx(-gap, rel=1e-5), 0.7)


def value(term: Term) -> float:
    return float(term.value.detach())


def test_the_calibration_learns_from_the_disagreement_with_the_kept_heads(site: Any) -> None:
    found = site.terms("calibrate", BATCH)
    predicted = LC_FED.predict(site.context, IMAGES)
    expected = calibrated(site)
    assert list(found) == [f"dice_{CALIBRATION}"]
    dice = float(dice_loss(expected, BATCH.targets).detach())
    assert value(found[f"dice_{CALIBRATION}"]) == pytest.approx(dice, rel=SINGLE)
    torch.testing.assert_close(predicted, expected)
    site.networks[HEADS].present.zero_()
    assert not torch.equal(LC_FED.predict(site.context, IMAGES), predicted), "the heads have a part in it"


def test_the_contrast_moves_the_selection_alone(site: Any) -> None:
    torch.autograd.backward(site.terms("body", BATCH)["contrast"].value)
    assert site.untouched(DAM)
    gradients = [parameter.grad.clone() for parameter in site.networks[SELECTION].parameters()]
    deepest, _, _ = run(site)
    alpha, beta, gamma = (site.networks[SELECTION](deepest.detach(), index) for index in range(3))
    loss = -((beta - alpha.detach()).square().mean() + (beta - gamma.detach()).square().mean()) / 2
    expected = torch.autograd.grad(loss, list(site.networks[SELECTION].parameters()))
    for gradient, by_hand in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, by_hand, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("stage", "moved"), [("head", {DAM}), ("body", {DAM, SELECTION}), ("calibrate", {CALIBRATION})]
)
def test_each_stage_moves_its_own_part_alone(site: Any, stage: str, moved: set[str]) -> None:
    for network in site.networks.values():
        network.float()
    before, dam = site.state(), site.networks[DAM]
    site.step(stage, Batch(IMAGES.float(), BATCH.targets), steps=2)
    assert site.moved(before) == moved
    changed = {name for name, value in dam.state_dict().items() if not torch.equal(value, before[f"{DAM}/{name}"])}
    head = {name for name in dam.state_dict() if name.startswith(f"{dam.head_name}.")}
    assert changed == {"head": head, "body": dam.state_dict().keys() - head, "calibrate": set()}[stage]
    assert all(parameter.requires_grad for parameter in dam.parameters()), "the loop thaws all of it"


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("name", ["unet", "unet_plus_plus", "res_unet", "dynunet", "fcn8s"])
def test_every_segmentation_network_names_its_bottleneck_and_predicts(make_site: Any, name: str, dims: int) -> None:
    hyper = {"width": 4} | ({} if name == "fcn8s" else {"depth": 2})
    network = models.create_model(name, spatial_dims=dims, in_channels=1, classes=2, **hyper)
    images = torch.randn(2, 1, *[16] * dims)
    site = make_site("lc_fed", network, images, task="segmentation")
    plain: Output = network.eval()(images)
    predicted = LC_FED.predict(site.context, images)
    assert predicted.shape == plain.prediction.shape
    assert torch.equal(network(images).prediction, plain.prediction), "the network itself is as before"


def test_what_does_not_fit_is_refused(make_site: Any) -> None:
    feature, maps, parameters = torch.zeros(1, 4), torch.zeros(1, 4, 8), PLANS["lc_fed"].defaults()
    good = Output(maps, (), maps, maps)
    check = lambda output, **other: check_local(output, output, {**parameters, **other}, masks=False)  # noqa: E731
    assert check(good) is None
    assert "window must be odd" in str(check(good, window=30))
    assert "bottleneck is a vector" in str(check(good._replace(bottleneck=feature)))
    assert "predicts on (16,)" in str(check(good._replace(prediction=torch.zeros(1, 4, 16))))
    with pytest.raises(ValueError, match="has no named layer"):
        make_site("lc_fed", models.create_model("messenger_segmentation", spatial_dims=1, in_channels=1, classes=2,
                  width=4), torch.zeros(1, 1, 16), task="segmentation")  # fmt: skip


def test_the_calibration_stays() -> None:
    plan = PLANS["lc_fed"]
    assert (plan.artifact, LC_FED.artifact_network, LC_FED.sent_beside) == ("model", DAM, (SELECTION,))
    assert LC_FED.kept is not None
    network = models.create_model("unet", spatial_dims=1, in_channels=1, classes=2, width=4, depth=1)
    assert LC_FED.kept.prefix(network) == f"{network.head_name}."
    assert plan.evaluation_denied == "each site's calibration of the head stays there"
    assert HEAD not in plan.never_leaves
