"""A start refuses a folder that another user can change, and says which command mends it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from peer.audit.folder_permissions import check_permissions
from peer.errors import StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    """A site with a generation and everything that a daemon makes."""
    folder = enrolled.folder("asia")
    home = folder.generation(folder.create_generation())
    (home / "stray").mkdir()
    (home / "sums").mkdir(mode=0o700)
    for path in (home / "journal.db", folder.egress_db):
        path.touch(0o600)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "pki",
        "site.toml",
        "federation.toml",
        "egress.db",
        "gen-0001",
        "gen-0001/journal.db",
        "gen-0001/artifacts",
        "gen-0001/checkpoints",
        "gen-0001/stray",
        "gen-0001/sums",
    ],
)
def test_what_others_can_write_is_refused_until_the_command_in_the_message_was_run(
    folder: SiteFolder, name: str
) -> None:
    check_permissions(folder)
    path = folder.path / name
    mode = path.stat().st_mode
    for bit in (0o020, 0o002):
        path.chmod(mode | bit)
        with pytest.raises(StateError, match=rf"other users can write {path} \(mode 0...\)") as refused:
            check_permissions(folder)
        subprocess.run(shlex.split(refused.value.remedy.removeprefix("run `").removesuffix("`")), check=True)
        check_permissions(folder)


@pytest.mark.parametrize("name", ["pki", "gen-0001/sums"])
def test_others_must_not_even_enter_a_folder_of_keys(folder: SiteFolder, name: str) -> None:
    (folder.path / name).chmod(0o750)
    with pytest.raises(StateError, match=rf"other users can enter .*{name} \(mode 0750\); run `chmod -R go-rwx"):
        check_permissions(folder)


@pytest.mark.parametrize(
    "name",
    [
        "pki",
        "egress.db",
        "gen-0001",
        "gen-0001/journal.db",
        "gen-0001/artifacts",
        "gen-0001/checkpoints",
        "gen-0001/sums",
    ],
)
def test_state_behind_a_link_is_refused(folder: SiteFolder, tmp_path: Path, name: str) -> None:
    path, elsewhere = folder.path / name, tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(StateError, match=rf"{path} is a link to {elsewhere}: the daemon would write and delete"):
        check_permissions(folder)


def test_the_whole_folder_may_be_behind_a_link_and_so_may_a_configuration_of_root(
    folder: SiteFolder, tmp_path: Path
) -> None:
    folder.path.rename(tmp_path / "elsewhere")
    folder.path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "site.toml").write_text(folder.site_toml.read_text())
    (tmp_path / "site.toml").chmod(0o644)
    folder.site_toml.unlink()
    folder.site_toml.symlink_to(tmp_path / "site.toml")
    check_permissions(folder)
    (tmp_path / "site.toml").chmod(0o666)
    with pytest.raises(StateError, match=r"other users can write .*site\.toml"):
        check_permissions(folder)


def test_another_user_s_folder_is_named_with_both_users(folder: SiteFolder) -> None:
    own = os.geteuid()
    with pytest.raises(StateError, match=rf"belongs to user .*, and this is user {own + 12345}; run the command as"):
        check_permissions(folder, uid=own + 12345)


def test_modes_of_a_volume_of_kubernetes_are_no_fault(folder: SiteFolder) -> None:
    """The volume's root has its group's bits; what the pod makes in it inherits the group alone."""
    folder.home.chmod(0o2775)
    for path in (folder.path.parent, folder.path, folder.pki, folder.generation(1)):
        path.chmod(0o2700)
    check_permissions(folder)


def test_a_site_that_is_not_there_is_no_fault_here(tmp_path: Path) -> None:
    check_permissions(SiteFolder(tmp_path, "trial", "asia"))  # type: ignore[arg-type]
