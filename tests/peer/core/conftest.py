"""The fixtures of the state machine's tests: one site, and a federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fakes.core_site import Solo, make_artifact, make_rules
from fakes.core_world import SITES, Simulation
from peer.core.artifacts import Artifact
from peer.core.phases import Phase
from peer.core.rules import Rules
from peer.core.site_memory import Row


@pytest.fixture
def simulation() -> type[Simulation]:
    """The class: a test builds its own federation."""
    return Simulation


@pytest.fixture
def solo() -> Callable[..., Solo]:
    """Makes a site to drive by hand: ``solo(site, sites, rows=..., **rules)``."""

    def make(site: str = "europe", sites: Sequence[str] = SITES[:4], *, rows: Sequence[Row] = (), **rules: Any) -> Solo:
        return Solo(make_rules(site, sites, **rules), rows)

    return make


@pytest.fixture
def rules() -> Callable[..., Rules]:
    """Makes rules: ``rules(site, sites, **changes)``."""
    return make_rules


@pytest.fixture
def artifact() -> Callable[..., Artifact]:
    """Makes an artifact: ``artifact(owner, text, steps=..., kind=...)``."""
    return make_artifact


@pytest.fixture
def fetching(solo: Callable[..., Solo]) -> Solo:
    """Europe waits in round 1 for the artifacts of all other sites."""
    site = solo("europe", method="fedavg").begin()
    site.finish()
    assert site.site.phase == Phase.EXCHANGE
    return site
