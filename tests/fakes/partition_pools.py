"""Pools of entries."""

from collections.abc import Sequence
from typing import Any


def pool_of(sizes: Sequence[int], *, images: int = 1) -> list[dict[str, Any]]:
    """``sizes[c]`` subjects of class c, each with so many images."""
    return [
        {"image": f"images/{label}-{subject}-{image}.png", "label": label, "subject": f"{label}-{subject}"}
        for label, size in enumerate(sizes)
        for subject in range(size)
        for image in range(images)
    ]


DERM7PT = pool_of((42, 575, 252, 97, 45))
"""As many lesions of each class as FedSkin is made of: BCC, NEV, MEL, MISC, SK."""
