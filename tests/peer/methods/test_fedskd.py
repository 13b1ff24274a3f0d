"""FedSKD: eq. 2, trained and frozen parts, the compared stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.small_sites import BATCH, resnet
from losses import similarity_terms
from models import Output
from peer.methods.fedskd.stages import check_local, check_received, chosen_stages
from peer.methods.method import DAM, Batch, Term
from peer.methods.registry import PLANS


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site that received a wider model of beta."""
    received = {"beta": resnet(1, width=6)}
    return lambda **parameters: make_site("fedskd", resnet(0), BATCH.images, received=received, **parameters)


def total_of(terms: Mapping[str, Term]) -> Tensor:
    return torch.stack([term.value * term.weight for term in terms.values()]).sum()


def test_the_loss_is_that_of_equation_two(site: Any) -> None:
    masks = torch.zeros(3, 40)
    masks[0, :10], masks[1, 10:30], masks[2, 30:] = 1, 1, 1
    at = site(gamma=7.0)
    terms = at.terms("train", Batch(BATCH.images, BATCH.targets, masks))
    dam, ktm = (at.networks[name](BATCH.images) for name in (DAM, "beta"))
    expected = {name: loss.item() for name, loss in similarity_terms(dam.taps, ktm.taps, masks=masks).items()}
    assert list(terms) == ["ce_dam", "ce_ktm", "batch", "position", "region"]
    for name, value in expected.items():
        assert terms[name].value.item() == pytest.approx(value, rel=1e-5)
        assert terms[name].weight == 7.0
    supervised = [F.cross_entropy(output.prediction, BATCH.targets).item() for output in (dam, ktm)]
    assert [terms[name].value.item() for name in ("ce_dam", "ce_ktm")] == pytest.approx(supervised)
    assert total_of(terms).item() == pytest.approx(sum(supervised) + 7 * sum(expected.values()), rel=1e-3)


def test_the_received_header_is_frozen_and_the_rest_is_not(site: Any) -> None:
    at = site()
    torch.autograd.backward(total_of(at.terms("train", BATCH)))
    received = {name for name, _ in at.networks["beta"].named_parameters()}
    head = {name for name in received if name.startswith("fc.")}
    assert head
    assert at.learns("beta") == received - head
    assert all(parameter.grad is None for parameter in at.networks["beta"].head.parameters())
    assert all(parameter.grad is not None for parameter in at.networks[DAM].parameters())


def test_the_received_header_passes_the_supervised_gradient_on(site: Any) -> None:
    at = site()
    torch.autograd.backward(at.terms("train", BATCH)["ce_ktm"].value)
    assert at.untouched(DAM)
    assert "conv1.weight" in at.learns("beta")


def test_nothing_is_detached(site: Any) -> None:
    at = site()
    torch.autograd.backward(at.terms("train", BATCH)["position"].value)
    for name in (DAM, "beta"):
        assert "conv1.weight" in at.learns(name)


def test_gamma_zero_leaves_the_local_gradient_to_the_labels_bit_by_bit(site: Any) -> None:
    at, alone = site(gamma=0.0), resnet(0).eval()
    torch.autograd.backward(total_of(at.terms("train", BATCH)))
    torch.autograd.backward(F.cross_entropy(alone(BATCH.images).prediction, BATCH.targets))
    for mine, expected in zip(at.networks[DAM].parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, expected.grad)


def test_terms_and_stages_can_be_chosen(site: Any) -> None:
    assert set(site(terms=("position",)).terms("train", BATCH)) == {"ce_dam", "ce_ktm", "position"}
    all_four, last = (site(terms=("batch",), **taps).terms("train", BATCH)["batch"] for taps in ({}, {"taps": (4,)}))
    assert all_four.value.item() != pytest.approx(last.value.item(), rel=1e-6)


def test_without_a_received_model_the_labels_alone_train(make_site: Any) -> None:
    at = make_site("fedskd", resnet(0), BATCH.images)
    assert set(at.method.stages["train"](at.context).networks) == {DAM}
    assert set(at.terms("train", BATCH)) == {"ce_dam"}


def test_the_ratio_of_distillation_to_supervision(site: Any) -> None:
    means = {"ce_dam": 0.5, "ce_ktm": 9.0, "batch": 0.1, "position": 0.2, "total": 9.0}
    at = site(gamma=2.0)
    summary = at.method.stages["train"](at.context).summary
    assert summary(means) == {"distillation_ratio": pytest.approx(1.2)}
    assert summary({**means, "ce_dam": 0.0}) == {}


@pytest.mark.parametrize(
    ("own", "received", "taps", "chosen"),
    [
        (4, 4, (1, 2, 3, 4), [1, 2, 3, 4]),
        (4, 4, (4, 3), [3, 4]),
        (4, 3, (1, 2, 3, 4), [1, 2, 3]),
        (3, 4, (4,), [3]),
        (4, 2, (1, 2), []),
        (3, 3, (4,), []),
    ],
)
def test_stages_are_matched_from_the_deepest(own: int, received: int, taps: tuple[int, ...], chosen: list[int]) -> None:
    assert chosen_stages(own, received, taps) == chosen


def output(stages: int) -> Output:
    return Output(torch.zeros(1, 2), (torch.zeros(1, 1, 1),) * stages, torch.zeros(1, 1), torch.zeros(1, 1))


def test_what_does_not_fit_is_said() -> None:
    defaults = PLANS["fedskd"].defaults()
    refusal = str(check_local(output(0), None, defaults, masks=False))
    assert "name its layers in [model] features, or take a network that has stages, which linear has not" in refusal
    regions = {**defaults, "terms": ("region",)}
    assert "set [data] regions" in str(check_local(output(4), None, regions, masks=False))
    assert check_local(output(4), None, regions, masks=True) is None
    assert check_received(output(4), output(3), defaults) is None
    assert check_received(output(4), output(3), {**defaults, "taps": (1,)}) == (
        "taps [1] choose no stage that 4 and 3 have in common"
    )
