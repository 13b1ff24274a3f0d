"""The program can read the example files, and they show every key that it reads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from peer.config.schema import FederationConfig, SiteConfig, check_site

EXAMPLES = Path("deploy", "examples")
SHOWN = re.compile(r"^#(?=[\w\[])", re.MULTILINE)
"""The mark before a key that is shown with its default value."""


def known_keys(annotation: Any) -> Iterator[str]:
    """The keys of every table in an annotation, and of the tables within."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name
            yield from known_keys(field.annotation)
    for part in get_args(annotation):
        yield from known_keys(part)


def written_keys(value: Any) -> Iterator[str]:
    """Every key of a parsed document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from written_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from written_keys(inner)


def test_the_examples_parse_and_fit_each_other(root: Path) -> None:
    federation = FederationConfig.load(root / EXAMPLES / "federation.toml")
    site = SiteConfig.load(root / EXAMPLES / "site.toml")
    check_site(federation, site, next(iter(federation.roster)))


@pytest.mark.parametrize(("name", "table"), [("federation.toml", FederationConfig), ("site.toml", SiteConfig)])
def test_the_examples_show_every_key(root: Path, name: str, table: type[BaseModel]) -> None:
    text = (root / EXAMPLES / name).read_text()
    shown = set(written_keys(tomllib.loads(SHOWN.sub("", text))))
    assert set(known_keys(table)) - shown == set()
