"""MH-pFLID: both losses in float64, the frozen parts of each stage, ablations, other tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import models
from fakes.small_sites import BATCH, DRAW, EXACT
from fakes.two_layers import softmax
from models import Output
from peer.methods.method import DAM, MESSENGER, RECEIVER, TRANSMITTER, Batch
from peer.methods.mh_pflid.stages import MH_PFLID, artifact_tensors, check_local
from peer.methods.registry import PLANS

# Larger than other methods' ones, as a dense messenger halves them four times.
MAPS = Batch(torch.randn(2, 1, 32, 32, generator=DRAW), torch.randint(0, 3, (2, 32, 32), generator=DRAW))
IMAGES = Batch(torch.rand(2, 1, 8, 8, generator=DRAW), torch.rand(2, 1, 16, 16, generator=DRAW))


def network(name: str, seed: int, dims: int = 1, **hyper: Any) -> models.Network:
    torch.manual_seed(seed)
    sizes = {1: (2, 3), 2: (1, 3)}[dims] if hyper.get("scale") is None else (1, 1)
    return models.create_model(name, spatial_dims=dims, in_channels=sizes[0], classes=sizes[1], **hyper)


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site with a ResNet and a small messenger."""

    def make(**parameters: Any) -> Any:
        shared = partial(network, "messenger_classification", 1, width=2)
        return make_site("mh_pflid", network("resnet10", 0, width=4), BATCH.images, shared=shared, **parameters)

    return make


@pytest.fixture
def dense(make_site: Any) -> Any:
    """Makes a site that segments, with a U-Net and a dense messenger."""

    def make(**parameters: Any) -> Any:
        shared = partial(network, "messenger_segmentation", 1, 2, width=2)
        dam = network("unet", 0, 2, width=2, depth=2)
        return make_site("mh_pflid", dam, MAPS.images, shared=shared, task="segmentation", **parameters)

    return make


@pytest.fixture
def enlarging(make_site: Any) -> Any:
    """Makes a site of super-resolution."""

    def make(messenger: str = "srcnn", **parameters: Any) -> Any:
        shared = partial(network, messenger, 1, 2, width=4, scale=2)
        dam = network("srresnet6", 0, 2, width=2, scale=2)
        return make_site("mh_pflid", dam, IMAGES.images, shared=shared, task="super_resolution", **parameters)

    return make


# --- the losses -------------------------------------------------------------------------------------------------------
def predictions_of(site: Any, name: str, batch: Batch = EXACT) -> tuple[Tensor, Tensor]:
    """Of the local model and of the messenger through one of the adapters, which have their equations elsewhere."""
    local, messenger = site.networks[DAM](batch.images), site.networks[MESSENGER]
    adapted = site.networks[name](messenger(batch.images).penultimate, local.bottleneck)
    return local.prediction, messenger.head(adapted)


def ce(logits: Tensor, temperature: float = 1.0) -> float:
    return F.cross_entropy(logits / temperature, BATCH.targets).item()


def kl(teacher: Tensor, student: Tensor) -> float:
    """The mean over samples and pixels."""
    teacher, student = (logits.movedim(1, -1).flatten(0, -2) for logits in (teacher, student))
    p, q = (softmax(numbers(logits)) for logits in (teacher, student))
    return float((p * np.log(p / q)).sum(1).mean())


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


@pytest.mark.parametrize("parameters", [{}, {"injection": 0.25}, {"receiver": "addition"}, {"temperature": 4.0}])
def test_the_loss_of_injection(site: Any, parameters: dict[str, Any]) -> None:
    at = site(**parameters).exact()
    local, messenger = predictions_of(at, RECEIVER)
    weight, temperature = parameters.get("injection", 0.9), parameters.get("temperature", 1.0)
    terms = at.terms("inject", EXACT)
    assert {name: term.weight for name, term in terms.items()} == {"ce_dam": weight, "ce_messenger": 1 - weight}
    assert terms["ce_dam"].value.item() == pytest.approx(ce(local, temperature), rel=1e-6)
    assert terms["ce_messenger"].value.item() == pytest.approx(ce(messenger, temperature), rel=1e-6)
    assert ce(messenger, temperature) != pytest.approx(ce(messenger, 2.0), rel=1e-3)


