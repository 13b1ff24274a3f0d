"""The data sets of this program and of installed packages, and the published counts of all sets."""

import importlib
from collections.abc import Callable

import pytest

from peer.errors import DataError
from peer.lab.datasets import DATASETS, ENTRY_POINTS, PUBLISHED, dataset_module, digits, installed_datasets

Install = Callable[..., None]


def test_an_installed_package_adds_data_sets_and_replaces_none(distribution: Install) -> None:
    assert installed_datasets() == []
    distribution("some-data", "1.0", ENTRY_POINTS, figures="peer.lab.datasets.digits", lidc="peer.lab.datasets.digits")
    assert installed_datasets() == ["figures"]
    assert dataset_module("figures") is digits
    assert dataset_module("lidc").__name__ == DATASETS["lidc"]


def test_a_data_set_that_no_package_or_more_than_one_has_is_refused(distribution: Install) -> None:
    with pytest.raises(DataError, match="'figures' comes with no package that is installed"):
        dataset_module("figures")
    distribution("some-data", "1.0", ENTRY_POINTS, figures="peer.lab.datasets.digits")
    distribution("other-data", "2.0", ENTRY_POINTS, figures="peer.lab.datasets.digits")
    with pytest.raises(DataError, match=r"'figures' comes with other-data==2.0 and some-data==1.0"):
        dataset_module("figures")


@pytest.mark.parametrize("value", ["peer.lab.datasets.digits:prepare", "peer.train.data.prepared_folder"])
def test_a_data_set_that_names_no_module_with_prepare_is_refused(distribution: Install, value: str) -> None:
    distribution("some-data", "1.0", ENTRY_POINTS, figures=value)
    with pytest.raises(DataError, match=r"'figures' of some-data==1.0 names no module with prepare\(\)"):
        dataset_module("figures")


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
