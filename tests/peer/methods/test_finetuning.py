"""Fine-tuning at home: the last round alone trains so, exchanges nothing, and is Adam on the labels."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fakes.small_sites import BATCH, resnet
from peer.core.plan import Learning, circulating
from peer.methods.method import DAM, Batch
from peer.methods.registry import PLANS

TUNED = {"fedavg_ft": "fedavg", "fedprox_ft": "fedprox", "fedcross_ft": "fedcross", "scaffold_ft": "scaffold"}


@pytest.mark.parametrize(("name", "base"), TUNED.items())
def test_all_but_the_last_round_is_the_method_without_it(name: str, base: str) -> None:
    tuned, plain = PLANS[name], PLANS[base]
    own = {"implementation", "stages", "last_round", "source", "learning"}
    assert tuned.last_round == ("train:finetune",)
    assert tuned.learning == {**plain.learning, "finetune": (Learning(("dam",)),)}
    assert (tuned.noised, tuned.noised_stages) == (plain.noised, plain.noised_stages)
    for field in dataclasses.fields(plain):
        if field.name not in own:
            assert getattr(tuned, field.name) == getattr(plain, field.name), field.name


def test_a_model_is_at_home_for_the_last_round() -> None:
    assert circulating(PLANS["fedcross_ft"], rounds=5, parameters={}) == 4
    assert circulating(PLANS["fedcross_ft"], rounds=1, parameters={}) == 0


def test_a_last_round_only_trains() -> None:
    with pytest.raises(ValueError, match="last_round only trains, and has exchange"):
        dataclasses.replace(PLANS["fedavg_ft"], last_round=("exchange", "train:finetune"))


@pytest.mark.parametrize("name", TUNED)
def test_fine_tuning_is_adam_on_the_cross_entropy_of_the_own_labels(make_site: Any, name: str) -> None:
    """Three steps on the head against Adam written out in float64; the body's features are given."""
    dam = resnet(0)
    at = make_site(name, dam, BATCH.images, shared=lambda: resnet(0)).exact()
    body = [parameter for key, parameter in dam.named_parameters() if not key.startswith(f"{dam.head_name}.")]
    for parameter in body:
        parameter.requires_grad_(False)
    for module in dam.modules():  # features that are the same in each step
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = 0.0
    exact = Batch(BATCH.images.double(), BATCH.targets)
    features = dam.train()(exact.images).penultimate.detach().numpy()
    weight, bias = (tensor.detach().numpy().copy() for tensor in dam.head.parameters())
    at.step("finetune", exact, steps=3)

    moments = [np.zeros_like(weight), np.zeros_like(bias)], [np.zeros_like(weight), np.zeros_like(bias)]
    for step in range(1, 4):
        logits = features @ weight.T + bias
        softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        error = (softmax - np.eye(3)[exact.targets.numpy()]) / len(features)
        for number, (value, gradient) in enumerate(((weight, error.T @ features), (bias, error.sum(0)))):
            gradient = gradient + 0.1 * value  # the weight decay of the tests' loop
            moments[0][number] = 0.9 * moments[0][number] + 0.1 * gradient
            moments[1][number] = 0.999 * moments[1][number] + 0.001 * gradient**2
            first, second = moments[0][number] / (1 - 0.9**step), moments[1][number] / (1 - 0.999**step)
            value -= 0.01 * first / (np.sqrt(second) + 1e-8)
    for tensor, expected in zip(dam.head.parameters(), (weight, bias), strict=True):
        np.testing.assert_allclose(tensor.detach().numpy(), expected, rtol=1e-5)  # the loss is float32
    assert at.context.networks[DAM] is dam
