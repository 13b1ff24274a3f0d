"""Data sets of installed packages are found beside those that are shipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.data.adapters import DATASETS, ENTRY_POINTS, dataset_module, digits, installed_datasets
from peer.errors import DataError

Install = Callable[..., None]


def test_an_installed_package_adds_data_sets_and_replaces_none(distribution: Install) -> None:
    assert installed_datasets() == []
    distribution(
        "some-data", "1.0", ENTRY_POINTS, figures="peer.data.adapters.digits", lidc="peer.data.adapters.digits"
    )
    assert installed_datasets() == ["figures"]
    assert dataset_module("figures") is digits
    assert dataset_module("lidc").__name__ == DATASETS["lidc"]


def test_a_data_set_that_no_package_or_more_than_one_has_is_refused(distribution: Install) -> None:
    with pytest.raises(DataError, match="'figures' comes with no package that is installed"):
        dataset_module("figures")
    distribution("some-data", "1.0", ENTRY_POINTS, figures="peer.data.adapters.digits")
    distribution("other-data", "2.0", ENTRY_POINTS, figures="peer.data.adapters.digits")
    with pytest.raises(DataError, match=r"'figures' comes with other-data==2.0 and some-data==1.0"):
        dataset_module("figures")


@pytest.mark.parametrize("value", ["peer.data.adapters.digits:prepare", "peer.data.adapters.prepared_folder"])
def test_a_data_set_that_names_no_module_with_prepare_is_refused(distribution: Install, value: str) -> None:
    distribution("some-data", "1.0", ENTRY_POINTS, figures=value)
    with pytest.raises(DataError, match=r"'figures' of some-data==1.0 names no module with prepare\(\)"):
        dataset_module("figures")
