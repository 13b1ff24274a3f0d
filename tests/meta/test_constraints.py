"""constraints.txt pins one version of every package that pyproject.toml brings."""

import importlib.metadata
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def resolve(requirements: Iterable[str]) -> set[str]:
    """The installed ones of these requirements and of their own requirements."""
    names: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not applies or name in names or not any(importlib.metadata.distributions(name=requirement.name)):
            continue
        names.add(name)
        required = importlib.metadata.requires(requirement.name) or []
        waiting += [(Requirement(text), extra) for text in required for extra in ("", *requirement.extras)]
    return names


def test_everything_that_is_installed_is_pinned(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(str(pin.specifier).startswith("==") and "+" not in str(pin.specifier) for pin in pins)
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    unpinned = resolve(requirements) - {canonicalize_name(pin.name) for pin in pins}
    assert not unpinned, f"constraints.txt does not pin {sorted(unpinned)}"
