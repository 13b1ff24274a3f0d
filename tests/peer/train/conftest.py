"""A small hospital for the tests of training."""

import gc

import pytest

from fakes.hospital import facts, make_setting, signals

__all__ = ["facts", "make_setting", "signals"]


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """As in a worker, collections look at the tests' objects and not at every import's."""
    gc.freeze()
