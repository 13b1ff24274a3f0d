"""A founder's CA folder, the homes of sites, and federations whose amendments a founder signs; no daemon runs."""

from pathlib import Path

import pytest

from fakes.cli import ROOT, run
from fakes.governed import GovernedFederation
from peer.lab.demo.local_federation import LocalFederation


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """The CA folder of the federation of deploy/examples."""
    example = ROOT / "deploy" / "examples" / "federation.toml"
    assert run("federation", "create", example, "--out", tmp_path / "ca").exit_code == 0
    return tmp_path / "ca"


@pytest.fixture
def at_home(enrolled: LocalFederation, monkeypatch: pytest.MonkeyPatch) -> LocalFederation:
    """The enrolled sites live in the home that a command takes where none is named."""
    monkeypatch.setenv("MHFL_HOME", str(enrolled.home))
    return enrolled


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> GovernedFederation:
    return GovernedFederation.create(tmp_path_factory.mktemp("template"), "asia", "europe")


@pytest.fixture
def founded(template: GovernedFederation, tmp_path: Path) -> GovernedFederation:
    """Asia and Europe, whose amendments the founder signs."""
    return template.copy(tmp_path)
