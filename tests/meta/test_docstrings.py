"""Losses and networks state their source, arguments and results, and show a running example."""

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
    """Heading of a docstring's section -> its text."""
    return {heading: text.rstrip() for heading, text in SECTION.findall(inspect.getdoc(documented) or "")}


def arguments_differ(function: Callable[..., Any], text: str) -> set[str]:
    """The names that only the signature or only the section has."""
    return set(inspect.signature(function).parameters) ^ set(ENTRY.findall(text))


def missing_sections(documented: dict[str, str], *required: str) -> list[str]:
    """The required sections that are missing or empty, and an example that runs nothing."""
    missing = [heading for heading in required if not documented.get(heading, "").strip()]
    return missing + (["Example with >>>"] if ">>>" not in documented.get("Example", "") else [])


@pytest.mark.parametrize("name", [*LOSSES, *FACTORIES])
def test_a_loss_and_a_factory_tell_everything(name: str) -> None:
    function = LOSSES.get(name) or FACTORIES[name]
    documented = sections(function)
    origin = ("Source", "Differs") if name in LOSSES else ()
    assert not missing_sections(documented, *origin, "Args", "Returns", "Raises", "Example")
    assert not arguments_differ(function, documented["Args"])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_tells_everything(name: str) -> None:
    assert not missing_sections(
        sections(NETWORKS[name]), "Source", "Differs", "Shapes", "Gradient flow", "Raises", "Example"
    )


def test_every_network_is_covered() -> None:
    kinds = {type(models.create_model(name, spatial_dims=1, in_channels=1, classes=2)) for name in models.MODELS}
    assert kinds <= set(NETWORKS.values()), "MODELS has an entry whose class this file does not see"
    assert all(issubclass(kind, Network) for kind in NETWORKS.values())
