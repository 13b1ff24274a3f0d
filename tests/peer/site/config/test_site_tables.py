"""Rules that join keys and tables of site.toml."""

import re
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


ENCODER = 'weights = "w.pt"\nweights_sha256 = "' + "AB" * 32 + '"\n'
WITHOUT = "[data]\ninput_size = [8]\n[model]\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('weights = "w.pt"\n', "weights_sha256: weights needs it; `sha256sum FILE` prints it"),
        ('weights_sha256 = "' + "ab" * 32 + '"\n', "weights_sha256: there are no weights"),
        ('freeze = ["layer1"]\n', "freeze: needs weights: layers that do not learn would stay random"),
        ('[model.adapters]\nlayers = ["layer1"]\n', "adapters: needs weights"),
        (
            ENCODER + 'freeze = ["fc"]\n[model.adapters]\nlayers = ["layer1"]\n',
            "freeze: adapters freeze all but the head; leave it out",
        ),
        (ENCODER + "[model.adapters]\nlayers = []\n", "adapters.layers"),
        (ENCODER + '[model.adapters]\nlayers = ["layer1"]\nrank = 0\n', "adapters.rank"),
    ],
)
def test_weights_and_what_learns_fit_together(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "site.toml").write_text(WITHOUT + lines)
    with pytest.raises(ConfigError, match=re.escape(message)):
        SiteConfig.load(tmp_path / "site.toml")


def test_weights_with_adapters_and_the_weights_of_others(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    bases = "[base_weights]\n" + "cd" * 32 + ' = "others/encoder.safetensors"\n'
    path.write_text(bases + WITHOUT + ENCODER + '[model.adapters]\nlayers = ["layer1"]\n')
    site = SiteConfig.load(path)
    assert site.model.weights_sha256 == "ab" * 32
    assert site.model.adapters is not None
    assert (site.model.adapters.rank, site.model.adapters.alpha) == (8, 16.0)
    assert site.base_weights == {"cd" * 32: "others/encoder.safetensors"}