@pytest.mark.parametrize("parameters", [{}, {"distillation": 0.25}, {"transmitter": "addition"}, {"temperature": 4.0}])
def test_the_loss_of_distillation(site: Any, parameters: dict[str, Any]) -> None:
    at = site(**parameters).exact()
    local, messenger = predictions_of(at, TRANSMITTER)
    weight, temperature = parameters.get("distillation", 0.9), parameters.get("temperature", 1.0)
    terms = at.terms("distill", EXACT)
    assert {name: term.weight for name, term in terms.items()} == {"ce_messenger": weight, "distillation": 1 - weight}
    assert terms["ce_messenger"].value.item() == pytest.approx(ce(messenger, temperature), rel=1e-6)
    assert terms["distillation"].value.item() == pytest.approx(kl(local, messenger), rel=1e-9)


# --- trained parts ----------------------------------------------------------------------------------------------------
def test_injection_trains_the_local_model_and_the_receiver(site: Any) -> None:
    at = site()
    before = at.state()
    loop = at.step("inject", BATCH)
    assert set(loop.optimisers) == set(loop.moments()) == {DAM, RECEIVER}
    assert at.moved(before) == {DAM, RECEIVER}
    assert at.modes == {DAM: [True], MESSENGER: [False], RECEIVER: [True]}
    assert at.untouched(MESSENGER)
    assert at.untouched(TRANSMITTER)
    assert at.learns(DAM) == dict(at.networks[DAM].named_parameters()).keys()


def test_the_frozen_messenger_passes_its_loss_on_to_the_local_body(site: Any) -> None:
    at = site(injection=0.0)
    at.step("inject", BATCH)
    body = {name for name, _ in at.networks[DAM].named_parameters() if not name.startswith("fc.")}
    assert at.learns(DAM) == body
    assert at.learns(RECEIVER) >= {"project.weight", "attention.query.weight", "attention.value.weight"}
    assert at.untouched(MESSENGER)


def test_injection_says_nothing_to_the_body_of_the_messenger(site: Any) -> None:
    """Not even where nothing is frozen."""
    at = site().exact()
    torch.autograd.backward(at.terms("inject", EXACT)["ce_messenger"].value)
    assert {name.partition(".")[0] for name in at.learns(MESSENGER)} == {"classifier"}
    assert at.learns(DAM)
    at = site().exact()
    torch.autograd.backward(at.terms("distill", EXACT)["distillation"].value)
    assert {name.partition(".")[0] for name in at.learns(MESSENGER)} == {"classifier", "body"}
    assert at.untouched(DAM)


def test_distillation_trains_the_messenger_and_the_transmitter(site: Any) -> None:
    at = site()
    before = at.state()
    loop = at.step("distill", BATCH)
    assert set(loop.optimisers) == set(loop.moments()) == {MESSENGER, TRANSMITTER}
    assert at.moved(before) == {MESSENGER, TRANSMITTER}
    assert at.modes == {DAM: [False], MESSENGER: [True], TRANSMITTER: [True]}
    assert at.untouched(DAM)
    assert at.untouched(RECEIVER)
    assert {"body.0.weight", "classifier.0.weight", "classifier.2.weight"} <= at.learns(MESSENGER)
    assert {"project.weight", "attention.query.weight", "attention.value.weight"} <= at.learns(TRANSMITTER)


def test_the_head_of_the_messenger_has_statistics_of_what_was_sent_alone(site: Any) -> None:
    at, adapted = site(), []
    norm = at.networks[MESSENGER].head[0]
    at.networks[TRANSMITTER].register_forward_hook(lambda module, args, result: adapted.append(result.detach()))
    at.step("distill", BATCH)
    (feature,) = adapted
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, norm.momentum * feature.mean(0))
    torch.testing.assert_close(norm.running_var, 1 - norm.momentum + norm.momentum * feature.var(0))
    assert norm.training


