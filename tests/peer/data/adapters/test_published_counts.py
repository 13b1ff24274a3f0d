"""What all published sets have in common."""

import importlib

import pytest

from peer.data.adapters import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_numbers_add_up(name: str) -> None:
    counts = importlib.import_module(PUBLISHED[name]).PUBLICATION.counts
    total = next((count.expected for count in counts if count.name == "samples"), None)
    summed = 0
    for keys in (("label",), ("label", "site"), ("published_split",), ("magnification",), ("site",), ("side", "site")):
        numbers = [count.expected for count in counts if sorted(count.where) == sorted(keys)]
        if numbers and total is not None:
            assert sum(numbers) == total, keys
            summed += 1
    assert summed or total is None
