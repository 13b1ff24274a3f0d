"""What the demonstration leaves in the sites' folders."""

from pathlib import Path

import pytest

from fakes.demonstration import SITES, demonstration
from peer.lab.demo.run import write_references
from peer.site.config.schema import SiteConfig


@pytest.mark.parametrize(("pooled", "written"), [(0.8, True), (0.5, False), (None, False)])
def test_the_sites_know_their_room_where_it_was_measured(pooled: float | None, written: bool, tmp_path: Path) -> None:
    for name in SITES:
        folder = tmp_path / "sites" / "trial" / name
        folder.mkdir(parents=True)
        (folder / "site.toml").write_text("[data]\ninput_size = [8]\n")
    write_references(tmp_path, "auc", demonstration(pooled=pooled)["methods"])
    sites = [SiteConfig.load(tmp_path / "sites" / "trial" / name / "site.toml") for name in SITES]
    values = [(site.reference.alone, site.reference.pooled) for site in sites if site.reference is not None]
    assert values == ([pytest.approx((0.6, 0.8)), pytest.approx((0.7, 0.9))] if written else [])
