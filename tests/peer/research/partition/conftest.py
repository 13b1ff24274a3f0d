"""Pools of entries."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Pool = list[dict[str, Any]]


def pool_of(sizes: Sequence[int], *, images: int = 1) -> Pool:
    """``sizes[c]`` subjects of class c, each with so many images."""
    return [
        {"image": f"images/{label}-{subject}-{image}.png", "label": label, "subject": f"{label}-{subject}"}
        for label, size in enumerate(sizes)
        for subject in range(size)
        for image in range(images)
    ]


@pytest.fixture
def make_pool() -> Callable[..., Pool]:
    """Makes entries: subjects of each class, with so many images each."""
    return pool_of


@pytest.fixture
def derm7pt() -> Pool:
    """As many lesions of each class as FedSkin is made of: BCC, NEV, MEL, MISC, SK."""
    return pool_of((42, 575, 252, 97, 45))
