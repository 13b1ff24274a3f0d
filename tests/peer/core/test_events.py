"""Events cannot be changed."""

from __future__ import annotations

import dataclasses
import re

import pytest

from peer.core import events

EVENTS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_is_frozen_and_named_in_the_past_tense(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    assert kind is events.Event or re.search(r"(ed|Heard|Began|Drawn|Shown|Unavailable)$", kind.__name__)
