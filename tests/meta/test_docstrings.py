"""Losses and networks say where they come from, what they take and give, and show it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import losses
import models
from models.network import Network

SECTION = re.compile(r"^([A-Z][A-Za-z ]*):(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): ", re.MULTILINE)

LOSSES: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(losses).items() if name in losses.__all__ and inspect.isfunction(value)
}
FACTORIES: dict[str, Callable[..., Any]] = {"build": models.build, "create_model": models.create_model}
NETWORKS = {
    kind.__name__: kind
    for kind in [*(getattr(entry, "func", entry) for entry in models.MODELS.values()), models.Tapped]
    if inspect.isclass(kind)
}


def sections(documented: Any) -> dict[str, str]:
    """The sections of a docstring by heading, with their text."""
    return {heading: text.rstrip() for heading, text in SECTION.findall(inspect.getdoc(documented) or "")}


def arguments_differ(function: Callable[..., Any], text: str) -> set[str]:
    """The names that either the signature or the section has, but not both."""
    return set(inspect.signature(function).parameters) ^ set(ENTRY.findall(text))


def lacking(found: dict[str, str], *wanted: str) -> list[str]:
    """The wanted sections that are missing or empty, or an example that runs nothing."""
    silent = [heading for heading in wanted if not found.get(heading, "").strip()]
    return silent + (["Example with >>>"] if ">>>" not in found.get("Example", "") else [])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_tells_everything(name: str) -> None:
    found = sections(LOSSES[name])
    assert not lacking(found, "Source", "Differs", "Args", "Returns", "Raises", "Example")
    assert not arguments_differ(LOSSES[name], found["Args"])


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_tells_what_it_takes_and_gives(name: str) -> None:
    found = sections(FACTORIES[name])
    assert not lacking(found, "Args", "Returns", "Raises", "Example")
    assert not arguments_differ(FACTORIES[name], found["Args"])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_tells_everything(name: str) -> None:
    assert not lacking(sections(NETWORKS[name]), "Source", "Differs", "Shapes", "Gradient flow", "Raises", "Example")


def test_every_network_is_covered() -> None:
    made = {type(models.create_model(name, spatial_dims=1, in_channels=1, classes=2)) for name in models.MODELS}
    assert made <= set(NETWORKS.values()), "MODELS has an entry whose class this file does not see"
    assert all(issubclass(kind, Network) for kind in NETWORKS.values())
