"""Commands cannot be changed."""

from __future__ import annotations

import dataclasses

import pytest

from peer.core import commands

COMMANDS = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, commands.Command)]


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_is_frozen(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
