"""The template of site.toml is the example, and fits every number of dimensions."""

from pathlib import Path

import pytest

from peer.cli.template import site_toml
from peer.config.schema import SiteConfig

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "site.toml"


def test_template_is_the_example() -> None:
    assert site_toml(3) == EXAMPLE.read_text()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_template_fits_the_task(dims: int, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(site_toml(dims))
    assert len(SiteConfig.load(tmp_path / "site.toml").data.input_size) == dims


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        (None, "127.0.0.1:7443"),
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("localhost:9000", "127.0.0.1:9000"),
        ("[::1]:9000", "[::1]:9000"),
        ("gpu.europe.example:7444", "0.0.0.0:7444"),
        ("[2001:db8::7]:7443", "[::]:7443"),
    ],
)
def test_the_site_listens_where_the_roster_says_that_it_is(address: str | None, listen: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(site_toml(2, address))
    assert SiteConfig.load(tmp_path / "site.toml").listen == listen
