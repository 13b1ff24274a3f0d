"""Rules that join tables of site.toml."""

from pathlib import Path

import pytest

from peer.errors import ConfigError
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"


def test_a_bound_of_the_leak_needs_a_measurement(tmp_path: Path) -> None:
    federation = FederationConfig.load(EXAMPLES / "federation.toml")
    text = (EXAMPLES / "site.toml").read_text()
    bounded = text.replace("#leak_auc_max", "leak_auc_max")
    check_site(federation, SiteConfig.parse(bounded, tmp_path / "site.toml"), "europe")
    off = bounded.replace('#leak = "last"', 'leak = "off"')
    with pytest.raises(ConfigError, match=r"egress.leak_auc_max: \[privacy\] leak is off"):
        check_site(federation, SiteConfig.parse(off, tmp_path / "site.toml"), "europe")
