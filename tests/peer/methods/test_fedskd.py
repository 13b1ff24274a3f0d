"""FedSKD: eq. 2 against a literal float64 version, what moves and what is frozen, which stages are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import models
from models import Output
from peer.methods.fedskd.stages import check_local, check_received, chosen_stages, train
from peer.methods.method import DAM, KTM, Batch, Stage, StageContext, Term
from peer.methods.registry import PLANS

IMAGES = torch.randn(5, 2, 40, generator=torch.Generator().manual_seed(0))
BATCH = Batch(IMAGES, torch.tensor([0, 1, 2, 0, 1]))


def network(seed: int, width: int = 4) -> models.Network:
    torch.manual_seed(seed)
    return models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=width)


def stage(**parameters: Any) -> Stage:
    chosen = {**PLANS["fedskd"].defaults(), **parameters}
    return train(scene_of(chosen, {"beta": network(1, width=6)}))


def scene_of(parameters: Mapping[str, Any], received: Mapping[str, models.Network]) -> StageContext:
    return StageContext("alpha", "classification", parameters, {DAM: network(0)}, received)


def terms_of(stage: Stage, batch: Batch = BATCH) -> Mapping[str, Term]:
    ((step,),) = stage.passes
    return step.losses(batch, lambda name, images: stage.networks[name](images))


def total_of(terms: Mapping[str, Term]) -> Tensor:
    return torch.stack([term.value * term.weight for term in terms.values()]).sum()


def gradients(stage: Stage, name: str) -> dict[str, Tensor | None]:
    return {key: parameter.grad for key, parameter in stage.networks[name].named_parameters()}


def literal(dam: Sequence[Tensor], ktm: Sequence[Tensor], masks: Tensor) -> dict[str, float]:
    """Eqs. 4-12 word for word: the similarity matrices, row-normalised, and their distance."""

    def similarity(rows: Tensor) -> Tensor:
        return len(rows) ** 0.5 * F.normalize(rows @ rows.T, dim=1)

    def regions(tap: Tensor) -> Tensor:
        weights = F.adaptive_avg_pool1d(masks[None], tap.shape[2])[0]
        return torch.einsum("rp,bcp->rbc", weights, tap).flatten(1) / weights.sum(1, keepdim=True)

    shapes = {
        "batch": lambda tap: tap.flatten(1),
        "position": lambda tap: tap.permute(2, 0, 1).flatten(1),
        "region": regions,
    }
    terms = {}
    for name, rows in shapes.items():
        distances = []
        for own, other in zip(dam, ktm, strict=True):
            first, second = similarity(rows(own.double())), similarity(rows(other.double()))
            distances.append((first - second).square().sum() / len(first) ** 2)
        terms[name] = float(torch.stack(distances).mean())
    return terms


def test_the_loss_is_that_of_equation_two() -> None:
    masks = torch.zeros(3, 40, dtype=torch.float64)
    masks[0, :10], masks[1, 10:30], masks[2, 30:] = 1, 1, 1
    built = stage(gamma=7.0)
    terms = terms_of(built, Batch(IMAGES, BATCH.targets, masks.float()))
    dam, ktm = built.networks[DAM](IMAGES), built.networks[KTM](IMAGES)
    expected = literal([tap.detach() for tap in dam.taps], [tap.detach() for tap in ktm.taps], masks)
    assert list(terms) == ["ce_dam", "ce_ktm", "batch", "position", "region"]
    for name, value in expected.items():
        assert terms[name].value.item() == pytest.approx(value, rel=1e-3, abs=1e-6)
        assert terms[name].weight == 7.0
    supervised = [F.cross_entropy(output.prediction, BATCH.targets).item() for output in (dam, ktm)]
    assert [terms[name].value.item() for name in ("ce_dam", "ce_ktm")] == pytest.approx(supervised)
    assert total_of(terms).item() == pytest.approx(sum(supervised) + 7 * sum(expected.values()), rel=1e-3)


def test_the_received_header_is_frozen_and_the_rest_is_not() -> None:
    built = stage()
    torch.autograd.backward(total_of(terms_of(built)))
    received = gradients(built, KTM)
    head = {name for name in received if name.startswith("fc.")}
    assert head
    assert all(received[name] is None for name in head)
    assert all(value is not None and value.abs().sum() > 0 for name, value in received.items() if name not in head)
    assert all(value is not None for value in gradients(built, DAM).values())


def test_the_received_header_passes_the_supervised_gradient_on() -> None:
    built = stage()
    torch.autograd.backward(terms_of(built)["ce_ktm"].value)
    assert all(value is None for value in gradients(built, DAM).values())
    assert gradients(built, KTM)["conv1.weight"] is not None


def test_nothing_is_detached() -> None:
    built = stage()
    torch.autograd.backward(terms_of(built)["position"].value)
    for name in (DAM, KTM):
        gradient = gradients(built, name)["conv1.weight"]
        assert gradient is not None
        assert gradient.abs().sum() > 0


def test_gamma_changes_the_local_gradient() -> None:
    results = []
    for gamma in (1.0, 100.0):
        built = stage(gamma=gamma)
        torch.autograd.backward(total_of(terms_of(built)))
        results.append(gradients(built, DAM)["conv1.weight"])
    assert not torch.allclose(results[0], results[1])


def test_gamma_zero_leaves_the_local_gradient_to_the_labels_bit_by_bit() -> None:
    built = stage(gamma=0.0)
    torch.autograd.backward(total_of(terms_of(built)))
    alone = network(0)
    torch.autograd.backward(F.cross_entropy(alone(IMAGES).prediction, BATCH.targets))
    for name, parameter in alone.named_parameters():
        assert torch.equal(parameter.grad, gradients(built, DAM)[name])


def test_terms_and_stages_can_be_chosen() -> None:
    assert set(terms_of(stage(terms=("position",)))) == {"ce_dam", "ce_ktm", "position"}
    all_four, last = terms_of(stage(terms=("batch",))), terms_of(stage(terms=("batch",), taps=(4,)))
    assert all_four["batch"].value.item() != pytest.approx(last["batch"].value.item(), rel=1e-6)


def test_without_a_received_model_the_labels_alone_train() -> None:
    built = train(scene_of(PLANS["fedskd"].defaults(), {}))
    assert set(built.networks) == {DAM}
    assert set(terms_of(built)) == {"ce_dam"}


def test_the_ratio_of_distillation_to_supervision() -> None:
    means = {"ce_dam": 0.5, "ce_ktm": 9.0, "batch": 0.1, "position": 0.2, "total": 9.0}
    assert stage(gamma=2.0).summary(means) == {"distillation_ratio": pytest.approx(1.2)}
    assert stage(gamma=2.0).summary({**means, "ce_dam": 0.0}) == {}


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
    assert "name its layers in [model] features" in str(check_local(output(0), None, defaults, masks=False))
    regions = {**defaults, "terms": ("region",)}
    assert "set [data] regions" in str(check_local(output(4), None, regions, masks=False))
    assert check_local(output(4), None, regions, masks=True) is None
    assert check_received(output(4), output(3), defaults) is None
    assert check_received(output(4), output(3), {**defaults, "taps": (1,)}) == (
        "taps [1] choose no stage that 4 and 3 have in common"
    )
