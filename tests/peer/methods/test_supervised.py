"""The supervised loss of each task: its value by hand, with equal weights of all samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.methods.method import StageContext, Supervision
from peer.methods.supervised import (
    SEGMENTATION_LOSSES,
    SUPERVISED,
    class_weights,
    label_weights,
    stage_loss,
    supervised_loss,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS, CLASSES = torch.randn(4, 3, generator=GENERATOR), torch.tensor([0, 2, 1, 1])
MAPS, LABELS = torch.randn(4, 3, 5, 6, generator=GENERATOR), torch.randint(0, 3, (4, 5, 6), generator=GENERATOR)
KNOWN = torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 1], [1, 1, 1]])
PEOPLE = torch.tensor([[0.5, 1.0], [3.0, 0.0], [1.5, 0.0], [2.1, 1.0]])
"""Time in units of the intervals, and 1 for an event."""
SMALL, LARGE = torch.rand(2, 4, 1, 5, 6, generator=GENERATOR)
SAMPLES = {
    "classification": (LOGITS, CLASSES),
    "time_series": (LOGITS, CLASSES),
    "tabular": (LOGITS, CLASSES),
    "segmentation": (MAPS, LABELS),
    "super_resolution": (SMALL, LARGE),
    "labels": (LOGITS, KNOWN),
    "number": (LOGITS[:, :1], LOGITS[:, 1:2]),
    "survival": (LOGITS, PEOPLE),
}


def ce(logits: Tensor, labels: Tensor) -> float:
    return -logits.log_softmax(1).gather(1, labels[:, None]).mean().item()


def dice(logits: Tensor, labels: Tensor) -> float:
    losses = []
    for image, truth in zip(logits.softmax(1), labels, strict=True):
        for k in range(1, 3):
            inside = (truth == k).float()
            losses.append(1 - (2 * (image[k] * inside).sum() + 1) / (image[k].sum() + inside.sum() + 1))
    return torch.stack(losses).mean().item()


def hazard(logits: Tensor, people: Tensor) -> float:
    survived = (-logits).sigmoid().cumprod(1)
    events = [(0, 0, True), (1, 2, False), (2, 1, False), (3, 2, True)]  # person, interval, event
    before = [survived[row, k - 1] if k else torch.tensor(1.0) for row, k, _ in events]
    shares = [
        before[n] * logits[row, k].sigmoid() if event else survived[row, k] for n, (row, k, event) in enumerate(events)
    ]
    return -torch.stack(shares).log().mean().item()


@pytest.mark.parametrize("task", SUPERVISED)
def test_a_supervised_loss_is_a_mean_over_the_batch(task: str) -> None:
    prediction, targets = SAMPLES[task]
    loss = SUPERVISED[task].loss
    twice = loss(torch.cat([prediction, prediction]), torch.cat([targets, targets])).item()
    assert twice == pytest.approx(loss(prediction, targets).item())
    apart = [loss(prediction[k : k + 1], targets[k : k + 1]).item() for k in range(4)]
    assert loss(prediction, targets).item() == pytest.approx(sum(apart) / 4)


@pytest.mark.parametrize(
    ("task", "name", "expected"),
    [
        ("classification", "ce", ce(LOGITS, CLASSES)),
        ("time_series", "ce", ce(LOGITS, CLASSES)),
        ("segmentation", "dice_ce", dice(MAPS, LABELS) + ce(MAPS, LABELS)),
        ("super_resolution", "l1", (SMALL - LARGE).abs().mean().item()),
        ("labels", "bce", F.binary_cross_entropy(LOGITS.sigmoid(), KNOWN).item()),
        ("number", "mse", (LOGITS[:, 0] - LOGITS[:, 1]).square().mean().item()),
        ("survival", "hazard", hazard(LOGITS, PEOPLE)),
    ],
)
def test_the_loss_of_a_task(task: str, name: str, expected: float) -> None:
    assert supervised_loss(task) == SUPERVISED[task]
    assert SUPERVISED[task].name == name
    assert SUPERVISED[task].loss(*SAMPLES[task]).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dice_ce", dice(MAPS, LABELS) + ce(MAPS, LABELS)),
        ("dice", dice(MAPS, LABELS)),
        ("ce", ce(MAPS, LABELS)),
    ],
)
def test_a_method_chooses_the_loss_of_segmentation(name: str, expected: float) -> None:
    chosen = supervised_loss("segmentation", name)
    assert chosen.name == name
    assert chosen.loss(MAPS, LABELS).item() == pytest.approx(expected)
    for task in SUPERVISED.keys() - {"segmentation"}:
        assert supervised_loss(task, name) == SUPERVISED[task]


@pytest.mark.parametrize("task", SUPERVISED)
def test_a_scene_has_the_loss_of_its_task_and_its_parameters(task: str) -> None:
    for chosen in SEGMENTATION_LOSSES:
        context = StageContext("alpha", task, {"segmentation_loss": chosen}, {}, {})
        assert stage_loss(context) == supervised_loss(task, chosen)


def test_only_known_losses_of_segmentation_can_be_chosen() -> None:
    assert SEGMENTATION_LOSSES.keys() == {"dice_ce", "dice", "ce"}
    with pytest.raises(KeyError, match="focal"):
        supervised_loss("segmentation", "focal")


@pytest.mark.parametrize("weights", [(), (0.5, 1.0, 4.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_and_label_smoothing_are_those_of_torch(weights: tuple[float, ...], smoothing: float) -> None:
    supervision, keys = Supervision(weights, smoothing), {"label_smoothing": smoothing}
    for task, name in (
        ("classification", "ce"),
        ("time_series", "ce"),
        ("segmentation", "ce"),
        ("segmentation", "dice_ce"),
    ):
        prediction, targets = SAMPLES[task]
        context = StageContext("alpha", task, {"segmentation_loss": name}, {}, {}, supervision=supervision)
        expected = F.cross_entropy(prediction, targets, weight=torch.tensor(weights) if weights else None, **keys)
        if name == "dice_ce":
            expected = expected + SEGMENTATION_LOSSES["dice"](prediction, targets)
        assert torch.equal(stage_loss(context).loss(prediction, targets), expected)
        assert stage_loss(context).name == name


def test_a_class_weighs_by_the_samples_of_its_label() -> None:
    weighted = supervised_loss("classification", supervision=Supervision((1.0, 3.0, 2.0))).loss(LOGITS, CLASSES)
    each = torch.tensor([ce(LOGITS[k : k + 1], CLASSES[k : k + 1]) for k in range(4)])
    weights = torch.tensor([1.0, 2.0, 3.0, 3.0])
    assert weighted.item() == pytest.approx(((each * weights).sum() / weights.sum()).item())


def test_labels_take_weights_and_smoothing_as_two_classes_of_cross_entropy_do() -> None:
    logits, answers = torch.tensor([[0.5, -1.0], [2.0, 0.3]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    supervised = supervised_loss("labels", supervision=Supervision((3.0, 0.5), 0.2)).loss(logits, answers)
    each = [
        F.cross_entropy(
            torch.stack([torch.zeros(2), logits[:, label]], 1), answers[:, label].long(), reduction="none",
            weight=torch.tensor([1.0, weight]), label_smoothing=0.2,
        )
        for label, weight in enumerate((3.0, 0.5))
    ]  # fmt: skip
    assert supervised.item() == pytest.approx(torch.stack(each).mean().item())


def test_balanced_labels_weigh_their_positives_as_much_as_their_negatives() -> None:
    assert label_weights("balanced", [(90, 10), (2, 8), (5, 0), (0, 5)]) == (9.0, 0.25, 1.0, 1.0)
    assert label_weights((2.0,), [(1, 1)]) == (2.0,)
    assert label_weights(None, [(1, 1)]) == ()


def test_a_loss_without_cross_entropy_takes_neither() -> None:
    for task, name in (("super_resolution", "l1"), ("segmentation", "dice")):
        with pytest.raises(ValueError, match=f"{name} has no cross-entropy, which class weights"):
            supervised_loss(task, name, Supervision(label_smoothing=0.1))


def test_balanced_weights_are_inverse_frequencies_with_a_mean_of_one() -> None:
    weights = class_weights("balanced", {0: 60, 1: 30, 3: 20}, 4)
    assert weights == pytest.approx((0.5, 1.0, 1.0, 1.5)), "class 2 does not occur, and weighs the mean"
    assert class_weights([1.0, 3.0], {0: 5, 1: 5}, 2) == (1.0, 3.0)
    assert class_weights(None, {0: 5, 1: 5}, 2) == ()
