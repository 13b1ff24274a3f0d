"""constraints.txt pins one version of every package that pyproject.toml brings, none with a known advisory."""

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


def read_requirements(path: Path) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def test_everything_that_is_installed_is_pinned(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pins = read_requirements(root / "constraints.txt")
    assert all(str(pin.specifier).startswith("==") and "+" not in str(pin.specifier) for pin in pins)
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    unpinned = resolve(requirements) - {canonicalize_name(pin.name) for pin in pins}
    assert not unpinned, f"constraints.txt does not pin {sorted(unpinned)}"


def test_no_permitted_version_has_a_known_advisory(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    required = {requirement.name: requirement.specifier for requirement in map(Requirement, texts)}
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in read_requirements(root / "constraints.txt")}
    for advisory in read_requirements(root / "requirements/advisories.txt"):
        (floor,) = required[advisory.name]
        (pin,) = pinned[canonicalize_name(advisory.name)]
        assert floor.operator == ">="
        assert advisory.specifier.contains(floor.version), advisory
        assert advisory.specifier.contains(pin.version), advisory