def test_tied_adapters_are_one_set_of_weights(site: Any) -> None:
    tied, apart = site(tie=True), site()
    before = tied.state()
    tied.step("inject", BATCH)
    assert tied.moved(before) == {DAM, RECEIVER, TRANSMITTER}
    assert torch.equal(tied.networks[RECEIVER].project.weight, tied.networks[TRANSMITTER].project.weight)
    assert not torch.equal(apart.networks[RECEIVER].project.weight, apart.networks[TRANSMITTER].project.weight)


@pytest.mark.parametrize("stage", ["inject", "distill"])
def test_losses_in_bf16_are_near_those_in_fp32_and_float32(site: Any, stage: str) -> None:
    exact, rough = (site().step(stage, BATCH, precision=precision).losses() for precision in ("fp32", "bf16"))
    assert rough == pytest.approx(exact, rel=0.1, abs=0.01)
    assert rough != exact


@pytest.mark.parametrize("stage", ["inject", "distill"])
@pytest.mark.parametrize(
    "parameters", [{}, {"receiver": "addition"}, {"transmitter": "addition"}, {"tie": True}], ids=str
)
def test_spatial_tokens_train_what_channels_train(make_site: Any, stage: str, parameters: dict[str, Any]) -> None:
    shared = partial(network, "messenger_classification", 1, width=2)
    dam = network("resnet10", 0, width=4, stem_stride=1)
    images = Batch(torch.randn(5, 2, 160, generator=DRAW), BATCH.targets)
    at = make_site("mh_pflid", dam, images.images, shared=shared, tokens="spatial", **parameters)
    before = at.state()
    at.step(stage, images)
    trained = {DAM, RECEIVER} if stage == "inject" else {MESSENGER, TRANSMITTER}
    assert at.moved(before) == trained | ({RECEIVER, TRANSMITTER} if parameters.get("tie") else set())
    adapter = RECEIVER if stage == "inject" else TRANSMITTER
    if parameters.get(adapter) != "addition":
        assert {f"attention.{name}.weight" for name in ("query", "key", "value")} <= at.learns(adapter)
    assert stage == "inject" or {"body.0.weight", "classifier.2.weight"} <= at.learns(MESSENGER)
    assert MH_PFLID.artifact_tensors(at.networks[MESSENGER], at.context.parameters) == list(shared().state_dict())


# --- artifacts --------------------------------------------------------------------------------------------------------
def test_the_messenger_is_sent_or_a_part_of_it(site: Any) -> None:
    messenger = site().networks[MESSENGER]
    whole, body, head = (artifact_tensors(messenger, {"average": part}) for part in ("both", "body", "head"))
    assert MH_PFLID.artifact_network == MESSENGER
    assert whole == list(messenger.state_dict())
    assert sorted(body + head) == sorted(whole)
    assert {name.partition(".")[0] for name in head} == {"classifier"}
    assert {name.partition(".")[0] for name in body} == {"body"}
    assert "classifier.0.running_mean" in head


def outputs(own: tuple[int, ...], shared: tuple[int, ...]) -> tuple[Output, Output]:
    mine, theirs = torch.zeros(own), torch.zeros(shared)
    return Output(torch.zeros(1, 3), (), mine, mine), Output(torch.zeros(1, 3), (), theirs, theirs)


def test_what_does_not_fit_is_said() -> None:
    defaults = PLANS["mh_pflid"].defaults()
    assert check_local(*outputs((1, 8), (1, 16)), defaults, masks=False) is None
    assert check_local(*outputs((1, 8, 4, 4), (1, 16)), defaults, masks=False) is None
    assert check_local(*outputs((1, 8, 4, 4), (1, 16, 2, 2)), defaults, masks=False) is None
    assert check_local(*outputs((1, 8), (1, 16, 2, 2)), defaults, masks=False) == (
        "the messenger carries maps, but the local model's bottleneck is a vector; choose another [shared_model]"
    )
    two_forms = {**defaults, "tie": True, "receiver": "addition"}
    assert check_local(*outputs((1, 8), (1, 16)), two_forms, masks=False) == (
        "[method] tie = true is one module for both roles: receiver and transmitter must have the same form"
    )
    assert check_local(*outputs((1, 8), (1, 16)), {**two_forms, "transmitter": "addition"}, masks=False) is None


