"""The comparison, on the site's readable images, shows every difference that matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.train.errors import UnusableConfigurationError
from peer.train.inference.export.equivalence import DRAWN, READ, Samples, choose_samples, compare

IMAGES = Samples(tuple(torch.full((1, 4), float(value)) for value in range(3)), (), READ)


def probabilities(images: Tensor) -> Tensor:
    return torch.cat([images[:, :, 0], 1 - images[:, :, 0]], dim=1) / 4


def test_what_is_equal_is_recorded() -> None:
    shapes: list[tuple[int, ...]] = []

    def run(images: Tensor) -> Tensor:
        shapes.append(tuple(images.shape))
        return probabilities(images) + 3e-5

    record = compare("one beside another", run, probabilities, IMAGES)
    assert record == {
        "what": "one beside another", "difference": pytest.approx(3e-5, rel=1e-2), "tolerance": 1e-4, "samples": 3,
        "source": READ,
    }  # fmt: skip
    assert shapes == [(1, 1, 4)] * 3 + [(2, 1, 4)]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            lambda images: probabilities(images) + 2e-4,
            "difference is 0.0002, over the tolerance of 0.0001; nothing was",
        ),
        (lambda images: probabilities(images) * float("nan"), "difference is nan, over the tolerance"),
        (lambda images: probabilities(images)[:, :1], r"gives \(1, 1\), not \(1, 2\)"),
        (lambda images: probabilities(images[:1].expand_as(images)), "difference is"),
    ],
    ids=["off", "nan", "shape", "batch"],
)
def test_what_differs_is_an_error(wrong: Callable[[Tensor], Tensor], reason: str) -> None:
    drawn = Samples((torch.arange(4.0).reshape(1, 4),), (), READ)
    with pytest.raises(UnusableConfigurationError, match=f"it beside that: .*{reason}"):
        compare("it beside that", wrong, probabilities, drawn)


def test_a_difference_of_large_values_is_relative() -> None:
    large = Samples((torch.full((1, 2), 1e3),), (), READ)
    assert compare("x", lambda images: images + 1e-2, lambda images: images, large)


def test_the_images_are_the_first_that_can_be_read_as_a_prediction_prepares_them(make_hospital) -> None:
    hospital = make_hospital("time_series")
    (hospital.data / "test0.npz").write_bytes(b"broken")
    settings = hospital.trainer().settings
    samples = choose_samples(settings)
    assert [files[0].name for files in samples.files] == [f"test{index}.npz" for index in (1, 2, 3, 4)]
    assert samples.source == READ
    assert abs(float(samples.images[0].mean())) < 1e-5  # zscore
    for path in hospital.data.glob("test*"):
        path.unlink()
    drawn = choose_samples(settings)
    assert (drawn.source, drawn.files) == (DRAWN, ())
    assert [tuple(image.shape) for image in drawn.images] == [(2, 24)] * 4
    assert torch.equal(drawn.images[0], choose_samples(settings).images[0])


def test_images_of_any_size_are_cut(make_hospital: Callable[[str], Any]) -> None:
    samples = choose_samples(make_hospital("super_resolution").trainer().settings)
    assert [tuple(image.shape) for image in samples.images] == [(3, 6, 6)] * 2
