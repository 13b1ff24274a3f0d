"""The template of site.toml is the example, and fits every number of dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.cli.template import site_toml
from peer.config import Site

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "site.toml"


def test_template_is_the_example() -> None:
    assert site_toml(3) == EXAMPLE.read_text()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_template_fits_the_task(dims: int, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(site_toml(dims))
    assert len(Site.load(tmp_path / "site.toml").data.input_size) == dims