def test_spatial_tokens_need_two_positions() -> None:
    spatial = {**PLANS["mh_pflid"].defaults(), "tokens": "spatial"}
    two, one, other = (1, 8, 2, 1), (1, 8, 1, 1), (1, 4, 2, 1)
    vector = torch.zeros(1, 8)

    def problem(own: tuple[int, ...], shared: tuple[int, ...], **parameters: Any) -> str | None:
        outputs = (Output(torch.zeros(1, 3), (torch.zeros(shape),), vector, vector) for shape in (own, shared))
        return check_local(*outputs, {**spatial, **parameters}, masks=False)

    assert problem(two, two) is None
    assert problem(one, one, tokens="channel") is None
    assert problem(one, one, receiver="addition", transmitter="addition") is None
    remedy = 'map has one; use larger images, another network, or tokens = "channel"'
    assert (
        problem(one, two) == f'[method] tokens = "spatial" needs two positions, but the local model\'s deepest {remedy}'
    )
    assert (
        problem(two, one) == f'[method] tokens = "spatial" needs two positions, but the messenger\'s deepest {remedy}'
    )
    assert "the head takes 8 features, but the messenger has a deepest map of 4 channels" in str(problem(two, other))


# --- segmentation, super-resolution -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chosen", "name"),
    [({}, "dice"), ({"segmentation_loss": "dice_ce"}, "dice_ce"), ({"tokens": "spatial"}, "dice")],
)
def test_segmentation_has_its_losses_and_tokens(dense: Any, chosen: dict[str, Any], name: str) -> None:
    for stage, adapter, names in (
        ("inject", RECEIVER, {f"{name}_dam", f"{name}_messenger"}),
        ("distill", TRANSMITTER, {f"{name}_messenger", "distillation"}),
    ):
        at = dense(**chosen)
        losses = at.step(stage, MAPS).losses()
        assert losses.keys() == {"total"} | names
        assert all(np.isfinite(value) for value in losses.values())
        assert {f"attention.{name}.weight" for name in ("query", "key", "value")} <= at.learns(adapter)


def test_segmentation_reaches_the_encoder_through_the_bottleneck(dense: Any) -> None:
    at = dense(injection=0.0)
    at.step("inject", MAPS)
    learning = at.learns(DAM)
    assert {name.partition(".")[0] for name in learning} == {"encoder"}
    assert any(name.startswith("encoder.2.") for name in learning)
    assert at.untouched(MESSENGER)


def test_the_divergence_of_maps_is_a_mean_over_pixels(dense: Any) -> None:
    at = dense().exact()
    batch = Batch(MAPS.images.double(), MAPS.targets)
    expected = kl(*predictions_of(at, TRANSMITTER, batch))
    assert at.terms("distill", batch)["distillation"].value.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("messenger", ["srcnn", "srresnet6"])
def test_super_resolution_follows_the_image(enlarging: Any, messenger: str) -> None:
    at = enlarging(messenger, temperature=4.0).exact()
    batch = Batch(IMAGES.images.double(), IMAGES.targets.double())
    local, received = map(numbers, predictions_of(at, RECEIVER, batch))
    _, transmitted = map(numbers, predictions_of(at, TRANSMITTER, batch))
    inject, distill = at.terms("inject", batch), at.terms("distill", batch)
    assert inject.keys() == {"l1_dam", "l1_messenger"}
    assert distill.keys() == {"l1_messenger", "distillation"}
    target = numbers(batch.targets)
    assert inject["l1_dam"].value.item() == pytest.approx(np.abs(local - target).mean(), rel=1e-5)
    assert inject["l1_messenger"].value.item() == pytest.approx(np.abs(received - target).mean(), rel=1e-5)
    assert distill["distillation"].value.item() == pytest.approx(np.abs(transmitted - local).mean(), rel=1e-9)


@pytest.mark.parametrize("stage", ["inject", "distill"])
def test_super_resolution_trains(enlarging: Any, stage: str) -> None:
    at = enlarging()
    before = at.state()
    losses = at.step(stage, IMAGES).losses()
    assert all(np.isfinite(value) for value in losses.values())
    assert at.moved(before) == ({DAM, RECEIVER} if stage == "inject" else {MESSENGER, TRANSMITTER})
