"""Slices and scores of dense tasks."""

import numpy as np
import pytest

from peer.lab.report.panels import score, slice_image


def test_a_picture_is_shown_as_it_is() -> None:
    labels = np.arange(12).reshape(3, 4)
    assert np.array_equal(slice_image(labels, labels, kind="segmentation"), labels)
    assert np.array_equal(slice_image(labels[None], labels[None], kind="segmentation"), labels)
    assert np.array_equal(slice_image(labels[None], labels, kind="segmentation"), labels)


def test_colours_come_last() -> None:
    image = np.random.default_rng(0).random((3, 4, 5))
    assert slice_image(image, image, kind="super_resolution").shape == (4, 5, 3)
    assert slice_image(image[:1], image[:1], kind="super_resolution").shape == (4, 5)


def test_of_a_volume_the_slice_with_most_foreground() -> None:
    truth = np.zeros((4, 4, 6), dtype=np.int64)
    truth[1:3, 1:3, 4] = 1
    image = np.broadcast_to(np.arange(6.0), (4, 4, 6))[None]
    assert set(slice_image(image, truth, kind="segmentation").ravel()) == {4.0}
    assert slice_image(truth, truth, kind="segmentation").sum() == 4


def test_a_sample_is_scored_as_its_task_is() -> None:
    truth = np.array([[0, 1], [1, 2]])
    assert score(truth, truth, kind="segmentation") == "1.00"
    assert score(np.array([[0, 1], [0, 0]]), truth, kind="segmentation") == "0.33", "2/3 and 0"
    assert score(np.zeros((2, 2), dtype=int), np.zeros((2, 2), dtype=int), kind="segmentation") == "–"
    image = np.full((1, 2, 2), 0.5)
    assert score(image, image, kind="super_resolution") == "exact"
    assert score(image + 0.1, image, kind="super_resolution") == "20.0 dB"
    assert score(truth[None], truth, kind="segmentation") == pytest.approx("1.00")
