"""Which changes of federation.toml and site.toml a generation refuses, and which it accepts."""

import contextlib
from pathlib import Path

import pytest

from fakes.sites import append_rows
from peer.core.roster import SiteName
from peer.errors import StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal
from peer.site.records.kept_configuration import find_change, keep_configuration, settings_to_keep


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    return enrolled.folder("asia")


def load(folder: SiteFolder) -> tuple[FederationConfig, SiteConfig]:
    return FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)


def configure(folder: SiteFolder, *, accept: bool = False) -> None:
    """Do with the configuration what a start does before the rounds go on."""
    keep_configuration(folder, 1, *load(folder), accept=accept)


def would_refuse(folder: SiteFolder) -> StateError | None:
    """The error that `check` shows; nothing is written."""
    return find_change(folder, *load(folder))


def kinds(folder: SiteFolder) -> list[str]:
    with contextlib.closing(Journal(folder.generation(1) / "journal.db", read_only=True)) as journal:
        return [kind for kind, _, _ in journal.rows()]


@pytest.fixture
def begun(folder: SiteFolder) -> SiteFolder:
    """A generation whose journal has its configuration."""
    folder.create_generation()
    configure(folder)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_site_that_never_ran_has_nothing_to_keep(folder: SiteFolder) -> None:
    assert would_refuse(folder) is None
    folder.create_generation()
    assert would_refuse(folder) is None


def test_the_same_configuration_goes_on_without_a_word(begun: SiteFolder) -> None:
    configure(begun)
    assert kinds(begun) == ["configured"]


def test_a_federation_toml_that_was_edited_is_refused_by_digest(begun: SiteFolder) -> None:
    before = load(begun)[0].digest
    edit(begun.federation_toml, "rounds = 3", "rounds = 4")
    after = load(begun)[0].digest
    for accept in (False, True):
        with pytest.raises(StateError, match=f"belongs to federation {before[:12]}, .* now {after[:12]}"):
            configure(begun, accept=accept)
    assert "--resume fresh" in str(would_refuse(begun))
    assert kinds(begun) == ["configured"]


def test_a_key_that_only_a_newer_program_knows_is_no_change_until_it_is_set(folder: SiteFolder) -> None:
    settings = settings_to_keep(*load(folder))
    del settings["training.batch_size"]
    append_rows(folder, ("configured", 0, settings))
    assert would_refuse(folder) is None
    configure(folder)
    edit(folder.site_toml, "[training]", "[training]\nbatch_size = 3")
    assert "training.batch_size was None" in str(would_refuse(folder))


def test_another_address_is_no_other_federation(begun: SiteFolder) -> None:
    federation = load(begun)[0]
    edit(begun.federation_toml, federation.addresses[SiteName("europe")], "10.0.0.7:7443")
    configure(begun)


def test_a_changed_key_is_named_with_both_values_and_can_be_accepted(begun: SiteFolder) -> None:
    edit(begun.site_toml, "[training]", "[training]\nbatch_size = 4")
    with pytest.raises(StateError, match=r"site\.toml: training\.batch_size was 8 .* and is 4 now.*--accept-change"):
        configure(begun)
    assert "training.batch_size" in str(would_refuse(begun))
    configure(begun, accept=True)
    configure(begun)
    assert would_refuse(begun) is None
    assert kinds(begun) == ["configured", "configured"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[training]", "[training]\ncheckpoint_s = 1.0"),
        ("[data]", '[data]\ncache = "none"'),
        ("[data]", "[data]\nunreadable_share_max = 0.5"),
        ("[data]", "[egress]\nevaluate = true\n[data]"),
    ],
)
def test_what_changes_no_bit_may_change(begun: SiteFolder, old: str, new: str) -> None:
    edit(begun.site_toml, old, new)
    configure(begun)
